"""Whether the x axis of a quadruped's base points forward, by its joints' axes and names."""

import re

import mujoco
import numpy as np

from gpusim_rl.robots.bodies import RobotError
from gpusim_rl.robots.quadruped.topology import LEGS

ALONG = 0.9  # least component of an axis that lies along another one
# Words for a leg's end of the robot, and its usual initials: FL, LF; RL, HL, LR, LH.
FRONT = re.compile(r"front|fore|(?<![a-z])(f[lr]|[lr]f)(?![a-z])", re.I)
REAR = re.compile(r"rear|hind|back|(?<![a-z])([rh][lr]|[lr][rh])(?![a-z])", re.I)


def check_forward(m: mujoco.MjModel, base: str, joints: list[list[str]]) -> str:
    """A warning if the joints' names say that the robot looks backward, else "".

    Args:
        m: the model of the file.
        base: body.
        joints: names of abduction, thigh and knee, legs in the order FL, FR, RL, RR.

    Raises:
        RobotError: the abductions turn about y of the base, the thighs and knees about x.
    """
    d = mujoco.MjData(m)
    mujoco.mj_kinematics(m, d)
    ids = [[m.joint(name).id for name in leg] for leg in joints]
    axes = np.abs(d.xaxis[ids] @ d.xmat[m.body(base).id].reshape(3, 3))  # (leg, joint, xyz)
    if (axes[:, 0, 1] > ALONG).all() and (axes[:, 1:, 0] > ALONG).all():
        raise RobotError(
            f"robot.base: the robot looks along y of {base!r}, as its thighs turn about x: x must "
            f"point forward, so turn its bodies by 90 degrees about z"
        )
    for leg, (name, *_) in zip(LEGS, joints, strict=True):
        right, wrong = (FRONT, REAR) if leg.startswith("F") else (REAR, FRONT)
        if right.search(name) or not wrong.search(name):
            return ""
    return (
        f"x of {base!r} points backward, if the names of its joints are right: {joints[0][0]!r} "
        f"is taken for the front left leg"
    )
