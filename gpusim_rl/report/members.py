"""What a page says of a search: its members, who was stopped or copied, and their numbers."""

from math import inf, isfinite
from pathlib import Path
from typing import Any

import yaml

from gpusim_rl.core.files import Plain, read_text
from gpusim_rl.core.maths import wilson
from gpusim_rl.evaluation.evaluate import FEWEST
from gpusim_rl.report import curves
from gpusim_rl.report.scores import number_text
from gpusim_rl.runs.run import SEARCH
from gpusim_rl.runs.summary import Summary, number, word

FATES = {"stopped": "stopped at {}: {}", "error": "kept its own at {}: {}"}
FATES |= {"copied": "copied {1} at {0}"}


def read_members(runs: list[Summary]) -> Plain | None:
    """The words and tables of a page about a search; None if the runs are of none."""
    homes = {run.run.path.resolve().parent for run in runs}
    file = homes.pop() / SEARCH
    if homes or not file.is_file():
        return None
    try:
        said = yaml.safe_load(read_text(file))
        section, names = said["search"], [*said["numbers"]]
        goal, keys = word(section["goal"]), [*map(word, section["space"])]
    except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError):
        return None
    members = [read_member(run, keys, goal) for run in runs if run.run.path.name in names]
    members.sort(key=lambda x: (x["done"], x["order"]), reverse=True)
    copies = [{"name": x["name"], **copy} for x in members for copy in x["copies"]]
    with curves.style():
        picture = curves.parallel([*keys, goal], [x["values"] for x in members])
    samples, seconds = (sum(x[key] for x in members) for key in ("samples", "cpu_s"))
    return {
        "kind": word(section["name"]),
        "axes": keys,
        "goal": goal,
        "members": members,
        "copies": sorted(copies, key=lambda x: x["iteration"]),
        "picture": picture,
        "cost": f"{samples / 1e6:.3g} M samples and {seconds:.0f} processor seconds of all members",
        "again": first_line(file.with_name("curriculum.yaml")),
    }


def read_member(run: Summary, keys: list[str], goal: str) -> dict[str, Any]:
    """A row of the table of members, and what the picture needs of it."""
    rows = run.run.rows("search.jsonl")
    scores = [[number(x) for x in row["score"]] for row in rows if has(row, "score", list)]
    numbers = [row["numbers"] for row in rows if has(row, "numbers", dict)][-1:] or [{}]
    values = [numbers[0].get(key) for key in keys]
    told = [
        text.format(row["iteration"], word(row[key])[:200])
        for row in rows
        for key, text in FATES.items()
        if key in row
    ]
    done = any(row.get("ended") == "done" for row in rows)
    failed = next((word(x.get("why"))[:200] for x in rows if x.get("ended") == "failed"), "")
    order = [-inf if x is None else x for x in scores[-1]] if scores else []
    last = order[0] if order and isfinite(order[0]) else None
    share = last if goal == "success" and last is not None and 0 <= last <= 1 else None
    low, high = wilson(round((share or 0.0) * FEWEST), FEWEST)
    copies = [
        {"iteration": row["iteration"], "of": word(row["copied"]), "numbers": short(row, keys)}
        for row in rows
        if "copied" in row and has(row, "numbers", dict)
    ]
    steps = run.columns["env_steps"]
    return {
        "name": run.run.path.resolve().name,
        "numbers": [number_text(x) if (x := number(y)) is not None else word(y) for y in values],
        "score": number_text(last) if last is not None else "lost" if order else "",
        "ends": [(share, low, high)] if share is not None else [],
        "fate": failed or ", ".join(told) or ("done" if done else "unfinished"),
        "samples": float(steps[-1]) if len(steps) else 0.0,
        "cpu_s": max((number(row.get("cpu_s")) or 0.0 for row in rows), default=0.0),
        "values": [*map(number, values), last],
        "done": done,
        "order": order,
        "copies": copies,
    }


def has(row: Plain, key: str, kind: type) -> bool:
    return isinstance(row.get(key), kind)


def short(row: Plain, keys: list[str]) -> str:
    """The numbers of a row, in words."""
    values = {key: number(row["numbers"].get(key)) for key in keys}
    return ", ".join(f"{key} {number_text(x)}" for key, x in values.items() if x is not None)


def first_line(file: Path) -> str:
    """The command in the first line of curriculum.yaml; empty without one."""
    try:
        line = read_text(file).splitlines()[0].removeprefix("# ")
    except (OSError, ValueError, IndexError):
        return ""
    return line if line.isprintable() else ""
