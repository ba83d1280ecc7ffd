"""Load a robot: turn an unmodified MJCF or URDF file into a model for a task.

One recipe serves quadrupeds, humanoids and arms: read → topology → prepare → stance → gains.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import mujoco
import numpy as np

from gpusim_rl.core import ranges
from gpusim_rl.core.errors import silence_mujoco, warn_once
from gpusim_rl.robots.arm import topology as one_arm
from gpusim_rl.robots.arm.shape import Arm
from gpusim_rl.robots.bodies import (
    FREE,
    Array,
    RobotError,
    doubtful_ranges,
    find_base,
    find_chains,
)
from gpusim_rl.robots.humanoid import topology as two_legs
from gpusim_rl.robots.humanoid.shape import Humanoid, WholeHumanoid
from gpusim_rl.robots.inertias import compile_mended, implausible
from gpusim_rl.robots.model_files import find_mesh, model_name, reason
from gpusim_rl.robots.models import compile_spec, find_robot_file
from gpusim_rl.robots.prepare import add_servos, added_name
from gpusim_rl.robots.quadruped import topology as four_legs
from gpusim_rl.robots.quadruped.shape import Quadruped
from gpusim_rl.robots.robot_config import Robot
from gpusim_rl.robots.servos import joint_parameters, six_digits

# The part of loading that differs. It is made of the description, the file's spec and the compiled
# spec, whose topology it finds.
Shape = Quadruped | Humanoid | Arm
SHAPES: Mapping[str, Callable[..., Shape]] = dict(
    quadruped=Quadruped, humanoid=Humanoid, whole=WholeHumanoid, arm=Arm
)
TASKS = {"quadruped": "quadruped", "humanoid": "humanoid", "whole": "imitate"}
TASKS |= {"arm": "reach"}  # shape → a task of it


@dataclass(kw_only=True)
class Loaded:
    """A robot that is ready for the task."""

    robot: Robot  # complete, apart from `scale`, `mirror` and keys of other shapes
    original: mujoco.MjModel  # the model of the file
    mjm: mujoco.MjModel
    spec: mujoco.MjSpec  # of mjm
    text: str  # the MJCF without meshes and textures, for the ONNX file
    shape: Any  # one of `SHAPES`

    @property
    def arguments(self) -> dict[str, Any]:
        """The task's arguments that follow from the robot, beside its model."""
        return self.shape.arguments(self.robot)


def load_any(**keys: Any) -> Loaded:
    """The robot of a description, as `load_as` loads it, of the shape of its file."""
    return load_as(None, **keys)


def load_as(shape: str | None, **keys: Any) -> Loaded:
    """The robot of a description, whose keys are those of `Robot`.

    Args:
        shape: one of `SHAPES`, which a task has as `takes_robot`; None: that of the file.
        keys: of the description.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: there is no such shape, the file is not such a robot, or a key does not fit it.
            One line names the key and the choices.
    """
    if shape is not None and shape not in SHAPES:
        raise ValueError(f"takes_robot of the task is {shape!r}: choose one of {', '.join(SHAPES)}")
    robot = Robot(**keys)
    if robot.collide not in ("feet", "all"):
        raise ValueError(f"robot.collide={robot.collide}: choose one of feet, all")
    ranges.check(keys, "robot")
    file = find_robot_file(robot.mjcf)
    silence_mujoco()  # a candidate that falls apart is refused in one line
    try:
        spec = read_spec(file)
        original = compile_mended(spec, lambda line: warn_once(f"warning: {file}: {line}"))
        return build(choose_shape(shape, robot, spec, original), robot, spec, original)
    except (RobotError, mujoco.FatalError) as error:
        raise ValueError(f"robot.mjcf={robot.mjcf}: {' '.join(str(error).split())}") from None
    except ValueError as error:
        raise ValueError(f"robot.mjcf: {file}: {reason(error)}") from None


def read_spec(file: Path) -> mujoco.MjSpec:
    """The spec of an MJCF or URDF file, with a name for the model and each joint and body."""
    spec = mujoco.MjSpec.from_file(str(file))
    spec.modelname = model_name(spec.modelname, file)
    for mesh in spec.meshes:
        mesh.file = find_mesh(mesh.file, file.parent, [spec.meshdir] if spec.meshdir else [])
    # Otherwise the compiled model has fewer elements, and its ids are not those of the spec.
    spec.compiler.fusestatic = spec.compiler.discardvisual = False
    for kind, elements in (("joint", spec.joints), ("body", spec.bodies)):
        for i, element in enumerate(elements):
            element.name = element.name or added_name(f"{kind}{i}")
    return spec


