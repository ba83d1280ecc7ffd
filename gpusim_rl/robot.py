"""Bring a robot: an MJCF or URDF of a 12-joint quadruped, as its maker wrote it, becomes a model that tasks/quadruped.py trains."""

from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import mujoco
import numpy as np

from gpusim_rl import legs
from gpusim_rl.export import torque_limit
from gpusim_rl.legs import LEGS, ROLES

NAMES = [f"{leg}_{role}" for leg in LEGS for role in ROLES]  # of the actuators and, with _torque, of their sensors
Array = np.ndarray


@dataclass(kw_only=True)
class Robot:
    """What conf/robot/<name>.yaml says of a quadruped; None is guessed by `bring`, whose answer has no None.

    Numbers of joints are one for all, three (abduction, thigh, knee) or twelve, legs in the order FL, FR, RL, RR.
    """

    mjcf: str  # path, or package:path within an installed package
    base: str | None = None  # body; the one with the free joint, else the root
    feet: Any = None  # four geoms, sites or bodies; the spheres at the ends of the legs
    joints: Any = None  # four lists of abduction, thigh, knee; the three hinges above each foot
    stance: Any = None  # rad; the first keyframe in which it stands, else legs bent with the feet below the hips
    kp: Any = None  # N m/rad; the model's own servos', else weight times height
    kd: Any = None  # N m s/rad; the model's own servos', else √(kp · inertia of the leg about the joint)
    torque: Any = None  # N m; the model's own limits, else weight times height
    armature: Any = None  # kg m²; the model's own, else a fifth of the inertia of the leg about the joint
    scale: Any = None  # rad of joint target per unit of action; task.reach
    height: float | None = None  # m of the base; as it stands in simulation
    collide: str = "feet"  # with the ground: feet | all, as the model has it, meshes as boxes


@dataclass(kw_only=True)
class Brought:
    """A robot ready for the task."""

    robot: Robot  # complete
    mjm: mujoco.MjModel
    text: str  # its MJCF without files, for the ONNX file
    balls: list[str]  # the geoms that are its feet
    flex: tuple[float, ...]  # (12,) direction of the joints that lifts each foot straight up, a knee's ±1


def bring(**keys: Any) -> Brought:
    """The robot of a description; ValueError or FileNotFoundError in one line that names what is missing and what exists."""
    robot = Robot(**keys)
    if robot.collide not in ("feet", "all"):
        raise ValueError(f"robot.collide={robot.collide}: choose one of feet, all")
    file = find(robot.mjcf)
    try:
        spec = mujoco.MjSpec.from_file(str(file))
        spec.compiler.fusestatic = spec.compiler.discardvisual = False  # else ids are not those of the spec
        for joint in spec.joints:
            joint.name = joint.name or f"{joint.parent.name}_joint"
        return stand(robot, spec, spec.compile())
    except (legs.Misfit, mujoco.FatalError) as error:
        raise ValueError(f"robot.mjcf={robot.mjcf}: {' '.join(str(error).split())}") from None
    except ValueError as error:
        raise ValueError(f"robot.mjcf: {file}: {' '.join(str(error).split())}") from None


def find(path: str) -> Path:
    """The file at a path, or of package:path; FileNotFoundError naming what is there."""
    package, colon, inside = str(path).partition(":")
    if colon:
        found = find_spec(package) if package.isidentifier() else None
        if found is None or not found.submodule_search_locations:
            raise FileNotFoundError(f"robot.mjcf={path}: no package {package!r} is installed; or say robot.mjcf=<file>")
        path = str(Path(found.submodule_search_locations[0]) / inside)
    if not Path(path).is_file():
        near = Path(path).parent
        known = ", ".join(sorted(p.name for p in near.glob("*") if p.suffix in (".xml", ".urdf")))
        raise FileNotFoundError(f"robot.mjcf: no file {path!r}{f', in {near} are {known}' if known else ''}")
    return Path(path)


