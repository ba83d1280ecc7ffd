"""A page about one training or several: HTML that needs neither a network nor another file.

Its policy forbids scripts: a stranger may have made the run.
"""

import base64
from collections.abc import Iterable
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
    """The name of a metric in reports, of metrics.json; runs from before that file say its key."""
    return next((x.labels[name] for x in runs if name in x.labels), name.replace("_", " "))


def last_mean(run: Summary, name: str) -> float | None:
    """The mean of the last rows of a metric; None if none of them has it."""
    values = run.columns.get(name, np.empty(0))[-LAST:]
    values = values[np.isfinite(values)]
    return float(values.mean()) if len(values) else None


def last_value(run: Summary, name: str) -> float | None:
    """The last finite value of a metric; None if it has none."""
    values = run.columns.get(name, np.empty(0))
    values = values[np.isfinite(values)]
    return float(values[-1]) if len(values) else None


def sections(settings: curves.Settings, film: bool) -> dict[str, list[Panel]]:
    """Title → the panels below it, of all that the runs have metrics for.

    Args:
        settings: label → runs.
        film: whether the page has one. If not, its first curve takes the place.
    """
    runs = [run for group in settings.values() for run in group]
    one = runs[0] if len(runs) == 1 else None
    names = list(dict.fromkeys(name for run in runs for name in run.columns))

    def happened(name: str) -> bool:
        return any(np.nan_to_num(run.columns[name]).any() for run in runs if name in run.columns)

    def final(name: str) -> float | None:
        return last_mean(one, name) if one else None

    def panels(metrics: Iterable[str], large: bool = False, signs: bool = False) -> list[Panel]:
        made = []
        for name in list(metrics)[:MAX_PANELS]:
            value = final(name)
            color = curves.COLORS[value is not None and value < 0] if signs and one else ""
            mark = mark_of(one) if one and name == "success" else None
            picture = curves.chart(settings, name, large=large, color=color, mark=mark)
            title = name.partition("/")[2] or label(runs, name)
            note = "" if value is None or large else f"{value:.3g}"
            note = "◆ final evaluation" if mark else note
            made.append(Panel(printable(title)[:60], picture, note))
        return [panel for panel in made if panel.picture]

    def below(prefix: str) -> list[str]:
        return [name for name in names if name.startswith(prefix)]

    others = {*LEARNING, *ENDINGS, *SPEED, *NO_PANEL}
    learning = [name for name in LEARNING if name in names]
    # a small picture beside none would leave half of the page empty
    ends = [learning.pop()] if not film and len(learning) == 2 else []
    rewards = sorted(below("reward/"), key=lambda name: -abs(final(name) or 0.0))
    with curves.style():
        drawn = {
            "Learning": panels(learning, large=True),
            "Reward terms": panels(rewards, signs=True),
            "How episodes end, and what goes wrong": panels([*ends, *filter(happened, ENDINGS)]),
            "Measures": panels(below("measure/")),
            "Optimization": panels(x for x in names if "/" not in x and x not in others),
            "Schedules": panels(below("schedule/")),
            "Speed": panels(SPEED),
            "Machine": panels(below("system/")),
        }
    return {title: some for title, some in drawn.items() if some}


def mark_of(run: Summary) -> curves.Mark | None:
    """Success in the final evaluation; None if it has no interval."""
    ends = interval(run)
    return curves.Mark(run.scores["success"], *ends) if ends and "success" in run.scores else None


def shares(run: Summary) -> list[tuple[str, str, float]]:
    """(part, color, share of the training's time [%]) of each, and of the rest; or nothing."""
    means = {x: run.columns.get(f"share/{x}", np.empty(0)) for x in SHARES}
    means = {x: y[np.isfinite(y)] for x, y in means.items()}
    parts = {x: float(y.clip(0, 1).mean()) for x, y in means.items() if len(y)}
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

    Args:
        settings: label → the runs with these settings, which differ in their seeds.
        film: whether there is one.
        words: what the template `report.html` says besides the curves: plain texts and tables.
    """
    colors = [curves.COLORS[i % len(curves.COLORS)] for i in range(len(settings))]
    labels = dict(zip(settings, colors, strict=True)) if len(settings) > 1 else {}
    words |= {"colors": curves.COLORS, "seeds": max(map(len, settings.values()))}
    return render(TEMPLATE, sections=sections(settings, film), labels=labels, **words)


def range_over_seeds(values: list[float]) -> str:
    """Mean and range of a score over seeds."""
    low, mean, high = map(number_text, (min(values), sum(values) / len(values), max(values)))
    return mean if low == high else f"{mean} ({low} to {high})"
