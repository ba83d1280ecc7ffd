"""Where each value of an arm's description comes from that was not given."""

from typing import Any

import numpy as np

from gpusim_rl.robots.arm.loading import LoadedArm
from gpusim_rl.robots.bodies import keyframe_of
from gpusim_rl.robots.inertias import shown
from gpusim_rl.robots.servos import gain_reasons

GUESS = {
    "torque": "twice that of the weights it lifts, and 10 rad/s² of acceleration; a seventh of the "
    "largest at least",
    "armature": "1.5e-4 s² times the torque, as of the motors of Unitree G1's legs",
    "kp": "(armature + inertia of what it moves) · (2π · 3 Hz)², or 10 times the weights' torque",
    "kd": "2 · √(kp · (armature + inertia of what it moves)): a damping ratio of 1",
}


def arm_reasons(given: dict[str, Any], loaded: LoadedArm) -> dict[str, str]:
    """Key → where its value comes from, for each that was not given.

    Args:
        given: the description before loading.
        loaded: the robot.
    """
    turn = round(float(np.degrees(loaded.turn)))
    angle = f"{turn}° about its z from that site's or body's"
    turned = f"; its frame is turned by {angle}, so that x points forward" if turn else ""
    fixed = f"; fixed: {shown(loaded.locked)}" if loaded.locked else ""
    why = {
        "base": "the body that carries all joints",
        "joints": f"the longest chain of hinges from the base{fixed}{endless(loaded)}",
        "tool": f"{loaded.tool.why}{turned}",
        "stance": stance_reason(loaded),
        **gain_reasons(loaded.original, loaded.robot.joints, loaded.robot, GUESS),
        "mirror": "from the axes of the joints; mirrored poses were compared"
        if loaded.robot.mirror
        else "the arm is not its own mirror image",
    }
    return {key: text for key, text in why.items() if given.get(key) is None}


def endless(loaded: LoadedArm) -> str:
    """Which hinges turn without end in the file."""
    m = loaded.original
    names = [name for name in loaded.robot.joints if not m.jnt_limited[m.joint(name).id]]
    return f"; without limits in the file, ±180° here: {shown(names)}" if names else ""


def stance_reason(loaded: LoadedArm) -> str:
    """Where the stance comes from."""
    m, robot = loaded.original, loaded.robot
    if keyframe := keyframe_of(m, robot.joints, robot.stance):
        return f"the keyframe {keyframe}"
    tried = ", as something touches or is beyond limits in a keyframe" if m.nkey else ""
    return f"the tool in front of the shoulder and pointing down, nothing touches{tried}"
