"""The legs of a quadruped, found in a model: which joints are whose, and where the feet are."""

from itertools import product
from typing import Any, NamedTuple

import mujoco
import numpy as np

LEGS, ROLES = ("FL", "FR", "RL", "RR"), ("abduction", "thigh", "knee")
HINGE, FREE, SPHERE, CAPSULE, MESH = (
    mujoco.mjtJoint.mjJNT_HINGE,
    mujoco.mjtJoint.mjJNT_FREE,
    mujoco.mjtGeom.mjGEOM_SPHERE,
    mujoco.mjtGeom.mjGEOM_CAPSULE,
    mujoco.mjtGeom.mjGEOM_MESH,
)
Array = np.ndarray


class Misfit(ValueError):
    """The model is not the quadruped that was described."""


class Foot(NamedTuple):
    """The ball on which a leg stands."""

    name: str  # of the geom, "" if it has none or there is none yet
    geom: int  # in the file's model, -1: to be added
    ball: str  # what the geom is called in the prepared one
    inside: str  # the body that the foot belongs to
    body: str  # the body of the knee
    place: Array  # (3,) its centre in the knee's body [m]
    radius: float  # m


def twelve(key: str, value: Any) -> Array:
    """(12,) from a number, three (abduction, thigh, knee), or twelve."""
    try:
        numbers = np.asarray(value, dtype=float).ravel()
    except (TypeError, ValueError):
        numbers = np.zeros(0)
    if len(numbers) not in (1, 3, 12) or not np.isfinite(numbers).all():
        raise Misfit(f"robot.{key}={value}: expected a number, three (abduction, thigh, knee) or twelve")
    return np.resize(numbers, 12)


def choose(key: str, what: str, name: Any, known: list[str]) -> str:
    """The name, if it is known."""
    if name not in known:
        raise Misfit(f"robot.{key}: no {what} {name!r}: choose among {', '.join(x for x in known if x)}")
    return name


# -- which body, which joints --------------------------------------------------------------------------------------------


def find_base(spec: mujoco.MjSpec, name: str | None) -> Any:
    """The body that is free to move, or will be: the named one, the one with the free joint, or the only root with joints."""
    if name is not None:
        return spec.body(choose("base", "body", name, [body.name for body in spec.bodies[1:]]))
    free = [joint.parent for joint in spec.joints if joint.type == FREE]
    roots = free or [body for body in spec.worldbody.bodies if body.find_all("joint")]
    if len(free) > 1:
        raise Misfit(f"robot.base: {', '.join(body.name for body in free)} are all free, one robot is wanted and nothing else")
    if len(roots) != 1:
        said = ", ".join(body.name for body in roots or spec.bodies[1:])
        raise Misfit(f"robot.base: {len(roots)} bodies could be the base, name one of {said}")
    return roots[0]


def chain(m: mujoco.MjModel, body: int, base: int) -> list[int]:
    """Hinges from the base to a body."""
    found: list[int] = []
    while body not in (0, base):
        at = range(m.body_jntadr[body], m.body_jntadr[body] + m.body_jntnum[body]) if m.body_jntnum[body] else ()
        found = [j for j in at if m.jnt_type[j] == HINGE] + found
        body = m.body_parentid[body]
    return found if body == base else []


def find_legs(m: mujoco.MjModel, base: str, joints: Any, feet: Any) -> tuple[list[list[str]], list[str | None]]:
    """(names of abduction, thigh, knee of each leg, names of the feet if given), legs in the order FL, FR, RL, RR."""
    named = [m.joint(j).name for j in range(m.njnt)]
    root = m.body(base).id
    for key, value in (("feet", feet), ("joints", joints)):
        if value is not None and (not isinstance(value, list) or len(value) != 4):
            raise Misfit(f"robot.{key}={value}: expected four, in the order FL, FR, RL, RR")
    if joints is not None:
        if any(not isinstance(leg, list) or len(leg) != 3 for leg in joints):
            raise Misfit(f"robot.joints={joints}: expected four lists of abduction, thigh, knee")
        found = [[named.index(choose("joints", "joint", name, named)) for name in leg] for leg in joints]
    elif feet is not None:
        found = [chain(m, locate(m, name)[0], root) for name in feet]
        for name, leg in zip(feet, found, strict=True):
            if len(leg) != 3:
                says = f"{len(leg)} hinges ({', '.join(named[j] for j in leg)})"
                raise Misfit(f"robot.feet: from {base!r} to {name!r} there are {says}, not abduction, thigh and knee")
    else:
        inner = {m.body_parentid[b] for b in range(m.nbody) if m.body_jntnum[b]}
        ends = [b for b in range(m.nbody) if m.body_jntnum[b] and not below(m, b) & inner]
        found = [leg for leg in (chain(m, b, root) for b in ends) if len(leg) == 3]
        if len(found) != 4:
            says = ", ".join(f"{len(chain(m, b, root))} to {m.body(b).name!r}" for b in ends) or "none"
            raise Misfit(f"robot.joints: wanted four legs of three hinges, found {len(found)}; hinges from {base!r}: {says}")
    order = corners(m, root, found)
    if sorted(order) != [0, 1, 2, 3] or ((joints or feet) and order != [0, 1, 2, 3]):
        says = "; ".join(f"{named[leg[0]]} is {LEGS[i]}" for leg, i in zip(found, order, strict=True))
        raise Misfit(f"robot.feet, robot.joints: the order is FL, FR, RL, RR, x of {base!r} forward; but by position {says}")
    legs = [found[order.index(i)] for i in range(4)]
    return [[named[j] for j in leg] for leg in legs], feet or [None] * 4


