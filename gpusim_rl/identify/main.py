"""What logs of a robot say of its simulation: `gpusim identify LOG … [KEY=VALUE …]`.

A log that has no command is of a robot that hangs and is excited. It tells of the joints. One that
has is of a robot that walks under a policy. It tells of ground, load and delay. The ranges are
written for `train.py ranges=NAME`.

Keys:

    policy   file of the controller that walked (.onnx)
    out      file to write (default: conf/ranges/ and the first log's name, ending in .yaml)
    robots   that walk in simulation, in each of three rounds (default: 192)
    seed     of their numbers (default: 0)
    against  what the policy was trained with: its run, a .yaml file or the name of ranges. Each
             quantity that has left its range is a line, and ranges are written with out= alone
    metrics  file for Prometheus of what against= finds (.prom)

Three words may come first. The first one fits an actuator network to a log, and has a help of its
own; the others come before a policy's file instead of logs:

    actuator LOG.csv [KEY=VALUE …]
    excite   POLICY.onnx targets.npy: the targets [rad] of a robot that hangs, a row a control step
    simulate POLICY.onnx [hang.mcap] [walk.mcap]: logs of a simulated robot with drawn numbers

with the keys `seconds` of each (default: 60) and `seed`. docs/identify.md has an example. Exits
with 0, with 3 if against= finds drift, or with 2 and one line for a mistake.
"""

from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from gpusim_rl.config import validate
from gpusim_rl.core import errors
from gpusim_rl.core.arguments import parse, show_usage, whole_number
from gpusim_rl.core.streams import torch_threads
from gpusim_rl.deploy.exported import check_views
from gpusim_rl.deploy.onboard.log import Recording, read
from gpusim_rl.deploy.onboard.verdict import digest
from gpusim_rl.deploy.runtime import Policy
from gpusim_rl.gate.robot import make_robot
from gpusim_rl.identify import drift, fit_actuator, hang, simulated, walk
from gpusim_rl.identify.estimates import Estimate, Source, as_yaml, table

DEFAULTS = {"policy": "", "out": "", "robots": str(walk.ROBOTS), "seed": "0"}
DEFAULTS |= {"against": "", "metrics": ""}
FOLDER = Path("conf/ranges")
DRIFT = 3  # exit code: 1 is that of a Python that fails
SHORT = 12  # digits of a digest that people see
LONGEST_WALK_S = 60.0  # s of a walk that are looked at
GAP = 3  # control steps between two rows that are still one motion
Array = np.ndarray


def main(arguments: list[str]) -> None:
    """Read the logs, identify, print and write; or make targets, or logs of a simulated robot."""
    if arguments[:1] == ["actuator"]:
        return fit_actuator.main(arguments[1:])
    show_usage(arguments, __doc__)
    with errors.one_line_errors(), torch_threads(1):
        makers = {"excite": excite, "simulate": simulate}
        run, rest = makers.get(arguments[0], identify_logs), arguments[arguments[0] in makers :]
        defaults = DEFAULTS if run is identify_logs else {"seconds": "60", "seed": "0"}
        expected = f"files, and perhaps KEY=VALUE of {', '.join(defaults)}"
        files, values = parse(rest, defaults, expected)
        run(files, defaults | values)


