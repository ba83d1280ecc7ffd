"""Bodies, joints and names of a robot's model: what robots of every shape need to be read."""

from itertools import product

import mujoco
import numpy as np

HINGE, FREE = mujoco.mjtJoint.mjJNT_HINGE, mujoco.mjtJoint.mjJNT_FREE
SLIDE = mujoco.mjtJoint.mjJNT_SLIDE
GEOM = mujoco.mjtGeom
SPHERE, CAPSULE, MESH = GEOM.mjGEOM_SPHERE, GEOM.mjGEOM_CAPSULE, GEOM.mjGEOM_MESH
LIMIT_TOLERANCE_RAD = 1e-3  # rad by which a stance may be beyond limits
FEW_DEGREES_RAD = np.radians(10)  # no robot has all its ranges within these
FULL_TURN_RAD = 2 * np.pi + 0.01  # nor a hinge with limits that turns further
Array = np.ndarray
Signs = tuple[float, ...]  # 1 or -1 for each joint; () if there are none


class RobotError(ValueError):
    """The model is not a robot of the shape that was asked for."""


def check_name(key: str, kind: str, name: str, choices: list[str]) -> str:
    """The name, if it is among the choices; RobotError if it is not."""
    if name not in choices:
        listed = ", ".join(choice for choice in choices if choice)
        raise RobotError(f"robot.{key}: no {kind} {name!r}: choose among {listed}")
    return name


def check_count(feet: list | None, joints: list | None, count: int, expected: str) -> None:
    """RobotError unless feet and joints of a description are None or `count` each."""
    for key, value in (("feet", feet), ("joints", joints)):
        if value is not None and (not isinstance(value, list) or len(value) != count):
            raise RobotError(f"robot.{key}={value}: expected {expected}")


def joints_of_names(m: mujoco.MjModel, joints: list[str]) -> list[int]:
    """The ids of joints with these names. RobotError if there is no such joint."""
    names = [m.joint(j).name for j in range(m.njnt)]
    return [names.index(check_name("joints", "joint", name, names)) for name in joints]


def find_base(spec: mujoco.MjSpec, name: str | None) -> mujoco.MjsBody:
    """The body of the base: the named one, else the one with a free joint, else the only child of
    the world with joints."""
    if name is not None:
        names = [body.name for body in spec.bodies[1:]]
        base = root = spec.body(check_name("base", "body", name, names))
        while root.parent.name != "world":
            root = root.parent
        if root.name != base.name:
            raise RobotError(
                f"robot.base: {name!r} is inside of {root.name!r}, and only a child of the world "
                f"can float: name {root.name!r}, or take {name!r} out of it in the file"
            )
        return base
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


# Why: docs/decisions/robots.md
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


def is_empty(m: mujoco.MjModel, body: mujoco.MjsBody) -> bool:
    """Whether a body of a spec has no mass, geoms, sites or frames."""
    bare = not (body.geoms or body.sites or body.frames)
    return bare and not m.body_mass[m.body(body.name).id]


def kinematics(m: mujoco.MjModel, qpos: Array | None = None) -> mujoco.MjData:
    """Data with the frames of all bodies at these positions, else at `qpos0`."""
    d = mujoco.MjData(m)
    if qpos is not None:
        d.qpos[:] = qpos
    mujoco.mj_kinematics(m, d)
    return d


def way_to(m: mujoco.MjModel, body: int) -> list[int]:
    """The ids of the bodies from the world to a body, both among them."""
    way = [int(body)]
    while way[0]:
        way.insert(0, int(m.body_parentid[way[0]]))
    return way


def children(m: mujoco.MjModel, body: int) -> list[int]:
    """The ids of the bodies right below a body."""
    return [b for b in range(body + 1, m.nbody) if m.body_parentid[b] == body]


def joints_along(m: mujoco.MjModel, way: list[int]) -> list[int]:
    """The ids of the joints of all kinds of these bodies."""
    return [j for b in way for j in range(m.body_jntadr[b], m.body_jntadr[b] + m.body_jntnum[b])]


def hinges_between(m: mujoco.MjModel, base: int, body: int) -> list[int]:
    """The hinges on the way from the base to a body below it; none if it is not below."""
    way = way_to(m, body)
    below = way[way.index(base) + 1 :] if base in way else []
    return [j for j in joints_along(m, below) if m.jnt_type[j] == HINGE]


def find_chains(m: mujoco.MjModel, base: int) -> dict[int, list[int]]:
    """Last body → its hinges from the base, for each chain of hinges below it."""
    moved = {*m.jnt_bodyid[m.jnt_type == HINGE].tolist()}
    ends = [b for b in sorted(moved) if not (subtree(m, b) - {b}) & moved]
    chains = {b: hinges_between(m, base, b) for b in ends}
    return {b: hinges for b, hinges in chains.items() if hinges}


