"""What a policy did in each scenario, with intervals, and whether that passes."""

import math
from typing import Any

import numpy as np

from gpusim_rl.core.maths import wilson
from gpusim_rl.gate.drive import Driven
from gpusim_rl.gate.robot import Robot
from gpusim_rl.gate.scenarios import Plan, Settings

Row = dict[str, Any]
ENDURANCE = "endurance"
MEANS = ("error", "turn", "torque", "joint", "speed", "power", "transport", "change")
NAMES = {"rate": "falls per robot-hour"}  # of keys in a complaint
JUDGED = ("turn", "torque", "joint", "speed", "transport", "change")  # and error and falls


def share(which: np.ndarray) -> Row:
    """The share of robots (B,) bool, how many they are, and the interval of the share."""
    count = int(which.sum())
    interval = wilson(count, len(which))
    return {"count": count, "value": count / len(which), "interval": interval}


def mean(values: np.ndarray) -> Row | None:
    """The mean of (B,) numbers and its normal interval at 95 %; None if none is known."""
    known = values[~np.isnan(values)]
    if not len(known):
        return None
    half = 1.96 * float(known.std(ddof=1)) / math.sqrt(len(known)) if len(known) > 1 else 0.0
    value = float(known.mean())
    return {"value": value, "interval": [value - half, value + half]}


def rate(count: int, hours: float) -> Row:
    """Events per hour, and the exact interval of their Poisson rate at 95 %.

    Garwood (1936), https://doi.org/10.1093/biomet/28.3-4.437.
    """
    low = expected(count - 1, 0.975) if count else 0.0
    high = expected(count, 0.025)
    interval = [low / hours, high / hours]
    return {"count": count, "hours": hours, "value": count / hours, "interval": interval}


def expected(count: int, chance: float) -> float:
    """How many events a Poisson process expects, if `count` or fewer happen with a chance."""
    low, high = 0.0, 2.0 * count + 20.0
    for _ in range(60):
        middle = (low + high) / 2
        terms = (i * math.log(middle) - middle - math.lgamma(i + 1) for i in range(count + 1))
        if sum(map(math.exp, terms)) > chance:
            low = middle
        else:
            high = middle
    return high


def row(name: str, driven: Driven, plan: Plan) -> Row:
    """The results of one scenario: `falls` and `success` are shares, all others are means.

    A robot succeeds if it neither falls nor faults, and its errors are within the limits. The
    endurance has a `rate`, too: falls per hour that a robot was driven.
    """
    robot, settings = plan.robot, plan.settings
    limits, failed = settings["limits"], driven.fell | driven.fault
    within = ~failed
    for values, key in ((driven.error, robot.follows), (driven.turn, "turn")):
        within &= np.isnan(values) | (values <= limits.get(key, math.inf))
    told = {key: mean(getattr(driven, key)) for key in MEANS}
    if name == ENDURANCE:
        steps = max(1, int(driven.lived.sum()))
        told["rate"] = rate(int(failed.sum()), steps * robot.policy.dt / 3600)
    return {
        "scenario": name,
        "robots": len(failed),
        "judged": name not in settings["reported"],
        "faults": int(driven.fault.sum()),
        "success": share(within),
        "falls": share(failed),
        **{key: x for key, x in told.items() if x is not None},
    }


def complaints(rows: list[Row], robot: Robot, settings: Settings) -> list[str]:
    """One line for each limit that a scenario does not keep; none if the policy passes."""
    return [line for x in rows if x["judged"] for line in exceeded(x, robot, settings["limits"])]


def exceeded(one: Row, robot: Robot, limits: dict[str, float]) -> list[str]:
    """The limits that a scenario does not keep."""
    lines, name = [], one["scenario"]
    keys = {"falls": "falls", "error": robot.follows} | {key: key for key in JUDGED}
    if name == ENDURANCE:  # few robots, for long: falls per hour count
        keys = {"rate": "endurance_falls"} | {k: x for k, x in keys.items() if k != "falls"}
    for key, limit in keys.items():
        if key in one and (high := one[key]["interval"][1]) > limits[limit]:
            told = f"{one[key]['value']:.3g}, up to {high:.3g}, at most {limits[limit]:g}"
            lines.append(f"{name}: {NAMES.get(key, key)} {told}")
    if name != ENDURANCE and (low := one["success"]["interval"][0]) < limits["success"]:
        told = f"{one['success']['value']:.3g}, down to {low:.3g}, at least {limits['success']:g}"
        lines.append(f"{name}: success {told}")
    return lines


def success(rows: list[Row]) -> Row:
    """The share of all robots of judged scenarios that succeed."""
    count = sum(x["success"]["count"] for x in rows if x["judged"])
    of = sum(x["robots"] for x in rows if x["judged"])
    return {"count": count, "of": of, "value": count / of, "interval": wilson(count, of)}


# -- as text ---------------------------------------------------------------------------------------

SHARES = ("success", "falls", "error", "turn")  # shown with the half of their intervals
COLUMNS = (*SHARES, "torque", "joint", "speed", "energy", "change")
KEYS = {"energy": "transport"}  # column → key of a row, where it is another word


def table(rows: list[Row]) -> str:
    """The results as a table for people."""
    keys = {name: KEYS.get(name, name) for name in COLUMNS}
    keys = {name: key for name, key in keys.items() if any(key in x for x in rows)}
    width = {name: 13 if name in SHARES else 8 for name in keys}
    lines = [f"{'scenario':10}{'robots':>7}" + "".join(f"{x:>{width[x]}}" for x in keys)]
    for one in rows:
        name = one["scenario"] + ("" if one["judged"] else "*")
        cells = [f"{cell(one.get(key), x in SHARES):>{width[x]}}" for x, key in keys.items()]
        lines.append(f"{name:10}{one['robots']:7}{''.join(cells)}")
    if not all(x["judged"] for x in rows):
        lines.append("* reported, not judged")
    for told in (x["rate"] for x in rows if "rate" in x):
        low, high = told["interval"]
        lines.append(
            f"{ENDURANCE}: falls in {told['hours']:.2f} robot-hours: {told['count']}, "
            f"per hour {told['value']:.2f} ({low:.2f} to {high:.2f})"
        )
    return "\n".join(lines)


def cell(told: Row | None, interval: bool) -> str:
    """A value, and with `interval` half of its interval's width."""
    if told is None:
        return "-"
    low, high = told["interval"]
    return f"{told['value']:.3f}" + (f"±{(high - low) / 2:.3f}" if interval else "")
