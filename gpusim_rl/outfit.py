"""A robot's MjSpec with what a task needs: ground, feet, sensors, servos, a keyframe; and without the files of its meshes."""

from typing import Any

import mujoco
import numpy as np

from gpusim_rl.legs import FREE, LEGS, MESH, ROLES, Foot
from gpusim_rl.stance import Legs

NAMES = [f"{leg}_{role}" for leg in LEGS for role in ROLES]  # of the servos and, with _torque, of their sensors
SPHERE, PLANE, BOX = mujoco.mjtGeom.mjGEOM_SPHERE, mujoco.mjtGeom.mjGEOM_PLANE, mujoco.mjtGeom.mjGEOM_BOX
HIDDEN = 3  # the first group of geoms that a viewer does not show
LIMITED, KIND, THING, TURN = mujoco.mjtLimited, mujoco.mjtSensor, mujoco.mjtObj, mujoco.mjtOrientation


def added(name: str) -> str:
    """What we call a site, geom or joint that we add: no file has the name."""
    return f"gpusim_rl/{name}"


# -- meshes --------------------------------------------------------------------------------------------------------------


def lighten(spec: mujoco.MjSpec, own: mujoco.MjModel) -> None:
    """Do without files: boxes for meshes, out of sight where their body has something else to be seen. In place.

    `own` is the compiled spec. The geoms stay as many as they are: what is set per geom fits both models.
    """
    seen = {geom.parent.name for geom in spec.geoms if geom.type != MESH}
    for i, geom in enumerate(spec.geoms):
        hidden = geom.type == MESH and geom.parent.name in seen
        geom.group = HIDDEN if hidden else min(geom.group, HIDDEN - 1)
        plain(geom, own, i)
    for part in (*spec.meshes, *spec.skins):
        spec.delete(part)
    for material in spec.materials:
        material.textures = [""] * len(material.textures)
    for texture in spec.textures:
        if texture.file or any(texture.cubefiles):
            spec.delete(texture)


def plain(geom: Any, own: mujoco.MjModel, i: int) -> None:
    """Put a box in place of a mesh, and keep a primitive that was fitted to one as it is. In place; geom i of own."""
    if not geom.meshname:
        return
    frame, mesh = np.zeros(9), geom.type == MESH
    mujoco.mju_quat2Mat(frame, own.geom_quat[i])
    geom.pos = own.geom_pos[i] + (frame.reshape(3, 3) @ own.geom_aabb[i, :3] if mesh else 0)
    geom.quat, geom.size = own.geom_quat[i], own.geom_aabb[i, 3:] if mesh else own.geom_size[i]
    geom.alt.type, geom.meshname = TURN.mjORIENTATION_QUAT, ""
    geom.type = BOX if mesh else geom.type


# -- what the task needs -------------------------------------------------------------------------------------------------


def prepare(spec: mujoco.MjSpec, own: mujoco.MjModel, base: str, joints: list[str], feet: list[Foot], collide: str) -> None:
    """Put what the task brings in the place of what the file has of it. In place.

    Args:
        spec: the file's, or that without files.
        own: the compiled spec.
        base: body.
        joints: (12,) legs in the order FL, FR, RL, RR; the others keep their place.
        feet: the legs' balls.
        collide: feet | all.
    """
    for part in (*spec.keys, *spec.sensors, *spec.actuators, *spec.pairs):
        spec.delete(part)
    freeze(spec, own)
    option = spec.option
    option.timestep, option.integrator = 0.005, mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    option.iterations, option.ls_iterations, option.jacobian = 6, 10, mujoco.mjtJacobian.mjJAC_DENSE
    option.cone, option.impratio = mujoco.mjtCone.mjCONE_PYRAMIDAL, 1
    option.disableflags |= mujoco.mjtDisableBit.mjDSBL_AUTORESET  # or MuJoCo hides NaN
    body = spec.body(base)
    if not any(joint.type == FREE for joint in body.joints):
        body.add_freejoint(name=added("base"))
    other = [joint for joint in spec.joints if joint.type != FREE and joint.name not in joints]
    for part in (*spec.tendons, *spec.equalities, *other) if other else ():
        spec.delete(part)
    stand_on(spec, feet, collide)
    body.add_site(name=added("imu"), group=HIDDEN)
    if not any(camera.name == "track" for camera in spec.cameras):
        camera = body.add_camera(name="track", pos=[0.4, -1.6, 0.6], mode=mujoco.mjtCamLight.mjCAMLIGHT_TRACKCOM)
        camera.alt.type, camera.alt.xyaxes = TURN.mjORIENTATION_XYAXES, [0.97, 0.24, 0, -0.08, 0.31, 0.95]
    sense(spec, joints)


