"""A robot's file of others as one MJCF text without files, with servos and an IMU."""

from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import mujoco
import numpy as np

from gpusim_rl.core.errors import silence_mujoco, warn_once
from gpusim_rl.core.files import Plain
from gpusim_rl.robots.bodies import MESH, Array
from gpusim_rl.robots.model_files import FOLDERS, model_name, read_root, reason
from gpusim_rl.robots.models import AUTORESET, compile_spec
from gpusim_rl.robots.prepare import (
    OBJECT,
    PLANE,
    SENSOR,
    add_servo,
    add_walking_sensors,
    added_name,
    keep_inertias,
    remove_files,
)
from gpusim_rl.robots.servos import actuators, driven_joints, joint_parameters

GONE = {("flag", "sensornoise"), ("size", "njmax"), ("size", "nconmax"), ("size", "nstack")}


def load_bare(file: Path) -> mujoco.MjSpec:
    """The spec of a robot's file, without meshes whose files are missing.

    A line says which of them collide. ValueError in one line if MuJoCo refuses the file.
    """
    silence_mujoco()
    try:
        root = read_root(file)
        if root.tag != "mujoco":
            raise ValueError("expected MJCF: convert another file by MuJoCo's `compile`")
        mend(root, file.parent)
        spec = mujoco.MjSpec.from_string(ElementTree.tostring(root, encoding="unicode"))
    except (ValueError, OSError, ElementTree.ParseError) as error:
        raise ValueError(f"{file}: {reason(ValueError(str(error)))}") from None
    spec.modelname = model_name(spec.modelname, file)
    lost = {x.name or Path(x.file).stem: x for x in spec.meshes if not mesh_file(spec, x).is_file()}
    for geom in [*spec.geoms]:
        if geom.type == MESH and geom.meshname in lost:
            if geom.contype or geom.conaffinity:
                name = mesh_file(spec, lost[geom.meshname]).name
                warn_once(f"warning: {file}: the mesh {name} is missing: it collides with nothing")
            spec.delete(geom)
    for mesh in lost.values():
        spec.delete(mesh)
    add_floor(spec)
    return spec


def mesh_file(spec: mujoco.MjSpec, mesh: mujoco.MjsMesh) -> Path:
    """The path of a mesh's file."""
    return Path(spec.meshdir) / mesh.file


def mend(root: ElementTree.Element, folder: Path) -> None:
    """Remove what this MuJoCo does not know, and pictures of materials, in place.

    Folders of meshes become absolute.
    """
    compilers = [*root.iter("compiler")]
    given = {key: e.attrib.pop(key) for e in compilers for key in FOLDERS if key in e.attrib}
    meshes = given.get("meshdir", given.get("assetdir", ""))
    compiler = compilers[0] if compilers else ElementTree.SubElement(root, "compiler")
    compiler.set("meshdir", str((folder / meshes).resolve()))
    names = {x.get("name") for x in root.iter("material")}
    for element in root.iter():
        for tag, key in GONE:
            if element.tag == tag:
                element.attrib.pop(key, None)
        if element.get("material") not in names:
            element.attrib.pop("material", None)
        if element.tag == "material":
            element.attrib.pop("texture", None)
    for parent in [*root.iter()]:
        for child in [*parent]:
            if child.tag in ("texture", "sensor", "visual") or (
                child.tag == "size" and not child.attrib
            ):
                parent.remove(child)


def driven_names(spec: mujoco.MjSpec) -> list[str]:
    """The joints of the actuators of a file, in their order; of one without any all its hinges."""
    driven = [x.target for x in spec.actuators]
    free = mujoco.mjtJoint.mjJNT_FREE
    return driven or [x.name for x in spec.joints if x.type != free]


def make_model(spec: mujoco.MjSpec, card: Plain, check: Callable[[list[str]], None]) -> str:
    """The MJCF text of a spec, prepared as a card says; the spec is changed in place.

    The first keyframe is where the robot starts. check: gets the driven joints, and raises
    ValueError if the card has others.
    """
    check(driven_names(spec))
    keys = {x.name: np.array(x.qpos) for x in spec.keys}
    if (key := card.get("keyframe")) is not None and key not in keys:
        raise ValueError(f"keyframe={key!r}: the robot's file has {', '.join(keys) or 'none'}")
    for element in [*spec.keys, *spec.sensors]:
        spec.delete(element)
    spec.option.timestep = card["timestep"]
    integrator = f"mjINT_{card['integrator'].upper()}"
    spec.option.integrator = getattr(mujoco.mjtIntegrator, integrator)
    spec.option.cone = getattr(mujoco.mjtCone, f"mjCONE_{card['cone'].upper()}")
    spec.option.disableflags |= AUTORESET
    original = spec.compile()
    if "kp" in card:
        replace_servos(spec, card, original)
    else:
        check_servos(original, card["joints"])
    keep_inertias(spec, original)
    remove_files(spec, original)
    if card.get("collide") == "ground":
        for geom in spec.geoms:
            collides, fixed = bool(geom.contype or geom.conaffinity), geom.parent.name == "world"
            geom.contype, geom.conaffinity = int(collides and not fixed), int(collides and fixed)
    add_imu(spec, original, card.get("imu"))
    spec.add_key(name="home", qpos=keys[key] if key is not None else standing(spec, card))
    spec.compile()
    return spec.to_xml()


