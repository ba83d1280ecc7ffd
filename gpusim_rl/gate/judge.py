"""Judge a policy: drive it through all scenarios, count what it did, write the verdict in its file.

Shares and rates have intervals, and a limit is kept if the whole interval keeps it. With
gate.quick=true the value alone has to keep it.
"""

import hashlib
import json
import math
import stat
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from gpusim_rl.config.nested_dict import flatten
from gpusim_rl.core.files import read_whole, write_whole
from gpusim_rl.core.maths import wilson
from gpusim_rl.core.provenance import cores_available
from gpusim_rl.core.schema import problems
from gpusim_rl.core.waiting import Say, print_now, progress
from gpusim_rl.deploy.onboard.verdict import Json, digest, with_verdict
from gpusim_rl.deploy.runtime import MAX_BYTES, Policy
from gpusim_rl.envs.command_columns import rotations
from gpusim_rl.gate.drive import DriveResult, drive
from gpusim_rl.gate.robot import Robot, make_robot
from gpusim_rl.gate.scenarios import CONTACT, SCENARIOS, Plan, Settings, contact_plans, lacks
from gpusim_rl.gate.settings import usual_settings

# What a verdict says of a file that others trained; `card` is a SHA-256.
ADOPTED: Json = {
    "type": "object",
    "required": ["source", "licence", "card", "reads_unmeasured"],
    "properties": {
        **{key: {"type": "string"} for key in ("source", "licence", "card")},
        "reads_unmeasured": {"type": "array", "items": {"type": "string"}},
    },
}
# Keys of a report that its verdict has, besides success.
VERDICT_KEYS = (
    "verdict complaints skipped follows kind reported seed changed chatter adopted".split()
)
CONSTANT, ENDURANCE = "constant", "endurance"
TRACKING = "tracking"
MEANS = ("error", "turn", "torque", "joint", "speed", "power", "transport", "change")
NAMES = {"rate": "falls per robot-hour"}  # in lines of `failures`
TRIAL = 0.5  # s
JUDGED = ("turn", "torque", "joint", "speed", "transport", "change")  # and error and falls


def evaluate_policy(
    policy: Policy, settings: Settings, seed: int, title: str, say: Say = print_now
) -> Json:
    """The results of a policy in every scenario that applies to its robot, and the verdict.

    `title` begins the lines that `say` takes: what it will need, and how much is done.

    Returns `rows` of results, `success` over all robots, `complaints`, `verdict`, `skipped`:
    scenario → what the robot lacks for it, whether a `rotation` is commanded, the `chatter` of each
    joint, and what a file that others trained says of itself, `adopted`.

    ValueError if neither a fall nor the following of a command could be seen, or all scenarios
    are reported only.
    """
    robot, adopted = make_robot(policy), adoption(policy)
    settings = settings_for(robot.kind, settings)
    skipped = lacks(robot, settings["sim"])
    check(robot, settings, skipped)
    names = [name for name in SCENARIOS if name not in skipped and name != ENDURANCE]
    short, long = settings, settings["endurance"]
    size = short["robots"], short["seconds"], settings, seed
    plans = [Plan(robot, name, *size) for name in names if name != CONTACT]
    contact = [] if CONTACT in skipped else contact_plans(robot, settings, seed)
    parts = [plans + [x for x in contact if x.robot is robot]]
    parts += [[x] for x in contact if x.robot is not robot]  # each with a model of its own
    seconds = max(1, round(60 * long["minutes"]))
    parts.append([Plan(robot, ENDURANCE, long["robots"], seconds, settings, seed)])
    what = f"{len(names)} scenarios of {short['robots']} robots for {short['seconds']} s, "
    what += f"and {long['robots']} robots for {duration(seconds)}"
    results = drive_parts(parts, title, what, say)
    rows = [row_of(name, results) for name in [*names, ENDURANCE]]
    limits = {key: x for key, x in settings["limits"].items() if not adopted or key != TRACKING}
    lines = failures(rows, robot, {**settings, "limits": limits})
    return {
        "verdict": "fail" if lines else "pass",
        "success": success(rows),
        "complaints": lines,
        "skipped": skipped,
        "follows": robot.follows,
        "kind": robot.kind,
        "rotation": bool(rotations(policy.command or {})),
        "reported": [x["scenario"] for x in rows if not x["judged"]],
        "chatter": chatter(rows, robot),
        "adopted": adopted,
        "seed": seed,
        "changed": changed(settings, robot.kind),
        "rows": rows,
    }


