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
LEARNING = {"return": "return of an episode", "length": "length of an episode [s]"}
LEARNING |= {"success": "success, of evaluations while training"}
ENDINGS = {"terminated": "share of episodes that the task ended"}
ENDINGS |= {"fault": "steps with a fault", "overflow": "steps beyond a capacity"}
ENDINGS |= {"skipped": "skipped minibatches", "rollbacks": "roll-backs"}
# Of a learner; a run from before metrics.json says no other names.
LOSSES = {"policy_loss": "policy loss", "value_loss": "value loss", "approx_kl": "KL divergence"}
LOSSES |= {"entropy": "entropy", "clipped": "clipped share", "learning_rate": "learning rate"}
LOSSES |= {"std": "standard deviation of actions", "actor_norm": "gradient norm of the actor"}
LOSSES |= {"critic_norm": "gradient norm of the critic"}
UNSHOWN = ("env_steps", "time_s", "bad")  # the axis of every panel; what is counted elsewhere
SPEED = {"steps_per_s": "env steps per second", "cores": "busy cores"}


def sections(settings: curves.Settings) -> dict[str, list[str]]:
    """Title → addresses of the pictures below it, of all that the runs have metrics for."""
    runs = [run for own in settings.values() for run in own]
    names = dict.fromkeys(name for run in runs for name in run.columns)

    def below(prefix: str) -> dict[str, str]:
        return {name: name.removeprefix(prefix) for name in names if name.startswith(prefix)}

    def happened(name: str) -> bool:
        return any(np.nan_to_num(run.columns[name]).any() for run in runs if name in run.columns)

    labels = LOSSES | {name: x for run in runs for name, x in run.labels.items() if "/" not in name}
    learner = names.keys() & labels.keys() - {*LEARNING, *ENDINGS, *SPEED, *UNSHOWN}
    panels = {
        "Learning": LEARNING,
        "Reward terms": below("reward/"),
        "Measures": below("measure/"),
        "How episodes end, and what goes wrong": {x: ENDINGS[x] for x in ENDINGS if happened(x)},
        "Optimization": {name: x for name, x in labels.items() if name in learner},
        "Schedules": below("schedule/"),
        "Throughput": SPEED,
    }
    with curves.style():
        pictures = {title: [curves.chart(settings, own)] for title, own in panels.items()}
        share = [f"share/{name}" for name in curves.SHARES]
        for own in settings.values() if len(settings) == 1 else ():
            pictures["Throughput"].append(curves.shares(own, share, "other", "share of the time"))
    return {title: kept for title, own in pictures.items() if (kept := [x for x in own if x])}


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


def shown(value: Any) -> str:
    """A number with four digits; another value as it is."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def spread(values: list[float]) -> str:
    """Mean and range of a score over seeds."""
    low, mean, high = map(shown, (min(values), sum(values) / len(values), max(values)))
    return mean if low == high else f"{mean} ({low} to {high})"