def subtree(m: mujoco.MjModel, body: int) -> set[int]:
    """The ids of a body and of all bodies below it."""
    bodies = {body}
    for b in range(body + 1, m.nbody):
        if m.body_parentid[b] in bodies:
            bodies.add(b)
    return bodies


def beyond_limits(angles: Array, low: Array, high: Array) -> bool:
    """Whether an angle (n,) is beyond its limits (n,) [rad] by more than a keyframe may be."""
    return bool(
        ((angles < low - LIMIT_TOLERANCE_RAD) | (angles > high + LIMIT_TOLERANCE_RAD)).any()
    )


def doubtful_ranges(m: mujoco.MjModel, joints: list[str], degrees: bool) -> str:
    """A line if ranges look like degrees that were read as radians, or the other way, else "".

    degrees: the file's <compiler angle> is degree.
    """
    ends = {name: float(np.abs(m.joint(name).range).max()) for name in joints}
    ends = {name: end for name, end in ends.items() if m.jnt_limited[m.joint(name).id]}
    if not ends:
        return ""
    name, end = max(ends.items(), key=lambda item: item[1])
    unit, other, doubtful = "radian", "degree", end > FULL_TURN_RAD
    if degrees:
        unit, other, doubtful = other, unit, end < FEW_DEGREES_RAD
        end = np.degrees(end)
    where = f"the range of {name!r}, the largest of its joints, ends at {end:.3g} {unit}s"
    return f'{where}: perhaps the file means <compiler angle="{other}"/>' if doubtful else ""


def qpos_columns(m: mujoco.MjModel, joints: list[str]) -> Array:
    """(n,) where the positions of hinges are in `qpos`."""
    return np.array([m.joint(name).qposadr[0] for name in joints])


def keyframe_of(m: mujoco.MjModel, joints: list[str], angles: list[float]) -> str:
    """The name or number of the first keyframe in which joints are at these angles [rad], or ""."""
    columns = qpos_columns(m, joints)
    for i in range(m.nkey):
        if np.allclose(m.key_qpos[i, columns], angles, atol=1e-4):
            return repr(m.key(i).name or i)
    return ""


def locate(m: mujoco.MjModel, name: str, key: str = "feet") -> tuple[int, int, int]:
    """The ids (body, geom, site) of the geom, site or body with a name; a `tool` is no geom.

    Geom and site are -1 where the name is not theirs. The body is the one that they are part of.
    """
    geoms = [m.geom(i).name for i in range(m.ngeom)] if key == "feet" else []
    sites = [m.site(i).name for i in range(m.nsite)]
    bodies = [m.body(i).name for i in range(m.nbody)]
    if name in geoms:
        return m.geom_bodyid[geoms.index(name)], geoms.index(name), -1
    if name in sites:
        return m.site_bodyid[sites.index(name)], -1, sites.index(name)
    spheres = [geom for i, geom in enumerate(geoms) if m.geom_type[i] == SPHERE]
    kind = "geom, site or body" if key == "feet" else "site or body"
    check_name(key, kind, name, spheres + sites + bodies[1:])
    return bodies.index(name), -1, -1


def outline(m: mujoco.MjModel, geom: int) -> tuple[Array, float]:
    """Points (n, 3) of a geom in its frame, and the radius of the balls around them [m].

    They are the center of a sphere, the ends of a capsule, the vertices of a mesh, or the corners
    of the bounding box of another geom. The last two have no balls: a radius of 0.
    """
    size, kind = m.geom_size[geom], m.geom_type[geom]
    if kind == SPHERE or kind == CAPSULE:
        ends = [[0, 0, -1], [0, 0, 1]] if kind == CAPSULE else [[0, 0, 0]]
        return size[1] * np.array(ends), float(size[0])
    if kind == MESH:
        mesh = m.geom_dataid[geom]
        first = m.mesh_vertadr[mesh]
        return m.mesh_vert[first : first + m.mesh_vertnum[mesh]], 0.0
    signs = np.array(list(product((-1, 1), repeat=3)))
    return m.geom_aabb[geom, :3] + signs * m.geom_aabb[geom, 3:], 0.0


def tip(m: mujoco.MjModel, d: mujoco.MjData, geom: int, anchor: Array) -> tuple[Array, float]:
    """The point (3,) of a geom that is farthest from an anchor, and the geom's radius there.

    Both are in meters. The radius is 0 for a geom that is neither a sphere nor a capsule.
    """
    local, radius = outline(m, geom)
    points = d.geom_xpos[geom] + local @ d.geom_xmat[geom].reshape(3, 3).T
    reach = np.linalg.norm(points - anchor, axis=1)
    far = points[reach >= 0.98 * reach.max()].mean(0)  # the middle of a flat end
    return far + radius * (far - anchor) / max(float(np.linalg.norm(far - anchor)), 1e-9), radius
