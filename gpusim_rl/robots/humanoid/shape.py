"""The shapes of humanoids: two legs that walk, arms and waist locked, for
`tasks/locomotion/humanoid.py`; and the whole body, for `tasks/locomotion/imitate.py`."""

import math
from collections.abc import Callable
from dataclasses import replace

import mujoco
import numpy as np

from gpusim_rl.robots import prepare
from gpusim_rl.robots.bodies import HINGE, Array, RobotError, Signs, beyond_limits, subtree
from gpusim_rl.robots.humanoid.soles import Sole, fit_sole
from gpusim_rl.robots.humanoid.topology import SIDES, check_base, find_legs, pitches
from gpusim_rl.robots.inertias import join_names
from gpusim_rl.robots.robot_config import Robot
from gpusim_rl.robots.servos import Joints, diverges, gain_reasons
from gpusim_rl.robots.walker import FOOT_SENSORS, Walker

SENSORS = FOOT_SENSORS | {"up": prepare.SENSOR.mjSENS_FRAMEZAXIS}
CAMERA = [0.8, -2.3, 0.5], [0.94, 0.33, 0, -0.06, 0.17, 0.98]  # place [m], x and y
CORNERS = ("heel_right", "heel_left", "toe_right", "toe_left")
BEND = 0.64  # rad of the knees, as in the stance with bent knees of mjlab's G1
LEVEL = 0.087  # rad, largest tilt of a sole in a stance
DIRECTIONS = 64  # in which the center of mass must not be beyond the soles
# A servo's natural frequency with the rotor alone, and its damping ratio, as in mjlab.
FREQUENCY, DAMPING = 2 * math.pi * 10.0, 2.0  # rad/s, 1
# s²: armature over largest torque, of the three motors of Unitree G1's legs in mjlab 1.6.0
ROTOR = 1.5e-4
# Largest torque over weight times length of the leg, of the joints from hip to knee and of others.
LEG, OTHER = 0.5, 0.25
REASONS = {
    "torque": "half of weight times the length of a leg, of ankles, waist and arms a quarter",
    "armature": "1.5e-4 s² times the torque, as of the motors of Unitree G1's legs",
    "kp": "armature · (2π · 10 Hz)²",
    "kd": "4 · √(kp · armature): a damping ratio of 2",
}