def check(robot: Robot, settings: Settings, skipped: dict[str, str]) -> None:
    """ValueError if nothing of a robot could be judged, or a reported scenario is unknown."""
    if not robot.base and robot.follows == "nothing":
        why = "no base that could fall, and no sensor shows how it follows a command"
        raise ValueError(f"the gate cannot judge this policy: its robot has {why}")
    if unknown := [name for name in settings["reported"] if name not in SCENARIOS]:
        names = ", ".join(SCENARIOS)
        raise ValueError(f"gate.reported: unknown scenario {unknown[0]!r}: choose of {names}")
    if not {*SCENARIOS} - {*skipped} - {*settings["reported"]}:
        raise ValueError("gate.reported leaves nothing to judge")


def adoption(policy: Policy) -> Json:
    """What a file that others trained says of its source; {} of our own.

    A file whose readings have ranges, `seen`, was recorded by us: its tracking is judged.

    ValueError unless `lineage.adopted` is as ADOPTED says.
    """
    description = policy.description
    about = description.get("lineage", {}).get("adopted")
    if about is None or any("seen" in x for x in description["inputs"]):
        return {}
    if wrong := problems(about, ADOPTED, ADOPTED, "lineage.adopted"):
        raise ValueError(f"invalid description: {wrong[0][:200]}")
    return {key: about[key] for key in ADOPTED["properties"]}


def drive_parts(
    parts: list[list[Plan]], title: str, what: str, say: Say
) -> list[tuple[Plan, DriveResult]]:
    """Each plan of parts and its results.

    The parts are driven one after another, and the plans of a part side by side.

    The first line says how long all will take: a step of many robots takes longer than one of few,
    so some steps of each part are tried before. The percentage is of this time.
    """
    times = [trial_step(plans) * plans[0].steps for plans in parts]
    whole, done, results = sum(times), 0.0, list[tuple[Plan, DriveResult]]()
    cores = cores_available()
    say(f"{title}: {what}: about {duration(whole)} on {cores} core{'s' * (cores > 1)}")
    with progress(title, say) as tell:
        for plans, part in zip(parts, times, strict=True):

            def count(steps: int, done: float = done, part: float = part) -> Iterator[int]:
                for i in range(steps):
                    yield i
                    tell((done + part * (i + 1) / steps) / whole)

            results += zip(plans, drive(plans, count), strict=True)
            done += part
    return results


def trial_step(plans: list[Plan]) -> float:
    """The time of a control step of plans [s]: of steps for TRIAL seconds, which do not count."""
    times = list[float]()

    def count(steps: int) -> Iterator[int]:
        times.append(time.perf_counter())
        for i in range(steps):
            try:
                yield i
            finally:  # `drive` ends early if all have fallen
                times.append(time.perf_counter())
            if times[-1] - times[0] > TRIAL:
                return

    drive(plans, count)
    return float(np.median(np.diff(times)))


def duration(seconds: float) -> str:
    """60 s, or 2 minutes."""
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} minutes"


def write_verdict(
    path: Path, report: Json, settings: Settings, judged: bytes, out: Path | None = None
) -> None:
    """Write a report's verdict into the file that it is of; a link stays one.

    Args:
        judged: the bytes that the report is of. ValueError if the file holds others by now.
        out: the file to write instead, which holds these bytes and the verdict.
    """
    path, out = path.resolve(), (out or path).resolve()
    data, mode = read_whole(path, MAX_BYTES), path.stat().st_mode
    if digest(data) != digest(judged):
        raise ValueError(f"{path} was changed while it was judged: judge it again")
    write_whole(out, with_verdict(data, make_verdict(report, settings)))
    out.chmod(stat.S_IMODE(mode))


