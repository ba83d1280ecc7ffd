"""The legs of a quadruped in a MuJoCo model: which joints each leg has, and where its foot is."""

from typing import Any, NamedTuple

import mujoco
import numpy as np

LEGS, ROLES = ("FL", "FR", "RL", "RR"), ("abduction", "thigh", "knee")
HINGE, FREE = mujoco.mjtJoint.mjJNT_HINGE, mujoco.mjtJoint.mjJNT_FREE
SPHERE, CAPSULE, MESH = (
    mujoco.mjtGeom.mjGEOM_SPHERE,
    mujoco.mjtGeom.mjGEOM_CAPSULE,
    mujoco.mjtGeom.mjGEOM_MESH,
)
Array = np.ndarray


class RobotError(ValueError):
    """The model is not the quadruped that was described."""


class Foot(NamedTuple):
    """The sphere on which a leg stands."""

    name: str  # of the geom or site in the file; "" if it has none, or if the sphere is new
    geom: int  # id in the file's model; -1: a sphere to be added
    geom_name: str  # name of the geom in the prepared model
    body: str  # the body that the foot is part of
    knee_body: str  # the body that the knee moves
    pos: Array  # (3,) center in the frame of knee_body [m]
    radius: float  # m


def joint_values(key: str, value: Any) -> Array:
    """(12,) from one number, three (abduction, thigh, knee) or twelve."""
    try:
        numbers = np.asarray(value, dtype=float).ravel()
    except (TypeError, ValueError):
        numbers = np.zeros(0)
    if len(numbers) not in (1, 3, 12) or not np.isfinite(numbers).all():
        raise RobotError(
            f"robot.{key}={value}: expected a number, three (abduction, thigh, knee) or twelve"
        )
    return np.resize(numbers, 12)


def check_name(key: str, kind: str, name: Any, choices: list[str]) -> str:
    """The name, if it is among the choices; RobotError if it is not."""
    if name not in choices:
        listed = ", ".join(choice for choice in choices if choice)
        raise RobotError(f"robot.{key}: no {kind} {name!r}: choose among {listed}")
    return name


# -- base ------------------------------------------------------------------------------------------


def find_base(spec: mujoco.MjSpec, name: str | None) -> Any:
    """The body of the base: the named one, else the one with a free joint, else the only child of
    the world with joints."""
    if name is not None:
        names = [body.name for body in spec.bodies[1:]]
        return check_floats(spec.body(check_name("base", "body", name, names)))
    free = [joint.parent for joint in spec.joints if joint.type == FREE]
    if len(free) > 1:
        raise RobotError(
            f"robot.base: the bodies {', '.join(body.name for body in free)} have a free joint "
            f"each: the model must hold one robot and nothing else"
        )
    roots = free or [body for body in spec.worldbody.bodies if body.find_all("joint")]
    if len(roots) != 1:
        choices = ", ".join(body.name for body in roots or spec.bodies[1:])
        raise RobotError(
            f"robot.base: {len(roots)} bodies could be the base, name one of {choices}"
        )
    return roots[0]


def check_floats(base: Any) -> Any:
    """The base, if it is a child of the world, as a body with a free joint must be; else
    RobotError."""
    root = base
    while root.parent.name != "world":
        root = root.parent
    if root.name != base.name:
        raise RobotError(
            f"robot.base: {base.name!r} is inside of {root.name!r}, and only a child of the world "
            f"can float: name {root.name!r}, or take {base.name!r} out of it in the file"
        )
    return base


def raise_origin(spec: mujoco.MjSpec, m: mujoco.MjModel, base: str) -> bool:
    """Move an empty base to the trunk that it holds, in place. Returns whether it was empty.

    The root of many files, such as `base_footprint`, lies on the ground without mass or geoms. `m`
    is the compiled spec.
    """
    chain, pos, quat = [spec.body(base)], np.zeros(3), np.array([1.0, 0, 0, 0])
    while is_empty(m, b := chain[-1]) and len(b.bodies) == 1 and not b.bodies[0].joints:
        chain.append(b.bodies[0])
    for body in chain:
        i = m.body(body.name).id
        mujoco.mju_mulPose(pos, quat, pos.copy(), quat.copy(), m.body_pos[i], m.body_quat[i])
    for body in chain if len(chain) > 1 else ():
        body.alt.type = mujoco.mjtOrientation.mjORIENTATION_QUAT
        body.pos, body.quat = pos, quat  # the first one's; those below it do not move against it
        pos, quat = np.zeros(3), np.array([1.0, 0, 0, 0])
    return len(chain) > 1


def is_empty(m: mujoco.MjModel, body: Any) -> bool:
    """Whether a body of a spec has no mass, geoms, sites or frames."""
    bare = not (body.geoms or body.sites or body.frames)
    return bare and not m.body_mass[m.body(body.name).id]


# -- legs ------------------------------------------------------------------------------------------


