"""Drift: what the newest log of a robot says, beside what its policy was trained with."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gpusim_rl.config.nested_dict import flatten
from gpusim_rl.config.run_files import find_model
from gpusim_rl.core.files import read_text, write_whole
from gpusim_rl.core.paths import ASSETS, CONF, user_folder
from gpusim_rl.envs.curriculum import config_at
from gpusim_rl.gate.robot import Robot
from gpusim_rl.identify.estimates import UNITS, Estimate
from gpusim_rl.robots.model_files import model_name, parse
from gpusim_rl.runs.config_file import is_plain, read_plain
from gpusim_rl.training.machine import prometheus_text

Range = tuple[float, float]


class Comparison(NamedTuple):
    """An estimate, and the range that a policy was trained with."""

    name: str
    estimate: Estimate
    trained: Range

    @property
    def drifted(self) -> bool:
        """Whether no number of the estimate's range is one of the trained range."""
        low, high = self.estimate.range
        return high < self.trained[0] or low > self.trained[1]

    def line(self) -> str:
        """What has left its range, in a line."""
        unit = UNITS.get(self.name, "of the model's")
        low, high, first, last = (f"{x:.3g}" for x in (*self.estimate.range, *self.trained))
        line = f"drift: {self.name} {self.estimate.value:.3g} ({low} to {high}), trained with "
        return f"{line}{first} to {last} {unit}".rstrip()


# Why: docs/decisions/robot-log.md
def compare(
    estimates: dict[str, Estimate], word: str, robot: Robot | None
) -> tuple[list[Comparison], list[str]]:
    """Comparisons of estimates with what a policy was trained with, and names without a range.

    ValueError if there is no such file, or it has no ranges.

    Args:
        word: a run, a .yaml file, or the name of ranges in conf/ranges.
        robot: that walked; None if none did, and neither friction nor payload is told.
    """
    file = source(word)
    trained = trained_ranges(file, [*estimates], robot)
    rows = [Comparison(name, estimates[name], ends) for name, ends in trained.items()]
    if not rows:
        raise ValueError(f"against={word}: {file} has no range of {', '.join(estimates)}")
    return rows, [name for name in estimates if name not in trained]


def source(word: str) -> Path:
    """The file that a word names; ValueError if there is none."""
    folders = [folder for folder in (user_folder("conf"), CONF) if folder]
    named = [folder / "ranges" / f"{word}.yaml" for folder in folders]
    files = [Path(word) / "config.yaml", *named, *([Path(word)] if word.endswith(".yaml") else [])]
    for file in files:
        if file.is_file():
            return file
    raise ValueError(f"against={word}: no run, no .yaml file, and no conf/ranges/{word}.yaml")


def check_robot(word: str, robot: str, log: str) -> None:
    """ValueError if a word names a run of another robot than that of a log, by the models' names.

    Ranges in another file name no robot.
    """
    file = source(word)
    cfg: Any = read_plain(file)
    keys = flatten(cfg) if file.name == "config.yaml" and is_plain(cfg) else {}
    key = next((key for key in ("robot.mjcf", "task.mjcf") if keys.get(key)), None)
    if key is None:
        return
    model = Path(find_model(file.parent, key, keys[key], builtin=False))
    model = ASSETS / model if model.name == str(model) else model  # a bare name is one of ours
    root = parse(read_text(model))
    trained = model_name(root.get("model") or root.get("name") or "", model)
    if trained != robot:
        raise ValueError(f"against={word} is a run of the robot {trained}, and {log} of {robot}")


def trained_ranges(file: Path, names: Sequence[str], robot: Robot | None) -> dict[str, Range]:
    """Quantity → its range in a file, in the estimates' units; less those that it does not tell."""
    cfg: Any = read_plain(file)
    try:
        if not is_plain(cfg):
            raise TypeError
        cfg = config_at(cfg.get("curriculum"), cfg)
        task = cfg.get("task", {})
        entries = task.get("randomise", {})
        actuator = cfg.get("robot", {}).get("actuator", {})
        ranges = {
            name: entry_range(name, entries[name], robot) for name in names if name in entries
        }
        if "delay" in names and "delay" in actuator:
            delay = actuator["delay"] or 0.0  # null is none
            ends = delay if isinstance(delay, list) else [delay, delay]
            # a log tells the age of readings and the delay of targets as one number
            steps = task.get("observation_delay", [0, 0])
            late = [x * task["dt"] if x else 0.0 for x in steps]  # ranges have no dt, and no such x
            ranges["delay"] = float(ends[0] + late[0]), float(ends[1] + late[1])
        if not all(low <= high for low, high in filter(None, ranges.values())):
            raise ValueError
    except (TypeError, ValueError, KeyError, AttributeError):
        raise ValueError(f"{file} is neither the configuration of a run nor ranges") from None
    return {name: ends for name in names if (ends := ranges.get(name))}


def entry_range(name: str, entry: dict[str, Any], robot: Any) -> Range | None:
    """The range of an entry of task.randomise; None if it is not that of all joints or geoms."""
    model_value, scales = 1.0, {"scale": 1.0}  # the model's own number, and how → a number's unit
    if name == "friction":
        model_value, scales = sliding(robot), {"set": 1.0, "scale": sliding(robot)}
    elif name == "payload":
        model_value, scales = 0.0, {"add": 1 / mass(robot)}
    if entry.get("kind") in ("off", False):  # YAML's off
        return model_value, model_value
    how = entry.get("how", next(iter(scales)))
    if how not in scales or (entry.get("only") and name != "payload"):
        return None
    return float(entry["low"]) * scales[how], float(entry["high"]) * scales[how]


def mass(robot: Robot) -> float:
    """Of the whole robot [kg]."""
    return float(robot.model.body_subtreemass[robot.base])


def sliding(robot: Robot) -> float:
    """The sliding friction of the model: that of a contact is the larger one of two geoms."""
    return float(robot.model.geom_friction[:, 0].max())


def write_metrics(path: Path, rows: list[Comparison], labels: dict[str, str]) -> None:
    """Write the comparisons for Prometheus, whole or not at all."""
    row: dict[str, Any] = {}
    for one in rows:
        ends = dict(zip(("low", "high"), one.estimate.range, strict=True))
        ends |= dict(zip(("trained_low", "trained_high"), one.trained, strict=True))
        row |= {f"drift/{one.name}": one.drifted, f"drift_estimate/{one.name}": one.estimate.value}
        row |= {f"drift_{end}/{one.name}": x for end, x in ends.items()}
    row["drift_written_timestamp_seconds"] = time.time()
    write_whole(path, prometheus_text(row, labels, "the log of a robot").encode())
