"""Prepare a robot's MjSpec for a task: add ground, feet, sensors, servos and a keyframe, and remove
the files of meshes and textures."""

from typing import Any

import mujoco
import numpy as np

from gpusim_rl.robots.quadruped.kinematics import Legs
from gpusim_rl.robots.quadruped.topology import FREE, LEGS, MESH, ROLES, Foot

# Of the servos and, with _torque, of their sensors.
NAMES = [f"{leg}_{role}" for leg in LEGS for role in ROLES]
SPHERE, PLANE, BOX = (
    mujoco.mjtGeom.mjGEOM_SPHERE,
    mujoco.mjtGeom.mjGEOM_PLANE,
    mujoco.mjtGeom.mjGEOM_BOX,
)
HIDDEN = 3  # the first group of geoms that a viewer does not show
LIMITED, SENSOR, OBJECT, ORIENTATION = (
    mujoco.mjtLimited,
    mujoco.mjtSensor,
    mujoco.mjtObj,
    mujoco.mjtOrientation,
)


def added_name(name: str) -> str:
    """The name of an element that we add. Its prefix keeps it apart from the names in the file."""
    return f"gpusim_rl/{name}"


# -- files -----------------------------------------------------------------------------------------


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


def replace_mesh(geom: Any, original: mujoco.MjModel, i: int) -> None:
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


# -- what the task needs ---------------------------------------------------------------------------


def prepare(
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
    for element in (*spec.keys, *spec.sensors, *spec.actuators, *spec.pairs):
        spec.delete(element)
    fix_inertias(spec, original)
    set_options(spec.option)
    for element in spec.bodies:
        element.gravcomp = 0
    body = spec.body(base)
    if not any(joint.type == FREE for joint in body.joints):
        body.add_freejoint(name=added_name("base"))
    others = [joint for joint in spec.joints if joint.type != FREE and joint.name not in joints]
    for element in (*spec.tendons, *spec.equalities, *others) if others else ():
        spec.delete(element)
    add_feet(spec, feet)
    if not keep_ground(spec, original):
        look = dict(size=[0, 0, 0.05], rgba=[0.32, 0.36, 0.42, 1])
        spec.worldbody.add_geom(name=added_name("floor"), type=PLANE, contype=1, **look)
    set_collisions(spec, [foot.geom_name for foot in feet], collide)
    body.add_site(name=added_name("imu"), group=HIDDEN)
    if not any(camera.name == "track" for camera in spec.cameras):
        add_camera(body)
    add_sensors(spec, joints)


def keep_ground(spec: mujoco.MjSpec, original: mujoco.MjModel) -> bool:
    """Whether the file has level ground at height 0. Other planes of the world are removed, in
    place: a plane is endless."""
    planes = {
        i: geom
        for i, geom in enumerate(spec.geoms)
        if geom.type == PLANE and geom.parent.name == "world"
    }
    for i, geom in [*planes.items()]:
        frame = np.zeros(9)
        mujoco.mju_quat2Mat(frame, original.geom_quat[i])
        level = frame[8] > 1 - 1e-6 and abs(original.geom_pos[i, 2]) < 1e-3
        if not (level and (geom.contype or geom.conaffinity)):
            spec.delete(planes.pop(i))
    return bool(planes)


def set_options(option: Any) -> None:
    """Set the timestep, the solver and the surroundings that the task is tuned for, in place."""
    option.disableflags, option.enableflags, option.disableactuator = 0, 0, 0
    option.gravity, option.wind = [0, 0, -9.81], [0, 0, 0]
    option.density = option.viscosity = 0
    option.timestep, option.integrator = 0.005, mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    option.iterations, option.ls_iterations, option.jacobian = 6, 10, mujoco.mjtJacobian.mjJAC_DENSE
    option.cone, option.impratio = mujoco.mjtCone.mjCONE_PYRAMIDAL, 1
    option.disableflags |= mujoco.mjtDisableBit.mjDSBL_AUTORESET  # MuJoCo would hide NaN otherwise


def add_camera(body: Any) -> None:
    """Add a camera that follows the body, in place."""
    mode = mujoco.mjtCamLight.mjCAMLIGHT_TRACKCOM
    camera = body.add_camera(name="track", pos=[0.4, -1.6, 0.6], mode=mode)
    camera.alt.type = ORIENTATION.mjORIENTATION_XYAXES
    camera.alt.xyaxes = [0.97, 0.24, 0, -0.08, 0.31, 0.95]


def fix_inertias(spec: mujoco.MjSpec, original: mujoco.MjModel) -> None:
    """Give each body its compiled mass and inertia, in place. Changes of geoms then leave them."""
    for i, body in enumerate(spec.bodies[1:], 1):
        body.mass, body.ipos = original.body_mass[i], original.body_ipos[i]
        body.inertia, body.iquat = original.body_inertia[i], original.body_iquat[i]
        body.fullinertia, body.explicitinertial = [np.nan] + [0] * 5, True
        body.ialt.type = ORIENTATION.mjORIENTATION_QUAT
    spec.compiler.inertiafromgeom = mujoco.mjtInertiaFromGeom.mjINERTIAFROMGEOM_FALSE
    spec.compiler.settotalmass, spec.compiler.balanceinertia = -1, False


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
    for name, joint in zip(NAMES, joints, strict=True):
        hinge = dict(objtype=OBJECT.mjOBJ_JOINT, objname=joint)
        spec.add_sensor(name=f"{name}_torque", type=SENSOR.mjSENS_JOINTACTFRC, **hinge)


def add_servos(spec: mujoco.MjSpec, legs: Legs, stance: np.ndarray, **gains: list[float]) -> None:
    """Add a position servo for each joint, and a keyframe of the stance, in place.

    Args:
        spec: prepared.
        legs: of the robot.
        stance: (12,) angles [rad].
        gains: `kp` [N m/rad], `kd` [N m s/rad], `torque` [N m] and `armature` [kg m²], (12,) each.
    """
    for i, (name, joint) in enumerate(zip(NAMES, legs.names, strict=True)):
        servo = spec.add_actuator(name=name, target=joint, trntype=mujoco.mjtTrn.mjTRN_JOINT)
        servo.set_to_position(kp=gains["kp"][i], kv=gains["kd"][i])
        # The defaults of the file could set these.
        servo.gear, servo.ctrllimited = [1, 0, 0, 0, 0, 0], LIMITED.mjLIMITED_FALSE
        limit = gains["torque"][i]
        servo.forcelimited, servo.forcerange = LIMITED.mjLIMITED_TRUE, [-limit, limit]
        spec.joint(joint).armature = gains["armature"][i]
        spec.joint(joint).actfrclimited = LIMITED.mjLIMITED_FALSE  # the servo is limited
    spec.add_key(name="stance", qpos=legs.qpos(stance), ctrl=stance)