def make_verdict(report: Json, settings: Settings) -> Json:
    """What a file's verdict says, of a report."""
    return {key: report[key] for key in VERDICT_KEYS} | {
        "scenarios": {x["scenario"]: x["success"]["value"] for x in report["rows"]},
        "success": report["success"]["value"],
        "success_interval": report["success"]["interval"],
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "settings": settings_hash(settings_for(report["kind"], settings)),
    }


def settings_for(kind: str, settings: Settings) -> Settings:
    """The settings with the limits of a kind of robot; one that a user changed stays."""
    defaults, limits = usual_settings()["limits"], settings["limits"]
    kinds = settings["kinds"].get(kind, {}).items()
    of_kind = {key: x for key, x in kinds if key in limits and limits[key] == defaults[key]}
    return {**settings, "limits": limits | of_kind}


def changed(settings: Settings, kind: str) -> Json:
    """The settings that differ from the defaults of a kind of robot, by their dotted names."""
    defaults = flatten({**settings_for(kind, usual_settings())})
    own = {key: x for key, x in flatten({**settings}).items() if not isinstance(x, dict)}
    return {key: x for key, x in own.items() if x != defaults.get(key)}


def settings_hash(settings: Settings) -> str:
    """SHA-256 of the settings of a gate: which scenarios and limits a verdict is of."""
    used = {key: x for key, x in settings.items() if key != "kinds"}  # the robot's are in limits
    numbers = json.loads(json.dumps(used), object_hook=without_quick, parse_int=float)  # 1 is 1.0
    return hashlib.sha256(json.dumps(numbers, sort_keys=True).encode()).hexdigest()


def without_quick(section: Json) -> Json:
    """A section without quick=false, so that verdicts from before that key still hold."""
    return {key: x for key, x in section.items() if key != "quick" or x}


# -- the results of a scenario ---------------------------------------------------------------------


def share(which: np.ndarray) -> Json:
    """The share of robots (B,) bool, how many they are, and the interval of the share."""
    count, of = int(which.sum()), len(which)
    return {"count": count, "value": count / of, "interval": wilson(count, of)}


def mean(values: np.ndarray) -> Json | None:
    """The mean of (B,) numbers and its normal interval at 95 %; None if all are NaN."""
    values = values[~np.isnan(values)]
    if not (n := len(values)):
        return None
    half = 1.96 * float(values.std(ddof=1)) / math.sqrt(n) if n > 1 else 0.0
    value = float(values.mean())
    return {"value": value, "interval": [value - half, value + half]}


def rate(count: int, hours: float) -> Json:
    """Events per hour, and the exact interval of their Poisson rate at 95 %.

    Garwood (1936), https://doi.org/10.1093/biomet/28.3-4.437.
    """
    low, high = expected(count - 1, 0.975) if count else 0.0, expected(count, 0.025)
    interval = [low / hours, high / hours]
    return {"count": count, "hours": hours, "value": count / hours, "interval": interval}


def expected(count: int, chance: float) -> float:
    """How many events a Poisson process expects, if `count` or fewer happen with a chance."""
    low, high = 0.0, 2.0 * count + 20.0
    for _ in range(60):
        events = (low + high) / 2
        terms = (i * math.log(events) - events - math.lgamma(i + 1) for i in range(count + 1))
        if sum(map(math.exp, terms)) > chance:
            low = events
        else:
            high = events
    return high


