"""Bring a robot: the unmodified MJCF or URDF of a 12-joint quadruped becomes a model for tasks/quadruped.py."""

import json
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import mujoco
import numpy as np

from gpusim_rl import legs, outfit
from gpusim_rl.actuator import Actuator
from gpusim_rl.export import torque_limit
from gpusim_rl.legs import LEGS
from gpusim_rl.mirror import hinge_signs
from gpusim_rl.stance import Legs

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
    kp: Any = None  # N m/rad; the model's own servos' if it stands with them, else weight times height
    kd: Any = None  # N m s/rad; the model's own servos' likewise, else √(kp · inertia of the leg about its hip)
    torque: Any = None  # N m; the model's own limits, else weight times height
    armature: Any = None  # kg m²; the model's own, else a fifth of the inertia of the leg about its hip
    scale: Any = None  # rad of joint target per unit of action; task.reach
    height: float | None = None  # m of the base; as it stands in simulation
    mirror: Any = None  # ±1: signs of the joints' images in a mirror; found from their axes, None for a robot without symmetry
    collide: str = "feet"  # with the ground: feet | all, as the model has it, meshes as boxes


@dataclass(kw_only=True)
class Brought:
    """A robot ready for the task."""

    robot: Robot  # complete
    mjm: mujoco.MjModel
    text: str  # its MJCF without files, for the ONNX file
    balls: tuple[str, ...]  # the geoms that are its feet
    flex: tuple[float, ...]  # (12,) direction of the joints that lifts each foot straight up, a knee's ±1


def bring(**keys: Any) -> Brought:
    """The robot of a description; ValueError or FileNotFoundError in one line that names what is missing and what exists."""
    robot = Robot(**keys)
    if robot.collide not in ("feet", "all"):
        raise ValueError(f"robot.collide={robot.collide}: choose one of feet, all")
    if robot.height is not None and not (type(robot.height) in (int, float) and robot.height > 0):
        raise ValueError(f"robot.height={robot.height}: expected a number of metres above 0")
    file = find(robot.mjcf)
    try:
        spec = mujoco.MjSpec.from_file(str(file))
        spec.compiler.fusestatic = spec.compiler.discardvisual = False  # else ids are not those of the spec
        for kind, parts in (("joint", spec.joints), ("body", spec.bodies)):
            for i, part in enumerate(parts):
                part.name = part.name or outfit.added(f"{kind}{i}")
        return stand(robot, spec, spec.compile())
    except (legs.Misfit, mujoco.FatalError) as error:
        raise ValueError(f"robot.mjcf={robot.mjcf}: {' '.join(str(error).split())}") from None
    except ValueError as error:
        raise ValueError(f"robot.mjcf: {file}: {' '.join(str(error).split())}") from None


def find(path: str) -> Path:
    """The file at a path, of package:path, or of menagerie:robot; FileNotFoundError naming what is there."""
    package, colon, inside = str(path).partition(":")
    if package == "menagerie" and colon:
        return menagerie(inside)
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


def menagerie(name: str) -> Path:
    """The MJCF of a robot, NAME or NAME/ENTRY, of MuJoCo Menagerie: downloaded once; ValueError if it is not to be had."""
    try:
        import mujoco_menagerie as package
    except ImportError:
        raise ValueError(f"robot.mjcf=menagerie:{name} needs MuJoCo Menagerie: pip install 'gpusim_rl[robots]'") from None
    robot, _, entry = name.partition("/")
    try:
        found = package.get(robot)
        found.entry(entry or found.default_model)  # known without a download
        return found.xml(entry or found.default_model)
    except package.UnknownRobotError:
        known = ", ".join(found.name for found in package.robots("quadruped"))
        raise ValueError(f"robot.mjcf=menagerie:{name}: no such robot, choose one of {known}") from None
    except package.UnknownEntryPointError as error:
        raise ValueError(f"robot.mjcf=menagerie:{name}: {error}") from None
    except (package.MenagerieError, OSError) as error:
        way = f"run `python -m mujoco_menagerie prefetch {robot}` once with a network, or set MENAGERIE_ROOT to a checkout"
        raise ValueError(f"robot.mjcf=menagerie:{name} cannot be downloaded ({error}): {way}") from None


