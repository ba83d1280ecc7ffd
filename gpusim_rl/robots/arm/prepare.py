"""Prepare an arm's MjSpec for the task: lock its fingers, add ground, goals, tool and sensors."""

import math

import mujoco
import numpy as np

from gpusim_rl.robots import prepare as common
from gpusim_rl.robots.arm.kinematics import Kinematics
from gpusim_rl.robots.arm.tool import Tool
from gpusim_rl.robots.bodies import SPHERE, Array, RobotError, kinematics, subtree

TOOL = common.added_name("tool")
# Place of the camera in reaches of the arm, and its x and y
VIEW = np.array([1.45, -0.95, 0.85]), [0.65, 0.76, 0, -0.24, 0.2, 0.95]
GREEN = [0.15, 0.75, 0.45, 0.45]
EVERYTHING = 0x7FFFFFFF  # bits of contype and conaffinity
# Of the hand that shows the pose of a goal: half sizes and places of boxes, in the tool's frame [m]
HAND = (
    ([0.018, 0.1, 0.03], [0, 0, -0.074]),
    ([0.008, 0.007, 0.024], [0, 0.05, -0.02]),
    ([0.008, 0.007, 0.024], [0, -0.05, -0.02]),
)


def prepare_arm(
    spec: mujoco.MjSpec, original: mujoco.MjModel, joints: list[str], tool: Tool, rest: Array
) -> None:
    """Replace keyframes, sensors, actuators and options of the file by what the task needs, in
    place. All joints but these, from the base to the tool, are removed, and locked where `rest`
    (nq,), in the file's order, has them. What collides stays as in the file.
    """
    check_couplings(original, joints)
    common.clear(spec, original)
    for element in (*spec.tendons, *spec.equalities):
        spec.delete(element)
    lock(spec, original, joints, rest)
    for name in joints:
        joint = spec.joint(name)
        if not original.jnt_limited[original.joint(name).id]:
            # a turn each way from the middle, as degrees in a file with angle="degree"
            half = 180 if spec.compiler.degree else math.pi
            joint.limited, joint.range = common.LIMITED.mjLIMITED_TRUE, [-half, half]
    common.add_ground(spec, original, lowest(original))
    body = spec.body(original.body(tool.body).name)
    body.add_site(name=TOOL, pos=tool.pos, quat=tool.quat, group=common.HIDDEN)
    add_goals(spec)
    site = dict(objtype=common.OBJECT.mjOBJ_SITE, objname=TOOL)
    # the task reads ranges of sensors in this order
    spec.add_sensor(name="tool_position", type=common.SENSOR.mjSENS_FRAMEPOS, **site)
    spec.add_sensor(name="tool_rotation", type=common.SENSOR.mjSENS_FRAMEQUAT, **site)
    common.add_torque_sensors(spec, {joint: joint for joint in joints})


def turned(tool: Tool, angle: float) -> Array:
    """(4,) the rotation of a tool after a turn about its z [rad]."""
    quat, half = np.zeros(4), angle / 2
    mujoco.mju_mulQuat(quat, tool.quat, np.array([math.cos(half), 0, 0, math.sin(half)]))
    return quat


def check_couplings(m: mujoco.MjModel, joints: list[str]) -> None:
    """RobotError if an equality or a tendon of the file couples joints of the arm."""
    ids = {m.joint(name).id for name in joints}
    for i in range(m.neq):
        if names := coupled(m, i, ids):
            raise RobotError(f"robot.joints: an equality couples {names}: they do not move freely")
    for i in range(m.ntendon):
        path = slice(m.tendon_adr[i], m.tendon_adr[i] + m.tendon_num[i])
        moved = m.wrap_objid[path][m.wrap_type[path] == mujoco.mjtWrap.mjWRAP_JOINT]
        if names := ", ".join(m.joint(j).name for j in sorted({*moved.tolist()} & ids)):
            raise RobotError(f"robot.joints: a tendon couples {names}: they do not move freely")


def coupled(m: mujoco.MjModel, i: int, ids: set[int]) -> str:
    """The joints or bodies of an arm that an equality couples, as words; "" if none."""
    ends = [int(m.eq_obj1id[i]), int(m.eq_obj2id[i])]
    if m.eq_type[i] == mujoco.mjtEq.mjEQ_JOINT:
        arm = {*ends} & ids and {*ends} <= ids | {-1}
        return ", ".join(m.joint(j).name for j in sorted(ends) if j >= 0) if arm else ""
    kind = mujoco.mjtEq(int(m.eq_type[i]))
    if kind not in (mujoco.mjtEq.mjEQ_CONNECT, mujoco.mjtEq.mjEQ_WELD):
        return ""
    if m.eq_objtype[i] == common.OBJECT.mjOBJ_SITE:
        ends = [int(m.site_bodyid[x]) for x in ends]
    moved = [{j for j in ids if x in subtree(m, int(m.jnt_bodyid[j]))} for x in ends]
    return " and ".join(m.body(x).name for x in ends) if moved[0] != moved[1] else ""


