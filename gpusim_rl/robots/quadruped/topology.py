"""The legs of a quadruped in a MuJoCo model: which joints each leg has, and where its foot is."""

import re
from typing import NamedTuple

import mujoco
import numpy as np

from gpusim_rl.robots import bodies
from gpusim_rl.robots.bodies import Array, RobotError

LEGS, ROLES = ("FL", "FR", "RL", "RR"), ("abduction", "thigh", "knee")
ALONG = 0.9  # least component of an axis that lies along another one
# Words for a leg's end of the robot, and its usual initials: FL, LF; RL, HL, LR, LH.
FRONT = re.compile(r"front|fore|(?<![a-z])(f[lr]|[lr]f)(?![a-z])", re.I)
REAR = re.compile(r"rear|hind|back|(?<![a-z])([rh][lr]|[lr][rh])(?![a-z])", re.I)


class Foot(NamedTuple):
    """The sphere on which a leg stands."""

    name: str  # of the geom or site in the file; "" if it has none, or if the sphere is new
    geom: int  # id in the file's model; -1: a sphere to be added
    geom_name: str  # name of the geom in the prepared model
    body: str  # the body that the foot is part of
    knee_body: str  # the body that the knee moves
    pos: Array  # (3,) center in the frame of knee_body [m]
    radius: float  # m


def find_legs(
    m: mujoco.MjModel, base: str, joints: list[list[str]] | None, feet: list[str] | None
) -> tuple[list[list[str]], list[str | None]]:
    """The names of the joints of each leg, FL, FR, RL, RR, and those of the feet or None for each.

    The description has four lists of abduction, thigh, knee, and four geoms, sites or bodies as
    feet, or None.
    """
    bodies.check_count(feet, joints, 4, "four, in the order FL, FR, RL, RR")
    if joints is not None:
        if any(not isinstance(leg, list) or len(leg) != 3 for leg in joints):
            expected = "expected four lists of abduction, thigh, knee"
            raise RobotError(f"robot.joints={joints}: {expected}")
        legs = [bodies.joints_of_names(m, leg) for leg in joints]
    elif feet is not None:
        legs = legs_of_feet(m, base, feet)
    else:
        legs = guess_legs(m, base)
    legs = sort_legs(m, base, legs, fixed=bool(joints or feet))
    return [[m.joint(j).name for j in leg] for leg in legs], [*feet] if feet else [None] * 4


def legs_of_feet(m: mujoco.MjModel, base: str, feet: list[str]) -> list[list[int]]:
    """The joints of four legs: the three hinges between the base and each foot."""
    legs = [bodies.hinges_between(m, m.body(base).id, bodies.locate(m, name)[0]) for name in feet]
    for name, leg in zip(feet, legs, strict=True):
        if len(leg) != 3:
            hinges = f"{len(leg)} hinges ({', '.join(m.joint(j).name for j in leg)})"
            raise RobotError(
                f"robot.feet: from {base!r} to {name!r} there are {hinges}, not abduction, "
                f"thigh and knee"
            )
    return legs


def guess_legs(m: mujoco.MjModel, base: str) -> list[list[int]]:
    """The joints of the four chains of three hinges below the base."""
    chains = bodies.find_chains(m, m.body(base).id)
    legs = [chain for chain in chains.values() if len(chain) == 3]
    if len(legs) != 4:
        listed = ", ".join(f"{len(chain)} to {m.body(b).name!r}" for b, chain in chains.items())
        raise RobotError(
            f"robot.joints: expected four legs of three hinges, the model has {len(legs)}; "
            f"hinges from {base!r}: {listed or 'none'}"
        )
    return legs


def sort_legs(m: mujoco.MjModel, base: str, legs: list[list[int]], fixed: bool) -> list[list[int]]:
    """The legs in the order FL, FR, RL, RR, by the positions of their joints.

    RobotError if two legs are in one corner, or if `fixed` legs are in another order.
    """
    order = corners(m, m.body(base).id, legs)
    if sorted(order) != [0, 1, 2, 3] or (fixed and order != [0, 1, 2, 3]):
        listed = "; ".join(
            f"{m.joint(leg[0]).name} is {LEGS[i]}" for leg, i in zip(legs, order, strict=True)
        )
        raise RobotError(
            f"robot.feet, robot.joints: the order is FL, FR, RL, RR, x of {base!r} forward; but "
            f"by position {listed}"
        )
    return [legs[order.index(i)] for i in range(4)]


def corners(m: mujoco.MjModel, base: int, legs: list[list[int]]) -> list[int]:
    """The index in LEGS of each leg, by the mean position of its joints in the base's frame."""
    d = bodies.kinematics(m)
    local = np.array([d.xanchor[leg].mean(0) for leg in legs]) - d.xpos[base]
    local = local @ d.xmat[base].reshape(3, 3)
    x, y = (local - local.mean(0))[:, :2].T
    return [2 * int(a < 0) + int(b < 0) for a, b in zip(x, y, strict=True)]


def check_forward(m: mujoco.MjModel, base: str, joints: list[list[str]]) -> str:
    """A warning if the joints' names say that the robot looks backward, else "".

    joints: names of abduction, thigh and knee of the legs. RobotError if the abductions turn about
    y of the base, the thighs and knees about x.
    """
    d = bodies.kinematics(m)
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
