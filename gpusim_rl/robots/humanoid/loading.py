"""Load a humanoid: turn its unmodified MJCF or URDF file into a model for
`tasks/locomotion/humanoid.py`."""

import math
from dataclasses import dataclass, replace
from typing import Any

import mujoco
import numpy as np

from gpusim_rl.core.errors import warn_once
from gpusim_rl.robots import prepare
from gpusim_rl.robots.bodies import Array, RobotError, find_base, raise_origin
from gpusim_rl.robots.humanoid import topology
from gpusim_rl.robots.humanoid.posture import Posture
from gpusim_rl.robots.humanoid.prepare import corner_names, prepare_specs
from gpusim_rl.robots.humanoid.soles import fit_sole
from gpusim_rl.robots.humanoid.topology import SIDES, leg_values
from gpusim_rl.robots.inertias import implausible
from gpusim_rl.robots.robot_config import Robot
from gpusim_rl.robots.servos import complete, diverges, joint_parameters, six_digits

# A servo's natural frequency with the rotor alone, and its damping ratio, as in mjlab.
FREQUENCY, DAMPING = 2 * math.pi * 10.0, 2.0  # rad/s, 1
# s²: armature over largest torque, of the three motors of Unitree G1's legs in mjlab 1.6.0
ROTOR = 1.5e-4
# Largest torque over weight times length of the leg, of the joints of ankles and of the others.
ANKLE, JOINT = 0.25, 0.5


@dataclass(kw_only=True)
class LoadedHumanoid:
    """A humanoid that is ready for the task."""

    robot: Robot  # the description without None, apart from `scale` and `mirror`
    original: mujoco.MjModel  # the model of the file
    mjm: mujoco.MjModel
    spec: mujoco.MjSpec  # of mjm
    text: str  # the MJCF without meshes and textures, for the ONNX file
    posture: Posture
    leg: float  # m, the mean length of a leg from the hip to the sole

    @property
    def arguments(self) -> dict[str, Any]:
        """What the task is told of the robot, beside its model."""
        robot, lifts = self.robot, self.posture.lift_direction(np.array(self.robot.stance))
        return dict(lift_direction=lifts, height=robot.height, scale=tuple(robot.scale or ()))

    @property
    def feet(self) -> dict[str, str]:
        """Leg → a geom of its foot in the model."""
        return {side: corner_names(side)[0] for side in SIDES}

    @property
    def locked(self) -> list[str]:
        """The hinges of the file that are fixed at 0."""
        names = [self.original.joint(j).name for j in range(self.original.njnt)]
        types = self.original.jnt_type
        free = mujoco.mjtJoint.mjJNT_FREE
        kept = self.posture.names
        return [x for x, kind in zip(names, types, strict=True) if kind != free and x not in kept]


def build_humanoid(robot: Robot, spec: mujoco.MjSpec, original: mujoco.MjModel) -> LoadedHumanoid:
    """The robot in the first stance in which it can stand. `original` is the compiled spec."""
    base = find_base(spec, robot.base).name
    if raise_origin(spec, original, base):
        original = spec.compile()
    topology.check_base(original, base)
    if robot.mirror is not None:
        raise RobotError("robot.mirror: a humanoid's mirror image follows from its joints' places")
    joints, feet = topology.find_legs(original, base, robot.joints, robot.feet)
    soles = [fit_sole(original, base, foot) for foot in feet]
    robot = replace(robot, base=base, joints=joints, feet=robot.feet or feet)
    names = [name for leg in joints for name in leg]
    meshless = prepare_specs(spec, original, base, names, soles, robot.collide)
    posture = Posture(meshless.compile(), base, joints, soles)
    if line := implausible(original, base, 2 * posture.length):
        warn_once(f"warning: {robot.mjcf}: {line}")
    robot = fill_gains(robot, original, posture, find_stance(robot, original, posture))
    trial = meshless.copy()
    add_servos(trial, posture, robot)
    if fault := diverges(trial.compile()):
        raise RobotError(fault)
    add_servos(spec, posture, robot)
    return LoadedHumanoid(
        robot=robot,
        original=original,
        mjm=spec.compile(),
        spec=spec,
        text=trial.to_xml(),
        posture=posture,
        leg=posture.length,
    )


def find_stance(robot: Robot, original: mujoco.MjModel, posture: Posture) -> Array:
    """The angles in which the robot can stand: given, of the first keyframe that will do, or bent.

    A humanoid does not stand by its servos alone. So its center of mass has to be above its soles,
    and these have to be level.
    """
    if robot.stance is not None:
        stances = [leg_values("stance", robot.stance, posture.count)]
    else:
        stances = [*posture.keyframe_angles(original), posture.bent()]
    faults = [posture.fault(angles) for angles in stances]
    if "" not in faults:
        where = "" if robot.stance is None else f" in robot.stance={robot.stance}"
        raise RobotError(f"robot.stance: the robot cannot stand{where}: {faults[-1]}")
    return stances[faults.index("")]


def fill_gains(robot: Robot, original: mujoco.MjModel, posture: Posture, stance: Array) -> Robot:
    """The description with this stance, and with gains and limits where it had None."""
    stance = np.round(stance, 4) + 0.0  # no -0
    share = np.where(posture.below_knee(), ANKLE, JOINT)

    def fill(key: str, guess: Array) -> Array:
        if (value := getattr(robot, key)) is None:
            values = joint_parameters(original, posture.names, key)
        else:
            values = leg_values(key, value, posture.count)
        return np.array(complete(key, value, values, guess))

    torque = fill("torque", share * posture.torque_scale())
    armature = fill("armature", ROTOR * torque)
    kp = fill("kp", armature * FREQUENCY**2)
    kd = fill("kd", 2 * DAMPING * np.sqrt(kp * armature))
    scale = None
    if robot.scale is not None:
        scale = six_digits(leg_values("scale", robot.scale, posture.count))
    height = robot.height or round(float(posture.qpos(stance)[2]), 4)
    gains = dict(kp=kp, kd=kd, torque=torque, armature=armature)
    lists = {key: values.tolist() for key, values in gains.items()}
    return replace(robot, stance=six_digits(stance), scale=scale, height=height, **lists)


def add_servos(spec: mujoco.MjSpec, posture: Posture, robot: Robot) -> None:
    """Add the servos and the stance of a description to a spec, in place."""
    joints = {joint: joint for joint in posture.names}
    prepare.add_servos(spec, joints, robot, posture.qpos(np.array(robot.stance)))
