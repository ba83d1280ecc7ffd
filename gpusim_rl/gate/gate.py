"""Drive the policy of a file through all scenarios, and write the verdict into the file."""

import hashlib
import json
import stat
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from gpusim_rl.config.compose import compose_plain
from gpusim_rl.core.files import read_whole, write_whole
from gpusim_rl.core.waiting import counted
from gpusim_rl.deploy.runtime import MAX_BYTES, Policy
from gpusim_rl.deploy.verdict import digest, with_verdict
from gpusim_rl.gate.drive import Driven, drive
from gpusim_rl.gate.judge import ENDURANCE, Row, complaints, row, success
from gpusim_rl.gate.robot import Robot, make_robot
from gpusim_rl.gate.scenarios import SCENARIOS, Plan, Settings, lacks
from gpusim_rl.viewer.target import rotations

Report = dict[str, Any]
# What a verdict tells of a report, besides success.
TOLD = ("verdict", "complaints", "skipped", "follows", "reported", "seed", "changed")


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