def find_legs(
    m: mujoco.MjModel, base: str, joints: Any, feet: Any
) -> tuple[list[list[str]], list[str | None]]:
    """The joints and the feet of the legs, in the order FL, FR, RL, RR.

    Args:
        m: the model.
        base: body.
        joints: four lists of abduction, thigh, knee, or None.
        feet: four geoms, sites or bodies, or None.

    Returns:
        (the names of the joints of each leg, the names of the feet or None for each).
    """
    for key, value in (("feet", feet), ("joints", joints)):
        if value is not None and (not isinstance(value, list) or len(value) != 4):
            raise RobotError(f"robot.{key}={value}: expected four, in the order FL, FR, RL, RR")
    if joints is not None:
        legs = legs_of_names(m, joints)
    elif feet is not None:
        legs = legs_of_feet(m, base, feet)
    else:
        legs = guess_legs(m, base)
    legs = sort_legs(m, base, legs, given=bool(joints or feet))
    return [[m.joint(j).name for j in leg] for leg in legs], feet or [None] * 4


def legs_of_names(m: mujoco.MjModel, joints: list[Any]) -> list[list[int]]:
    """The joints of four legs, from their names."""
    if any(not isinstance(leg, list) or len(leg) != 3 for leg in joints):
        raise RobotError(f"robot.joints={joints}: expected four lists of abduction, thigh, knee")
    names = [m.joint(j).name for j in range(m.njnt)]
    checked = [[check_name("joints", "joint", name, names) for name in leg] for leg in joints]
    return [[names.index(name) for name in leg] for leg in checked]


def legs_of_feet(m: mujoco.MjModel, base: str, feet: list[Any]) -> list[list[int]]:
    """The joints of four legs: the three hinges between the base and each foot."""
    legs = [hinges_between(m, m.body(base).id, locate(m, name)[0]) for name in feet]
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
    root = m.body(base).id
    parents = {m.body_parentid[b] for b in range(m.nbody) if m.body_jntnum[b]}
    ends = [b for b in range(m.nbody) if m.body_jntnum[b] and not subtree(m, b) & parents]
    chains = {b: hinges_between(m, root, b) for b in ends}
    legs = [chain for chain in chains.values() if len(chain) == 3]
    if len(legs) != 4:
        listed = ", ".join(f"{len(chain)} to {m.body(b).name!r}" for b, chain in chains.items())
        raise RobotError(
            f"robot.joints: expected four legs of three hinges, the model has {len(legs)}; "
            f"hinges from {base!r}: {listed or 'none'}"
        )
    return legs


def sort_legs(m: mujoco.MjModel, base: str, legs: list[list[int]], given: bool) -> list[list[int]]:
    """The legs in the order FL, FR, RL, RR, by the positions of their joints.

    RobotError if two legs are in one corner, or if `given` legs are in another order.
    """
    order = corners(m, m.body(base).id, legs)
    if sorted(order) != [0, 1, 2, 3] or (given and order != [0, 1, 2, 3]):
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
    d = mujoco.MjData(m)
    mujoco.mj_kinematics(m, d)
    local = np.array([d.xanchor[leg].mean(0) for leg in legs]) - d.xpos[base]
    local = local @ d.xmat[base].reshape(3, 3)
    x, y = (local - local.mean(0))[:, :2].T
    return [2 * int(a < 0) + int(b < 0) for a, b in zip(x, y, strict=True)]


def hinges_between(m: mujoco.MjModel, base: int, body: int) -> list[int]:
    """The hinges on the way from the base to a body below it; none if it is not below."""
    hinges: list[int] = []
    while body not in (0, base):
        first, count = m.body_jntadr[body], m.body_jntnum[body]
        joints = range(first, first + count) if count else ()
        hinges = [j for j in joints if m.jnt_type[j] == HINGE] + hinges
        body = m.body_parentid[body]
    return hinges if body == base else []


def subtree(m: mujoco.MjModel, body: int) -> set[int]:
    """The ids of a body and of all bodies below it."""
    bodies = {body}
    for b in range(body + 1, m.nbody):
        if m.body_parentid[b] in bodies:
            bodies.add(b)
    return bodies


# -- feet ------------------------------------------------------------------------------------------


def locate(m: mujoco.MjModel, name: str) -> tuple[int, int, int]:
    """The ids (body, geom, site) of the geom, site or body with a name.

    Geom and site are -1 where the name is not theirs. The body is the one that they are part of.
    """
    geoms = [m.geom(i).name for i in range(m.ngeom)]
    sites = [m.site(i).name for i in range(m.nsite)]
    bodies = [m.body(i).name for i in range(m.nbody)]
    if name in geoms:
        return m.geom_bodyid[geoms.index(name)], geoms.index(name), -1
    if name in sites:
        return m.site_bodyid[sites.index(name)], -1, sites.index(name)
    spheres = [geom for i, geom in enumerate(geoms) if m.geom_type[i] == SPHERE]
    check_name("feet", "geom, site or body", name, spheres + sites + bodies[1:])
    return bodies.index(name), -1, -1
