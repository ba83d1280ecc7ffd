"""Where each value of a humanoid's description comes from that was not given."""

from typing import Any

import numpy as np

from gpusim_rl.robots.bodies import FREE
from gpusim_rl.robots.humanoid.loading import LoadedHumanoid
from gpusim_rl.robots.inertias import shown
from gpusim_rl.robots.servos import joint_parameters

FROM_FILE = {
    "torque": "the limits in the file",
    "armature": "as in the file",
    "kp": "the gains of the file's servos",
    "kd": "the damping of the file's servos",
}
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
        **{key: gain_reason(loaded, key) for key in FROM_FILE},
        "height": "of the base in the stance",
    }
    return {key: text for key, text in why.items() if given.get(key) is None}


def stance_reason(loaded: LoadedHumanoid) -> str:
    """Where the stance comes from."""
    m = loaded.original
    columns = [m.joint(name).qposadr[0] for name in loaded.posture.names]
    for i in range(m.nkey):
        if np.allclose(m.key_qpos[i, columns], loaded.robot.stance, atol=1e-4):
            return f"the keyframe {(m.key(i).name or i)!r}, with the center of mass above the soles"
    tried = ", as it cannot stand in a keyframe" if m.nkey else ""
    return f"bent knees, level soles, the center of mass above them{tried}"


def gain_reason(loaded: LoadedHumanoid, key: str) -> str:
    """Where the values of kp, kd, torque or armature come from."""
    file = joint_parameters(loaded.original, loaded.posture.names, key)
    said = ~np.isnan(file)
    if said.all():
        return FROM_FILE[key]
    return f"{FROM_FILE[key]}, where it has any; else {GUESS[key]}" if said.any() else GUESS[key]
