"""Prepare a humanoid's MjSpec for the task: add ground, soles, sensors, servos and a keyframe, and
lock the joints of arms and waist."""

from typing import Any

import mujoco
import numpy as np

from gpusim_rl.robots.humanoid.posture import Posture
from gpusim_rl.robots.humanoid.soles import Sole
from gpusim_rl.robots.humanoid.topology import SIDES
from gpusim_rl.robots.quadruped.prepare import (
    HIDDEN,
    LIMITED,
    OBJECT,
    ORIENTATION,
    PLANE,
    SENSOR,
    SPHERE,
    added_name,
    fix_inertias,
    keep_ground,
    remove_files,
    replace_mesh,
    set_collisions,
    set_options,
)
from gpusim_rl.robots.quadruped.topology import FREE

CORNERS = ("heel_right", "heel_left", "toe_right", "toe_left")


def corner_names(side: str) -> list[str]:
    """The names of the spheres of a sole."""
    return [added_name(f"{side}_{corner}") for corner in CORNERS]


def prepare_specs(
    spec: mujoco.MjSpec,
    original: mujoco.MjModel,
    base: str,
    joints: list[str],
    soles: list[Sole],
    collide: str,
) -> mujoco.MjSpec:
    """Prepare a spec for the task, in place. Returns a prepared copy that has boxes for meshes."""
    for i, geom in enumerate(spec.geoms):
        if collide == "all" and (geom.contype or geom.conaffinity):
            replace_mesh(geom, original, i)
    meshless = spec.copy()
    remove_files(meshless, original)
    for each in (spec, meshless):
        prepare(each, original, base, joints, soles, collide)
    return meshless


def prepare(
    spec: mujoco.MjSpec,
    original: mujoco.MjModel,
    base: str,
    joints: list[str],
    soles: list[Sole],
    collide: str,
) -> None:
    """Replace keyframes, sensors, actuators and options of the file by what the task needs, in
    place. All joints but these are removed: what they moved is fixed where they are at 0."""
    for element in (*spec.keys, *spec.sensors, *spec.actuators, *spec.pairs, *spec.tendons):
        spec.delete(element)
    for element in spec.equalities:
        spec.delete(element)
    fix_inertias(spec, original)
    set_options(spec.option)
    for element in spec.bodies:
        element.gravcomp = 0
    body = spec.body(base)
    if not any(joint.type == FREE for joint in body.joints):
        body.add_freejoint(name=added_name("base"))
    for joint in spec.joints:
        if joint.type != FREE and joint.name not in joints:
            spec.delete(joint)
    add_soles(spec, soles)
    if not keep_ground(spec, original):
        look = dict(size=[0, 0, 0.05], rgba=[0.32, 0.36, 0.42, 1])
        spec.worldbody.add_geom(name=added_name("floor"), type=PLANE, contype=1, **look)
    set_collisions(spec, [name for side in SIDES for name in corner_names(side)], collide)
    body.add_site(name=added_name("imu"), group=HIDDEN)
    if not any(camera.name == "track" for camera in spec.cameras):
        add_camera(body)
    add_sensors(spec, joints)


def add_camera(body: Any) -> None:
    """Add a camera that follows the body, in place."""
    mode = mujoco.mjtCamLight.mjCAMLIGHT_TRACKCOM
    camera = body.add_camera(name="track", pos=[0.8, -2.3, 0.5], mode=mode)
    camera.alt.type = ORIENTATION.mjORIENTATION_XYAXES
    camera.alt.xyaxes = [0.94, 0.33, 0, -0.06, 0.17, 0.98]


def add_soles(spec: mujoco.MjSpec, soles: list[Sole]) -> None:
    """Add the spheres of the soles, and a site in the middle of each, in place."""
    for side, sole in zip(SIDES, soles, strict=True):
        body = spec.body(sole.body)
        for name, place in zip(corner_names(side), sole.corners, strict=True):
            geom = body.add_geom(
                name=name,
                type=SPHERE,
                size=[sole.radius, 0, 0],
                pos=place,
                mass=0,
                group=HIDDEN - 1,
            )
            geom.condim, geom.priority, geom.friction = 3, 1, [0.8, 0.005, 0.0001]
        body.add_site(name=added_name(side), pos=sole.center, quat=sole.quat, group=HIDDEN)


def add_sensors(spec: mujoco.MjSpec, joints: list[str]) -> None:
    """Add the sensors that the task reads, in place. It reads ranges of them in this order."""
    imu = dict(objtype=OBJECT.mjOBJ_SITE, objname=added_name("imu"))
    world = dict(objtype=OBJECT.mjOBJ_XBODY, objname="world")
    in_imu = dict(reftype=OBJECT.mjOBJ_SITE, refname=added_name("imu"))
    spec.add_sensor(name="gyro", type=SENSOR.mjSENS_GYRO, **imu)
    spec.add_sensor(name="up", type=SENSOR.mjSENS_FRAMEZAXIS, **world, **in_imu)
    spec.add_sensor(name="velocity", type=SENSOR.mjSENS_VELOCIMETER, **imu)
    kinds = (
        ("position", SENSOR.mjSENS_FRAMEPOS),
        ("velocity", SENSOR.mjSENS_FRAMELINVEL),
        ("up", SENSOR.mjSENS_FRAMEZAXIS),
    )
    for what, kind in kinds:
        for side in SIDES:
            sole = dict(objtype=OBJECT.mjOBJ_SITE, objname=added_name(side))
            spec.add_sensor(name=f"{side}_{what}", type=kind, **sole)
    for joint in joints:
        hinge = dict(objtype=OBJECT.mjOBJ_JOINT, objname=joint)
        spec.add_sensor(name=f"{joint}_torque", type=SENSOR.mjSENS_JOINTACTFRC, **hinge)


def add_servos(
    spec: mujoco.MjSpec, posture: Posture, stance: np.ndarray, **gains: list[float]
) -> None:
    """Add a position servo for each joint, and a keyframe of the stance, in place.

    Args:
        spec: prepared.
        posture: of the robot.
        stance: (2n,) angles [rad].
        gains: `kp` [N m/rad], `kd` [N m s/rad], `torque` [N m] and `armature` [kg m²], (2n,) each.
    """
    for i, joint in enumerate(posture.names):
        servo = spec.add_actuator(name=joint, target=joint, trntype=mujoco.mjtTrn.mjTRN_JOINT)
        servo.set_to_position(kp=gains["kp"][i], kv=gains["kd"][i])
        # The defaults of the file could set these.
        servo.gear, servo.ctrllimited = [1, 0, 0, 0, 0, 0], LIMITED.mjLIMITED_FALSE
        limit = gains["torque"][i]
        servo.forcelimited, servo.forcerange = LIMITED.mjLIMITED_TRUE, [-limit, limit]
        spec.joint(joint).armature = gains["armature"][i]
        spec.joint(joint).actfrclimited = LIMITED.mjLIMITED_FALSE  # the servo is limited
    spec.add_key(name="stance", qpos=posture.qpos(stance), ctrl=stance)
