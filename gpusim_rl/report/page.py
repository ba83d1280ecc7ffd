"""A page about one training or several: HTML that needs neither a network nor another file.

Its policy forbids scripts: a stranger may have made the run.
"""

import base64
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gpusim_rl.core.errors import printable
from gpusim_rl.core.files import read_whole
from gpusim_rl.report import curves
from gpusim_rl.report.scores import interval, number_text
from gpusim_rl.report.templates import render
from gpusim_rl.runs.summary import Summary

TEMPLATE = Path(__file__).with_name("report.html")
LARGEST_FILM = 12 << 20  # bytes that are put into the page
MAX_PANELS = 24  # of a section
LEARNING = ("success", "return", "length")
ENDINGS = ("terminated", "fault", "overflow", "skipped", "rollbacks")
SPEED = ("steps_per_s", "cores")
PREFIXES = ("reward", "measure", "schedule", "system")
SHARES = ("physics", "environment", "policy", "update")
# The axis of every panel, and what is counted elsewhere. All other metrics are the learner's.
NO_PANEL = ("iteration", "env_steps", "time_s", "bad")
LAST = 10  # rows whose mean a panel says


class Panel(NamedTuple):
    """A picture with its title, and what its metric is at the end."""

    title: str
    picture: str
    note: str = ""


def label(runs: list[Summary], name: str) -> str:
    """The name of a metric in reports, of metrics.json, or else its key."""
    return next((x.labels[name] for x in runs if name in x.labels), name.replace("_", " "))


def last_mean(run: Summary, name: str) -> float | None:
    """The mean of the last rows of a metric; None if none of them has it."""
    values = run.columns.get(name, np.empty(0))[-LAST:]
    values = values[np.isfinite(values)]
    return float(values.mean()) if len(values) else None


def last_value(run: Summary, name: str) -> float | None:
    """The last finite value of a metric; None if it has none."""
    (values,) = finite_columns([run], name)
    return float(values[-1]) if len(values) else None


def sections(settings: curves.Settings, film: bool) -> dict[str, list[Panel]]:
    """Title → its panels, of all that the runs have metrics for; a curve takes a film's place."""
    runs = [run for group in settings.values() for run in group]
    names = list(dict.fromkeys(name for run in runs for name in run.columns))
    by_prefix = {x: [name for name in names if name.startswith(f"{x}/")] for x in PREFIXES}
    if len(runs) == 1:
        by_prefix["reward"].sort(key=lambda name: -abs(last_mean(runs[0], name) or 0.0))
    learning = [name for name in LEARNING if name in names]
    # a small picture beside none would leave half of the page empty
    ends = [learning.pop()] if not film and len(learning) == 2 else []
    ends += [name for name in ENDINGS if any(map(np.any, finite_columns(runs, name)))]
    others = {*LEARNING, *ENDINGS, *SPEED, *NO_PANEL}
    metrics = {
        "Learning": learning,
        "Reward terms": by_prefix["reward"],
        "How episodes end, and what goes wrong": ends,
        "Measures": by_prefix["measure"],
        "Optimization": [name for name in names if "/" not in name and name not in others],
        "Schedules": by_prefix["schedule"],
        "Speed": SPEED,
        "Machine": by_prefix["system"],
    }
    with curves.style():
        drawn = {
            title: [make_panel(settings, name, title) for name in some[:MAX_PANELS]]
            for title, some in metrics.items()
        }
    drawn = {title: [x for x in some if x.picture] for title, some in drawn.items()}
    return {title: some for title, some in drawn.items() if some}


def make_panel(settings: curves.Settings, name: str, section: str) -> Panel:
    """The panel of a metric; its picture is "" if no run has it."""
    runs, large = [run for group in settings.values() for run in group], section == "Learning"
    one = runs[0] if len(runs) == 1 else None
    value = last_mean(one, name) if one else None
    signs = one and section == "Reward terms"  # what is taken away has another color
    color = curves.COLORS[value is not None and value < 0] if signs else ""
    ends = interval(one.scores) if one and name == "success" and name in one.scores else None
    mark = curves.Mark(one.scores[name], *ends) if one and ends else None
    note = "" if value is None or large else f"{value:.3g}"
    return Panel(
        printable(name.partition("/")[2] or label(runs, name))[:60],
        curves.chart(settings, name, large=large, color=color, mark=mark),
        "◆ final evaluation" if mark else note,
    )


def finite_columns(runs: list[Summary], name: str) -> list[np.ndarray]:
    """The finite values of a metric in each run; none in one without it."""
    columns = [run.columns.get(name, np.empty(0)) for run in runs]
    return [x[np.isfinite(x)] for x in columns]


def shares(run: Summary) -> list[tuple[str, str, float]]:
    """(part, color, share of the training's time [%]) of each, and of the rest; or nothing."""
    columns = {x: finite_columns([run], f"share/{x}")[0] for x in SHARES}
    parts = {x: float(y.clip(0, 1).mean()) for x, y in columns.items() if len(y)}
    if not parts or sum(parts.values()) > 1.001:
        return []
    parts["other"] = max(0.0, 1 - sum(parts.values()))
    colors = (*curves.COLORS[: len(parts) - 1], curves.GRAY)
    return [(x, c, 100 * y) for (x, y), c in zip(parts.items(), colors, strict=True)]


def film_address(run: Summary) -> str:
    """The newest film of a run as a `data:` address; "" if there is none, or it is too large."""
    for film in reversed(run.run.films()):
        try:
            data = read_whole(film, LARGEST_FILM)
        except (OSError, ValueError):
            continue
        return f"data:video/mp4;base64,{base64.b64encode(data).decode()}"
    return ""


def page(settings: curves.Settings, film: bool, **words: Any) -> str:
    """The page.

    settings: label → the runs with these settings, which differ in their seeds. words: what the
    template `report.html` says besides the curves: plain texts and tables.
    """
    colors = [curves.COLORS[i % len(curves.COLORS)] for i in range(len(settings))]
    labels = dict(zip(settings, colors, strict=True)) if len(settings) > 1 else {}
    words |= {"colors": curves.COLORS, "seeds": max(map(len, settings.values()))}
    return render(TEMPLATE, sections=sections(settings, film), labels=labels, **words)


def range_over_seeds(values: list[float]) -> str:
    """Mean and range of a score over seeds."""
    low, mean, high = map(number_text, (min(values), sum(values) / len(values), max(values)))
    return mean if low == high else f"{mean} ({low} to {high})"