def stand(robot: Robot, spec: mujoco.MjSpec, own: mujoco.MjModel) -> Brought:
    """The robot with the first stance in which it stands. `own` is the model as the file has it."""
    base = legs.find_base(spec, robot.base)
    strip(spec)
    if not any(joint.type == mujoco.mjtJoint.mjJNT_FREE for joint in base.joints):
        base.add_freejoint(name="floating_base")
    m = spec.compile()
    freeze(spec, m)
    names, feet = legs.find_legs(m, base.name, robot.joints, robot.feet)
    extra = [joint for joint in spec.joints if joint.type != mujoco.mjtJoint.mjJNT_FREE and joint.name not in sum(names, [])]
    if extra:  # an arm or a head keeps its place
        for part in (*spec.tendons, *spec.equalities, *extra):
            spec.delete(part)
        m = spec.compile()
    feet = [legs.find_foot(m, name, joints[2]) for name, joints in zip(feet, names, strict=True)]
    leg = legs.Legs(m, base.name, names, feet)
    given = [legs.twelve("stance", robot.stance)] if robot.stance is not None else [*leg.keyframes(own), leg.bent()]
    for stance in given:
        ready = complete(replace(robot, base=base.name, joints=names), own, leg, stance)
        copy = prepare(spec.copy(), ready, leg)
        model = copy.compile()
        height = settle(model, leg)
        if height is not None:
            ready = replace(ready, height=robot.height or round(height, 4))
            model.key_qpos[0, 2] = height
            copy.keys[0].qpos = model.key_qpos[0]
            balls = [(foot.geom >= 0 and foot.name) or added(name) for name, foot in zip(LEGS, leg.feet, strict=True)]
            return Brought(robot=ready, mjm=model, text=alone(copy, model), balls=balls, flex=leg.flex(stance))
    said = "" if robot.stance is None else f"robot.stance={robot.stance}: "
    raise legs.Misfit(f"{said}it does not stand; robot.stance (rad, twelve joints), robot.kp and robot.torque (N m) may help")


def strip(spec: mujoco.MjSpec) -> None:
    """Take away what the task brings itself: keyframes, sensors, actuators. In place."""
    for part in (*spec.keys, *spec.sensors, *spec.actuators):
        spec.delete(part)


def complete(robot: Robot, own: mujoco.MjModel, leg: legs.Legs, stance: Array) -> Robot:
    """The description with its gains, limits and names, for a stance."""
    inertia, lever = leg.inertia(stance), leg.lever(stance)  # kg m², N m

    def known(key: str, guess: Array) -> list[float]:
        value = getattr(robot, key)
        found = theirs(own, leg.names, key) if value is None else legs.twelve(key, value)
        found = np.where(np.isnan(found), guess, found)
        if not (found > 0).all():
            raise legs.Misfit(f"robot.{key}={value}: expected more than 0")
        return short(found)

    armature = known("armature", 0.2 * inertia)
    kp = known("kp", np.full(12, lever))
    kd = known("kd", np.sqrt(np.asarray(kp) * (inertia + armature)))
    scale = None if robot.scale is None else short(legs.twelve("scale", robot.scale))
    torque = known("torque", np.full(12, lever))
    named = dict(feet=[foot.name or foot.body for foot in leg.feet], stance=short(stance))
    return replace(robot, **named, kp=kp, kd=kd, torque=torque, armature=armature, scale=scale)


def added(name: str) -> str:
    """What we call a site or geom that we add: no file has the name."""
    return f"gpusim_rl/{name}"


# -- the model -----------------------------------------------------------------------------------------------------------


def prepare(spec: mujoco.MjSpec, robot: Robot, leg: legs.Legs) -> mujoco.MjSpec:
    """Add what the task needs to a stripped spec. In place; returned."""
    spec.option.timestep, spec.option.integrator = 0.005, mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    spec.option.cone, spec.option.jacobian = mujoco.mjtCone.mjCONE_PYRAMIDAL, mujoco.mjtJacobian.mjJAC_DENSE
    spec.option.impratio, spec.option.iterations, spec.option.ls_iterations = 1, 6, 10
    spec.option.disableflags |= mujoco.mjtDisableBit.mjDSBL_AUTORESET  # or MuJoCo hides NaN
    base = spec.body(robot.base)
    collisions(spec, robot, leg)
    base.add_site(name=added("imu"), group=4)
    if not any(camera.name == "track" for camera in spec.cameras):
        camera = base.add_camera(name="track", pos=[0.4, -1.6, 0.6], mode=mujoco.mjtCamLight.mjCAMLIGHT_TRACKCOM)
        camera.alt.type, camera.alt.xyaxes = mujoco.mjtOrientation.mjORIENTATION_XYAXES, [0.97, 0.24, 0, -0.08, 0.31, 0.95]
    sense(spec, robot, leg)
    tables = (sum(robot.joints, []), robot.kp, robot.kd, robot.torque, robot.armature)
    for name, joint, kp, kd, torque, armature in zip(NAMES, *tables, strict=True):
        servo = spec.add_actuator(name=name, target=joint, trntype=mujoco.mjtTrn.mjTRN_JOINT)
        servo.set_to_position(kp=kp, kv=kd)
        servo.gear, servo.ctrllimited = [1, 0, 0, 0, 0, 0], mujoco.mjtLimited.mjLIMITED_FALSE  # not the file's defaults
        servo.forcelimited, servo.forcerange = True, [-torque, torque]
        spec.joint(joint).armature = armature
        spec.joint(joint).actfrclimited = mujoco.mjtLimited.mjLIMITED_FALSE  # the actuator limits it
    qpos = leg.qpos(np.asarray(robot.stance))
    spec.add_key(name="stance", qpos=qpos, ctrl=robot.stance)
    return spec