def lock(spec: mujoco.MjSpec, original: mujoco.MjModel, joints: list[str], rest: Array) -> None:
    """Remove the other joints, in place. What they moved stays as in `rest`."""
    d = kinematics(original, rest)
    others = [joint for joint in spec.joints if joint.name not in joints]
    away = not np.allclose(rest, original.qpos0)
    for name in {joint.parent.name for joint in others} if away else ():
        i = original.body(name).id
        parent, pos, quat = original.body_parentid[i], np.zeros(3), np.zeros(4)
        back_pos, back = np.zeros(3), np.zeros(4)
        mujoco.mju_negPose(back_pos, back, d.xpos[parent], d.xquat[parent])
        mujoco.mju_mulPose(pos, quat, back_pos, back, d.xpos[i], d.xquat[i])
        body = spec.body(name)
        body.alt.type = common.ORIENTATION.mjORIENTATION_QUAT
        body.pos, body.quat = pos, quat
    for joint in others:
        spec.delete(joint)


def lowest(m: mujoco.MjModel) -> float:
    """Height of the ground [m]: 0, or that of the lowest point of what is fixed below it."""
    d = kinematics(m)
    fixed = [g for g in range(m.ngeom) if m.body_weldid[m.geom_bodyid[g]] == 0]
    fixed = [g for g in fixed if m.geom_type[g] != mujoco.mjtGeom.mjGEOM_PLANE]
    ups = d.geom_xmat.reshape(-1, 3, 3)[:, 2]  # (ngeom, 3) z of the world in each geom's frame
    centers = {g: d.geom_xpos[g, 2] + ups[g] @ m.geom_aabb[g, :3] for g in fixed}
    halves = {g: np.abs(ups[g]) @ m.geom_aabb[g, 3:] for g in fixed}
    return min([0.0, *(float(centers[g] - halves[g]) for g in fixed)])


def add_goals(spec: mujoco.MjSpec) -> None:
    """Add the bodies that show a goal, below the ground, unless the file has them. In place."""
    look = dict(rgba=GREEN, contype=0, conaffinity=0, mass=0, group=1)
    shapes = {
        "goal_point": [(SPHERE, [0.03, 0, 0], [0, 0, 0])],
        "goal_pose": [(common.BOX, size, place) for size, place in HAND],
    }
    for name, parts in shapes.items():
        if spec.body(name) is None:
            body = spec.worldbody.add_body(name=name, pos=[0, 0, -10])
            for kind, size, place in parts:
                body.add_geom(type=kind, size=size, pos=place, **look)


def set_collisions(spec: mujoco.MjSpec, collide: str, neighbors: set[tuple[int, int]]) -> None:
    """Set what collides, in place.

    With collide=feet, nothing does: an arm has no feet. With collide=all, all geoms that collide in
    the file do, with the ground and with each other. Bodies that touch where they are joined, pairs
    of ids, do not.
    """
    for geom in spec.geoms:
        if collide == "feet":
            geom.contype = geom.conaffinity = 0
        elif geom.parent.name == "world" and (geom.contype or geom.conaffinity):
            geom.contype = geom.conaffinity = EVERYTHING
    names = [body.name for body in spec.bodies]
    excluded = [{x.bodyname1, x.bodyname2} for x in spec.excludes]
    for i, j in sorted(neighbors if collide == "all" else ()):
        if {names[i], names[j]} not in excluded:
            name = common.added_name(f"{names[i]}-{names[j]}")
            spec.add_exclude(name=name, bodyname1=names[i], bodyname2=names[j])


def add_view(spec: mujoco.MjSpec, arm: Kinematics) -> None:
    """Add light, and a camera that sees the arm whole unless the file has `track`, in place."""
    spec.visual.headlight.ambient, spec.visual.headlight.diffuse = [0.35] * 3, [0.4] * 3
    place = VIEW[0] * np.array(arm.reach) + arm.shoulder * [1, 1, 0]
    common.add_camera(spec, spec.worldbody, place, VIEW[1], fovy=36)