def succeeded(plan: Plan, result: DriveResult) -> np.ndarray:
    """(B,) whether a robot neither falls nor faults, and its errors are within the limits."""
    limits, within = plan.settings["limits"], ~(result.fell | result.fault)
    for values, key in ((result.error, plan.robot.follows), (result.turn, "turn")):
        within &= np.isnan(values) | (values <= limits.get(key, math.inf))
    return within


def row(plan: Plan, result: DriveResult) -> Json:
    """The results of one scenario: `falls` and `success` are shares, all others are means.

    The endurance has a `rate`, too: falls per hour that a robot was driven.
    """
    robot, settings, fell = plan.robot, plan.settings, result.fell | result.fault
    means = {key: mean(getattr(result, key)) for key in MEANS}
    if plan.scenario == CONSTANT:
        means[TRACKING] = share(~fell & (result.offset <= 1))
    if plan.scenario == ENDURANCE:
        steps = max(1, int(result.lived.sum()))
        means["rate"] = rate(int(fell.sum()), steps * robot.policy.dt / 3600)
    return {
        "scenario": plan.scenario,
        "robots": len(fell),
        "judged": plan.scenario not in settings["reported"],
        "faults": int(result.fault.sum()),
        "success": share(succeeded(plan, result)),
        "falls": share(fell),
        **{key: x for key, x in means.items() if x is not None},
        **target_chatter(result, robot.policy.dt),
    }


def target_chatter(result: DriveResult, dt: float) -> Json:
    """Of each target q (nu,): `rms` of (qₜ - 2 qₜ₋₁ + qₜ₋₂) / 4, in its unit, and a frequency `hz`.

    An oscillation from step to step counts whole, one at 2 Hz with dt = 0.02 s by 1.6 %. The
    frequency is that of a sine with the same ratio of second to first differences.
    """
    first, second = result.first.mean(0), result.second.mean(0)
    ratio = np.sqrt(second / np.maximum(first, np.finfo(float).tiny)) / 2  # 0 if q never changes
    hz = np.arcsin(np.minimum(ratio, 1.0)) / (np.pi * dt)
    return {"rms": (np.sqrt(second) / 4).tolist(), "hz": hz.tolist()}


def row_of(name: str, results: list[tuple[Plan, DriveResult]]) -> Json:
    """The row of a scenario: of all its robots, and in `options` of those of each plan."""
    parts = [(plan, result) for plan, result in results if plan.scenario == name]
    columns = zip(*(result for _, result in parts), strict=True)
    whole = row(parts[0][0], DriveResult(*map(np.concatenate, columns)))
    if name != CONTACT:
        return whole
    each = {plan.options: row(plan, result) for plan, result in parts}
    return whole | {
        "options": {
            options: {key: one[key]["value"] for key in SHARES if key in one}
            for options, one in each.items()
        }
    }


def chatter(rows: list[Json], robot: Robot) -> list[Json]:
    """How each actuator's target trembles, in the scenario where it does so most."""
    outputs, lines = robot.policy.outputs, []
    for i, (joint, unit) in enumerate(zip(robot.policy.joints, outputs["units"], strict=True)):
        worst = max(rows, key=lambda one: one["rms"][i])
        figures = {key: float(f"{worst[key][i]:.4g}") for key in ("rms", "hz")}
        name = joint or outputs["drives"][i]
        lines.append({"joint": name, **figures, "unit": unit, "scenario": worst["scenario"]})
    return lines


def failures(rows: list[Json], robot: Robot, settings: Settings) -> list[str]:
    """One line for each limit that a scenario does not keep; none if the policy passes."""
    return [line for x in rows if x["judged"] for line in exceeded(x, robot, settings)]


