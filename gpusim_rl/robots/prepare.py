"""Prepare a robot's MjSpec for a task, whatever its shape: its files, ground, inertias, options."""

from collections.abc import Mapping, Sequence
from typing import Any

import mujoco
import numpy as np

from gpusim_rl.robots.bodies import GEOM, MESH, SPHERE, Array
from gpusim_rl.robots.robot_config import Robot

PLANE, BOX = GEOM.mjGEOM_PLANE, GEOM.mjGEOM_BOX
HIDDEN = 3  # the first group of geoms that a viewer does not show
LIMITED, SENSOR = mujoco.mjtLimited, mujoco.mjtSensor
OBJECT, ORIENTATION = mujoco.mjtObj, mujoco.mjtOrientation


def added_name(name: str) -> str:
    """The name of an element that we add. Its prefix keeps it apart from the names in the file."""
    return f"gpusim_rl/{name}"


def remove_files(spec: mujoco.MjSpec, original: mujoco.MjModel) -> None:
    """Replace meshes by boxes and remove the files of textures, in place.

    The boxes are hidden where their body has another geom to show. The number of geoms stays, so
    that values per geom fit both models. `original` is the compiled spec.
    """
    visible = {geom.parent.name for geom in spec.geoms if geom.type != MESH}
    for i, geom in enumerate(spec.geoms):
        hidden = geom.type == MESH and geom.parent.name in visible
        geom.group = HIDDEN if hidden else min(geom.group, HIDDEN - 1)
        replace_mesh(geom, original, i)
    for asset in (*spec.meshes, *spec.skins):
        spec.delete(asset)
    for material in spec.materials:
        material.textures = [""] * len(material.textures)
    for texture in spec.textures:
        if texture.file or any(texture.cubefiles):
            spec.delete(texture)
    # An exported file is refused if its model names a folder.
    spec.meshdir = spec.texturedir = ""


def replace_mesh(geom: mujoco.MjsGeom, original: mujoco.MjModel, i: int) -> None:
    """Replace the mesh of a geom by its bounding box, in place.

    A primitive that was fitted to a mesh becomes an ordinary one. `i` is the geom's id in the
    compiled model.
    """
    if not geom.meshname:
        return
    frame, mesh = np.zeros(9), geom.type == MESH
    mujoco.mju_quat2Mat(frame, original.geom_quat[i])
    center = frame.reshape(3, 3) @ original.geom_aabb[i, :3] if mesh else 0
    geom.pos, geom.quat = original.geom_pos[i] + center, original.geom_quat[i]
    geom.size = original.geom_aabb[i, 3:] if mesh else original.geom_size[i]
    geom.alt.type, geom.meshname = ORIENTATION.mjORIENTATION_QUAT, ""
    geom.type = BOX if mesh else geom.type


def boxes_for_meshes(spec: mujoco.MjSpec, original: mujoco.MjModel) -> None:
    """Replace the meshes that collide by boxes, in place. `original` is the compiled spec."""
    for i, geom in enumerate(spec.geoms):
        if geom.contype or geom.conaffinity:
            replace_mesh(geom, original, i)


def copy_without_meshes(
    spec: mujoco.MjSpec, original: mujoco.MjModel, collide: str
) -> mujoco.MjSpec:
    """A copy that has boxes for meshes. With collide=all, those that collide have them in the spec
    as well, in place."""
    if collide == "all":
        boxes_for_meshes(spec, original)
    meshless = spec.copy()
    remove_files(meshless, original)
    return meshless


# Why: docs/decisions/robots.md
def clear(spec: mujoco.MjSpec, original: mujoco.MjModel) -> None:
    """Remove the keyframes, sensors, actuators, contact pairs and gravity compensation of the file,
    and set the timestep, the solver and the surroundings that the task is tuned for, in place.

    Each body gets its compiled mass and inertia. Changes of geoms then leave them.
    """
    for element in (*spec.keys, *spec.sensors, *spec.actuators, *spec.pairs):
        spec.delete(element)
    for body in spec.bodies:
        body.gravcomp = 0
    keep_inertias(spec, original)
    spec.compiler.settotalmass, spec.compiler.balanceinertia = -1, False
    option = spec.option
    option.disableflags, option.enableflags, option.disableactuator = 0, 0, 0
    option.gravity, option.wind = [0, 0, -9.81], [0, 0, 0]
    option.density = option.viscosity = 0
    option.timestep, option.integrator = 0.005, mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    # 6 and 10 are of training: an evaluation steps a solver that converges
    option.iterations, option.ls_iterations, option.jacobian = 6, 10, mujoco.mjtJacobian.mjJAC_DENSE
    option.cone, option.impratio = mujoco.mjtCone.mjCONE_PYRAMIDAL, 1
    option.disableflags |= mujoco.mjtDisableBit.mjDSBL_AUTORESET  # MuJoCo would hide NaN otherwise


def keep_inertias(spec: mujoco.MjSpec, original: mujoco.MjModel) -> None:
    """Give each body its compiled mass and inertia, in place: changes of geoms then leave them."""
    for i, body in enumerate(spec.bodies):
        if i:  # no world
            body.mass, body.ipos = original.body_mass[i], original.body_ipos[i]
            body.inertia, body.iquat = original.body_inertia[i], original.body_iquat[i]
            body.fullinertia, body.explicitinertial = [np.nan] + [0] * 5, True
            body.ialt.type = ORIENTATION.mjORIENTATION_QUAT
    spec.compiler.inertiafromgeom = mujoco.mjtInertiaFromGeom.mjINERTIAFROMGEOM_FALSE


