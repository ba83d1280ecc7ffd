"""The tables of a report: what was swept, how it ended, what differs from the defaults."""

import json
import os
from pathlib import Path
from typing import Any

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from gpusim_rl.config import resume
from gpusim_rl.config.compose import build_base, choices
from gpusim_rl.config.renamed_keys import GONE, current_key
from gpusim_rl.config.trees import flatten, is_below
from gpusim_rl.core.files import read_text
from gpusim_rl.core.maths import wilson
from gpusim_rl.report import page
from gpusim_rl.runs.summary import Summary, number, summarize, word

GROUPS = ("task", "sim", "algo", "log", "robot", "terrain")
SILENT = (*resume.SILENT, "gpu", "threads")  # `threads` is this machine's number
# Scores that are shares of independent episodes.
PROPORTIONS = (
    "success",
    "episodes_passed",
    "fell",
    "falls",
    "off_velocity",
    "off_yaw",
    "off_distance",
)
PROPORTIONS += ("upright", "tall", "near", "still")
# Share of episodes that failed → why they did.
FAILED = {
    "fell": "the robot fell",
    "falls": "the episode ended early",
    "off_velocity": "the error of the velocity was above the tolerance",
    "off_yaw": "the error of the yaw rate was above the tolerance",
    "off_distance": "the robot made less than 0.75 of the distance",
}
# Share of episodes that met a condition → why the others failed.
MISSED = {
    "upright": "the trunk leaned in the last second",
    "tall": "the trunk was too low in the last second",
    "near": "a joint was far from the stance in the last second",
    "still": "the robot moved in the last second",
}
COLUMNS, LABELLED = 12, 3  # swept keys in a table, and in a label, at most
PER_EPISODE = {"falls_per_episode": "falls", "crashes_per_episode": "crashes"}


def render(paths: list[Path], out: Path) -> str:
    """The page of runs, to be written to `out`. ValueError if one is damaged."""
    runs = [summarize(path) for path in paths]
    flat = [with_current_keys(run.config) for run in runs]
    keys = list(dict.fromkeys(key for values in flat for key in values))
    swept = [key for key in keys if len({repr(values.get(key)) for values in flat}) > 1]
    swept.sort(key=lambda key: key not in ("task.name", "seed"))  # these first
    settings = by_setting(runs, flat, swept)
    one = runs[0] if len(runs) == 1 else None
    names = list(dict.fromkeys(name for run in runs for name in run.scores))
    return page.page(
        settings,
        title=title(runs),
        ending=ending(one) if one else "",
        failed=bool(one and one.ending == "failed"),
        swept=swept[:COLUMNS],
        names=names,
        rows=[row(*pair, swept[:COLUMNS], names, out) for pair in zip(runs, flat, strict=True)],
        means=[means(label, group, names) for label, group in settings.items()],
        evaluation=evaluation(one) if one else [],
        failures=failures(one) if one else [],
        axes=axes(one) if one else [],
        bounds=bounds(one) if one else "",
        drives=asked_and_got(one) if one else [],
        film=page.film_address(one) if one else "",
        differences=differences(runs, set(swept)),
        versions=list(one.versions.items()) if one else [],
        diff=one.diff if one else "",
        config=read_text(one.run.path / "config.yaml") if one else "",
    )


def by_setting(
    runs: list[Summary], flat: list[dict[str, Any]], swept: list[str]
) -> dict[str, list[Summary]]:
    """Label → the runs that differ in their seeds alone. A label says a few of the swept keys."""
    keys, groups = [key for key in swept if key != "seed"], {}
    for run, values in zip(runs, flat, strict=True):
        groups.setdefault(tuple(text(values.get(key)) for key in keys), []).append(run)
    settings: dict[str, list[Summary]] = {}
    for values, group in groups.items():
        words = [f"{key}={value}" for key, value in zip(keys, values, strict=True)]
        label = ", ".join(words[:LABELLED]) or "all"
        settings[label if label not in settings else f"{label} ({len(settings) + 1})"] = group
    return settings


