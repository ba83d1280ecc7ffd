"""A task's numbers for another robot: what is asked of legs follows their length, and what is asked
of an arm what it can reach and carry.

A robot with legs of 14 cm that is to walk at 1 m/s, two steps a second, never learns it. Speeds of
the same Froude number v² / (g · leg) are dynamically similar (Alexander and Jayes, 1983,
https://doi.org/10.1111/j.1469-7998.1983.tb04266.x).
"""

import copy
import json
import math
from collections.abc import Iterable, Iterator
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from gpusim_rl.config.compose import user_choices
from gpusim_rl.config.nested_dict import flatten, is_below, set_key
from gpusim_rl.config.recipe import numbers_of
from gpusim_rl.core.errors import warn_once
from gpusim_rl.core.files import Plain
from gpusim_rl.core.sections import arguments

if TYPE_CHECKING:
    from gpusim_rl.robots.load import Loaded

LEG = 0.426  # m, of tasks/assets/quadruped.xml, for which conf/task/quadruped.yaml has its numbers
# Task → the shape of its robots, and the length of the legs [m] for which its YAML has its numbers
DEFAULTS = {
    "quadruped": ("quadruped", LEG),
    "quadruped_rough": ("quadruped", LEG),
    "humanoid": ("humanoid", 0.695),
}
ARMS, OWN_REACH = ("reach", "reach_pose"), 0.947  # m, of tasks/assets/arm.xml
BOX = ("task.center", "task.largest", "task.tilt", "task.lean", "task.spin")  # of goals
TIMESTEP_S = 0.005  # s, the timestep that robots/prepare.py gives each robot
# Why: docs/decisions/robots.md
# Key of the task → the power of the relative length, for each number of a list, and for a range
POWERS = {
    "task.fastest": (0.5, 0.5, 0.0),
    "task.swing_height": (1.0,),
    "task.sigma_feet": (1.0,),
    "task.gait": (-0.5,),
    "task.randomise.center": (1.0,),
    "task.randomise.push": (0.5,),
    "task.randomise.payload": (3.0,),
    "task.training.timestep": (0.5,),
}
ARM_POWERS = {"task.sigma": (1.0,), "task.randomise.payload": (3.0,)}


class Arm(NamedTuple):
    """What an arm can do."""

    size: float  # its reach over that of our own arm
    description: str  # of its reach, for a line
    shoulder: list[float]  # (3,) m
    numbers: Plain  # key → value


def fit_to_robot(cfg: Plain, override_keys: Iterable[str]) -> Plain:
    """A configuration whose task asks its robot for what it can do; one line says so.

    Numbers of the command line, its curriculum among them, and of ranges= stay as they are, and so
    does a task's file of the user's. ValueError or OSError in one line if the robot cannot be
    loaded.
    """
    task = cfg["task"]["name"]
    if task not in (*DEFAULTS, *ARMS) or not cfg["robot"]["mjcf"]:
        return cfg
    if "task" in user_choices("config", (f"task={task}",)):
        return cfg
    from gpusim_rl.robots.models import find_robot_file  # it loads MuJoCo

    mtime = find_robot_file(cfg["robot"]["mjcf"]).stat().st_mtime_ns
    now = flatten(cfg)
    plan = cfg["curriculum"] or {}
    scaled = () if "curriculum" in override_keys else {*POWERS, *ARM_POWERS} & {*plan}
    keys = (*override_keys, *plan, *numbers_of(cfg["ranges"]))
    fixed = tuple(key for key in keys if "." in key and key not in scaled)
    robot = json.dumps(cfg["robot"])
    if task in ARMS:
        boxes = {key: now[key] for key in BOX if key in now and is_below(key, fixed)}
        request = json.dumps({"lean": now.get("task.lean"), "box": boxes})
        arm = arm_numbers(robot, mtime, request)
        description, shoulder = arm.description, arm.shoulder
        numbers = {key: scale(key, now, arm.size) for key in ARM_POWERS} | arm.numbers
    else:
        shape, default_leg = DEFAULTS[task]
        leg = leg_length(robot, mtime, shape)
        size, description, shoulder = leg / default_leg, f"legs of {leg:.3g} m", []
        numbers = {key: scale(key, now, size) for key in POWERS} if size <= 0.999 else {}
    fitted, changed = copy.deepcopy(cfg), list[str]()
    for key, value in numbers.items():
        if is_below(key, fixed) or any(is_below(other, (key,)) for other in fixed):
            continue
        if value not in (None, now.get(key)):
            set_key(fitted, key, value)
            if key in scaled:
                fitted["curriculum"][key] |= {"from": first_value(plan[key], value), "to": value}
            changed.append(key)
    if not changed:
        return cfg
    words = "; ".join(in_words(flatten(fitted), changed, shoulder))
    warn_once(
        f"{cfg['robot']['mjcf']} has {description}, so its task's numbers are scaled"
        f"{words and ': '}{words} (--cfg job shows all {len(changed)})"
    )
    return fitted


