"""Prepare a quadruped's MjSpec for the task: add ground, feet and sensors."""

import mujoco

from gpusim_rl.robots.bodies import FREE
from gpusim_rl.robots.prepare import (
    HIDDEN,
    SENSOR,
    add_camera,
    add_ground,
    add_sphere,
    add_torque_sensors,
    add_walking_sensors,
    added_name,
    clear_walker,
    grip,
    set_collisions,
)
from gpusim_rl.robots.quadruped.topology import LEGS, ROLES, Foot

# Of the servos and, with _torque, of their sensors.
NAMES = [f"{leg}_{role}" for leg in LEGS for role in ROLES]
KINDS = {"position": SENSOR.mjSENS_FRAMEPOS, "velocity": SENSOR.mjSENS_FRAMELINVEL}  # of feet
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
    body = clear_walker(spec, original, base)
    others = [joint for joint in spec.joints if joint.type != FREE and joint.name not in joints]
    for element in (*spec.tendons, *spec.equalities, *others) if others else ():
        spec.delete(element)
    add_feet(spec, feet)
    add_ground(spec, original)
    set_collisions(spec, [foot.geom_name for foot in feet], collide)
    body.add_site(name=added_name("imu"), group=HIDDEN)
    add_camera(spec, body, *CAMERA)
    add_walking_sensors(spec, LEGS, KINDS)
    add_torque_sensors(spec, dict(zip(NAMES, joints, strict=True)))


def add_feet(spec: mujoco.MjSpec, feet: list[Foot]) -> None:
    """Add the spheres of feet that have none, and a site to each foot, in place."""
    for leg, foot in zip(LEGS, feet, strict=True):
        body, geom = spec.body(foot.knee_body), spec.geom(foot.geom_name)
        if geom is None:
            geom = add_sphere(body, foot.geom_name, foot.radius, foot.pos)
        grip(geom)
        body.add_site(name=added_name(leg), pos=foot.pos, group=HIDDEN)
