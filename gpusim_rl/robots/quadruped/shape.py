"""The shape of quadrupeds with twelve joints, for `tasks/locomotion/quadruped.py`."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple

import mujoco
import numpy as np

from gpusim_rl.core.errors import warn_once
from gpusim_rl.robots import prepare
from gpusim_rl.robots.bodies import Array, Signs
from gpusim_rl.robots.quadruped.feet import find_foot
from gpusim_rl.robots.quadruped.symmetry import hinge_signs
from gpusim_rl.robots.quadruped.topology import LEGS, ROLES, check_forward, find_legs
from gpusim_rl.robots.robot_config import Robot
from gpusim_rl.robots.servos import Joints, gain_reasons
from gpusim_rl.robots.walker import Walker

# Of the servos and, with _torque, of their sensors.
NAMES = [f"{leg}_{role}" for leg in LEGS for role in ROLES]
CAMERA = [0.4, -1.6, 0.6], [0.97, 0.24, 0, -0.08, 0.31, 0.95]  # place [m], x and y
# Height of the hip above the foot in lengths of the leg, where no stance is given: cos(0.8 rad).
CROUCH = 0.7
# A robot stands within these.
UPRIGHT = 0.97  # least z of the base's z axis
HIGH = 0.45  # least height of the base, in lengths of a leg
STILL = 0.5  # m/s, rad/s; root mean square of the fastest coordinate


class Guess(NamedTuple):
    """How gains that nothing gives are guessed."""

    kp: float  # shares of weight times height
    armature: float  # shares of the leg's inertia


# Why: docs/decisions/robots.md
# In turn, until it stands: small robots tremble without armature, tall ones need stiff servos.
GUESSES = (Guess(1.0, 0.2), Guess(1.0, 1.0), Guess(2.0, 0.2), Guess(2.0, 1.0))
REASONS = {
    "kp": "weight times height",
    "armature": "a fifth of the inertia of a leg about its hip",
    "kd": "√(kp · (armature + inertia of a leg about its hip))",
    "torque": "weight times height",
}


class Quadruped(Walker):
    """Four legs of abduction, thigh and knee, FL, FR, RL, RR.

    It stands if it does so in simulation. So its gains and stance are tried in turn.
    """

    feet_sites, camera = LEGS, CAMERA
    stance_words = (
        ", in which it stands",
        "bent legs with the feet below the hips",
        "it did not stand",
    )

    def __init__(self, robot: Robot, spec: mujoco.MjSpec, original: mujoco.MjModel):
        super().__init__(robot, spec, original)
        m, base = self.original, self.base
        legs, names = find_legs(m, base, robot.joints, robot.feet)
        self.feet = [
            find_foot(m, name, joints[2], prepare.added_name(leg))
            for leg, name, joints in zip(LEGS, names, legs, strict=True)
        ]
        feet = [foot.name or foot.body for foot in self.feet]
        self.robot = replace(robot, base=base, joints=legs, feet=feet)
        expected = "a number, three (abduction, thigh, knee) or twelve"
        self.joints = Joints([name for leg in legs for name in leg], (1, 3, 12), expected)
        self.servos = dict(zip(NAMES, self.joints.names, strict=True))
        self.labels = dict(zip(LEGS, (foot.geom_name for foot in self.feet), strict=True))
        self.guess, self.from_file = GUESSES[0], True  # tried now; with the gains of the file
        if line := check_forward(m, base, legs):
            warn_once(f"warning: {robot.mjcf}: {line}")
        for foot in self.feet:
            if foot.geom >= 0:
                spec.geoms[foot.geom].name = foot.geom_name

    def measure(self, m: mujoco.MjModel) -> None:
        super().measure(m)
        self.knee_bodies = [m.body(foot.knee_body).id for foot in self.feet]
        self.set_angles(m.qpos0[self.qposadr])
        thigh, knee = self.d.xanchor[self.ids[1::3]], self.d.xanchor[self.ids[2::3]]
        upper, lower = knee - thigh, self.foot_positions() - knee
        self.lengths = np.linalg.norm(upper, axis=1) + np.linalg.norm(lower, axis=1)  # (4,) m
        self.size = float(self.lengths.mean())
        # (4, 3) m, of the feet in a crouch: below the thigh joints, or as far to the side as they
        # are with the abductions at rest
        self.target = thigh - [[0, 0, CROUCH]] * self.lengths[:, None]
        abduction = np.arange(12) % 3 == 0
        center = (self.low + self.high) / 2
        self.set_angles(np.where(abduction, np.clip(0, self.low, self.high), center))
        side = self.foot_positions()[:, 1]
        self.target[:, 1] = np.where(np.abs(side) > np.abs(thigh[:, 1]), side, thigh[:, 1])

    def add_feet(self, spec: mujoco.MjSpec) -> list[str]:
        """Add the spheres of feet that have none, and a site to each foot, in place."""
        for leg, foot in zip(LEGS, self.feet, strict=True):
            body, geom = spec.body(foot.knee_body), spec.geom(foot.geom_name)
            if geom is None:
                geom = prepare.add_sphere(body, foot.geom_name, foot.radius, foot.pos)
            prepare.grip(geom)
            body.add_site(name=prepare.added_name(leg), pos=foot.pos, group=prepare.HIDDEN)
        return [foot.geom_name for foot in self.feet]

    def stances(self) -> Iterator[Array]:
        """The stance of the description, or those of keyframes and a crouch, for each guess.

        Sets the guess for `gains`, in place.
        """
        stances = self.joints.stances(self.robot, self.original)
        stances += [] if self.robot.stance is not None else [self.crouch()]
        # Gains of the file come before guesses: its maker has tuned them to this robot.
        for self.guess, self.from_file, stance in product(GUESSES, (True, False), stances):
            self.inertia = self.leg_inertia(stance)  # kg m²
            # weight times height of the base [N m]
            self.torque_scale = self.weight() * max(self.set_angles(stance), 0.5 * self.size)
            yield np.round(stance, 4) + 0.0  # no -0

    def gains(self, filled: Callable[..., Array]) -> None:
        """Fill in gains and limits by the guess that is tried."""
        armature = filled("armature", self.guess.armature * self.inertia)
        kp = filled("kp", self.guess.kp * self.torque_scale, self.from_file)
        filled("kd", np.sqrt(kp * (self.inertia + armature)), self.from_file)
        filled("torque", self.torque_scale)

    def check(self, m: mujoco.MjModel) -> tuple[float, str]:
        """(the height of the base [m] after two seconds, why it does not stand or "")."""
        height, fault = stand(m, HIGH * self.size)
        stance = self.robot.stance
        where = "" if stance is None else f" in robot.stance={stance}"
        return round(height, 4), fault and f"the robot does not stand{where}: {fault}"

    def mirror(self, robot: Robot, mjm: mujoco.MjModel, signs: Signs) -> list[float] | None:
        """(12,) signs of the joints in a mirrored pose. None if the robot is not symmetric."""
        try:
            return list(hinge_signs(mjm, str(robot.base), (*self.labels.values(),), signs))
        except ValueError:
            if signs:
                raise
            return None

    def arguments(self, robot: Robot) -> dict[str, Any]:
        """The task's arguments that follow from the robot, beside its model."""
        others = dict(foot_geoms=(*self.labels.values(),), signs=tuple(robot.mirror or ()))
        return super().arguments(robot) | others

    def reasons(self, robot: Robot, named: bool) -> dict[str, str]:
        """Key → where its value comes from; `named` tells that the description has the feet."""
        guesses, failures = dict(REASONS), {}
        if self.guess.kp != GUESSES[0].kp:
            guesses["kp"], failures["kp"] = f"twice {REASONS['kp']}", "less"
        if self.guess.armature != GUESSES[0].armature:
            guesses["armature"] = "the inertia of a leg about its hip"
            failures["armature"] = "a fifth of it"
        hinges = "the hinges above each foot" if named else "four chains of three hinges"
        old = all(foot.geom >= 0 for foot in self.feet)
        return {
            **gain_reasons(self.original, self.joints.names, robot, guesses, failures),
            "joints": f"{hinges}, front and left by their positions",
            "feet": f"{'the' if old else 'new'} spheres at the ends of the legs",
            "height": "measured while it stands",
            "mirror": "from the axes of the joints"
            if robot.mirror
            else "the robot is not symmetric",
        }

    # -- kinematics --------------------------------------------------------------------------------

    def height(self) -> float:
        """Height of the base above the lowest foot [m]."""
        heights = self.foot_positions()[:, 2]
        return float(max(foot.radius - z for foot, z in zip(self.feet, heights, strict=True)))

    def foot_positions(self) -> Array:
        """(4, 3) centers of the feet [m]."""
        frames = self.d.xmat[self.knee_bodies].reshape(4, 3, 3)
        local = [foot.pos for foot in self.feet]
        return self.d.xpos[self.knee_bodies] + np.einsum("fij,fj->fi", frames, local)

    def jacobian(self) -> Array:
        """(4, 3, 3) of each foot's position by the joints of its leg [m/rad]."""
        jacobians, full = [], np.zeros((3, self.m.nv))
        for i, (foot, body) in enumerate(zip(self.foot_positions(), self.knee_bodies, strict=True)):
            mujoco.mj_jac(self.m, self.d, full, None, foot, body)
            jacobians.append(full[:, self.dofadr[3 * i : 3 * i + 3]].copy())
        return np.array(jacobians)

    def crouch(self) -> Array:
        """(12,) angles with bent legs, the feet near `target`.

        Inverse kinematics runs from many starts. For each leg the result with the smallest error
        wins; a knee ahead of its foot and large angles count as errors, too.
        """
        rest = np.clip(np.zeros(12), self.low, self.high)
        best, best_cost = rest, np.full(4, np.inf)
        abduction = np.tile([True, False, False], 4)
        for thigh, knee in product(np.linspace(0.05, 0.95, 7), repeat=2):
            share = np.tile([0.0, thigh, knee], 4)
            start = np.where(abduction, rest, self.low + share * (self.high - self.low))
            angles = self.inverse_kinematics(start)
            self.set_angles(angles)
            feet = self.foot_positions()
            error = np.linalg.norm(self.target - feet, axis=1) / self.lengths
            ahead = (self.d.xanchor[self.ids[2::3]] - feet)[:, 0] > 0
            cost = 100 * error + ahead + 0.1 * np.abs(angles.reshape(4, 3)).sum(1)
            better = cost < best_cost
            best = np.where(np.repeat(better, 3), angles, best)
            best_cost = np.where(better, cost, best_cost)
        return best

    def inverse_kinematics(self, angles: Array) -> Array:
        """(12,) angles after at most 40 steps of damped least squares toward `target`, within
        limits."""
        for _ in range(40):
            self.set_angles(angles)
            error, jacobian = self.target - self.foot_positions(), self.jacobian()
            transposed = jacobian.transpose(0, 2, 1)
            # damping [m²]: a straight leg has an answer, too
            square = transposed @ jacobian + 1e-4 * np.eye(3)
            step = np.linalg.solve(square, transposed @ error[:, :, None])[:, :, 0]
            former = angles
            angles = np.clip(angles + step.ravel().clip(-0.3, 0.3), self.low, self.high)
            if np.abs(angles - former).max() < 1e-9:  # rad: they stay, to the rounding of a stance
                break
        return angles

    def lift_direction(self, angles: Array) -> tuple[float, ...]:
        """(12,) the direction of the joints that lifts each foot straight up, scaled to 1 rad of
        the knee."""
        self.set_angles(angles)
        steps = [np.linalg.lstsq(j[[0, 2], 1:], [0.0, 1.0], rcond=1e-3)[0] for j in self.jacobian()]
        scales = [max(abs(knee), 0.25 * abs(thigh), 1e-9) for thigh, knee in steps]
        lifts = np.array(steps) / np.array(scales)[:, None]
        return tuple(float(x) for lift in lifts for x in (0.0, *lift))

    def leg_inertia(self, angles: Array) -> float:
        """The largest inertia [kg m²] of a leg about one of its joints, without armature."""
        self.set_angles(angles)
        mujoco.mj_crb(self.m, self.d)
        full = np.zeros((self.m.nv, self.m.nv))
        mujoco.mj_fullM(self.m, self.d, full)
        return float((full[self.dofadr, self.dofadr] - self.m.dof_armature[self.dofadr]).max())


