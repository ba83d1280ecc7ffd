"""The quadruped's numbers for a smaller robot: what it is asked for follows the length of its legs.

A robot with legs of 14 cm that is to walk at 1 m/s, two steps a second, never learns it. Speeds of
the same Froude number v² / (g · leg) are dynamically similar (Alexander and Jayes, 1983,
https://doi.org/10.1111/j.1469-7998.1983.tb04266.x).
"""

import copy
import json
import math
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Any

from gpusim_rl.config.compose import build
from gpusim_rl.config.trees import flatten, is_below, set_key
from gpusim_rl.config.validate import arguments
from gpusim_rl.core.errors import warn_once

if TYPE_CHECKING:
    from gpusim_rl.robots.importer import LoadedRobot

LEG = 0.426  # m, of tasks/assets/quadruped.xml, for which conf/task/quadruped.yaml has its numbers
# Key of the task → the power of the relative length, for each of its numbers
POWERS = {
    "task.fastest": (0.5, 0.5, 0.0),
    "task.lift": (1.0,),
    "task.sigma_feet": (1.0,),
    "task.gait": (-0.5,),
    "task.randomise.centre.low": (1.0,),
    "task.randomise.centre.high": (1.0,),
    "task.randomise.push.low": (0.5,),
    "task.randomise.push.high": (0.5,),
    "task.training.timestep": (0.5,),
}


def scale_to_legs(cfg: dict[str, Any], given: Iterable[str]) -> dict[str, Any]:
    """A configuration whose task asks a robot with short legs for less; one line says so.

    Numbers that are given, scheduled, or changed in a file of the user's stay as they are.

    Args:
        cfg: of a new training, checked.
        given: keys of the command line.
    ValueError or OSError in one line if the robot cannot be loaded.
    """
    if cfg["task"]["name"] != "quadruped" or not cfg["robot"]["mjcf"]:
        return cfg
    from gpusim_rl.robots.models import find_robot_file  # it loads MuJoCo

    changed = find_robot_file(cfg["robot"]["mjcf"]).stat().st_mtime_ns
    leg = leg_length(json.dumps(cfg["robot"]), changed)
    size = leg / LEG
    if size > 0.999:
        return cfg
    ours = flatten(build("config", ["task=quadruped"], ours=True))
    now, scaled, said = flatten(cfg), copy.deepcopy(cfg), []
    fixed = tuple(key for key in (*given, *(cfg["curriculum"] or {})) if "." in key)
    for key, powers in POWERS.items():
        value = multiplied(ours[key], [size**power for power in powers])
        if key == "task.training.timestep":
            value = timestep(cfg["task"]["dt"], max(value, ours[key] / 2))
        if value != ours[key] and now.get(key) == ours[key] and not is_below(key, fixed):
            set_key(scaled, key, value)
            said.append(f"{key}={value:.3g}" if isinstance(value, float) else f"{key}={value}")
    if said:
        legs = f"{cfg['robot']['mjcf']} has legs of {leg:.2g} m"
        warn_once(f"{legs}, and its training follows them: {' '.join(said)}")
    return scaled


def multiplied(value: Any, factors: list[float]) -> Any:
    """A number, or a list of numbers, times one factor for each; three significant digits."""
    if isinstance(value, list):
        return [multiplied(x, [factor]) for x, factor in zip(value, factors, strict=True)]
    return float(f"{value * factors[0]:.3g}")


def timestep(dt: float, longest: float) -> float:
    """The longest timestep [s] of which dt is a whole number. It may be 5 % over `longest` [s]."""
    return dt / math.ceil(dt / (1.05 * longest))


@cache
def leg_length(robot: str, changed: int) -> float:
    """The mean length of a robot's legs [m], kept for the other runs of a multirun.

    Args:
        robot: a configuration's section as JSON.
        changed: when its file changed [ns].
    """
    return load(json.loads(robot)).leg


def load(robot: dict[str, Any]) -> "LoadedRobot":
    """The robot of a configuration's section, which names a file; ValueError or OSError if not."""
    from gpusim_rl.robots.importer import Robot, load_robot  # they load torch

    keys = {key: value for key, value in robot.items() if key not in ("name", "actuator")}
    return load_robot(**arguments(Robot, keys, "robot", f"robot/{robot['name']}"))
