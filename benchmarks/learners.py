"""Success of the learners over samples and over processor time.

    python -m benchmarks.learners [TASK …] [folder=docs/benchmarks/learners] [seeds=[1,2,3,4,5]]

Trains each task with each learner and seed, each time in a process of its own, on one thread and
with the numbers of conf/. About fifteen actors of a training, evenly spread, are judged after it as
its final evaluation does it: `success` is the share of episodes, times that of constant commands.

FOLDER gets TASK.json after each training. A training that stands there is not done again: delete
the file for that. At the end a table and curves.svg show all tasks of the folder: the median of the
seeds, in a band from the least to the greatest. The median of all seeds that there could be lies in
the band of five in 15 cases of 16.

Other keys:

    points=15      actors that are judged
    target=0.95    success whose samples and seconds stand in the table
    episodes=64    with which each actor is judged
"""

import io
import json
import math
import sys
import tempfile
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks import program, time_to_success
from gpusim_rl.config import compose
from gpusim_rl.core import errors
from gpusim_rl.core.files import write_whole
from gpusim_rl.core.provenance import processor
from gpusim_rl.report.curves import COLORS, STYLE

LEARNERS = {"ppo": "PPO", "sac": "SAC"}
TASKS = ("cartpole", "reach", "drone", "quadruped", "hopper")
WORDS = ("device=cpu", "threads=1", "sim.threads=1", "log=none", "export=none", "report=false")
AXES = {"env_steps": "samples", "cpu_s": "processor time [s]"}

Curve = dict[str, Any]  # of a training: what a file holds for a seed