def build(name: str, robot: Robot, spec: mujoco.MjSpec, original: mujoco.MjModel) -> Loaded:
    """The robot in the first stance in which it can start, with the signs of its mirror image.

    `original` is the compiled spec.
    """
    shape = make_shape(name, robot, spec, original)
    if line := doubtful_ranges(shape.original, shape.joints.names, bool(spec.compiler.degree)):
        warn_once(f"warning: {robot.mjcf}: {line}")
    meshless = shape.prepare(spec)
    if line := implausible(shape.original, str(shape.robot.base), 2 * shape.size):
        warn_once(f"warning: {robot.mjcf}: {line}")
    signs = () if robot.mirror is None else (*shape.joints.values("mirror", robot.mirror).tolist(),)
    if not {*signs} <= {-1.0, 1.0}:
        raise RobotError(f"robot.mirror={robot.mirror}: expected signs, 1 or -1")
    fault, tried = "", []  # why the first candidate cannot start
    for stance in shape.stances():
        candidate = fill(shape, stance)
        if candidate in tried:
            continue
        tried.append(candidate)
        # Meshes do not move the robot: those that collide are boxes in both specs.
        trial, qpos = meshless.copy(), shape.qpos(stance)
        add_servos(trial, shape.servos, candidate, qpos)
        height, line = shape.check(trial.compile())
        if not line:
            add_servos(spec, shape.servos, candidate, qpos)
            done, mjm = replace(candidate, height=robot.height or height), compile_spec(spec)
            done, text = replace(done, mirror=shape.mirror(done, mjm, signs)), trial.to_xml()
            models = dict(original=shape.original, mjm=mjm, spec=spec)
            return Loaded(robot=done, text=text, shape=shape, **models)
        fault = fault or line
    raise RobotError(fault)


def make_shape(name: str, robot: Robot, spec: mujoco.MjSpec, original: mujoco.MjModel) -> Shape:
    """The shape; RobotError that names the task of another one, where that fits."""
    try:
        return SHAPES[name](robot, spec, original)
    except RobotError as error:
        with suppress(RobotError):
            other = find_shape(robot, spec, original)
            if other != name and SHAPES[other](robot, spec, original):
                error.args = (f"{error}; task={TASKS[other]} may take this robot",)
        raise


def fill(shape: Shape, stance: Array) -> Robot:
    """The description with this stance, and with gains and limits where it had None."""
    robot, joints, lists = shape.robot, shape.joints, {}

    def filled(key: str, guess: Array | float, in_file: Array | bool = True) -> Array:
        """(n,) numbers of the description, else of the file where `in_file`, else the guess."""
        value = getattr(robot, key)
        if value is None:
            values = np.where(in_file, joint_parameters(shape.original, joints.names, key), np.nan)
        else:
            values = joints.values(key, value)
        values = np.where(np.isnan(values), guess, values)
        if not (values > 0).all():
            raise RobotError(f"robot.{key}={value}: expected more than 0")
        lists[key] = six_digits(values)
        return np.array(lists[key])

    shape.gains(filled)
    if robot.scale is not None:
        scale = joints.values("scale", robot.scale)
        if legs_alone := bool(np.isnan(scale).any()):
            warn_once("robot.scale is of the legs alone: task.action_scale is taken for all joints")
        lists["scale"] = None if legs_alone else six_digits(scale)
    return replace(robot, stance=six_digits(stance), **lists)


def choose_shape(
    shape: str | None, robot: Robot, spec: mujoco.MjSpec, original: mujoco.MjModel
) -> str:
    """The shape that is asked for; of "whole", that of quadrupeds for these."""
    if shape not in (None, "whole"):
        return shape
    found = find_shape(robot, spec, original)
    return found if shape is None or found == "quadruped" else shape


def find_shape(robot: Robot, spec: mujoco.MjSpec, original: mujoco.MjModel) -> str:
    """The shape of a robot: that of its named tool or legs, else the first whose legs are there.

    Without legs it is an arm if it stands fixed and has one or two chains of joints. Any other
    counts as a humanoid or, of four chains or more, as a quadruped: it is refused in one line.
    """
    joints = robot.joints
    # names, not lists of names
    named = isinstance(joints, list) and all(isinstance(joint, str) for joint in joints)
    if robot.tool is not None or named:
        return "arm"
    for legs in (robot.feet, robot.joints):
        if isinstance(legs, list):
            return "humanoid" if len(legs) == 2 else "quadruped"
    base = find_base(spec, robot.base).name
    for shape, legs in (("quadruped", four_legs), ("humanoid", two_legs)):
        try:
            legs.find_legs(original, base, None, None)
        except RobotError:
            continue
        return shape
    if FREE.value not in original.jnt_type and one_arm.count_chains(original) <= 2:
        return "arm"
    chains = find_chains(original, original.body(base).id)
    return "humanoid" if len(chains) in (2, 3) else "quadruped"