def exceeded(one: Json, robot: Robot, settings: Settings) -> list[str]:
    lines, name, limits = [], one["scenario"], settings["limits"]
    # the intervals of the few robots of a quick gate are so wide that nothing would pass
    ends = {
        key: [x["value"]] * 2 if settings["quick"] else x["interval"]
        for key, x in one.items()
        if isinstance(x, dict) and "interval" in x
    }
    keys = {"falls": "falls", "error": robot.follows} | {key: key for key in JUDGED}
    if name == ENDURANCE:  # few robots, for long: falls per hour count
        keys = {"rate": "endurance_falls"} | {k: x for k, x in keys.items() if k != "falls"}
    for key, limit in keys.items():
        if key in ends and (high := ends[key][1]) > limits[limit]:
            figures = f"{figures_of(one[key]['value'], 'up', high)}, at most {limits[limit]:g}"
            lines.append(f"{name}: {NAMES.get(key, key)} {figures}")
    for key in () if name == ENDURANCE else ("success", "tracking"):
        if key in ends and key in limits and (low := ends[key][0]) < limits[key]:
            figures = f"{figures_of(one[key]['value'], 'down', low)}, at least {limits[key]:g}"
            lines.append(f"{name}: {NAMES.get(key, key)} {figures}")
    return lines


def figures_of(value: float, way: str, end: float) -> str:
    """A value and the end of its interval that is judged, unless both read the same."""
    shown, last = f"{value:.3g}", f"{end:.3g}"
    return shown if last == shown else f"{shown}, {way} to {last}"


def success(rows: list[Json]) -> Json:
    """The share of all robots of judged scenarios that succeed."""
    count = sum(x["success"]["count"] for x in rows if x["judged"])
    of = sum(x["robots"] for x in rows if x["judged"])
    return {"count": count, "of": of, "value": count / of, "interval": wilson(count, of)}


# -- as text ---------------------------------------------------------------------------------------

SHARES = ("success", "falls", "error", "turn")  # shown with the half of their intervals
COLUMNS = (*SHARES, "torque", "joint", "speed", "energy", "change")
KEYS = {"energy": "transport"}  # column → key of a row, where it is another word


def table(rows: list[Json]) -> str:
    """The results as a table for people."""
    keys = {name: KEYS.get(name, name) for name in COLUMNS}
    keys = {name: key for name, key in keys.items() if any(key in x for x in rows)}
    width = {name: 13 if name in SHARES else 8 for name in keys}
    head = "".join(f"{x:>{width[x]}}" for x in keys)
    lines = [f"{'scenario':10}{'robots':>7}{head}{'chatter':>9}{'Hz':>6}"]
    for one in rows:
        name = one["scenario"] + ("" if one["judged"] else "*")
        cells = [f"{cell(one.get(key), x in SHARES):>{width[x]}}" for x, key in keys.items()]
        rms, hz = max(zip(one["rms"], one["hz"], strict=True))
        lines.append(f"{name:10}{one['robots']:7}{''.join(cells)}{rms:9.4f}{hz:6.1f}")
    if not all(x["judged"] for x in rows):
        lines.append("* reported, not judged")
    for tracking in (x["tracking"] for x in rows if "tracking" in x):
        low, high = tracking["interval"]
        figures = f"{tracking['value']:.3f} ({low:.3f} to {high:.3f})"
        lines.append(f"{CONSTANT}: tracking, the mean speed: {figures}")
    for falls in (x["rate"] for x in rows if "rate" in x):
        low, high = falls["interval"]
        figures = f"{falls['count']}, per hour {falls['value']:.2f} ({low:.2f} to {high:.2f})"
        lines.append(f"{ENDURANCE}: falls in {falls['hours']:.2f} robot-hours: {figures}")
    for sets in (x["options"] for x in rows if "options" in x):
        parts = (f"{k} {' '.join(f'{x:.3f}' for x in of.values())}" for k, of in sets.items())
        lines.append(f"{CONTACT}: {', '.join(next(iter(sets.values())))}: {'; '.join(parts)}")
    return "\n".join(lines)


def cell(one: Json | None, interval: bool) -> str:
    """A value, and with `interval` half of its interval's width."""
    if one is None:
        return "-"
    low, high = one["interval"]
    return f"{one['value']:.3f}" + (f"±{(high - low) / 2:.3f}" if interval else "")
