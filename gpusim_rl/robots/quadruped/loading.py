"""Load a robot: turn the unmodified MJCF or URDF file of a 12-joint quadruped into a model for
`tasks/locomotion/quadruped.py`. `robots/load.py` also loads robots of other shapes."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import mujoco
import numpy as np

from gpusim_rl.core import ranges
from gpusim_rl.core.errors import silence_mujoco, warn_once
from gpusim_rl.robots import prepare
from gpusim_rl.robots.bodies import RobotError, find_base, raise_origin
from gpusim_rl.robots.inertias import compile_mended, implausible
from gpusim_rl.robots.models import find_robot_file
from gpusim_rl.robots.quadruped import topology
from gpusim_rl.robots.quadruped.feet import find_foot
from gpusim_rl.robots.quadruped.kinematics import Legs
from gpusim_rl.robots.quadruped.prepare import NAMES, prepare_quadruped
from gpusim_rl.robots.quadruped.symmetry import hinge_signs
from gpusim_rl.robots.quadruped.topology import LEGS, Foot, check_forward, leg_values
from gpusim_rl.robots.robot_config import Robot
from gpusim_rl.robots.servos import complete, joint_parameters, six_digits

Array = np.ndarray
# A robot stands within these.
UPRIGHT = 0.97  # least z of the base's z axis
HIGH = 0.45  # least height of the base, in lengths of a leg
STILL = 0.5  # m/s, rad/s; root mean square of the fastest coordinate


class Guess(NamedTuple):
    """How gains that nothing gives are guessed."""

    kp: float  # shares of weight times height
    armature: float  # shares of the leg's inertia


# Why: docs/decisions/0009-own-gains-first.md
# In turn, until it stands: small robots tremble without armature, tall ones need stiff servos.
GUESSES = (Guess(1.0, 0.2), Guess(1.0, 1.0), Guess(2.0, 0.2), Guess(2.0, 1.0))


@dataclass(kw_only=True)
class LoadedRobot:
    """A robot that is ready for the task."""

    robot: Robot  # the description without None, apart from `scale` and `mirror`
    original: mujoco.MjModel  # the model of the file
    guess: Guess  # with which it stands
    mjm: mujoco.MjModel
    spec: mujoco.MjSpec  # of mjm
    text: str  # the MJCF without meshes and textures, for the ONNX file
    foot_geoms: tuple[str, ...]  # FL, FR, RL, RR
    leg: float  # m, the mean length of a leg from thigh to foot
    # (12,) the direction of the joints that lifts each foot straight up; a knee has ±1
    lift_direction: tuple[float, ...]

    @property
    def arguments(self) -> dict[str, Any]:
        """What the task is told of the robot, beside its model."""
        robot = self.robot
        return dict(
            foot_geoms=self.foot_geoms,
            lift_direction=self.lift_direction,
            signs=tuple(robot.mirror or ()),
            height=robot.height,
            scale=tuple(robot.scale or ()),
        )


def load_robot(build: Callable[..., Any] | None = None, **keys: Any) -> Any:
    """The robot of a description, whose keys are those of `Robot`.

    Args:
        build: makes it of the description, the file's spec and its model; unless given
            `build_robot`, which makes a quadruped.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is not such a robot, or a key does not fit it. One line names the key
            and the choices.
    """
    robot = Robot(**keys)
    if robot.collide not in ("feet", "all"):
        raise ValueError(f"robot.collide={robot.collide}: choose one of feet, all")
    ranges.check(keys, "robot")
    file = find_robot_file(robot.mjcf)
    silence_mujoco()  # a candidate that falls apart is refused in one line
    try:
        spec = read_spec(file)
        original = compile_mended(spec, lambda line: warn_once(f"warning: {file}: {line}"))
        return (build or build_robot)(robot, spec, original)
    except (RobotError, mujoco.FatalError) as error:
        raise ValueError(f"robot.mjcf={robot.mjcf}: {' '.join(str(error).split())}") from None
    except ValueError as error:
        raise ValueError(f"robot.mjcf: {file}: {' '.join(str(error).split())}") from None


def read_spec(file: Path) -> mujoco.MjSpec:
    """The spec of an MJCF or URDF file, with a name for each joint and body."""
    spec = mujoco.MjSpec.from_file(str(file))
    # Otherwise the compiled model has fewer elements, and its ids are not those of the spec.
    spec.compiler.fusestatic = spec.compiler.discardvisual = False
    for kind, elements in (("joint", spec.joints), ("body", spec.bodies)):
        for i, element in enumerate(elements):
            element.name = element.name or prepare.added_name(f"{kind}{i}")
    return spec


def build_robot(robot: Robot, spec: mujoco.MjSpec, original: mujoco.MjModel) -> LoadedRobot:
    """The robot in the first stance in which it stands. `original` is the compiled spec."""
    base = find_base(spec, robot.base).name
    if raise_origin(spec, original, base):
        original = spec.compile()
    joints, foot_names = topology.find_legs(original, base, robot.joints, robot.feet)
    feet = [
        find_foot(original, name, leg[2], prepare.added_name(LEGS[i]))
        for i, (name, leg) in enumerate(zip(foot_names, joints, strict=True))
    ]
    robot = replace(robot, base=base, joints=joints, feet=[foot.name or foot.body for foot in feet])
    names = [name for leg in joints for name in leg]
    if line := check_forward(original, base, joints):
        warn_once(f"warning: {robot.mjcf}: {line}")
    meshless = prepare_specs(spec, original, base, names, feet, robot.collide)
    legs = Legs(meshless.compile(), base, names, feet)
    if line := implausible(original, base, 2 * float(legs.length.mean())):
        warn_once(f"warning: {robot.mjcf}: {line}")
    if robot.stance is None:
        stances = [*legs.keyframe_angles(original), legs.crouch()]
    else:
        stances = [leg_values("stance", robot.stance)]
    why, tried = "", []  # why the first candidate does not stand
    for guess, keep, stance in product(GUESSES, (True, False), stances):
        candidate = fill_gains(robot, original, legs, stance, guess, keep)
        if candidate in tried:
            continue
        tried.append(candidate)
        trial = meshless.copy()
        add_servos(trial, legs, candidate)
        height, fault = stand(trial.compile(), legs)
        if not fault:
            candidate = replace(candidate, height=robot.height or round(height, 4))
            add_servos(spec, legs, candidate)
            kept = dict(text=trial.to_xml(), original=original, guess=guess, spec=spec)
            return finish(candidate, spec.compile(), legs, **kept)
        why = why or fault
    where = "" if robot.stance is None else f" in robot.stance={robot.stance}"
    raise RobotError(f"the robot does not stand{where}: {why}")


def stand(m: mujoco.MjModel, legs: Legs) -> tuple[float, str]:
    """(the height of the base [m] after two seconds in the stance, why it does not stand or "").

    A robot stands if it is still in the second of them, and upright and high at the end.
    """
    d, second = mujoco.MjData(m), round(1.0 / m.opt.timestep)
    mujoco.mj_resetDataKeyframe(m, d, 0)
    start, least = float(d.qpos[2]), HIGH * float(legs.length.mean())
    squares, first = np.zeros(m.nv), ""  # what happened first
    for step in range(2 * second):
        mujoco.mj_step(m, d)
        squares += d.qvel**2 / second if step >= second else 0
        tilted = not 1 - 2 * (d.qpos[4] ** 2 + d.qpos[5] ** 2) > UPRIGHT
        low = not d.qpos[2] > least
        first = first or ("sinks" if low else "tilts" if tilted else "")
    height, speed = float(d.qpos[2]), float(np.sqrt(squares).max())
    if not np.isfinite(d.qpos).all():
        return height, "its simulation diverges: try a smaller robot.kp or robot.kd"
    if start <= least:
        return height, (
            f"the origin of its base is only {start:.3g} m above the ground: try another "
            "robot.stance, or move the origin into the trunk in the file"
        )
    if (low or tilted) and first == "tilts":
        return height, "it falls over: try another robot.stance, robot.kp or robot.torque"
    if low or tilted:
        return height, (
            f"it sinks from {start:.3g} m: try a larger robot.torque [N m] or robot.kp [N m/rad]"
        )
    if speed > STILL:
        return height, f"it keeps moving, at {speed:.2g} m/s or rad/s: try another robot.kp and kd"
    return height, ""


def prepare_specs(
    spec: mujoco.MjSpec,
    original: mujoco.MjModel,
    base: str,
    joints: list[str],
    feet: list[Foot],
    collide: str,
) -> mujoco.MjSpec:
    """Prepare a spec for the task, in place. Returns a prepared copy that has boxes for meshes."""
    for i, geom in enumerate(spec.geoms):
        geom.name = next((foot.geom_name for foot in feet if foot.geom == i), geom.name)
    meshless = prepare.copy_without_meshes(spec, original, collide)
    for each in (spec, meshless):
        prepare_quadruped(each, original, base, joints, feet, collide)
    return meshless


def add_servos(spec: mujoco.MjSpec, legs: Legs, robot: Robot) -> None:
    """Add the servos and the stance of a description to a spec, in place."""
    joints = dict(zip(NAMES, legs.names, strict=True))
    prepare.add_servos(spec, joints, robot, legs.qpos(np.array(robot.stance)))


def finish(robot: Robot, mjm: mujoco.MjModel, legs: Legs, **others: Any) -> LoadedRobot:
    """The loaded robot of a complete description, with the signs of its mirror image."""
    foot_geoms = tuple(foot.geom_name for foot in legs.feet)
    return LoadedRobot(
        robot=replace(robot, mirror=mirror_signs(robot, mjm, foot_geoms)),
        mjm=mjm,
        foot_geoms=foot_geoms,
        leg=float(legs.length.mean()),
        lift_direction=legs.lift_direction(np.array(robot.stance)),
        **others,
    )


def mirror_signs(
    robot: Robot, mjm: mujoco.MjModel, foot_geoms: tuple[str, ...]
) -> list[float] | None:
    """(12,) signs of the joints in a mirrored pose: those of robot.mirror after a check, else
    guessed ones. None if no signs are given and the robot is not symmetric."""
    given = robot.mirror
    signs = () if given is None else tuple(leg_values("mirror", given).tolist())
    if not {*signs} <= {-1.0, 1.0}:
        raise RobotError(f"robot.mirror={given}: expected signs, 1 or -1")
    try:
        return list(hinge_signs(mjm, str(robot.base), foot_geoms, signs))
    except ValueError:
        if signs:
            raise
        return None


def fill_gains(
    robot: Robot, original: mujoco.MjModel, legs: Legs, stance: Array, guess: Guess, keep: bool
) -> Robot:
    """The description with this stance, and with gains and limits where it had None; with `keep`,
    kp and kd are those of the file's own servos where it has them."""
    inertia, torque_scale = legs.inertia(stance), legs.torque_scale(stance)  # kg m², N m
    stance = np.round(stance, 4) + 0.0  # no -0

    def fill(key: str, guess: Array) -> list[float]:
        value = getattr(robot, key)
        if value is not None:
            values = leg_values(key, value)
        elif keep or key not in ("kp", "kd"):
            values = joint_parameters(original, legs.names, key)
        else:
            values = np.full(12, np.nan)
        return complete(key, value, values, guess)

    armature = fill("armature", np.full(12, guess.armature * inertia))
    kp = fill("kp", np.full(12, guess.kp * torque_scale))
    kd = fill("kd", np.sqrt(np.array(kp) * (inertia + np.array(armature))))
    scale = None if robot.scale is None else six_digits(leg_values("scale", robot.scale))
    torque = fill("torque", np.full(12, torque_scale))
    gains = dict(kp=kp, kd=kd, torque=torque, armature=armature, scale=scale)
    return replace(robot, stance=six_digits(stance), **gains)