def stand(robot: Robot, spec: mujoco.MjSpec, own: mujoco.MjModel) -> Brought:
    """The robot in the first stance in which it stands. `own` is the model as the file has it."""
    base = legs.find_base(spec, robot.base).name
    joints, named = legs.find_legs(own, base, robot.joints, robot.feet)
    feet = [
        legs.find_foot(own, name, leg[2], outfit.added(LEGS[i]))
        for i, (name, leg) in enumerate(zip(named, joints, strict=True))
    ]
    for i, geom in enumerate(spec.geoms):
        geom.name = next((foot.ball for foot in feet if foot.geom == i), geom.name)
        if robot.collide == "all" and (geom.contype or geom.conaffinity):
            outfit.plain(geom, own, i)
    light = spec.copy()
    outfit.lighten(light, own)
    names = [name for leg in joints for name in leg]
    for one in (spec, light):
        outfit.prepare(one, own, base, names, feet, robot.collide)
    four = Legs(light.compile(), base, names, feet)
    robot = replace(robot, base=base, joints=joints, feet=[foot.name or foot.inside for foot in feet])
    given = [*four.keyframes(own), four.bent()] if robot.stance is None else [legs.twelve("stance", robot.stance)]
    for trust, stance in product((True, False), given):
        ready, trial = complete(robot, own, four, stance, trust), light.copy()
        stance = np.array(ready.stance)  # as it is printed, so that what is printed gives the same model
        servos = dict(kp=ready.kp, kd=ready.kd, torque=ready.torque, armature=ready.armature)
        outfit.drive(trial, four, stance, **servos)
        height = outfit.settle(trial.compile(), four)
        if height is not None:
            outfit.drive(spec, four, stance, **servos)
            ready = replace(ready, height=robot.height or round(height, 4))
            balls, mjm = tuple(foot.ball for foot in feet), spec.compile()
            ready = replace(ready, mirror=image(robot, mjm, balls))
            return Brought(robot=ready, mjm=mjm, text=trial.to_xml(), balls=balls, flex=four.flex(stance))
    said = "" if robot.stance is None else f" in robot.stance={robot.stance}"
    raise legs.Misfit(f"it does not stand{said}: robot.stance (rad), robot.kp (N m/rad) or robot.torque (N m) may help")


def image(robot: Robot, mjm: mujoco.MjModel, balls: tuple[str, ...]) -> list[float] | None:
    """(12,) robot.mirror, checked; guessed if it is not given, None if the robot is not its own mirror image."""
    said = () if robot.mirror is None else tuple(legs.twelve("mirror", robot.mirror).tolist())
    if not {*said} <= {-1.0, 1.0}:
        raise legs.Misfit(f"robot.mirror={robot.mirror}: expected signs, 1 or -1")
    try:
        return list(hinge_signs(mjm, str(robot.base), balls, said))
    except ValueError:
        if said:
            raise
        return None


def complete(robot: Robot, own: mujoco.MjModel, four: Legs, stance: Array, trust: bool) -> Robot:
    """The description with its gains and limits, for a stance; the file's own gains if they are to be trusted."""
    inertia, lever = four.inertia(stance), four.lever(stance)  # kg m², N m
    stance = np.round(stance, 4) + 0.0  # no -0

    def known(key: str, guess: Array) -> list[float]:
        value = getattr(robot, key)
        if value is not None:
            found = legs.twelve(key, value)
        else:
            found = theirs(own, four.names, key) if trust or key not in ("kp", "kd") else np.full(12, np.nan)
        found = np.where(np.isnan(found), guess, found)
        if not (found > 0).all():
            raise legs.Misfit(f"robot.{key}={value}: expected more than 0")
        return short(found)

    armature = known("armature", np.full(12, 0.2 * inertia))
    kp = known("kp", np.full(12, lever))
    kd = known("kd", np.sqrt(np.array(kp) * (inertia + np.array(armature))))
    scale = None if robot.scale is None else short(legs.twelve("scale", robot.scale))
    torque = known("torque", np.full(12, lever))
    return replace(robot, stance=short(stance), kp=kp, kd=kd, torque=torque, armature=armature, scale=scale)


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


def as_yaml(robot: Robot, name: str, actuator: dict[str, Any] | None = None) -> str:
    """A file for conf/robot/, so that robot=<name> is this robot, with these actuators."""
    lines = [f"# conf/robot/{name}.yaml", f"name: {name}"]
    for key, value in asdict(robot).items():
        if isinstance(value, list) and len(value) == 12 and (value == value[:3] * 4):
            value = value[0] if value == value[:1] * 12 else value[:3]
        lines.append(f"{key}: {json.dumps(value)}")  # JSON is YAML
    lines.append(f"actuator: {json.dumps(asdict(Actuator()) | (actuator or {}))}")
    return "\n".join(lines)