def identify_logs(files: list[str], values: dict[str, str]) -> None:
    """Identify what logs tell and print it; write the ranges, or say what has left them."""
    robots, seed = whole_number(values, "robots", 16), whole_number(values, "seed", 0)
    logs = [(file, read(file)) for file in files]
    check_kinds(logs)
    out, against = ranges_file(files, values), values["against"]
    for file, log in logs if against else ():
        drift.check_robot(against, log.description["robot"], file)
    estimates: dict[str, Estimate] = {}
    beyond: dict[str, Estimate] = {}  # what was simulated: as the regression has them
    sources, robot = [], None  # that walks
    for file, log in sorted(logs, key=lambda x: is_walk(x[1])):  # those of hanging first
        lines = []
        if is_walk(log):
            policy = policy_of(log, file, values["policy"])
            robot = make_robot(policy)
            names = walk.quantities(robot)
            ranges = drift.source(against) if against else None
            trained = drift.trained_ranges(ranges, names, robot) if ranges else {}
            options = {"joints": estimates, "trained": trained, "robots": robots, "seed": seed}
            beyond, drawn = of_walk(log, file, policy, **options)
            estimates |= {name: walk.within(x, drawn[name]) for name, x in beyond.items()}
            lines = outside(beyond, drawn)
        else:
            fit = hang.identify(motion(log, file), file)
            estimates, lines = estimates | fit.estimates, fit.lines()
        sources.append(Source(file, log.digest, lines))
    print(table(estimates))
    for source in sources:
        print("\n".join(source.lines))
    if out:
        out.write_text(as_yaml(out.stem, estimates, sources, drift.mass(robot) if robot else 0.0))
        print(f"wrote {out}: train.py ranges={out.stem}")
    if against:
        labels = {"robot": Path(sources[-1].file).stem, "policy": sources[-1].digest[:SHORT]}
        comparisons = drift.compare(estimates | beyond, against, robot)
        tell_drift(*comparisons, values["metrics"], labels)


def ranges_file(files: list[str], values: dict[str, str]) -> Path | None:
    """The file of ranges to write, or none; ValueError if that, or another, cannot be written."""
    against, metrics = values["against"], values["metrics"]
    if against:
        drift.source(against)
        validate.writable("metrics", metrics or None, (".prom",), [*files, against])
    elif metrics:
        raise ValueError(f"metrics={metrics} needs against=, what the policy was trained with")
    if against and not values["out"]:
        return None
    name = Path(files[0]).stem.replace("-", "_").replace(".", "_")
    out = Path(values["out"] or FOLDER / f"{name}.yaml")
    if not out.stem.isidentifier():
        raise ValueError(f"out={out}: expected letters, digits and _ for ranges={out.stem}")
    if out.parent == FOLDER and out.suffix == ".yaml":
        FOLDER.mkdir(parents=True, exist_ok=True)
    validate.writable("out", str(out), (".yaml",), files)
    return out


def tell_drift(
    rows: list[drift.Comparison], others: list[str], metrics: str, labels: dict[str, str]
) -> None:
    """Print what has left its range, write the metrics, and exit with DRIFT if anything has."""
    if metrics:
        drift.write_metrics(Path(metrics), rows, labels)
    if others:
        errors.warn(f"warning: no range of {', '.join(others)} to compare with")
    drifted = [row.line() for row in rows if row.drifted]
    print("\n".join(drifted or [f"no drift of {', '.join(row.name for row in rows)}"]))
    if drifted:
        raise SystemExit(DRIFT)


def check_kinds(logs: list[tuple[str, Recording]]) -> None:
    """ValueError if two logs are both of a robot that hangs, or both of one that walks."""
    for (first, log), (second, other) in combinations(logs, 2):
        if is_walk(log) == is_walk(other):
            kind = "walks" if is_walk(log) else "hangs"
            raise ValueError(f"{first} and {second} are both of a robot that {kind}: name one")


def is_walk(log: Recording) -> bool:
    """Whether a policy drove the robot, by a command."""
    return bool(np.isfinite(log.command).any())


def outside(estimates: dict[str, Estimate], drawn: dict[str, walk.Range]) -> list[str]:
    """A line on each estimate that is beyond what was simulated."""
    rows = [(name, x.value, *drawn[name]) for name, x in estimates.items()]
    return [
        f"{name} {x:.3g} is beyond what was simulated, {low:.3g} to {high:.3g}"
        for name, x, low, high in rows
        if not low <= x <= high
    ]


def of_walk(
    log: Recording, file: str, policy: Policy, **options: Any
) -> tuple[dict[str, Estimate], dict[str, walk.Range]]:
    """What the longest walk of a log tells, and what was drawn to learn it from."""
    rows = longest_walk(log, file)
    readings = {name: x[rows] for name, x in log.readings.items()}
    return walk.identify(policy, readings, log.targets[rows], log.command[rows], **options)


