"""Prepare a humanoid's MjSpec for the task: add ground, soles and sensors, and lock the joints of
arms and waist."""

import mujoco

from gpusim_rl.robots.bodies import FREE
from gpusim_rl.robots.humanoid.soles import Sole
from gpusim_rl.robots.humanoid.topology import SIDES
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
    remove_files,
    replace_mesh,
    set_options,
)
from gpusim_rl.robots.quadruped.prepare import set_collisions

CAMERA = [0.8, -2.3, 0.5], [0.94, 0.33, 0, -0.06, 0.17, 0.98]  # place [m], x and y
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
        prepare_humanoid(each, original, base, joints, soles, collide)
    return meshless


def prepare_humanoid(
    spec: mujoco.MjSpec,
    original: mujoco.MjModel,
    base: str,
    joints: list[str],
    soles: list[Sole],
    collide: str,
) -> None:
    """Replace keyframes, sensors, actuators and options of the file by what the task needs, in
    place. All joints but these are removed: what they moved is fixed where they are at 0."""
    clear(spec)
    for element in (*spec.tendons, *spec.equalities):
        spec.delete(element)
    fix_inertias(spec, original)
    set_options(spec.option)
    body = spec.body(base)
    if not any(joint.type == FREE for joint in body.joints):
        body.add_freejoint(name=added_name("base"))
    for joint in spec.joints:
        if joint.type != FREE and joint.name not in joints:
            spec.delete(joint)
    add_soles(spec, soles)
    add_ground(spec, original)
    set_collisions(spec, [name for side in SIDES for name in corner_names(side)], collide)
    body.add_site(name=added_name("imu"), group=HIDDEN)
    add_camera(spec, body, *CAMERA)
    add_sensors(spec, joints)


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
    add_torque_sensors(spec, {joint: joint for joint in joints})
