"""The shape of humanoids, for `tasks/locomotion/humanoid.py`: two legs walk, arms and waist are
locked."""

import math
from collections.abc import Callable
from dataclasses import replace

import mujoco
import numpy as np

from gpusim_rl.robots import prepare
from gpusim_rl.robots.bodies import Array, RobotError, Signs
from gpusim_rl.robots.humanoid.posture import Posture
from gpusim_rl.robots.humanoid.soles import fit_sole
from gpusim_rl.robots.humanoid.topology import SIDES, check_base, find_legs
from gpusim_rl.robots.inertias import join_names
from gpusim_rl.robots.robot_config import Robot
from gpusim_rl.robots.servos import Joints, diverges, gain_reasons
from gpusim_rl.robots.walker import FOOT_SENSORS, Walker

SENSORS = FOOT_SENSORS | {"up": prepare.SENSOR.mjSENS_FRAMEZAXIS}
CAMERA = [0.8, -2.3, 0.5], [0.94, 0.33, 0, -0.06, 0.17, 0.98]  # place [m], x and y
CORNERS = ("heel_right", "heel_left", "toe_right", "toe_left")
# A servo's natural frequency with the rotor alone, and its damping ratio, as in mjlab.
FREQUENCY, DAMPING = 2 * math.pi * 10.0, 2.0  # rad/s, 1
# s²: armature over largest torque, of the three motors of Unitree G1's legs in mjlab 1.6.0
ROTOR = 1.5e-4
# Largest torque over weight times length of the leg, of the joints of ankles and of the others.
ANKLE, JOINT = 0.25, 0.5
REASONS = {
    "torque": "half of weight times the length of a leg, of an ankle a quarter",
    "armature": "1.5e-4 s² times the torque, as of the motors of Unitree G1's legs",
    "kp": "armature · (2π · 10 Hz)²",
    "kd": "4 · √(kp · armature): a damping ratio of 2",
}


class Humanoid(Walker):
    """A `robots.load.Shape` of a left and a right leg.

    A humanoid does not stand by its servos alone. So its center of mass has to be above its soles,
    and these have to be level.
    """

    feet_sites, camera, sensors, uncouple = SIDES, CAMERA, SENSORS, True
    stance_words: tuple[str, str, str] = (
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
        names, count = [*legs[0], *legs[1]], 2 * len(legs[0])
        expected = f"a number, {count // 2} of a leg, or {count}"
        self.joints = Joints(names, (1, count // 2, count), expected)
        self.servos = {name: name for name in names}
        self.labels = {side: corner_names(side)[0] for side in SIDES}

    def measure(self, m: mujoco.MjModel) -> Posture:
        """The kinematics of the prepared model."""
        return Posture(m, self.base, self.robot.joints, self.soles)

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
        stances += [] if stance is not None else [self.legs.bent()]
        faults = [self.legs.fault(angles) for angles in stances]
        if "" not in faults:
            where = "" if stance is None else f" in robot.stance={stance}"
            raise RobotError(f"robot.stance: the robot cannot stand{where}: {faults[-1]}")
        return [np.round(stances[faults.index("")], 4) + 0.0]  # no -0

    def gains(self, filled: Callable[..., Array]) -> None:
        """Fill in gains and limits: torques follow the weight, and all others the torques."""
        share = np.where(self.legs.below_knee(), ANKLE, JOINT)
        torque = filled("torque", share * self.legs.torque_scale())
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


def corner_names(side: str) -> list[str]:
    """The names of the spheres of a sole."""
    return [prepare.added_name(f"{side}_{corner}") for corner in CORNERS]
