"""A training as its run directory tells it, in plain numbers and words.

A stranger may have made the directory: what is not of the expected kind is left out.
"""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gpusim_rl.core.files import Plain, read_map, read_text
from gpusim_rl.core.metrics import labels
from gpusim_rl.runs.run import Run

MAX_NAMES = 200  # columns of metrics that are kept
LARGEST_METRICS_BYTES = 1 << 28  # bytes of metrics.jsonl
LONGEST_WORD = 2000  # characters of a word


@dataclass(frozen=True)
class Summary:
    """A training as its directory tells it.

    Args:
        columns: name of a metric → (N,) its values, NaN in rows without it. `iteration` and
            `env_steps` are among them.
        failure: of report.json: where and why a training went wrong; empty if it did not.
        drives: of drives.json, what the robot made of constant commands; empty if there is none.
    """

    run: Run
    config: Plain  # as composed
    columns: dict[str, np.ndarray]
    scores: dict[str, float]  # of the final evaluation, without unknown ones; perhaps empty
    versions: dict[str, str]  # what it ran on
    diff: str  # what its checkout had that the commit lacked
    labels: dict[str, str]  # metric → what reports call it, of metrics.json
    failure: Plain
    drives: Plain

    @property
    def iteration(self) -> int:
        """The last one that has a row of metrics; 0 if none has."""
        return int(np.nan_to_num(self.columns["iteration"][-1:]).sum())

    @property
    def planned(self) -> int:
        """The iterations that the configuration asks for."""
        return int(number(self.config.get("iterations")) or 0)

    @property
    def ending(self) -> str:
        """How the training ended: `finished`, `failed` or `unfinished`."""
        if self.scores:
            return "finished"
        worst = number(self.failure.get("iteration"))
        return "failed" if worst is not None and worst >= self.iteration else "unfinished"


def number(value: object) -> float | None:
    """A finite number, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # an integer of hundreds of digits
        return None


def summarize(path: Path) -> Summary:
    """Read a run directory.

    FileNotFoundError if it is none; ValueError if its configuration is damaged, or a file is a link
    or too large.
    """
    run = Run.open(path)
    metrics = path / "metrics.jsonl"
    if metrics.is_file() and metrics.stat().st_size > LARGEST_METRICS_BYTES:
        raise ValueError(f"{metrics} is larger than {LARGEST_METRICS_BYTES} bytes")
    versions = read_json(path / "versions.json")
    diff = versions.pop("diff", "")
    scores = {str(key): number(x) for key, x in read_json(path / "eval.json").items()}
    return Summary(
        run,
        run.config,
        columns(run.rows()),
        {key: x for key, x in scores.items() if x is not None},
        {word(key): word(x) for key, x in versions.items()},
        diff if isinstance(diff, str) else "",
        {key: word(x) for key, x in labels(read_json(path / "metrics.json")).items()},
        read_json(path / "report.json"),
        read_json(path / "drives.json"),
    )


def word(value: object) -> str:
    """A value as text of bounded length."""
    return str(value)[:LONGEST_WORD]


def read_json(file: Path) -> Plain:
    """The object in a JSON file; empty if there is none."""
    try:
        return read_map(read_text(file))
    except (OSError, ValueError):
        return {}


def columns(rows: list[Plain]) -> dict[str, np.ndarray]:
    """Name of a metric → (N,) its values in N rows, NaN where a row lacks it."""
    names: dict[str, None] = dict.fromkeys(("iteration", "env_steps"))
    for row in rows:
        if len(names) < MAX_NAMES:
            names |= dict.fromkeys(list(row)[:MAX_NAMES])
    table = {name: np.full(len(rows), np.nan) for name in list(names)[:MAX_NAMES]}
    for i, row in enumerate(rows):
        for name in table.keys() & row.keys():
            value = number(row[name])
            table[name][i] = np.nan if value is None else value
    return table