def train(task: str, learner: str, seed: int, own: SimpleNamespace) -> Curve:
    """A training, and what its actors reach."""
    words = [f"task={task}", f"algo={learner}", f"seed={seed}", "eval_every=1000000", "episodes=1"]
    with tempfile.TemporaryDirectory(prefix="gpusim-bench-") as folder:
        words += [*WORDS, f"run_dir={folder}/run"]
        iterations = compose.compose_plain("config", words)["iterations"]
        judging = SimpleNamespace(every=max(1, iterations // own.points), judge="all", require=[])
        judging.target, judging.episodes = own.target, own.episodes
        result = program.apart(time_to_success.train, words, judging)
    rows = [
        {key: row[key] for key in ("iteration", *AXES)} | {"success": row["scores"]["success"]}
        for row in result["actors"]
    ]
    scores = result["actors"][-1]["scores"]
    made = {"seed": seed, "curve": rows, "scores": scores, "failed": result["failed"]}
    return made | {"versions": result["versions"]}


def reached(curve: Curve, key: str, target: float) -> float:
    """Samples or seconds until the first judged actor with that success; inf without one."""
    return next((row[key] for row in curve["curve"] if row["success"] >= target), math.inf)


def spread(values: list[float], form: str) -> str:
    """Median, least and greatest, and for how many there is a value if not for all."""
    middle, least, greatest = (
        f"{x:{form}}" if math.isfinite(x) else "never"
        for x in (median(values), min(values), max(values))
    )
    came = sum(map(math.isfinite, values))
    seeds = "" if came == len(values) else f", {came} of {len(values)}"
    return f"{middle} ({least} to {greatest}){seeds}" if came else "never"


def table(results: dict[str, dict[str, Any]], target: float) -> str:
    """A Markdown table of all tasks and learners."""
    heads = f"samples to {target:g} | processor time [s] | success at the end"
    rows = [f"| task | learner | seeds | {heads} |", "|---|---|---|---|---|---|"]
    for task, result in results.items():
        for learner, curves in result["learners"].items():
            samples, times = ([reached(x, key, target) for x in curves] for key in AXES)
            end = [x["curve"][-1]["success"] for x in curves]
            failed = sum(bool(x["failed"]) for x in curves)
            seeds = f"{len(curves)}" + (f", {failed} failed" if failed else "")
            cells = [f"`{task}`", LEARNERS[learner], seeds, spread(samples, ",.0f")]
            rows.append(f"| {' | '.join([*cells, spread(times, ',.0f'), spread(end, '.2f')])} |")
    return "\n".join(rows) + "\n"


def picture(results: dict[str, dict[str, Any]], file: Path) -> None:
    """Draw success over samples and processor time: a column for each task."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

    with rc_context(STYLE):
        figure = Figure(figsize=(2.2 * len(results) + 0.6, 3.6), layout="constrained")
        panels = figure.subplots(len(AXES), len(results), sharey=True, squeeze=False)
        for column, (task, result) in enumerate(results.items()):
            panels[0, column].set_title(task)
            for line, (key, label) in enumerate(AXES.items()):
                panel = panels[line, column]
                panel.set(xlabel=label, xscale="log", ylim=(-0.03, 1.03))
                panel.xaxis.set_major_locator(LogLocator(subs=(1, 3)))
                panel.xaxis.set_major_formatter(EngFormatter(sep=""))
                panel.xaxis.set_minor_formatter(NullFormatter())
                for n, (learner, curves) in enumerate(result["learners"].items()):
                    # every seed's actors are of the same iterations, fewer where it failed
                    shape = min(len(x["curve"]) for x in curves)
                    rows = [x["curve"][:shape] for x in curves]
                    x = np.median([[row[key] for row in curve] for curve in rows], 0)
                    y = np.array([[row["success"] for row in curve] for curve in rows])
                    color = COLORS[n]
                    panel.fill_between(x, y.min(0), y.max(0), color=color, alpha=0.2, lw=0)
                    panel.plot(x, np.median(y, 0), color=color, lw=1.4, label=LEARNERS[learner])
        for panel in panels[:, 0]:
            panel.set_ylabel("success")
        lines = panels[0, 0].get_legend_handles_labels()
        figure.legend(*lines, loc="outside upper right", ncols=len(LEARNERS), frameon=False)
        figure.savefig(out := io.BytesIO(), format="svg", metadata={"Date": None})
    write_whole(file, out.getvalue())


def read(folder: Path) -> dict[str, dict[str, Any]]:
    """The results of a folder, in the order of `TASKS`."""
    files = {name: folder / f"{name}.json" for name in TASKS}
    return {name: json.loads(x.read_text()) for name, x in files.items() if x.exists()}


def measure(task: str, file: Path, own: SimpleNamespace) -> None:
    """Train a task with all learners and seeds that its file lacks; write it after each.

    ValueError if the file was made with other points or episodes.
    """
    settings = {"points": own.points, "episodes": own.episodes}
    result = {"task": task, "machine": {"cpu": processor()}} | settings | {"learners": {}}
    if file.exists():
        result = json.loads(file.read_text())
        for key, value in settings.items():
            if result[key] != value:
                raise ValueError(f"{file} was made with {key}={result[key]}, not {value}")
    words = " ".join(f"{key}={value}" for key, value in settings.items())
    seeds = json.dumps(own.seeds, separators=(",", ":"))
    result["command"] = f"python -m benchmarks.learners {task} seeds={seeds} {words}"
    for seed in own.seeds:
        for learner in LEARNERS:
            curves = result["learners"].setdefault(learner, [])
            if seed in (curve["seed"] for curve in curves):
                continue
            curves.append(made := train(task, learner, seed, own))
            last = made["curve"][-1]
            print(f"{task}, {LEARNERS[learner]}, seed {seed}: {last}", flush=True)
            program.write_json(file, result)


def main(words: list[str]) -> None:
    """Train what is missing, then draw the picture and the table of the folder."""
    keys: dict[str, Any] = dict(seeds=[1, 2, 3, 4, 5], folder="docs/benchmarks/learners")
    keys |= dict(points=15, target=0.95, episodes=64)
    own, names = program.split_words(__doc__, words, **keys)
    names, folder = program.choose(names, TASKS), Path(own.folder)
    folder.mkdir(parents=True, exist_ok=True)
    with errors.one_line_errors(1):
        for name in names:
            measure(name, folder / f"{name}.json", own)
    results = read(folder)
    picture(results, folder / "curves.svg")
    print(table(results, own.target))


if __name__ == "__main__":
    main(sys.argv[1:])