def in_words(now: Plain, changed: list[str], shoulder: list[float]) -> Iterator[str]:
    """What the changed keys ask of a robot, those that its user sees.

    now: key → value, of all keys. shoulder: of an arm, (3,) [m].
    """
    if {*BOX[:2]} & {*changed}:
        sides = " × ".join(f"{200 * x:.0f}" for x in now["task.largest"])
        ahead = 100 * (now["task.center"][0] - shoulder[0])
        yield f"goals within {sides} cm, {ahead:.0f} cm before the shoulder"
    if {*BOX[2:]} & {*changed}:
        tilt, lean, spin = (f"{math.degrees(now[key]):.0f}°" for key in BOX[2:])
        middle = f"{tilt} forward of straight down" if now["task.tilt"] else "straight down"
        yield f"the hand {middle} ± {lean}, turned by up to {spin}"
    if "task.largest_speed" in changed:
        yield f"joints up to {max(now['task.largest_speed']):.3g} rad/s"
    if "task.fastest" in changed:
        yield f"speeds up to {now['task.fastest'][0]:.2g} m/s"
    if "task.swing_height" in changed:
        yield f"feet lifted by {100 * now['task.swing_height']:.2g} cm"
    if "task.gait" in changed:
        yield f"{now['task.gait']:.2g} steps a second"


def scale(key: str, now: Plain, size: float) -> Any:
    """The value of a key for a robot of another size; None where it has no effect.

    `now` is key → value, of all keys. `size` is relative to that of our own robot.
    """
    value, factors = now.get(key), [size**power for power in (POWERS | ARM_POWERS)[key]]
    if value is None:
        return None
    if key == "task.training.timestep":
        servos = now["robot.actuator.kind"] == "position"  # others keep the model's timestep
        return timestep(now["task.dt"], value, factors[0]) if servos else None
    if isinstance(value, list):
        return [three_digits(x * factor) for x, factor in zip(value, factors, strict=True)]
    if not isinstance(value, dict):
        return three_digits(value * factors[0])
    ends = {end: three_digits(value[end] * factors[0]) for end in ("low", "high")}
    return None if value["kind"] == "off" else value | ends


def first_value(entry: Plain, last: Any) -> Any:
    """The first value of a curriculum's entry that is scaled to end at another one."""
    if isinstance(last, list):
        rows = zip(entry["from"], entry["to"], last, strict=True)
        return [first_value({"from": first, "to": old}, new) for first, old, new in rows]
    return three_digits(entry["from"] * (last / entry["to"] if entry["to"] else 1.0))


def timestep(dt: float, default: float, factor: float) -> float:
    """The longest timestep [s] of which dt is a whole number, up to 5 % over default · factor."""
    return min(default, dt / math.ceil(dt / (1.05 * max(default * factor, TIMESTEP_S))))


def three_digits(value: float) -> float:
    return float(f"{value:.3g}")


@cache
def arm_numbers(robot: str, mtime: int, request: str) -> Arm:
    """Numbers that an arm can reach, kept for the other runs of a multirun.

    Args:
        robot: a configuration's section as JSON, whose file changed at `mtime` [ns].
        request: as JSON, `lean` of the task [rad], null for goals without rotation; and `box`,
            key → value of those of `BOX` that stay.
    """
    fixed = json.loads(request)
    arm = load_section(json.loads(robot), "arm")
    box = {key.removeprefix("task."): value for key, value in fixed["box"].items()}
    try:
        numbers = arm.shape.task_numbers(arm.robot, fixed["lean"], box)
    except ValueError as error:
        raise ValueError(f"robot.mjcf={json.loads(robot)['mjcf']}: {error}") from None
    reach, shoulder = arm.shape.size, arm.shape.kinematics.shoulder.tolist()
    numbers = {f"task.{key}": value for key, value in numbers.items()}
    return Arm(reach / OWN_REACH, f"a reach of {reach:.3g} m", shoulder, numbers)


@cache
def leg_length(robot: str, mtime: int, shape: str) -> float:
    """The mean length of a robot's legs [m], kept as `arm_numbers` are."""
    return load_section(json.loads(robot), shape).shape.size


def load_section(robot: Plain, shape: str) -> "Loaded":
    """`load`, of a configuration's section."""
    values = {key: value for key, value in robot.items() if key not in ("name", "actuator")}
    return load(robot["name"], values, shape)


def load(name: str, values: Plain, shape: str = "quadruped") -> "Loaded":
    """The robot of conf/robot/<name>.yaml, whose values name a file.

    ValueError or OSError in one line if it cannot be loaded.
    """
    from gpusim_rl.robots.load import load_as  # it loads torch
    from gpusim_rl.robots.robot_config import Robot

    return load_as(shape, **arguments(Robot, values, "robot", f"robot/{name}"))