def add_sphere(body: mujoco.MjsBody, name: str, radius: float, place: np.ndarray) -> mujoco.MjsGeom:
    """Add a sphere without mass to a body, at a place [m] in its frame. In place."""
    look = dict(type=SPHERE, size=[radius, 0, 0], mass=0, group=HIDDEN - 1)
    return body.add_geom(name=name, pos=place, **look)


def grip(geom: mujoco.MjsGeom) -> None:
    """Give a geom the friction of feet, whatever the ground has, in place."""
    # sliding [1], torsional and rolling [m]; the last two are MuJoCo's defaults
    geom.condim, geom.priority, geom.friction = 3, 1, [0.8, 0.005, 0.0001]


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


def add_ground(spec: mujoco.MjSpec, original: mujoco.MjModel, height: float = 0.0) -> None:
    """Add level ground at a height [m] unless the file has some at 0, in place.

    Other planes of the world are removed: a plane is endless.
    """
    ground, planes = False, [(i, x) for i, x in enumerate(spec.geoms) if x.type == PLANE]
    for i, geom in ((i, x) for i, x in planes if x.parent.name == "world"):
        frame = np.zeros(9)
        mujoco.mju_quat2Mat(frame, original.geom_quat[i])
        level = frame[8] > 1 - 1e-6 and abs(original.geom_pos[i, 2]) < 1e-3
        if level and (geom.contype or geom.conaffinity):
            ground = True
        else:
            spec.delete(geom)
    if not ground:
        look = dict(size=[0, 0, 0.05], rgba=[0.32, 0.36, 0.42, 1], pos=[0, 0, height])
        spec.worldbody.add_geom(name=added_name("floor"), type=PLANE, contype=1, **look)


def add_camera(
    spec: mujoco.MjSpec, body: mujoco.MjsBody, place: Array, axes: list[float], **look: Any
) -> None:
    """Add a camera `track` to a body, unless the file has one, in place.

    place (3,) [m] and axes, the camera's x and y, are those of the body's frame; `look` has other
    attributes.
    """
    if any(camera.name == "track" for camera in spec.cameras):
        return
    camera = body.add_camera(name="track", pos=place, **look)
    camera.alt.type = ORIENTATION.mjORIENTATION_XYAXES
    camera.alt.xyaxes = axes


def add_walking_sensors(
    spec: mujoco.MjSpec, feet: Sequence[str], kinds: Mapping[str, mujoco.mjtSensor]
) -> None:
    """Add the sensors that a walking task reads, in place. It reads ranges of them in this order.

    feet: names of sites, without our prefix. kinds: what is measured of each foot.
    """
    imu = dict(objtype=OBJECT.mjOBJ_SITE, objname=added_name("imu"))
    world = dict(objtype=OBJECT.mjOBJ_XBODY, objname="world")
    in_imu = dict(reftype=OBJECT.mjOBJ_SITE, refname=added_name("imu"))
    spec.add_sensor(name="gyro", type=SENSOR.mjSENS_GYRO, **imu)
    spec.add_sensor(name="up", type=SENSOR.mjSENS_FRAMEZAXIS, **world, **in_imu)
    spec.add_sensor(name="velocity", type=SENSOR.mjSENS_VELOCIMETER, **imu)
    for quantity, kind in kinds.items():
        for foot in feet:
            site = dict(objtype=OBJECT.mjOBJ_SITE, objname=added_name(foot))
            spec.add_sensor(name=f"{foot}_{quantity}", type=kind, **site)


def add_torque_sensors(spec: mujoco.MjSpec, joints: dict[str, str]) -> None:
    """Add a sensor `<name>_torque` for each name → joint, in place."""
    for name, joint in joints.items():
        hinge = dict(objtype=OBJECT.mjOBJ_JOINT, objname=joint)
        spec.add_sensor(name=f"{name}_torque", type=SENSOR.mjSENS_JOINTACTFRC, **hinge)


def add_servos(spec: mujoco.MjSpec, joints: dict[str, str], robot: Robot, qpos: np.ndarray) -> None:
    """Add a position servo for each name → joint, and a keyframe of the stance (nq,), in place.

    The robot has stance, kp, kd, torque and armature of each joint. They are the rounded numbers of
    the printed description, which so gives the same model.
    """
    for i, (name, joint) in enumerate(joints.items()):
        add_servo(spec, name, spec.joint(joint), robot.kp[i], robot.kd[i], robot.torque[i])
        spec.joint(joint).armature = robot.armature[i]
    spec.add_key(name="stance", qpos=qpos, ctrl=robot.stance)


def add_servo(
    spec: mujoco.MjSpec, name: str, joint: mujoco.MjsJoint, kp: float, kd: float, torque: float
) -> None:
    """Add a position servo of a joint, whose gains [N m/rad, N m s/rad] and limit [N m] are given.

    In place. The limits that the file has for the joint and its actuators go.
    """
    servo = spec.add_actuator(name=name, target=joint.name, trntype=mujoco.mjtTrn.mjTRN_JOINT)
    servo.set_to_position(kp=kp, kv=kd)
    # The defaults of the file could set these.
    servo.gear, servo.inheritrange = [1, 0, 0, 0, 0, 0], 0
    servo.ctrllimited = LIMITED.mjLIMITED_FALSE
    servo.forcelimited, servo.forcerange = LIMITED.mjLIMITED_TRUE, [-torque, torque]
    joint.actfrclimited = LIMITED.mjLIMITED_FALSE  # the servo is limited
