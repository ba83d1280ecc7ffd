"""Which free joint of a model is the robot's base, and which are those of objects beside it."""

from typing import Any, NamedTuple


class FreeBody(NamedTuple):
    """A body with a free joint, and where its state is."""

    name: str
    body: int  # its id
    joint: int
    qpos: slice  # (7,) position [m] and unit quaternion (w, x, y, z), in the world
    qvel: slice  # (6,) velocity [m/s; world] and angular velocity [rad/s; body]


def free_base(m: Any) -> FreeBody | None:
    """The first free body that carries something driven: the robot's base; None if it is fixed.

    An actuator drives a joint, a site, a tendon or a body. A drone's rotors are on sites.
    In a model without actuators it is the first free body.
    """
    roots = {int(m.body_rootid[body]) for body in driven_bodies(m)}
    return next((x for x in free_bodies(m) if x.body in roots or not m.nu), None)


def free_objects(m: Any) -> tuple[FreeBody, ...]:
    """The free bodies that are not the robot's base, such as a cube beside an arm."""
    base = free_base(m)
    return tuple(x for x in free_bodies(m) if x != base)


def robot_joint(m: Any) -> int | None:
    """The joint of the base; of a fixed robot its first one. None of a model without joints."""
    if base := free_base(m):
        return base.joint
    others = set(range(m.njnt)) - {x.joint for x in free_bodies(m)}
    return min(others, default=None)


def free_bodies(m: Any) -> list[FreeBody]:
    """All bodies with a free joint, in the model's order."""
    import mujoco

    bodies = []
    for j in range(m.njnt):
        if m.jnt_type[j] == mujoco.mjtJoint.mjJNT_FREE:
            body, q, v = (int(x[j]) for x in (m.jnt_bodyid, m.jnt_qposadr, m.jnt_dofadr))
            place = slice(q, q + 7), slice(v, v + 6)
            bodies.append(FreeBody(m.body(body).name, body, j, *place))
    return bodies


def driven_bodies(m: Any) -> set[int]:
    """The ids of the bodies that actuators act on."""
    import mujoco

    kind, wrap = mujoco.mjtTrn, mujoco.mjtWrap
    bodies = {int(kind.mjTRN_JOINT): m.jnt_bodyid, int(kind.mjTRN_JOINTINPARENT): m.jnt_bodyid}
    bodies |= {int(kind.mjTRN_SITE): m.site_bodyid, int(kind.mjTRN_SLIDERCRANK): m.site_bodyid}
    bodies |= {int(kind.mjTRN_BODY): range(m.nbody)}
    wraps = {int(wrap.mjWRAP_JOINT): m.jnt_bodyid, int(wrap.mjWRAP_SITE): m.site_bodyid}
    driven = set()
    for of, thing in zip(m.actuator_trntype, m.actuator_trnid[:, 0], strict=True):
        if of == kind.mjTRN_TENDON:
            first, count = m.tendon_adr[thing], m.tendon_num[thing]
            rows = [i for i in range(first, first + count) if m.wrap_type[i] in wraps]
            driven |= {int(wraps[m.wrap_type[i]][m.wrap_objid[i]]) for i in rows}
        elif of in bodies:
            driven.add(int(bodies[of][thing]))
    return driven
