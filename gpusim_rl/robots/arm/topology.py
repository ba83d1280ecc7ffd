"""The chain of an arm in a MuJoCo model: its hinges from a fixed base to the tool, and what hangs
on them."""

import re
from typing import NamedTuple

import mujoco

from gpusim_rl.robots import bodies
from gpusim_rl.robots.bodies import FREE, HINGE, RobotError

FEWEST_HINGES = 3  # hinges that bring a tool to the points of a box
LONGER = 2  # hinges that a branch must have more than the others, to be the arm
# Joints with these words in their names move fingers.
FINGER = re.compile(r"finger|grip|jaw|claw|knuckle|thumb", re.I)


class Links(NamedTuple):
    """The hinges of an arm, and the body that carries its tool. All are ids of the model."""

    joints: list[int]  # from the base to the tool
    last: int  # the body that the last of them moves
    fingers: list[int]  # bodies with joints beyond it


def count_chains(m: mujoco.MjModel) -> int:
    """How many chains of three joints or more begin where the first ones part.

    Of robots without any, such as a walker of short legs, it is how many parts there are.
    """
    chains, parts = [0], [0]
    while len(parts) == 1:
        chains, body = parts, parts[0]
        parts = [b for b in bodies.children(m, body) if depth(m, b)]
    long = [b for b in parts if depth(m, b) >= FEWEST_HINGES]
    if not long and len(bodies.joints_along(m, bodies.way_to(m, chains[0]))) < FEWEST_HINGES:
        long = parts
    return max(len(long), len(chains))


def find_root(m: mujoco.MjModel, name: str | None) -> int:
    """The base: the child of the world that holds all joints, or the named one.

    RobotError if something is free to move, or if several bodies hold joints.
    """
    free = [m.joint(j) for j in range(m.njnt) if m.jnt_type[j] == FREE]
    if free:
        body = m.body(free[0].bodyid[0]).name
        raise RobotError(
            f"robot.base: the body {body!r} has a free joint: expected an arm on a fixed base and "
            "nothing else"
        )
    names = [m.body(b).name for b in range(m.nbody)]
    if name is not None:
        return names.index(bodies.check_name("base", "body", name, names[1:]))
    roots = [b for b in bodies.children(m, 0) if depth(m, b)]
    if not roots:
        raise RobotError("robot.joints: the model has no hinge: expected an arm")
    if len(roots) > 1:
        choices = ", ".join(names[b] for b in roots)
        raise RobotError(f"robot.base: {len(roots)} bodies carry joints: name one of {choices}")
    return roots[0]


def find_links(m: mujoco.MjModel, root: int, joints: list[str] | None, tool: str | None) -> Links:
    """The hinges from the base to the tool: named ones, else the longest chain.

    tool: the name of its site or body; None if it has none yet.
    """
    end = None if tool is None else bodies.locate(m, tool, "tool")[0]
    if joints is not None:
        chain, last = named_joints(m, root, joints)
    else:
        last = find_end(m, root) if end is None else end
        chain, last = trim(m, path(m, root, last), last, keep=end is not None)
    if end is not None and end not in bodies.subtree(m, last):
        raise RobotError(f"robot.tool: {m.body(end).name!r} is not moved by the last of the joints")
    check_chain(m, root, chain, last)
    beyond = bodies.subtree(m, last) - {last}
    return Links(chain, last, [b for b in sorted(beyond) if m.body_jntnum[b]])


def named_joints(m: mujoco.MjModel, root: int, joints: list[str]) -> tuple[list[int], int]:
    """The ids of named joints, and the body that the last one moves."""
    if not isinstance(joints, list) or not joints or not all(isinstance(x, str) for x in joints):
        raise RobotError(f"robot.joints={joints}: expected names, from the base to the tool")
    chain = bodies.joints_of_names(m, joints)
    last = int(m.jnt_bodyid[chain[-1]])
    between = path(m, root, last)
    if [j for j in between if j in chain] != chain:
        listed = ", ".join(m.joint(j).name for j in between)
        raise RobotError(
            f"robot.joints={joints}: not in order from the base to the tool; on the way to the "
            f"last one there are {listed}"
        )
    return chain, last


def find_end(m: mujoco.MjModel, root: int) -> int:
    """The last link: where the chain ends, or branches into fingers."""
    body = root
    while True:
        lengths = {b: depth(m, b) for b in bodies.children(m, body) if depth(m, b)}
        if not lengths:
            return body
        order = sorted(lengths, key=lambda b: -lengths[b])
        second = lengths[order[1]] if len(order) > 1 else -LONGER
        if lengths[order[0]] < second + LONGER:
            if len(bodies.hinges_between(m, int(m.body_parentid[root]), body)) >= FEWEST_HINGES:
                return body
            names = " and ".join(repr(last_name(m, b)) for b in order[:2])
            raise RobotError(
                f"robot.tool: {len(order)} chains begin at {m.body(body).name!r}, which arm is "
                f"it? Name a site or a body on it; two of them end at {names}"
            )
        body = order[0]


def depth(m: mujoco.MjModel, body: int) -> int:
    """The largest number of joints in a row, from a body on."""
    below = [depth(m, b) for b in bodies.children(m, body)]
    return int(m.body_jntnum[body]) + max(below, default=0)


def last_name(m: mujoco.MjModel, body: int) -> str:
    """The name of the last body of the longest chain from a body on."""
    below = [b for b in bodies.children(m, body) if depth(m, b)]
    return last_name(m, max(below, key=lambda b: depth(m, b))) if below else m.body(body).name


def path(m: mujoco.MjModel, root: int, body: int) -> list[int]:
    """The joints of all kinds from the base, its own among them, to a body."""
    way = bodies.way_to(m, body)
    if root not in way:
        raise RobotError(f"robot.base: the chain does not begin at {m.body(root).name!r}")
    return bodies.joints_along(m, way[way.index(root) :])


def trim(m: mujoco.MjModel, chain: list[int], last: int, keep: bool) -> tuple[list[int], int]:
    """The chain without the joints of a finger at its end, and the body that is then the last.

    keep: whether the end was named. Then nothing is removed.
    """
    while (
        chain
        and not keep
        and (m.jnt_type[chain[-1]] != HINGE or FINGER.search(m.joint(chain[-1]).name))
    ):
        last = int(m.body_parentid[m.jnt_bodyid[chain.pop()]])
    return chain, last


def check_chain(m: mujoco.MjModel, root: int, chain: list[int], last: int) -> None:
    """RobotError unless the chain has three hinges or more, one for each body, and nothing else."""
    names = [m.joint(j).name for j in chain]
    where = f"from {m.body(root).name!r} to {m.body(last).name!r}"
    for j, name in zip(chain, names, strict=True):
        if m.jnt_type[j] != HINGE:
            kind = ("a free joint", "a ball joint", "a slide")[int(m.jnt_type[j])]
            raise RobotError(f"robot.joints: {name!r} is {kind}: expected hinges {where}")
        if m.body_jntnum[m.jnt_bodyid[j]] > 1:
            body = m.body(m.jnt_bodyid[j]).name
            raise RobotError(f"robot.joints: the body {body!r} has several joints: expected one")
    if len(chain) < FEWEST_HINGES:
        listed = ", ".join(names) or "none"
        raise RobotError(
            f"robot.joints: expected {FEWEST_HINGES} hinges or more {where}, there are "
            f"{len(chain)}: {listed}"
        )
