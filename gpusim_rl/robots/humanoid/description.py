"""Where each value of a humanoid's description comes from that was not given."""

from typing import Any

import numpy as np

from gpusim_rl.robots.bodies import FREE, keyframe_of
from gpusim_rl.robots.humanoid.loading import LoadedHumanoid
from gpusim_rl.robots.inertias import shown
from gpusim_rl.robots.servos import gain_reasons

GUESS = {
    "torque": "half of weight times the length of a leg, of an ankle a quarter",
    "armature": "1.5e-4 s² times the torque, as of the motors of Unitree G1's legs",
    "kp": "armature · (2π · 10 Hz)²",
    "kd": "4 · √(kp · armature): a damping ratio of 2",
}


def humanoid_reasons(given: dict[str, Any], loaded: LoadedHumanoid) -> dict[str, str]:
    """Key → where its value comes from, for each that was not given.

    Args:
        given: the description before loading.
        loaded: the robot.
    """
    m, feet = loaded.original, given.get("feet")
    free = (m.jnt_type == FREE).any()
    fixed = f"; fixed at 0: {shown(loaded.locked)}" if loaded.locked else ""
    legs = "the hinges above each foot" if feet else "the lowest pair of chains, left and right"
    mm = [round(2e3 * x) for x in np.ptp(loaded.posture.soles[0].corners, 0) / 2]
    why = {
        "base": "the body with the free joint" if free else "the root of the joints",
        "joints": f"{legs}{fixed}",
        "feet": f"the ends of the legs; spheres at the corners of their soles, {max(mm)} by "
        f"{sorted(mm)[1]} mm apart",
        "stance": stance_reason(loaded),
        **gain_reasons(m, loaded.posture.names, loaded.robot, GUESS),
        "height": "of the base in the stance",
    }
    return {key: text for key, text in why.items() if given.get(key) is None}


def stance_reason(loaded: LoadedHumanoid) -> str:
    """Where the stance comes from."""
    m = loaded.original
    if keyframe := keyframe_of(m, loaded.posture.names, loaded.robot.stance):
        return f"the keyframe {keyframe}, with the center of mass above the soles"
    tried = ", as it cannot stand in a keyframe" if m.nkey else ""
    return f"bent knees, level soles, the center of mass above them{tried}"