def collisions(spec: mujoco.MjSpec, robot: Robot, leg: legs.Legs) -> None:
    """A ground, feet that stand on it, and what else collides by the rule of `robot.collide`. In place."""
    for part in (*spec.pairs, *(spec.excludes if robot.collide == "feet" else ())):
        spec.delete(part)
    geoms, world = list(spec.geoms), spec.worldbody
    ground = [g for g in geoms if g.parent.name == "world" and g.type == mujoco.mjtGeom.mjGEOM_PLANE]
    touching = [g for g in geoms if g.contype or g.conaffinity]
    for name, foot in zip(LEGS, leg.feet, strict=True):
        ball = geoms[foot.geom] if foot.geom >= 0 else spec.body(foot.body).add_geom(pos=foot.place)
        if foot.geom < 0:
            ball.type, ball.size, ball.mass, ball.group = mujoco.mjtGeom.mjGEOM_SPHERE, [foot.radius, 0, 0], 0, 3
        ball.name = ball.name or added(name)
        ball.condim, ball.priority, ball.friction[0] = 3, 1, 0.8
        spec.body(foot.body).add_site(name=added(name), pos=foot.place, group=4)
        touching.append(ball)
    balls = touching[-4:]
    if not ground:
        ground = [world.add_geom(name=added("floor"), type=mujoco.mjtGeom.mjGEOM_PLANE, size=[0, 0, 0.05], rgba=[0.32, 0.36, 0.42, 1])]
    for g in (*geoms, *balls, *ground):
        fixed = g in ground or (g.parent.name == "world" and g in touching)
        if robot.collide == "feet" or fixed:
            g.contype, g.conaffinity = (0, 1) if fixed else (1, 0) if g in balls else (0, 0)
        elif g in balls and not (g.contype or g.conaffinity):
            g.contype = 1
    if robot.collide == "all":
        for g in ground:
            g.contype = g.conaffinity = 0xFFFF  # meets whatever collides with anything
        model = spec.compile()
        for g in geoms:
            if g.type == mujoco.mjtGeom.mjGEOM_MESH and (g.contype or g.conaffinity):
                box(g, model)


def sense(spec: mujoco.MjSpec, robot: Robot, leg: legs.Legs) -> None:
    """Add the sensors that the task reads, in the order in which it reads spans of them. In place."""
    kind, thing = mujoco.mjtSensor, mujoco.mjtObj
    imu = dict(objtype=thing.mjOBJ_SITE, objname=added("imu"))
    spec.add_sensor(name="gyro", type=kind.mjSENS_GYRO, **imu)
    sees = dict(reftype=thing.mjOBJ_SITE, refname=added("imu"))
    spec.add_sensor(name="up", type=kind.mjSENS_FRAMEZAXIS, objtype=thing.mjOBJ_XBODY, objname="world", **sees)
    spec.add_sensor(name="velocity", type=kind.mjSENS_VELOCIMETER, **imu)
    for what, sensor in (("position", kind.mjSENS_FRAMEPOS), ("velocity", kind.mjSENS_FRAMELINVEL)):
        for name in LEGS:
            spec.add_sensor(name=f"{name}_{what}", type=sensor, objtype=thing.mjOBJ_SITE, objname=added(name))
    for name, joint in zip(NAMES, sum(robot.joints, []), strict=True):
        spec.add_sensor(name=f"{name}_torque", type=kind.mjSENS_JOINTACTFRC, objtype=thing.mjOBJ_JOINT, objname=joint)