def below(m: mujoco.MjModel, body: int) -> set[int]:
    """A body and all below it."""
    found = {body}
    for b in range(body + 1, m.nbody):
        if m.body_parentid[b] in found:
            found.add(b)
    return found


def corners(m: mujoco.MjModel, base: int, legs: list[list[int]]) -> list[int]:
    """Which of FL, FR, RL, RR each leg is, by where its joints are."""
    d = mujoco.MjData(m)
    mujoco.mj_kinematics(m, d)
    local = np.array([d.xanchor[leg].mean(0) for leg in legs]) - d.xpos[base]
    local = local @ d.xmat[base].reshape(3, 3)
    x, y = (local - local.mean(0))[:, :2].T
    return [2 * int(a < 0) + int(b < 0) for a, b in zip(x, y, strict=True)]


# -- feet ----------------------------------------------------------------------------------------------------------------


def locate(m: mujoco.MjModel, name: str) -> tuple[int, int, int]:
    """(body, geom, site) of a foot's name; -1 for what it is not."""
    geoms, sites, bodies = (
        [get(i).name for i in range(n)] for get, n in ((m.geom, m.ngeom), (m.site, m.nsite), (m.body, m.nbody))
    )
    if name in geoms:
        return m.geom_bodyid[geoms.index(name)], geoms.index(name), -1
    if name in sites:
        return m.site_bodyid[sites.index(name)], -1, sites.index(name)
    balls = [geom for i, geom in enumerate(geoms) if m.geom_type[i] == SPHERE]
    return bodies.index(choose("feet", "geom, site or body", name, balls + sites + bodies[1:])), -1, -1


def find_foot(m: mujoco.MjModel, name: str | None, joint: str, new: str) -> Foot:
    """The foot of that name, else the farthest sphere below a knee; where there is none, a ball at the farthest point.

    `new` is what its geom is called if it has no name.
    """
    d = mujoco.MjData(m)
    mujoco.mj_kinematics(m, d)
    knee = m.jnt_bodyid[m.joint(joint).id]
    anchor, frame = d.xanchor[m.joint(joint).id], d.xmat[knee].reshape(3, 3)
    body, geom, site = locate(m, name) if name else (knee, -1, -1)
    if body not in below(m, knee):
        raise Misfit(f"robot.feet: {name!r} is not below the knee {joint!r}")
    inside = below(m, body)
    geoms = [geom] if geom >= 0 else [g for g in range(m.ngeom) if m.geom_bodyid[g] in inside]
    tips = {g: tip(m, d, g, anchor) for g in geoms}
    reach = {g: float(np.linalg.norm(point - anchor)) for g, (point, _) in tips.items()}
    if site >= 0:
        near = [g for g in geoms if m.geom_type[g] == SPHERE and np.linalg.norm(d.geom_xpos[g] - d.site_xpos[site]) < 0.01]
        tips, reach = {g: tips[g] for g in near}, {g: reach[g] for g in near}
    if not tips and site < 0:
        raise Misfit(f"robot.feet: the body {m.body(body).name!r} below {joint!r} has no geom: name a site")
    balls = [g for g in tips if m.geom_type[g] == SPHERE and reach[g] > 0.8 * max(reach.values())]
    if balls:
        best = max(balls, key=lambda g: (bool(m.geom_contype[g] | m.geom_conaffinity[g]), reach[g]))
        centre, radius, called = d.geom_xpos[best], float(m.geom_size[best, 0]), m.geom(best).name
        inside_of = m.body(m.geom_bodyid[best]).name
    elif site >= 0:
        best, centre, radius, called, inside_of = -1, d.site_xpos[site], 0.02, name or "", m.body(body).name
    else:
        far = max(reach, key=lambda g: reach[g])
        point, thick = tips[far]
        best, radius, called, inside_of = -1, thick or 0.1 * reach[far], "", m.body(m.geom_bodyid[far]).name
        centre = point - radius * (point - anchor) / reach[far]
    return Foot(
        called, best, (best >= 0 and called) or new, inside_of, m.body(knee).name, frame.T @ (centre - d.xpos[knee]), radius
    )


def tip(m: mujoco.MjModel, d: mujoco.MjData, g: int, anchor: Array) -> tuple[Array, float]:
    """(point of a geom that is farthest from an anchor, its roundness there [m])."""
    frame, size, kind = d.geom_xmat[g].reshape(3, 3), m.geom_size[g], m.geom_type[g]
    corner = np.array(list(product((-1, 1), repeat=3)))
    if kind in (SPHERE, CAPSULE):
        points = d.geom_xpos[g] + np.array([[0, 0, -1], [0, 0, 1]]) * (size[1] if kind == CAPSULE else 0) @ frame.T
    elif kind == MESH:
        at = m.mesh_vertadr[m.geom_dataid[g]]
        points = d.geom_xpos[g] + m.mesh_vert[at : at + m.mesh_vertnum[m.geom_dataid[g]]] @ frame.T
    else:
        points = d.geom_xpos[g] + (m.geom_aabb[g, :3] + corner * m.geom_aabb[g, 3:]) @ frame.T
    reach = np.linalg.norm(points - anchor, axis=1)
    far = points[reach > 0.98 * reach.max()].mean(0)  # the middle of a sole
    thick = float(size[0]) if kind in (SPHERE, CAPSULE) else 0.0
    return far + thick * (far - anchor) / max(float(np.linalg.norm(far - anchor)), 1e-9), thick