def stand(m: mujoco.MjModel, least: float) -> tuple[float, str]:
    """(the height of the base [m] after two seconds in the stance, why it does not stand or "").

    A robot stands if it is still in the second of them, and upright and high at the end: its base
    is higher than `least` [m].
    """
    d, second = mujoco.MjData(m), round(1.0 / m.opt.timestep)
    mujoco.mj_resetDataKeyframe(m, d, 0)
    start, squares, first = float(d.qpos[2]), np.zeros(m.nv), ""  # what happened first
    for step in range(2 * second):
        mujoco.mj_step(m, d)
        squares += d.qvel**2 / second if step >= second else 0
        tilted = not 1 - 2 * (d.qpos[4] ** 2 + d.qpos[5] ** 2) > UPRIGHT
        low = not d.qpos[2] > least
        first = first or ("sinks" if low else "tilts" if tilted else "")
    height, speed = float(d.qpos[2]), float(np.sqrt(squares).max())
    if not np.isfinite(d.qpos).all():
        return height, "its simulation diverges: try a smaller robot.kp or robot.kd"
    if start <= least:
        return height, (
            f"the origin of its base is only {start:.3g} m above the ground: try another "
            "robot.stance, or move the origin into the trunk in the file"
        )
    if (low or tilted) and first == "tilts":
        return height, "it falls over: try another robot.stance, robot.kp or robot.torque"
    if low or tilted:
        return height, (
            f"it sinks from {start:.3g} m: try a larger robot.torque [N m] or robot.kp [N m/rad]"
        )
    if speed > STILL:
        return height, f"it keeps moving, at {speed:.2g} m/s or rad/s: try another robot.kp and kd"
    return height, ""
