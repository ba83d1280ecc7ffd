"""Prepare a humanoid's MjSpec for the task: add ground, soles and sensors, and lock the joints of
arms and waist."""

import mujoco

from gpusim_rl.robots.bodies import FREE
from gpusim_rl.robots.humanoid.soles import Sole
from gpusim_rl.robots.humanoid.topology import SIDES
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
    copy_without_meshes,
    grip,
    set_collisions,
)
from gpusim_rl.robots.quadruped.prepare import KINDS

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
    meshless = copy_without_meshes(spec, original, collide)
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
    for element in (*spec.tendons, *spec.equalities):
        spec.delete(element)
    body = clear_walker(spec, original, base)
    for joint in spec.joints:
        if joint.type != FREE and joint.name not in joints:
            spec.delete(joint)
    add_soles(spec, soles)
    add_ground(spec, original)
    set_collisions(spec, [name for side in SIDES for name in corner_names(side)], collide)
    body.add_site(name=added_name("imu"), group=HIDDEN)
    add_camera(spec, body, *CAMERA)
    add_walking_sensors(spec, SIDES, KINDS | {"up": SENSOR.mjSENS_FRAMEZAXIS})
    add_torque_sensors(spec, {joint: joint for joint in joints})


def add_soles(spec: mujoco.MjSpec, soles: list[Sole]) -> None:
    """Add the spheres of the soles, and a site in the middle of each, in place."""
    for side, sole in zip(SIDES, soles, strict=True):
        body = spec.body(sole.body)
        for name, place in zip(corner_names(side), sole.corners, strict=True):
            grip(add_sphere(body, name, sole.radius, place))
        body.add_site(name=added_name(side), pos=sole.center, quat=sole.quat, group=HIDDEN)
