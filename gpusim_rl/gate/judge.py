"""Judge a policy: drive it through all scenarios, count what it did, write the verdict in its file.

Shares and rates have intervals, and a limit is kept if the whole interval keeps it.
"""

import hashlib
import json
import math
import stat
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from gpusim_rl.config.compose import compose_plain
from gpusim_rl.core.files import read_whole, write_whole
from gpusim_rl.core.maths import wilson
from gpusim_rl.core.waiting import counted
from gpusim_rl.deploy.runtime import MAX_BYTES, Policy
from gpusim_rl.deploy.verdict import digest, with_verdict
from gpusim_rl.gate.drive import Driven, drive
from gpusim_rl.gate.robot import Robot, make_robot
from gpusim_rl.gate.scenarios import SCENARIOS, Plan, Settings, lacks
from gpusim_rl.viewer.target import rotations

Report = dict[str, Any]
# What a verdict tells of a report, besides success.
TOLD = ("verdict", "complaints", "skipped", "follows", "reported", "seed", "changed")
Row = dict[str, Any]
ENDURANCE = "endurance"
MEANS = ("error", "turn", "torque", "joint", "speed", "power", "transport", "change")
NAMES = {"rate": "falls per robot-hour"}  # of keys in a complaint
JUDGED = ("turn", "torque", "joint", "speed", "transport", "change")  # and error and falls


def judge(policy: Policy, settings: Settings, seed: int, title: str) -> Report:
    """What a policy does in every scenario that applies to its robot, and the verdict.

    `title` begins the lines that tell how much is done.

    Returns `rows` of results, `success` over all robots, `complaints`, `verdict`, `skipped`:
    scenario → what the robot lacks for it, and whether a `rotation` is commanded.

    ValueError if neither a fall nor the following of a command could be seen, or all scenarios
    are reported only.
    """
    robot = make_robot(policy)
    skipped = lacks(robot)
    check(robot, settings, skipped)
    names = [name for name in SCENARIOS if name not in skipped and name != ENDURANCE]
    short = Plan(robot, settings["robots"] * len(names), settings["seconds"], settings, seed)
    rows = drive_rows(short, names, title)
    endurance = settings["endurance"]
    seconds = max(1, round(60 * endurance["minutes"]))
    # seed + 1: other draws than those of the scenarios
    long = Plan(robot, endurance["robots"], seconds, settings, seed + 1)
    rows += drive_rows(long, [ENDURANCE], title)
    failed = complaints(rows, robot, settings)
    return {
        "verdict": "fail" if failed else "pass",
        "success": success(rows),
        "complaints": failed,
        "skipped": skipped,
        "follows": robot.follows,
        "rotation": bool(rotations(policy.command or {})),
        "reported": [x["scenario"] for x in rows if not x["judged"]],
        "seed": seed,
        "changed": changed(settings),
        "rows": rows,
    }


def check(robot: Robot, settings: Settings, skipped: dict[str, str]) -> None:
    """ValueError if nothing of a robot could be judged, or a reported scenario is unknown."""
    if not robot.base and robot.follows == "nothing":
        raise ValueError(
            "the gate cannot judge this policy: its robot has no base that could fall, and no "
            "sensor shows how it follows a command"
        )
    if unknown := [name for name in settings["reported"] if name not in SCENARIOS]:
        names = ", ".join(SCENARIOS)
        raise ValueError(f"gate.reported: unknown scenario {unknown[0]!r}: choose of {names}")
    if not {*SCENARIOS} - {*skipped} - {*settings["reported"]}:
        raise ValueError("gate.reported leaves nothing to judge")


def drive_rows(plan: Plan, names: list[str], title: str) -> list[Row]:
    """The results of scenarios, driven side by side: each has as many robots of the plan."""
    each = plan.count // len(names)
    slices = {name: slice(i * each, (i + 1) * each) for i, name in enumerate(names)}
    for name, which in slices.items():
        SCENARIOS[name].write(plan, which)
    what = names[0] if len(names) == 1 else f"{len(names)} scenarios"
    driven = drive(plan, partial(counted, doing=f"{title}: {what}"))
    parts = {name: Driven(*(x[which] for x in driven)) for name, which in slices.items()}
    return [row(name, part, plan) for name, part in parts.items()]


def write_verdict(path: Path, report: Report, settings: Settings, judged: bytes) -> None:
    """Write a report's verdict into the file that it is of; a link stays one.

    judged: the bytes that the report is of. ValueError if the file holds others by now.
    """
    path = path.resolve()
    data, mode = read_whole(path, MAX_BYTES), path.stat().st_mode
    if digest(data) != digest(judged):
        raise ValueError(f"{path} was changed while it was judged: judge it again")
    short = {key: report[key] for key in TOLD}
    short["scenarios"] = {x["scenario"]: x["success"]["value"] for x in report["rows"]}
    told = report["success"]
    short |= {"success": told["value"], "success_interval": told["interval"]}
    short |= {"date": datetime.now(UTC).isoformat(timespec="seconds")}
    write_whole(path, with_verdict(data, short | {"settings": settings_hash(settings)}))
    path.chmod(stat.S_IMODE(mode))


def changed(settings: Settings) -> dict[str, Any]:
    """The settings that differ from the defaults, by their dotted names."""
    usual = flat(compose_plain("play", ["mode=gate"])["gate"])
    return {key: x for key, x in flat(settings).items() if plain(x) != plain(usual.get(key))}


def flat(settings: Settings, start: str = "") -> dict[str, Any]:
    """Settings by their dotted names."""
    out = {}
    for key, value in settings.items():
        inner = isinstance(value, dict)
        out |= flat(value, f"{start}{key}.") if inner else {f"{start}{key}": value}
    return out


def settings_hash(settings: Settings) -> str:
    """SHA-256 of the settings of a gate: which scenarios and limits a verdict is of."""
    text = json.dumps(plain(settings), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def plain(value: Any) -> Any:
    """Settings as JSON keeps them: 1 and 1.0 are the same number."""
    if isinstance(value, dict):
        return {str(key): plain(x) for key, x in value.items()}
    if isinstance(value, list | tuple):
        return [plain(x) for x in value]
    return float(value) if isinstance(value, int | float | np.number) else value


# -- the results of a scenario ---------------------------------------------------------------------


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