def freeze(spec: mujoco.MjSpec, own: mujoco.MjModel) -> None:
    """Write the compiled masses and inertias into the bodies, so that no change of a geom changes them. In place."""
    for i, body in enumerate(spec.bodies[1:], 1):
        body.mass, body.ipos, body.inertia = own.body_mass[i], own.body_ipos[i], own.body_inertia[i]
        body.iquat, body.fullinertia, body.explicitinertial = own.body_iquat[i], [np.nan] + [0] * 5, True
        body.ialt.type = TURN.mjORIENTATION_QUAT
    spec.compiler.inertiafromgeom = mujoco.mjtInertiaFromGeom.mjINERTIAFROMGEOM_FALSE
    spec.compiler.settotalmass, spec.compiler.balanceinertia = -1, False


def stand_on(spec: mujoco.MjSpec, feet: list[Foot], collide: str) -> None:
    """Balls for feet with a site in each, a ground if there is none, and the rule of what collides. In place."""
    for leg, foot in zip(LEGS, feet, strict=True):
        body, ball = spec.body(foot.body), spec.geom(foot.ball)
        if ball is None:
            ball = body.add_geom(
                name=foot.ball, type=SPHERE, size=[foot.radius, 0, 0], pos=foot.place, mass=0, group=HIDDEN - 1
            )
        ball.condim, ball.priority, ball.friction = 3, 1, [0.8, 0.005, 0.0001]
        body.add_site(name=added(leg), pos=foot.place, group=HIDDEN)
    if not any(geom.type == PLANE for geom in spec.worldbody.geoms):
        look = dict(size=[0, 0, 0.05], rgba=[0.32, 0.36, 0.42, 1])
        spec.worldbody.add_geom(name=added("floor"), type=PLANE, contype=1, **look)
    balls = [foot.ball for foot in feet]
    for geom in spec.geoms:
        touches, fixed = bool(geom.contype or geom.conaffinity), geom.parent.name == "world"
        if collide == "feet":  # with what does not move
            geom.contype, geom.conaffinity = int(geom.name in balls), int(fixed and touches)
        elif fixed and touches:  # with all that collides
            geom.contype = geom.conaffinity = 0x7FFFFFFF
        elif geom.name in balls and not touches:
            geom.contype, geom.conaffinity = 1, 0


def sense(spec: mujoco.MjSpec, joints: list[str]) -> None:
    """Add the sensors that the task reads, in the order in which it reads spans of them. In place."""
    imu = dict(objtype=THING.mjOBJ_SITE, objname=added("imu"))
    spec.add_sensor(name="gyro", type=KIND.mjSENS_GYRO, **imu)
    sees = dict(reftype=THING.mjOBJ_SITE, refname=added("imu"))
    spec.add_sensor(name="up", type=KIND.mjSENS_FRAMEZAXIS, objtype=THING.mjOBJ_XBODY, objname="world", **sees)
    spec.add_sensor(name="velocity", type=KIND.mjSENS_VELOCIMETER, **imu)
    for what, sensor in (("position", KIND.mjSENS_FRAMEPOS), ("velocity", KIND.mjSENS_FRAMELINVEL)):
        for name in LEGS:
            spec.add_sensor(name=f"{name}_{what}", type=sensor, objtype=THING.mjOBJ_SITE, objname=added(name))
    for name, joint in zip(NAMES, joints, strict=True):
        spec.add_sensor(name=f"{name}_torque", type=KIND.mjSENS_JOINTACTFRC, objtype=THING.mjOBJ_JOINT, objname=joint)


def drive(spec: mujoco.MjSpec, legs: Legs, stance: np.ndarray, **servos: list[float]) -> None:
    """Add position servos for kp, kd, torque, armature, (12,) each, and the keyframe of a stance [rad]. In place."""
    for i, (name, joint) in enumerate(zip(NAMES, legs.names, strict=True)):
        servo, most = spec.add_actuator(name=name, target=joint, trntype=mujoco.mjtTrn.mjTRN_JOINT), servos["torque"][i]
        servo.set_to_position(kp=servos["kp"][i], kv=servos["kd"][i])
        servo.gear, servo.ctrllimited = [1, 0, 0, 0, 0, 0], LIMITED.mjLIMITED_FALSE  # not the file's defaults
        servo.forcelimited, servo.forcerange = LIMITED.mjLIMITED_TRUE, [-most, most]
        spec.joint(joint).armature = servos["armature"][i]
        spec.joint(joint).actfrclimited = LIMITED.mjLIMITED_FALSE  # the servo is limited
    spec.add_key(name="stance", qpos=legs.qpos(stance), ctrl=stance)


def settle(m: mujoco.MjModel, legs: Legs) -> float | None:
    """Height of the base [m] after two seconds in the stance; None if it does not stand."""
    d = mujoco.MjData(m)
    mujoco.mj_resetDataKeyframe(m, d, 0)
    mujoco.mj_step(m, d, round(2.0 / m.opt.timestep))
    upright = 1 - 2 * (d.qpos[4] ** 2 + d.qpos[5] ** 2)  # z of the base's z axis
    still = np.abs(d.qvel).max() < 0.5  # m/s, rad/s
    stands = np.isfinite(d.qpos).all() and upright > 0.97 and still and d.qpos[2] > 0.45 * legs.length.mean()
    return float(d.qpos[2]) if stands else None
