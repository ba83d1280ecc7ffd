"""The body of a model that shows a command, and checks of a stranger's file that describes one."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gpusim_rl.robots.free_bodies import free_base

if TYPE_CHECKING:
    from mujoco import MjData, MjModel


Description = Mapping[str, Any]  # what a policy's file says of its command


class Turn(NamedTuple):
    """A rotation of a command, as a policy's description has it."""

    columns: slice  # (4,) of its unit quaternion
    lean: float  # largest angle of its z axis from the center's [rad]
    spin: float  # how far it turns about this axis, at most [rad]


def rotations(description: Description) -> list[Turn]:
    """The rotations of a command. With `lean`, it is one: the last four numbers."""
    rows = description.get("rotations", [])
    if "lean" in description:
        rows = [{**description, "first": len(description["names"]) - 4}]
    return [
        Turn(slice(row["first"], row["first"] + 4), row["lean"], row.get("spin", math.pi))
        for row in rows
    ]


def plain_columns(description: Description) -> list[int]:
    """The columns of a command that belong to no rotation."""
    turned = [turn.columns for turn in rotations(description)]
    columns = range(len(description["names"]))
    return [i for i in columns if not any(x.start <= i < x.stop for x in turned)]


LARGEST_COMMAND = 1e6  # of a command, in any unit
BROKEN = (TypeError, KeyError, AttributeError, OverflowError)


# Why: docs/decisions/arms.md
def place_target(model: "MjModel", description: Description, command: np.ndarray) -> None:
    """Move the body that shows a command (n,) to it, if the model has one. In place.

    What the command does not say, such as the height of a goal of x and y, stays the model's.
    """
    if "shown_by" in description:
        body = model.body(description["shown_by"])
        columns = plain_columns(description)[:3]
        body.pos[: len(columns)] = command[columns]
        for turn in rotations(description)[:1]:
            body.quat = command[turn.columns]


def check_command(description: Description | None, model: "MjModel", path: Path) -> None:
    """ValueError, in one line, unless the model of a stranger's file can show its command."""
    if description is None:
        return
    try:
        fault = fault_of(description, model)
    except BROKEN as error:
        fault = f"what it says of its command is broken: {' '.join(str(error).split())}"
    if fault:
        raise ValueError(f"{path}: {fault}")


def fault_of(description: Description, model: "MjModel") -> str:
    """The fault of a command's description in one line; empty if it has none."""
    count, trained = len(description["names"]), description["trained"]
    for key in ("names", "units"):
        words = description.get(key, [])
        if not (isinstance(words, list | tuple) and all(isinstance(x, str) for x in words)):
            return f"{key} of its command are no list of words"
    for numbers in (trained["low"], trained["high"], description.get("center", trained["low"])):
        if len(numbers) != count or not all(
            is_number(x) and abs(x) <= LARGEST_COMMAND for x in numbers
        ):
            return f"ranges and center of its command are not {count} numbers of at most 1e6 each"
    if any(a > b for a, b in zip(trained["low"], trained["high"], strict=True)):
        return "a range of its command ends below its begin"
    for columns, *angles in rotations(description):
        inside = columns.start in range(count - 3)
        if not inside or not all(is_number(x) and 0 <= x <= 3.1416 for x in angles):
            return f"its command has {count} numbers, and no rotation with a lean in [0, pi]"
        if abs(sum(x * x for x in description["center"][columns]) - 1) > 1e-3:
            return "the center of its command has no unit quaternion"
    points = plain_columns(description)
    if len(points) != count - 4 * len(rotations(description)):
        return "two rotations of its command have the same numbers"
    if "shown_by" in description and not can_show(model, description["shown_by"]):
        return f"its model has no body {description['shown_by']!r} that shows the command"
    return ""


def fixed_command(description: Description | None, command: list[float] | None) -> np.ndarray:
    """(n,) what command= of the command line asks of a policy; (0,) if it is not given.

    ValueError unless it has as many numbers as the policy follows.
    """
    names = description["names"] if description else ()
    fixed = np.array(command or [], dtype=float)
    if len(fixed) not in (0, len(names)):
        expected = f"{len(names)} numbers: {', '.join(names)}" if names else "no command"
        raise ValueError(f"command={command}: this policy follows {expected}")
    return fixed


def is_number(x: Any) -> bool:
    """Whether x is a finite number."""
    return type(x) in (int, float) and math.isfinite(x)


def can_show(model: "MjModel", name: Any) -> bool:
    """Whether a body may be moved: it is in the world, and nothing of it or on it has a joint."""
    names = [model.body(i).name for i in range(model.nbody)]
    if not isinstance(name, str) or not name or name not in names:
        return False
    body = names.index(name)
    tree = model.body_rootid == body
    moves = (model.body_jntnum[tree] > 0).any() or (model.body_mocapid[tree] >= 0).any()
    return body > 0 and model.body_parentid[body] == 0 and not moves


def command_arrow(
    description: Description, command: np.ndarray, data: "MjData", reach: float
) -> tuple[np.ndarray, np.ndarray] | None:
    """Start and end (3,) [m] of an arrow over the robot that shows a velocity along x and y.

    It is None if the command (n,) is no velocity of a free base, in its frame turned level, or a
    small one. The largest velocity has an arrow of one and a half times the robot's radius `reach`
    [m].
    """
    import mujoco

    base = free_base(data.model)
    if list(description.get("units", ())[:2]) != ["m/s"] * 2 or not base:
        return None
    largest = float(np.abs([description["trained"][end][:2] for end in ("low", "high")]).max())
    velocity = np.array([*command[:2], 0.0], float)
    # `<=`: both are 0 of a policy that only turns
    if np.linalg.norm(velocity) <= 0.02 * largest:
        return None
    turn, level = np.zeros(4), np.zeros(3)
    x, y = data.xmat[base.body][[0, 3]]  # the base's x axis, seen from above
    mujoco.mju_axisAngle2Quat(turn, np.array([0.0, 0.0, 1.0]), np.arctan2(y, x))
    mujoco.mju_rotVecQuat(level, velocity, turn)
    start = data.xpos[base.body] + [0, 0, 0.9 * reach]
    return start, start + 1.5 * reach / largest * level


def angles(rotation: np.ndarray, result: np.ndarray) -> tuple[float, float, float]:
    """The spin, lean and direction [rad] with which `leaning` makes a rotation of another (4,)."""
    import mujoco

    back, turn = np.zeros((2, 4))
    mujoco.mju_negQuat(back, rotation)
    mujoco.mju_mulQuat(turn, back, result)
    w, x, y, z = turn  # of either sign: the angles are the same
    lean = 2.0 * math.atan2(math.hypot(x, y), math.hypot(w, z))
    half = math.atan2(z, w)  # of the turn about z
    spin = math.remainder(2.0 * half, 2 * math.pi)
    towards = math.remainder(math.atan2(y, x) + half, 2 * math.pi) if lean > 1e-6 else 0.0
    return spin, lean, towards


def leaning(rotation: np.ndarray, spin: float, lean: float, towards: float) -> np.ndarray:
    """(4,) a rotation (4,) after a turn about its z by `spin`, which then leans by `lean` [rad].

    towards: direction of the axis about which it leans, from x to y [rad].
    """
    import mujoco

    turn, result = np.zeros((2, 4))
    mujoco.mju_euler2Quat(turn, np.array([towards, lean, spin - towards]), "zxz")
    mujoco.mju_mulQuat(result, rotation, turn)
    return result
