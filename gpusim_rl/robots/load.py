"""The shapes of robots that a file can be loaded as: quadruped, humanoid and arm."""

from typing import Any

import mujoco

from gpusim_rl.robots.arm import topology as one_arm
from gpusim_rl.robots.arm.loading import LoadedArm, build_arm
from gpusim_rl.robots.bodies import RobotError, find_base
from gpusim_rl.robots.humanoid import topology as two_legs
from gpusim_rl.robots.humanoid.loading import LoadedHumanoid, build_humanoid
from gpusim_rl.robots.quadruped import topology as four_legs
from gpusim_rl.robots.quadruped.loading import LoadedRobot, build_robot, load_robot
from gpusim_rl.robots.robot_config import Robot

Loaded = LoadedRobot | LoadedHumanoid | LoadedArm
SHAPES = {"quadruped": build_robot, "humanoid": build_humanoid, "arm": build_arm}


def load_as(shape: str, **keys: Any) -> Loaded:
    """The robot of a description, as `load_robot` loads it, of one of `SHAPES`.

    ValueError if the shape, which a task has as `takes_robot`, is none of these.
    """
    if shape not in SHAPES:
        raise ValueError(f"takes_robot of the task is {shape!r}: choose one of {', '.join(SHAPES)}")
    return load_robot(SHAPES[shape], **keys)


def load_any(**keys: Any) -> Loaded:
    """The robot of a description, of the shape that its file has."""
    return load_robot(build_any, **keys)


def build_any(robot: Robot, spec: mujoco.MjSpec, original: mujoco.MjModel) -> Loaded:
    """The robot in the shape that it has."""
    return SHAPES[find_shape(robot, spec, original)](robot, spec, original)


def find_shape(robot: Robot, spec: mujoco.MjSpec, original: mujoco.MjModel) -> str:
    """The shape of a robot: that of its given tool or legs, else the first whose legs are there.

    Without legs it is an arm if it stands fixed and has one or two chains of joints. Any other
    counts as a quadruped, which is then refused in one line.
    """
    if robot.tool is not None or (isinstance(robot.joints, list) and is_flat(robot.joints)):
        return "arm"
    for legs in (robot.feet, robot.joints):
        if isinstance(legs, list):
            return "humanoid" if len(legs) == 2 else "quadruped"
    base = find_base(spec, robot.base).name
    for shape, legs in (("quadruped", four_legs), ("humanoid", two_legs)):
        try:
            legs.find_legs(original, base, None, None)
        except RobotError:
            continue
        return shape
    return (
        "arm" if one_arm.is_fixed(original) and one_arm.count_chains(original) <= 2 else "quadruped"
    )


def is_flat(joints: list[Any]) -> bool:
    """Whether these are names, not lists of names."""
    return all(isinstance(joint, str) for joint in joints)