def add_floor(spec: mujoco.MjSpec) -> None:
    """Add level ground at height 0 to a spec whose world has no plane, in place.

    What else stands in the world is removed: the gate has grounds of its own.
    """
    planes = [x for x in spec.worldbody.geoms if x.type == PLANE]
    for geom in [*spec.worldbody.geoms]:
        if geom.type != PLANE:
            spec.delete(geom)
    if not planes:
        look = dict(size=[0, 0, 0.05], rgba=[0.32, 0.36, 0.42, 1], contype=1, conaffinity=1)
        spec.worldbody.add_geom(name="floor", type=PLANE, **look)  # pairs may name it so


def replace_servos(spec: mujoco.MjSpec, card: Plain, original: mujoco.MjModel) -> None:
    """Put position servos with the card's gains in the place of the file's actuators, in place.

    Torque limits that the card lacks are those of `original`, the compiled file.
    """
    for actuator in [*spec.actuators]:
        spec.delete(actuator)
    joints, keys = card["joints"], ("torque", "armature")
    file = {key: joint_parameters(original, joints, key) for key in keys}
    file["armature"] = np.nan_to_num(file["armature"])
    numbers = [card.get(key, file.get(key)) for key in ("kp", "kd", *keys)]
    for name, kp, kd, limit, rotor in zip(joints, *np.broadcast_arrays(*numbers), strict=True):
        if np.isnan(limit):
            raise ValueError(f"torque is needed: the robot's file has no limit of {name}")
        add_servo(spec, name, spec.joint(name), kp, kd, limit)
        spec.joint(name).armature = rotor


def check_servos(model: mujoco.MjModel, joints: list[str]) -> None:
    """ValueError unless the file has a position servo for each joint that the card drives."""
    pairs = zip(driven_joints(model), actuators(model)["kp"], strict=True)
    servos = {model.joint(j).name for j, kp in pairs if j >= 0 and kp}
    if left := [x for x in joints if x not in servos]:
        raise ValueError(f"kp and kd are needed: the robot's file has no servo of {left[0]}")


def add_imu(spec: mujoco.MjSpec, original: mujoco.MjModel, name: str | None) -> None:
    """Add gyro, up, velocity and orientation at a site of the file, or at the base, in place."""
    sites = {x.name: x for x in spec.sites}
    if name is not None and name not in sites:
        raise ValueError(f"imu={name!r}: the robot's file has {', '.join(sites) or 'no site'}")
    free = [x for x in spec.joints if x.type == mujoco.mjtJoint.mjJNT_FREE]
    base = free[0].parent if free else spec.worldbody.first_body()
    imu = (sites[name].parent if name else base).add_site(name=added_name("imu"))
    if name:
        imu.pos, imu.quat = original.site(name).pos, original.site(name).quat
    add_walking_sensors(spec, (), {})
    at = dict(objtype=OBJECT.mjOBJ_SITE, objname=imu.name)
    spec.add_sensor(name="quat", type=SENSOR.mjSENS_FRAMEQUAT, **at)


def standing(spec: mujoco.MjSpec, card: Plain) -> Array:
    """(nq,) the card's pose, with the lowest part that collides 1 mm above the ground."""
    model = compile_spec(spec)
    data = mujoco.MjData(model)
    for name, angle in zip(card["joints"], card["pose"], strict=True):
        data.qpos[model.joint(name).qposadr[0]] = angle
    mujoco.mj_forward(model, data)
    low = [
        data.geom_xpos[i][2]
        + data.geom_xmat[i].reshape(3, 3)[2] @ model.geom_aabb[i, :3]
        - np.abs(data.geom_xmat[i].reshape(3, 3)[2]) @ model.geom_aabb[i, 3:]
        for i in range(model.ngeom)
        if model.geom_bodyid[i] and (model.geom_contype[i] or model.geom_conaffinity[i])
    ]
    if low and model.njnt and model.jnt_type[0] == mujoco.mjtJoint.mjJNT_FREE:
        data.qpos[2] += 0.001 - min(low)
    return data.qpos.copy()