class Humanoid(Walker):
    """A left and a right leg.

    A humanoid does not stand by its servos alone. So its center of mass has to be above its soles,
    and these have to be level.
    """

    feet_sites, camera, sensors, uncouple = SIDES, CAMERA, SENSORS, True
    stance_words = (
        ", with the center of mass above the soles",
        "bent knees, level soles, the center of mass above them",
        "it cannot stand",
    )

    def __init__(self, robot: Robot, spec: mujoco.MjSpec, original: mujoco.MjModel):
        super().__init__(robot, spec, original)
        m, base = self.original, self.base
        check_base(m, base)
        if robot.mirror is not None:
            raise RobotError(
                "robot.mirror: a humanoid's mirror image follows from its joints' places"
            )
        legs, feet = find_legs(m, base, robot.joints, robot.feet)
        self.soles = [fit_sole(m, base, foot) for foot in feet]
        self.robot = replace(robot, base=base, joints=legs, feet=robot.feet or feet)
        self.joints = self.join([*legs[0], *legs[1]])
        self.servos = {name: name for name in self.joints.names}
        self.labels = {side: corner_names(side)[0] for side in SIDES}

    def join(self, legs: list[str]) -> Joints:
        """The joints that move, of which those of both legs are the first."""
        count = len(legs)
        return Joints(legs, (1, count // 2, count), f"a number, {count // 2} of a leg, or {count}")

    def measure(self, m: mujoco.MjModel) -> None:
        super().measure(m)
        half = self.half = len(self.robot.joints[0])
        ids = [self.ids[:half].tolist(), self.ids[half : 2 * half].tolist()]
        self.pitch = [[half * i + k for k in pitches(m, leg)] for i, leg in enumerate(ids)]
        self.set_angles(np.clip(np.zeros(self.count), self.low, self.high))
        self.turn = np.sign(self.d.xaxis[self.ids, 1])  # of each pitch about y
        anchors, ends = self.d.xanchor[self.ids], self.centers()
        hips, knees = ([pair[i] for pair in self.pitch] for i in (0, 1))
        lengths = anchors[hips] - anchors[knees], anchors[knees] - ends
        self.size = float(sum(np.linalg.norm(x, axis=1).mean() for x in lengths))

    def add_feet(self, spec: mujoco.MjSpec) -> list[str]:
        """Add the spheres of the soles, and a site at the center of each, in place."""
        for side, sole in zip(SIDES, self.soles, strict=True):
            body = spec.body(sole.body)
            for name, place in zip(corner_names(side), sole.corners, strict=True):
                prepare.grip(prepare.add_sphere(body, name, sole.radius, place))
            body.add_site(
                name=prepare.added_name(side), pos=sole.center, quat=sole.quat, group=prepare.HIDDEN
            )
        return [name for side in SIDES for name in corner_names(side)]

    def stances(self) -> list[Array]:
        """The stance of the description, or the first one that will do: a keyframe, or bent."""
        stance, stances = self.robot.stance, self.joints.stances(self.robot, self.original)
        stances += [] if stance is not None else [self.bent()]
        faults = [self.fault(angles) for angles in stances]
        if "" not in faults:
            where = "" if stance is None else f" in robot.stance={stance}"
            if stance is None and len(self.pitch[0]) < 3:
                where = " on legs without an ankle, a third hinge about y, which are kept straight"
            raise RobotError(f"robot.stance: the robot cannot stand{where}: {faults[-1]}")
        return [np.round(stances[faults.index("")], 4) + 0.0]  # no -0

    def gains(self, filled: Callable[..., Array]) -> None:
        """Fill in gains and limits: torques follow the weight, and all others the torques."""
        share = np.full(self.count, OTHER)
        for i, (_, knee, *_) in enumerate(self.pitch):
            share[i * self.half : knee + 1] = LEG
        torque = filled("torque", share * (self.weight() * self.size))
        armature = filled("armature", ROTOR * torque)
        kp = filled("kp", armature * FREQUENCY**2)
        filled("kd", 2 * DAMPING * np.sqrt(kp * armature))

    def check(self, m: mujoco.MjModel) -> tuple[float, str]:
        """(height of the base [m] in the stance, why the robot cannot start or "")."""
        return round(float(m.key_qpos[0, 2]), 4), diverges(m)

    def mirror(self, robot: Robot, mjm: mujoco.MjModel, signs: Signs) -> None:
        """None: the task derives the mirror image from the places of the joints."""

    def reasons(self, robot: Robot, named: bool) -> dict[str, str]:
        """Key → where its value comes from; `named` tells that the description has the feet."""
        others = self.joints.others(self.original)
        fixed = f"; fixed at 0: {join_names(others)}" if others else ""
        legs = (
            "the hinges above each foot" if named else "the lowest pair of chains, left and right"
        )
        mm = [round(2e3 * x) for x in np.ptp(self.soles[0].corners, 0) / 2]
        return {
            **gain_reasons(self.original, self.joints.names, robot, REASONS),
            "joints": f"{legs}{fixed}",
            "feet": f"the ends of the legs; spheres at the corners of their soles, {max(mm)} by "
            f"{sorted(mm)[1]} mm apart",
            "height": "of the base in the stance",
        }

    # -- posture: bent knees, level soles, the center of mass above them ---------------------------

    def height(self) -> float:
        """Height of the base above the lowest corner of the soles [m]."""
        radius = np.repeat([sole.radius for sole in self.soles], 4)
        return float((radius - self.corners()[:, 2]).max())

    def world(self, sole: Sole, local: Array) -> Array:
        """(…, 3) points of a sole's body in the world [m]."""
        body = self.m.body(sole.body).id
        return self.d.xpos[body] + local @ self.d.xmat[body].reshape(3, 3).T

    def corners(self) -> Array:
        """(8, 3) centers of the soles' spheres [m]."""
        return np.concatenate([self.world(sole, sole.corners) for sole in self.soles])

    def centers(self) -> Array:
        """(2, 3) centers of the soles [m]."""
        return np.array([self.world(sole, sole.center) for sole in self.soles])

    def tilts(self) -> Array:
        """(2,) angles between the soles and the ground [rad]."""
        up = []
        for sole in self.soles:
            normal = np.zeros(3)
            mujoco.mju_rotVecQuat(normal, np.array([0.0, 0, 1]), sole.quat)
            up.append(self.world(sole, normal)[2] - self.world(sole, np.zeros(3))[2])
        return np.arccos(np.clip(up, -1, 1))

    def bent(self) -> Array:
        """Angles with bent knees and level soles, these below the center of mass if they can be.

        A leg without an ankle keeps its knee as straight as it goes.
        """
        best, error = np.zeros(self.count), np.inf
        for hip in np.linspace(-1, 1, 201):
            angles = np.clip(np.zeros(self.count), self.low, self.high)
            for one, knee, *ankle in self.pitch:
                way = 1 if self.high[knee] > -self.low[knee] else -1  # in which it bends
                bend = way * BEND if ankle else 0.0
                angles[knee] = np.clip(bend, self.low[knee], self.high[knee])
                turned = self.turn[knee] * angles[knee]  # rad about y
                angles[one] = self.turn[one] * (hip if ankle else -turned)
                for joint in ankle:
                    angles[joint] = -self.turn[joint] * (hip + turned)
            angles = np.clip(angles, self.low, self.high)
            self.set_angles(angles)
            off = self.d.body(self.base).subtree_com[0] - self.corners()[:, 0].mean()
            cost = abs(off) + 10 * self.tilts().max()
            if cost < error - 1e-9:
                best, error = angles, cost
        return best

    def fault(self, angles: Array) -> str:
        """Why nothing can stand like this, or ""."""
        if beyond_limits(angles, self.low, self.high):
            return "a joint is beyond its limits"
        self.set_angles(angles)
        if (tilt := float(self.tilts().max())) > LEVEL:
            return f"its soles are tilted by {np.degrees(tilt):.0f}°"
        turns = np.arange(DIRECTIONS) * 2 * np.pi / DIRECTIONS
        ways = np.stack([np.cos(turns), np.sin(turns)])  # (2, n)
        beyond = self.d.body(self.base).subtree_com[:2] @ ways - (self.corners()[:, :2] @ ways).max(
            0
        )
        if beyond.max() > 0:
            return f"its center of mass is {1e3 * beyond.max():.0f} mm beyond its soles"
        return ""

    def lift_direction(self, angles: Array) -> tuple[float, ...]:
        """(2n,) the direction of the joints that lifts each sole straight up and keeps it level,
        scaled to 1 rad of the knee."""
        self.set_angles(angles)
        out, (full, turning) = np.zeros(self.count), np.zeros((2, 3, self.m.nv))
        for sole, joints in zip(self.soles, self.pitch, strict=True):
            body = self.m.body(sole.body).id
            point = self.world(sole, sole.center)
            mujoco.mj_jac(self.m, self.d, full, turning, point, body)
            dofs = self.m.jnt_dofadr[self.ids[joints]]
            rows = np.stack([full[0, dofs], full[2, dofs], turning[1, dofs]])
            upward = np.array([0.0, 1.0, 0.0])
            if len(joints) < 3:  # without an ankle it cannot stay level
                rows, upward = rows[:2], upward[:2]
            step = np.linalg.lstsq(rows, upward, rcond=1e-3)[0]
            out[joints] = step / max(abs(step[1]), 0.25 * abs(step[0]), 1e-9)
        return tuple(float(x) for x in out)


class WholeHumanoid(Humanoid):
    """A humanoid whose waist, arms and whatever else turns about hinges move, too.

    They follow the legs in ctrl. Numbers of the legs alone leave those of the others to the guess.
    """

    def join(self, legs: list[str]) -> Joints:
        m, body = self.original, subtree(self.original, self.original.body(self.base).id)
        hinges = [j for j in range(m.njnt) if m.jnt_type[j] == HINGE and m.jnt_bodyid[j] in body]
        others = [name for name in (m.joint(j).name for j in hinges) if name not in legs]
        count, whole = len(legs), len(legs) + len(others)
        expected = f"a number, {count // 2} of a leg, {count} of both or {whole}"
        return Joints([*legs, *others], (1, count // 2, count, whole), expected, len(legs))


def corner_names(side: str) -> list[str]:
    """The names of the spheres of a sole."""
    return [prepare.added_name(f"{side}_{corner}") for corner in CORNERS]