def motion(log: Recording, file: str) -> hang.Motion:
    """The rows of a robot that hangs; ValueError if there are few, or one comes late."""
    readings = [joints(log, name, file) for name in ("joint_pos", "joint_vel")]
    good = np.isfinite(np.hstack([*readings, log.targets])).all(1)
    time = log.time[good]
    late = np.flatnonzero(np.diff(time) > GAP * log.dt)
    for t in late[:1]:
        gap = time[t + 1] - time[t]
        raise ValueError(f"{file}: {gap:.3g} s without a row after {time[t]:.6g} s")
    if len(time) < 2 or time[-1] - time[0] < 2 * (hang.REST + hang.RISE):
        raise ValueError(f"{file} has {len(time)} rows of a robot that hangs: too few")
    angles, speeds = (x[good] for x in readings)
    return hang.Motion(log.mjcf, time, angles, speeds, log.targets[good])


def joints(log: Recording, name: str, file: str) -> Array:
    """(T, nu) a reading of joints, in the order of the targets; ValueError if the log has none."""
    description = {x["name"]: x.get("joints", []) for x in log.description["inputs"]}
    missing = [x for x in log.joints if x not in description.get(name, [])]
    if missing:
        raise ValueError(f"{file} has no {name} of joint {missing[0]}")
    return log.readings[name][:, [description[name].index(x) for x in log.joints]]


def policy_of(log: Recording, file: str, path: str) -> Policy:
    """The controller that walked; ValueError unless it is the one of policy=."""
    if not path:
        raise ValueError(f"{file} is of a robot that walks: name its controller with policy=FILE")
    policy = Policy(path)
    check_views(policy, Path(path))
    if digest(policy.data) != log.digest:
        raise ValueError(f"policy={path} is not the controller of {file}")
    return policy


def longest_walk(log: Recording, file: str) -> slice:
    """The longest part of a log in which the policy ran without a restart, up to `LONGEST_WALK_S`.

    ValueError if it never ran.
    """
    arrays = [log.command, log.targets, *log.readings.values()]
    runs = (log.phase == "run") & (log.gain == 1) & np.isfinite(np.hstack(arrays)).all(1)
    late = np.r_[False, np.diff(log.time) > GAP * log.dt]
    edges = np.flatnonzero(np.r_[True, ~runs[1:] | ~runs[:-1] | log.restart[1:] | late[1:], True])
    first, last = max(pairwise(edges), key=lambda ends: ends[1] - ends[0])
    if not runs[first]:
        raise ValueError(f"{file}: the policy never ran")
    return slice(int(first), int(min(last, first + LONGEST_WALK_S / log.dt)))


def excite(files: list[str], values: dict[str, str]) -> None:
    """Write the targets of a robot that hangs, for a program that drives a real one."""
    if len(files) != 2:
        raise ValueError(f"{' '.join(files)}: expected POLICY.onnx and targets.npy")
    validate.writable("targets", files[1], (".npy",), files[:1])
    policy, seconds = Policy(files[0]), whole_number(values, "seconds", 7)
    pose = np.array(policy.outputs["safe_pose"], float)
    targets = hang.excitation(pose, policy.dt, seconds, seed=whole_number(values, "seed", 0))
    np.save(files[1], targets)
    print(f"wrote {files[1]}: {len(targets)} rows of {len(pose)} targets [rad], each {policy.dt} s")


def simulate(files: list[str], values: dict[str, str]) -> None:
    """Write the logs of a simulated robot, and print its numbers."""
    if not 2 <= len(files) <= 3:
        expected = "POLICY.onnx, hang.mcap and perhaps walk.mcap"
        raise ValueError(f"{' '.join(files)}: expected {expected}")
    for file in files[1:]:
        validate.writable("log", file, (".mcap",), files[:1])
    policy, seconds = Policy(files[0]), whole_number(values, "seconds", 7)
    seed = whole_number(values, "seed", 0)
    numbers = simulated.draw(seed)
    print("  ".join(f"{name} {x:.4g}" for name, x in numbers.items()))
    simulated.write_hanging(Path(files[1]), policy, numbers, seconds, seed)
    if files[2:] and not simulated.write_walking(Path(files[2]), policy, numbers, seconds, seed):
        errors.warn(f"warning: the robot of {files[2]} fell")
