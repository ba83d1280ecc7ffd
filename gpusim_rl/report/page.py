"""A page about one training or several: HTML that needs neither a network nor another file.

Its words are escaped by Jinja, and its policy forbids scripts: a stranger may have made the run.
"""

import base64
from pathlib import Path
from typing import Any

import numpy as np

from gpusim_rl.core.files import read_whole
from gpusim_rl.report import curves
from gpusim_rl.runs.summary import Summary

TEMPLATE = Path(__file__).with_name("report.html")
LARGEST_FILM = 12 << 20  # bytes that are put into the page
LEARNING = ("return", "length", "success")
ENDINGS = ("terminated", "fault", "overflow", "skipped", "rollbacks")
SPEED = ("steps_per_s", "cores")
# The axis of every panel, and what is counted elsewhere. All other metrics are the learner's.
NO_PANEL = ("iteration", "env_steps", "time_s", "bad")


def label(runs: list[Summary], name: str) -> str:
    """The name of a metric in reports, of metrics.json; runs from before that file say its key."""
    return next((x.labels[name] for x in runs if name in x.labels), name.replace("_", " "))


def sections(settings: curves.Settings) -> dict[str, list[str]]:
    """Title → addresses of the pictures below it, of all that the runs have metrics for."""
    runs = [run for group in settings.values() for run in group]
    names = list(dict.fromkeys(name for run in runs for name in run.columns))

    def below(prefix: str) -> dict[str, str]:
        return {name: name.removeprefix(prefix) for name in names if name.startswith(prefix)}

    def happened(name: str) -> bool:
        return any(np.nan_to_num(run.columns[name]).any() for run in runs if name in run.columns)

    def with_labels(*metrics: str) -> dict[str, str]:
        return {name: label(runs, name) for name in metrics}

    others = {*LEARNING, *ENDINGS, *SPEED, *NO_PANEL}
    panels = {
        "Learning": with_labels(*LEARNING),
        "Reward terms": below("reward/"),
        "Measures": below("measure/"),
        "How episodes end, and what goes wrong": with_labels(*filter(happened, ENDINGS)),
        "Optimization": with_labels(*(x for x in names if "/" not in x and x not in others)),
        "Schedules": below("schedule/"),
        "Throughput": with_labels(*SPEED),
    }
    with curves.style():
        pictures = {title: [curves.chart(settings, x)] for title, x in panels.items()}
        share = [f"share/{name}" for name in curves.SHARES]
        if len(settings) == 1:
            pictures["Throughput"].append(curves.shares(runs, share, "other", "share of the time"))
    pictures = {title: list(filter(None, addresses)) for title, addresses in pictures.items()}
    return {title: addresses for title, addresses in pictures.items() if addresses}


def film_address(run: Summary) -> str:
    """The newest film of a run as a `data:` address; "" if there is none, or it is too large."""
    for film in reversed(run.run.films()):
        try:
            data = read_whole(film, LARGEST_FILM)
        except (OSError, ValueError):
            continue
        return f"data:video/mp4;base64,{base64.b64encode(data).decode()}"
    return ""


def page(settings: curves.Settings, **words: Any) -> str:
    """The page.

    Args:
        settings: label → the runs with these settings, which differ in their seeds.
        words: what the template `report.html` says besides the curves: plain texts and tables.
    """
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    colors = [f"c{i % 10}" for i in range(len(settings))]
    labels = list(zip(colors, settings, strict=True)) if len(settings) > 1 else []
    seeds = max(map(len, settings.values()))
    return template.render(sections=sections(settings), labels=labels, seeds=seeds, **words)


def number_text(value: Any) -> str:
    """A number with four digits; another value as it is."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def range_over_seeds(values: list[float]) -> str:
    """Mean and range of a score over seeds."""
    low, mean, high = map(number_text, (min(values), sum(values) / len(values), max(values)))
    return mean if low == high else f"{mean} ({low} to {high})"
