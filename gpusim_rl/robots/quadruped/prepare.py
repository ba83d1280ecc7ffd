"""Prepare a quadruped's MjSpec for the task: add ground, feet and sensors."""

import mujoco

from gpusim_rl.robots.bodies import FREE
from gpusim_rl.robots.prepare import (
    HIDDEN,
    OBJECT,
    SENSOR,
    SPHERE,
    add_camera,
    add_ground,
    add_torque_sensors,
    added_name,
    clear,
    fix_inertias,
    set_options,
)
from gpusim_rl.robots.quadruped.topology import LEGS, ROLES, Foot

# Of the servos and, with _torque, of their sensors.
NAMES = [f"{leg}_{role}" for leg in LEGS for role in ROLES]
CAMERA = [0.4, -1.6, 0.6], [0.97, 0.24, 0, -0.08, 0.31, 0.95]  # place [m], x and y


def prepare_quadruped(
    spec: mujoco.MjSpec,
    original: mujoco.MjModel,
    base: str,
    joints: list[str],
    feet: list[Foot],
    collide: str,
) -> None:
    """Replace keyframes, sensors, actuators and options of the file by what the task needs, in
    place.

    Args:
        spec: as in the file, or without files.
        original: the compiled spec.
        base: body.
        joints: (12,) names, legs in the order FL, FR, RL, RR. All other joints are removed.
        feet: in the same order.
        collide: feet | all.
    """
    clear(spec)
    fix_inertias(spec, original)
    set_options(spec.option)
    body = spec.body(base)
    if not any(joint.type == FREE for joint in body.joints):
        body.add_freejoint(name=added_name("base"))
    others = [joint for joint in spec.joints if joint.type != FREE and joint.name not in joints]
    for element in (*spec.tendons, *spec.equalities, *others) if others else ():
        spec.delete(element)
    add_feet(spec, feet)
    add_ground(spec, original)
    set_collisions(spec, [foot.geom_name for foot in feet], collide)
    body.add_site(name=added_name("imu"), group=HIDDEN)
    add_camera(spec, body, *CAMERA)
    add_sensors(spec, joints)


def add_feet(spec: mujoco.MjSpec, feet: list[Foot]) -> None:
    """Add the spheres of feet that have none, and a site to each foot, in place."""
    for leg, foot in zip(LEGS, feet, strict=True):
        body, geom = spec.body(foot.knee_body), spec.geom(foot.geom_name)
        if geom is None:
            geom = body.add_geom(
                name=foot.geom_name,
                type=SPHERE,
                size=[foot.radius, 0, 0],
                pos=foot.pos,
                mass=0,
                group=HIDDEN - 1,
            )
        geom.condim, geom.priority, geom.friction = 3, 1, [0.8, 0.005, 0.0001]
        body.add_site(name=added_name(leg), pos=foot.pos, group=HIDDEN)


def set_collisions(spec: mujoco.MjSpec, feet: list[str], collide: str) -> None:
    """Set what collides, in place.

    With collide=feet, only the feet touch the ground and other geoms of the world. With
    collide=all, the ground touches all geoms that collide in the file, and the feet.
    """
    for geom in spec.geoms:
        collides, fixed = bool(geom.contype or geom.conaffinity), geom.parent.name == "world"
        if collide == "feet":
            geom.contype, geom.conaffinity = int(geom.name in feet), int(fixed and collides)
        elif fixed and collides:
            geom.contype = geom.conaffinity = 0x7FFFFFFF
        elif geom.name in feet and not collides:
            geom.contype, geom.conaffinity = 1, 0


def add_sensors(spec: mujoco.MjSpec, joints: list[str]) -> None:
    """Add the sensors that the task reads, in place. It reads ranges of them in this order."""
    imu = dict(objtype=OBJECT.mjOBJ_SITE, objname=added_name("imu"))
    world = dict(objtype=OBJECT.mjOBJ_XBODY, objname="world")
    in_imu = dict(reftype=OBJECT.mjOBJ_SITE, refname=added_name("imu"))
    spec.add_sensor(name="gyro", type=SENSOR.mjSENS_GYRO, **imu)
    spec.add_sensor(name="up", type=SENSOR.mjSENS_FRAMEZAXIS, **world, **in_imu)
    spec.add_sensor(name="velocity", type=SENSOR.mjSENS_VELOCIMETER, **imu)
    kinds = (("position", SENSOR.mjSENS_FRAMEPOS), ("velocity", SENSOR.mjSENS_FRAMELINVEL))
    for what, kind in kinds:
        for leg in LEGS:
            foot = dict(objtype=OBJECT.mjOBJ_SITE, objname=added_name(leg))
            spec.add_sensor(name=f"{leg}_{what}", type=kind, **foot)
    add_torque_sensors(spec, dict(zip(NAMES, joints, strict=True)))
