"""The legs of a humanoid in a MuJoCo model: two chains of hinges, left and right of its base."""

import mujoco
import numpy as np

from gpusim_rl.robots import bodies
from gpusim_rl.robots.bodies import FREE, RobotError

SIDES = ("left", "right")
EVEN = 0.1  # of the robot's size: how far an end may be from the image of the other one
ALONG = 0.9  # least component of an axis that lies along another one


def check_base(m: mujoco.MjModel, base: str) -> None:
    """RobotError if the base moves by other joints than a free one."""
    joints = bodies.joints_along(m, [m.body(base).id])
    others = [m.joint(j).name for j in joints if m.jnt_type[j] != FREE]
    if others:
        raise RobotError(
            f"robot.base: {base!r} moves along {', '.join(others)}: expected a free joint or none, "
            "as a robot in a plane cannot turn"
        )


def find_legs(
    m: mujoco.MjModel, base: str, joints: list[list[str]] | None, feet: list[str] | None
) -> tuple[list[list[str]], list[str]]:
    """The joints of the left and the right leg from the hip down, and the bodies of the feet.

    The description has two lists of joints and two geoms, sites or bodies as feet, or None.
    """
    bodies.check_count(feet, joints, 2, "two, left and right")
    if joints is not None:
        if not all(isinstance(leg, list) for leg in joints):
            expected = "expected two lists of names, left and right"
            raise RobotError(f"robot.joints={joints}: {expected}")
        legs = [bodies.joints_of_names(m, leg) for leg in joints]
    else:
        root = m.body(base).id
        ends = [bodies.locate(m, foot)[0] for foot in feet] if feet else guess_ends(m, base)
        legs = [bodies.hinges_between(m, root, end) for end in ends]
        legs = [[j for j in leg if j not in other] for leg, other in (legs, legs[::-1])]
    check_legs(m, legs)
    ends = [m.jnt_bodyid[leg[-1]] for leg in legs]
    if feet is not None:
        ends = [bodies.locate(m, foot)[0] for foot in feet]
    names = [[m.joint(j).name for j in leg] for leg in legs]
    return names, [m.body(end).name for end in ends]


def guess_ends(m: mujoco.MjModel, base: str) -> list[int]:
    """The last bodies of the two legs: the lowest pair of chains, left and right of the base."""
    root, d = m.body(base).id, bodies.kinematics(m)
    chains = bodies.find_chains(m, root)
    ends = [*chains]
    places = (d.xpos[ends] - d.xpos[root]) @ d.xmat[root].reshape(3, 3)
    size = float(np.abs(places).max(initial=0))
    image = places * [1, -1, 1]
    pairs = [
        (float(places[i, 2]), ends[i], ends[j])
        for i in range(len(ends))
        for j in range(len(ends))
        if places[i, 1] > places[j, 1] and len(chains[ends[i]]) == len(chains[ends[j]])
        if np.linalg.norm(places[i] - image[j]) < EVEN * size
    ]
    pairs.sort()
    low = pairs[0] if pairs else None
    if low and len(pairs) > 1 and pairs[1][0] < low[0] + EVEN * size:
        raise RobotError("robot.joints: expected two legs, found four")
    if low is None or low[0] > places[:, 2].min() + EVEN * size:
        listed = ", ".join(f"{len(chains[b])} to {m.body(b).name!r}" for b in ends)
        raise RobotError(
            f"robot.joints: expected two legs, the lowest chains of hinges left and right of "
            f"{base!r}; hinges from there: {listed or 'none'}"
        )
    return [*low[1:]]


def check_legs(m: mujoco.MjModel, legs: list[list[int]]) -> None:
    """RobotError unless both legs have as many hinges, of which two or three bend it forward."""
    listed = [[m.joint(j).name for j in leg] for leg in legs]
    if len(legs[0]) != len(legs[1]) or len(legs[0]) < 3:
        raise RobotError(
            f"robot.joints: expected two legs of as many hinges, three at least: {listed}"
        )
    for leg, names in zip(legs, listed, strict=True):
        if len(pitches(m, leg)) not in (2, 3):
            raise RobotError(
                f"robot.joints: of {names}, expected two or three to turn about the base's y: hip, "
                f"knee and perhaps ankle; {len(pitches(m, leg))} do"
            )


def pitches(m: mujoco.MjModel, leg: list[int]) -> list[int]:
    """The places in a leg of the hinges that bend it forward: hip, knee and perhaps ankle."""
    d = bodies.kinematics(m)
    return np.flatnonzero(np.abs(d.xaxis[leg, 1]) > ALONG).tolist()