def title(runs: list[Summary]) -> str:
    """The title of the page: tasks, and the run or how many."""
    tasks = dict.fromkeys(word(run.config["task"].get("name")) for run in runs)
    name = runs[0].run.path.resolve().name if len(runs) == 1 else f"{len(runs)} runs"
    return f"{', '.join(tasks)} · {name}"


def plain(config: dict[str, Any]) -> dict[str, Any]:
    """Dotted key → value, of all that says how a run trains."""
    return {
        key: value
        for key, value in flatten(config).items()
        if not isinstance(value, dict) and not is_below(key, SILENT)
    }


def text(value: Any) -> str:
    """A value of a configuration, short."""
    return word(value if isinstance(value, str) else json.dumps(value))[:200]


def ending(run: Summary) -> str:
    """How a training ended, in a sentence."""
    done = f"{run.iteration} of {run.planned} iterations"
    if run.ending == "finished":
        return f"Finished: {done}."
    if run.ending == "failed":
        return f"Failed after {done}: {lost(run)}."
    return f"Not finished: {done}, and no evaluation."


def lost(run: Summary) -> str:
    """Where and why a training went wrong, from report.json."""
    where = ", ".join(f"{key} {word(run.failure.get(key))}" for key in ("world", "step"))
    why = run.failure.get("why")
    why = " and ".join(map(word, why)) if isinstance(why, list) and why else "no step was lost"
    term, terms = run.failure.get("term"), run.failure.get("terms")
    worst = number(terms.get(term)) if isinstance(term, str) and isinstance(terms, dict) else None
    value = "not finite" if worst is None else page.number_text(worst)
    return f"{where}: {why}; largest reward term {word(term)} = {value}"


def row(
    run: Summary, values: dict[str, Any], swept: list[str], names: list[str], out: Path
) -> dict[str, Any]:
    """The row of a run in the table of several."""
    file = run.run.path / "report.html"
    link = os.path.relpath(file.resolve(), out.resolve().parent) if file.is_file() else ""
    return {
        "name": run.run.path.resolve().name,
        "link": Path(link).as_posix() if link else "",
        "ending": run.ending,
        "done": f"{run.iteration} / {run.planned}",
        "swept": [text(values.get(key)) for key in swept],
        "scores": [page.number_text(run.scores[x]) if x in run.scores else "" for x in names],
    }


def means(label: str, runs: list[Summary], names: list[str]) -> dict[str, Any]:
    """The scores of one setting, over its seeds."""
    values = [[run.scores[name] for run in runs if name in run.scores] for name in names]
    scores = [page.range_over_seeds(x) if x else "" for x in values]
    return {"label": label, "seeds": len(runs), "scores": scores}


def evaluation(run: Summary) -> list[tuple[str, str, str]]:
    """(score, value, 95 % interval of those that are shares of the episodes)."""
    episodes, rows = episodes_of(run), []
    for name, value in run.scores.items():
        interval = ""
        product = name == "success" and "episodes_passed" in run.scores  # with `as_told`
        if name in PROPORTIONS and episodes and 0 <= value <= 1 and not product:
            low, high = wilson(round(value * episodes), episodes)
            interval = f"{low:.3f} to {high:.3f}"
        rows.append((name, page.number_text(value), interval))
    return rows


def axes(run: Summary) -> list[str]:
    """What a command asks for, each with its unit."""
    parts = (run.drives.get("names"), run.drives.get("units"))
    names, units = (x if isinstance(x, list) else [] for x in parts)
    return [f"{word(name)} [{word(unit)}]" for name, unit in zip(names, units, strict=False)]


def bounds(run: Summary) -> str:
    """The bounds of a drive, as text; empty if the file has none."""
    values = run.drives.get("bounds")
    numbers = (
        {word(key): number(x) for key, x in values.items()} if isinstance(values, dict) else {}
    )
    return ", ".join(f"{key} {x:g}" for key, x in numbers.items() if x is not None)