def settle(m: mujoco.MjModel, leg: legs.Legs) -> float | None:
    """Height of the base [m] after two seconds in the stance; None if it does not stand."""
    d = mujoco.MjData(m)
    mujoco.mj_resetDataKeyframe(m, d, 0)
    mujoco.mj_step(m, d, round(2.0 / m.opt.timestep))
    upright = 1 - 2 * (d.qpos[4] ** 2 + d.qpos[5] ** 2)  # z of the base's z axis
    still = np.abs(d.qvel).max() < 0.5  # m/s, rad/s
    return float(d.qpos[2]) if np.isfinite(d.qpos).all() and upright > 0.97 and still and d.qpos[2] > 0.45 * leg.length.mean() else None


def box(geom: Any, m: mujoco.MjModel) -> None:
    """Put a box around a mesh, in place: `m` is the compiled model."""
    frame = np.zeros(9)
    mujoco.mju_quat2Mat(frame, m.geom_quat[geom.id])
    geom.pos = m.geom_pos[geom.id] + frame.reshape(3, 3) @ m.geom_aabb[geom.id, :3]
    geom.quat, geom.size = m.geom_quat[geom.id], m.geom_aabb[geom.id, 3:]
    geom.alt.type = mujoco.mjtOrientation.mjORIENTATION_QUAT
    geom.type, geom.meshname = mujoco.mjtGeom.mjGEOM_BOX, ""


def alone(spec: mujoco.MjSpec, m: mujoco.MjModel) -> str:
    """The MJCF without files: a mesh is gone, or a box where its body has nothing else to be seen."""
    spec = spec.copy()
    geoms = list(spec.geoms)
    seen = {g.parent.name for g in geoms if not g.meshname}
    for g in geoms:
        g.group = min(g.group, 2)  # what the viewer shows
        if g.meshname and g.type == mujoco.mjtGeom.mjGEOM_MESH and g.parent.name in seen:
            spec.delete(g)
        elif g.meshname:
            box(g, m)
    for part in (*spec.meshes, *spec.skins):
        spec.delete(part)
    for material in spec.materials:
        material.textures = [""] * len(material.textures)
    for texture in spec.textures:
        if texture.file or any(texture.cubefiles):
            spec.delete(texture)
    spec.compile()
    return spec.to_xml()


def freeze(spec: mujoco.MjSpec, m: mujoco.MjModel) -> None:
    """Write the compiled masses and inertias into the bodies, so that no change of a geom changes them. In place."""
    for i, body in enumerate(spec.bodies[1:], 1):
        body.mass, body.ipos, body.inertia = m.body_mass[i], m.body_ipos[i], m.body_inertia[i]
        body.iquat, body.fullinertia, body.explicitinertial = m.body_iquat[i], [np.nan] + [0] * 5, True
        body.ialt.type = mujoco.mjtOrientation.mjORIENTATION_QUAT
    spec.compiler.inertiafromgeom = mujoco.mjtInertiaFromGeom.mjINERTIAFROMGEOM_FALSE
    spec.compiler.settotalmass, spec.compiler.balanceinertia = -1, False


def theirs(own: mujoco.MjModel, names: list[str], key: str) -> Array:
    """(12,) what the file itself says of its joints: armature, or its actuators' kp, kd, torque; NaN where it does not."""
    found = np.full(len(names), np.nan)
    for i, name in enumerate(names):
        joint = own.joint(name).id
        if key == "armature":
            found[i] = own.dof_armature[own.jnt_dofadr[joint]] or np.nan
        elif key == "torque" and own.jnt_actfrclimited[joint]:
            found[i] = np.abs(own.jnt_actfrcrange[joint]).max()
        for a in np.flatnonzero((own.actuator_trnid[:, 0] == joint) & (own.actuator_trntype == mujoco.mjtTrn.mjTRN_JOINT)):
            stiff, damped = -own.actuator_biasprm[a, 1:3]
            value = {"kp": stiff, "kd": damped, "torque": torque_limit(own, int(a)) or 0}.get(key, 0)
            found[i] = value if value > 0 else found[i]
    return found


def short(values: Array) -> list[float]:
    """To six digits, as the file is written."""
    return [float(f"{x:.6g}") for x in values]
