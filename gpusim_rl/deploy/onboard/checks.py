"""What is wrong with readings, a command or a file, in one line that names it. NumPy alone."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

BEYOND = 0.2  # [rad, m] a joint may be measured outside of its range
DEGREES = 180 / math.pi
Array = np.ndarray
Values = dict[str, Array]  # name of a reading → (width,)
Bounds = dict[str, tuple[Array, Array]]  # name → least and greatest value that is taken


def check_file(
    policy: Any, task: str | None, robot: str | None, joints: Iterable[str] | None
) -> None:
    """ValueError unless a policy is of this task and robot, and drives servos of its joints.

    Args:
        policy: a `Policy` of runtime.py.
        task, robot, joints: their names; None for any.
    """
    about, out = policy.about, policy.outputs
    if about["format"] < 4:
        raise ValueError(f"a file of format {about['format']} has no ranges: export it again")
    for key, expected in (("task", task), ("robot", robot)):
        if expected is not None and about[key] != expected:
            raise ValueError(f"the file's {key} is {about[key]!r}, not {expected!r}: another file")
    if joints is not None:
        mine = list(joints)
        lacks = [str(name) for name in policy.joints if name not in mine]
        more = [name for name in mine if name not in policy.joints]
        if lacks or more:
            what = f"lacks {', '.join(lacks) or 'none'}, has {', '.join(more) or 'none'} too many"
            raise ValueError(
                f"the file's robot is {about['robot']!r}: of its joints this one {what}"
            )
    if None in policy.joints or not all(out["kp"]) or "joint_pos" not in policy.needs:
        needed = "that reads joint_pos and drives position servos of joints"
        raise ValueError(f"this is for a policy {needed}: {about['task']} is none")


def trained_bounds(policy: Any, margin: float) -> Bounds:
    """The range of each reading in training, wider by `margin` times its width on each side."""
    bounds = {}
    for x in policy.about["inputs"]:
        if x["name"] in policy.needs:
            least, greatest = np.array(x["seen"]["least"]), np.array(x["seen"]["greatest"])
            wide = margin * (greatest - least)
            bounds[x["name"]] = least - wide, greatest + wide
    return bounds


def joint_bounds(policy: Any) -> tuple[Array, Array]:
    """(nu,) where a joint may be as the robot lies or stands up."""
    ends = [x or (-np.inf, np.inf) for x in policy.outputs["joint_range"]]
    low, high = np.array(ends, float).T
    return low - BEYOND, high + BEYOND


def read(policy: Any, readings: Mapping[str, Any] | None) -> tuple[Values, list[str]]:
    """The readings in order, and what is wrong: missing, of a wrong width, or not finite."""
    values, wrong = {}, []
    for name in policy.needs if readings is not None else ():
        try:
            values[name] = policy.reading(name, readings)[0].astype(float)
        except (ValueError, TypeError) as error:
            wrong.append(" ".join(str(error).split()))
            continue
        for i in np.flatnonzero(~np.isfinite(values[name]))[:1]:
            wrong.append(f"{label(policy, name, i)} is {values[name][i]}")
    return values, wrong if readings is not None else ["there are no readings"]


def outside(policy: Any, values: Values, bounds: Bounds) -> list[str]:
    """A line for each reading with a number outside of its bounds."""
    lines = []
    for name, (least, greatest) in bounds.items():
        x = values[name]
        away = np.maximum(least - x, x - greatest) / np.maximum(greatest - least, 1e-9)
        i = int(away.argmax())
        if away[i] > 0:
            known = f"{least[i]:.3g} to {greatest[i]:.3g}"
            says = f"{label(policy, name, i)} is {x[i]:.3g} {unit(policy, name, i)}".strip()
            lines.append(f"{says}, outside of {known}{hint(policy, name, x, bounds[name])}")
    return lines


def hint(policy: Any, name: str, x: Array, bounds: tuple[Array, Array]) -> str:
    """What may explain a reading (width,) outside of its bounds."""
    about = described(policy, name)
    least, greatest = bounds

    def fits(y: Array) -> bool:
        return bool(((least <= y) & (y <= greatest)).all())

    if "sign" in about:
        return f": it is {about['sign']}"
    large = np.abs(x).max() > 5 * max(np.abs(least).max(), np.abs(greatest).max())
    if about["units"][0].startswith("rad") and large and fits(x / DEGREES):
        return ": is it in degrees?"
    return ": is its sign another?" if fits(np.where((x < least) | (x > greatest), -x, x)) else ""


def described(policy: Any, name: str) -> dict[str, Any]:
    """What the file says of an input; nothing if there is none."""
    return next((x for x in policy.about["inputs"] if x["name"] == name), {})


def label(policy: Any, name: str, i: int) -> str:
    """A number of a reading: `joint_pos of FL_knee`, `up[2]`."""
    joints = policy.reads.get(name)
    return f"{name} of {joints[i]}" if joints else f"{name}[{i}]"


def unit(policy: Any, name: str, i: int) -> str:
    """Its unit; empty for a plain number."""
    of = described(policy, name)["units"][i]
    return "" if of == "1" else of


def ask(policy: Any, command: Any) -> tuple[Array | None, list[str], list[str]]:
    """A command (n,) cut to the range of training; what was cut; what is wrong with it."""
    if not policy.command:
        return None, [], []
    try:
        asked = policy.asked(command)[0].astype(float)
    except (ValueError, TypeError) as error:
        return None, [], [" ".join(str(error).split())]
    if not np.isfinite(asked).all():
        return None, [], [f"the command {asked.tolist()} is not finite"]
    low, high = (np.array(policy.command["trained"][end]) for end in ("low", "high"))
    cut = np.clip(asked, low, high)
    said = [
        f"command {name} is {asked[i]:.3g} {policy.command['units'][i]}, cut to {cut[i]:.3g}"
        for i, name in enumerate(policy.command["names"])
        if asked[i] != cut[i]
    ]
    return cut, said, []