def asked_and_got(run: Summary) -> list[list[str]]:
    """A row for each constant command: asked → got along each axis, and why it failed."""
    rows, drives = [], run.drives.get("drives")
    for x in drives if isinstance(drives, list) else []:
        parts = (x.get("asked"), x.get("got")) if isinstance(x, dict) else ((), ())
        asked, got = ([number(y) for y in part] if isinstance(part, list) else [] for part in parts)
        if len(asked) == len(got) == len(axes(run)) and None not in (*asked, *got):
            older = ["fell"] if x.get("fell") is True else []  # before drives said why
            failed = x.get("failed", older if x.get("followed") is not False else older or ["off"])
            why = ", ".join(word(y) for y in failed) if isinstance(failed, list) else ""
            pairs = zip(asked, got, strict=True)
            rows.append([*(f"{a:+.2f} → {b:+.2f}" for a, b in pairs), why])
    return rows


def episodes_of(run: Summary) -> int:
    """How many episodes were evaluated; 0 if the file does not say."""
    return int(max(0.0, min(run.scores.get("episodes", 0.0), 1e9)))


def failures(run: Summary) -> list[tuple[str, str]]:
    """(cause, how often), of the evaluation and of the end of the training."""
    episodes, rows = episodes_of(run), []
    passed = "episodes_passed" if "episodes_passed" in run.scores else "success"
    causes = {passed: "no success"} | MISSED
    shares = {why: 1 - run.scores[name] for name, why in causes.items() if name in run.scores}
    shares |= {why: run.scores[name] for name, why in FAILED.items() if name in run.scores}
    limit = shares.get("no success", 1.0) + 1e-6  # what happens more often is no cause
    for cause, share in shares.items():
        if 0 <= share <= min(limit, 1) and episodes:
            count = f"{round(share * episodes)} of {episodes} episodes"
            rows.append((f"evaluation: {cause}", count))
    for name, what in PER_EPISODE.items():
        if name in run.scores:
            rows.append((f"evaluation: {what}", f"{run.scores[name]:.4g} per episode"))
    if run.failure:
        rows.append(("training: the worst step", lost(run)))
    last = {name: x[-10:][x[-10:] == x[-10:]] for name, x in run.columns.items()}
    for name in page.ENDINGS:
        if name in last and last[name].any():
            mean = f"{last[name].mean():.4g}, mean of the last rows"
            rows.append((f"training: {page.label([run], name)}", mean))
    return rows


def differences(runs: list[Summary], swept: set[str]) -> list[tuple[str, str, str]]:
    """(key, default, value) of what the runs have in common and the defaults do not say."""
    common, default = with_current_keys(runs[0].config), defaults(runs[0].config)
    return [
        (key, text(default.get(key)), text(value))
        for key, value in common.items()
        if default and key not in swept and key != "seed" and default.get(key) != value
    ]


def with_current_keys(config: dict[str, Any]) -> dict[str, Any]:
    """Dotted key → value of a run's configuration, under the names that keys have today."""
    keys = defaults(config)
    values = {current_key(key, keys): value for key, value in plain(config).items()}
    return {key: value for key, value in values.items() if key not in GONE}


def defaults(config: dict[str, Any]) -> dict[str, Any]:
    """The values of conf/ for a run's task, robot and so on; empty if a file is absent."""
    ours = config.get("task_code") is None
    chosen = {x: config[x].get("name") for x in GROUPS if isinstance(config.get(x), dict)}
    if chosen.get("task") not in choices("task", ours):
        return {}
    our_algo = ours and config.get("algo_code") is None
    words = [
        f"{x}={name}"
        for x, name in chosen.items()
        if name in choices(x, our_algo if x == "algo" else ours)
    ]
    try:
        return plain(build_base("config", tuple(words)))
    except (HydraException, OmegaConfBaseException, YAMLError, ValueError, OSError):
        return {}
