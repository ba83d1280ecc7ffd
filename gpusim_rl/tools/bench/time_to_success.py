"""Time and samples until a policy is good.

    python -m gpusim_rl.bench time 'seeds=[1,2,3]'

Trains as train.py does, once for each seed, each time in a process of its own. Every n-th actor
stays in memory. After the training, each is judged as the final evaluation does it, on the model's
own physics. The time to success is that of the first actor that counts: its success is at least
`target`, and its scores meet `require`.

Time is that of training alone: iterations, with the log lines and checkpoints among them. Start-up,
compilation, evaluations and the copies of actors are not in it.

A commit from before the section `gpu` trains on a GPU with other numbers of worlds: name them.

`commits=` and `settings=` are compared. They take turns for each seed, in the other order for the
next seed. The keys are those of train.py, and those of conf/bench_time.yaml.
"""

import io
import math
import os
import re
import shlex
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gpusim_rl.config import compose, user_files, validate
from gpusim_rl.config.check_words import KINDS
from gpusim_rl.core import errors, ranges
from gpusim_rl.core.files import write_whole
from gpusim_rl.core.paths import CONF
from gpusim_rl.core.provenance import processor
from gpusim_rl.tools.bench import output
from gpusim_rl.tools.bench.cases import Case, make_cases, run

# Why: docs/decisions/0065-time-to-success.md
NAME = "bench_time"  # of its file in conf/
JUDGES = ("all", "first", "bisect")
PICTURES = (".svg", ".png", ".pdf")
CONDITION = re.compile(r"(\w+)(>=|<=)(-?[\d.]+(?:e-?\d+)?)")
PATIENCE = 10.0  # s between two lines of progress, where there is no terminal
# Keys of train.py that make no sense here, and why.
REFUSED = {"seed": "say seeds=[1,2,3]", "plan": "it trains"}
REFUSED |= dict.fromkeys(("run_dir", "resume", "auto_resume"), "each training is a new run")
COMPARED = {  # key of a summary → its name, and whether less of it is better
    "time_s": ("time to success", True),
    "env_steps": ("samples to success", True),
    "steps_per_s": ("steps/s", False),
}

TrainingRun = dict[str, Any]  # the file that training_run.py writes, and the seed
Summary = dict[str, Any]  # of a case


class Progress:
    """A line about the current training: it changes in a terminal, else it comes now and then."""

    def __init__(self, console: Console):
        self.console, self.next = console, 0.0
        self.status = console.status("") if console.is_terminal else None

    def __enter__(self) -> "Progress":
        if self.status:
            self.status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.status:
            self.status.stop()

    def show(self, line: str) -> None:
        """A line that may be left out."""
        if self.status:
            self.status.update(Text(line))
        elif time.monotonic() >= self.next:
            self.next = time.monotonic() + PATIENCE
            output.say(self.console, [f"  {line}"])


def parse(condition: str) -> tuple[str, str, float]:
    """(score, >= or <=, bound) of a condition; ValueError if it is none."""
    match = CONDITION.fullmatch(condition.replace(" ", ""))
    if not match:
        raise ValueError(f"require: {condition!r} is no condition such as 'foot_lift>=0.03'")
    return match[1], match[2], float(match[3])


def check(cfg: dict[str, Any], words: list[str]) -> None:
    """Check what composition does not see; ValueError names the first wrong value."""
    numbers = [entry for entry in cfg["commits"] if not isinstance(entry, str)]
    if numbers:
        raise ValueError(f"commits: {numbers[0]} is a number: put the commit in quotes")
    for key, kind in (("seeds", int), ("require", str), ("settings", str)):
        if any(type(entry) is not kind for entry in cfg[key]):
            raise ValueError(f"{key}={cfg[key]}: expected a list, each entry {KINDS[kind]}")
    of_settings = [word for text in cfg["settings"] for word in shlex.split(text)]
    for key in (o.key_or_group for o in compose.parse([*words, *of_settings])):
        if key in REFUSED:
            raise ValueError(f"{key}=: `bench time` does not take it: {REFUSED[key]}")
    ranges.check(cfg, table=ranges.BENCH)
    if not cfg["seeds"] or len(set(cfg["seeds"])) < len(cfg["seeds"]):
        raise ValueError(f"seeds={cfg['seeds']}: expected different seeds, at least one")
    for condition in cfg["require"]:
        parse(condition)
    if cfg["judge"] not in JUDGES:
        raise ValueError(f"judge={cfg['judge']}: choose one of {', '.join(JUDGES)}")
    validate.writable("out", cfg["out"], (".json",))
    if cfg["picture"] is not None:
        validate.writable("picture", cfg["picture"], PICTURES)
        if not find_spec("matplotlib"):
            raise ValueError("picture= needs matplotlib: pip install matplotlib")


def measure(
    cases: list[Case], job: dict[str, Any], seeds: list[int], folder: Path, progress: Progress
) -> Iterator[list[Summary]]:
    """Train each case with each seed, in turn. Yields the summaries after each training.

    ValueError if a training fails.
    """
    runs: list[list[TrainingRun]] = [[] for _ in cases]
    for n, seed in enumerate(seeds):
        turns = list(enumerate(cases))
        for i, case in reversed(turns) if n % 2 else turns:
            load = os.getloadavg()[0]
            words = [*case.words, f"seed={seed}", f"run_dir={folder}/run-{seed}-{i}"]
            result = run(case, job | {"words": words}, folder, progress.show)
            runs[i].append({"seed": seed, "load": load} | result)
            output.say(progress.console, [f"seed {seed}, {case.name}: {describe(runs[i][-1])}"])
            yield [summarize(c, r) for c, r in zip(cases, runs, strict=True) if r]


def describe(result: TrainingRun) -> str:
    """A training in a line."""
    first, last = first_success(result), result["actors"][-1]
    return (
        f"success after {seconds(first['time_s'])} and {millions(first['env_steps'])} samples;"
        f" at the end {last['scores']['success']:.3f} after {result['train_s']:.1f} s,"
        f" {result['steps_per_s']:,.0f} steps/s, {result['cores']:.2f} cores busy, load before"
        f" {result['load']:.1f}" + (f"; {result['failed']}" if result["failed"] else "")
    )


def check_scores(summaries: list[Summary], required: list[str]) -> None:
    """ValueError if a condition of the command line is of a score that is not reported."""
    scores = summaries[0]["training_runs"][0]["actors"][-1]["scores"]
    for condition in required:
        if parse(condition)[0] not in scores:
            raise ValueError(f"require={condition}: the scores are {', '.join(scores)}")


def first_success(result: TrainingRun) -> dict[str, Any]:
    """When the first actor that counts had its weights; null times if none counts."""
    row = next((row for row in result["actors"] if row["counts"]), {})
    return {key: row.get(key) for key in ("time_s", "env_steps", "iteration")}


def median_or_never(values: list[float | None]) -> float | None:
    """The median, where None is longer than any time; None if it is that."""
    value = median(math.inf if x is None else x for x in values)
    return value if math.isfinite(value) else None


def summarize(case: Case, runs: list[TrainingRun]) -> Summary:
    """Medians over seeds, with the values of each seed in the order of the trainings."""
    firsts = [first_success(x) for x in runs]
    columns = {key: [row[key] for row in firsts] for key in ("time_s", "env_steps")}
    columns |= {key: [x[key] for x in runs] for key in ("steps_per_s", "cores", "train_s")}
    columns["final_success"] = [x["actors"][-1]["scores"]["success"] for x in runs]
    return {
        **{"name": case.name, "commit": case.commit, "words": case.words},
        "seeds": [x["seed"] for x in runs],
        **{key: {"median": median_or_never(x), "all": x} for key, x in columns.items()},
        "training_runs": runs,
    }


def ratios(first: Summary, other: Summary) -> dict[str, float | None]:
    """How much better the other case is, as ratios of medians: 2 is twice as fast or twice as few
    samples. None where one never succeeded."""
    result = {}
    for key, (_, less_is_better) in COMPARED.items():
        pair = first[key]["median"], other[key]["median"]
        a, b = pair if less_is_better else reversed(pair)
        result[key] = None if a is None or b is None else a / b
    return result


def case_table(summaries: list[Summary]) -> Table:
    """A row for each case."""
    heads = ("time to success", "of seeds", "samples", "final success", "steps/s", "cores busy")
    table = output.table_of_numbers("", *heads)
    for s in summaries:
        final, times = s["final_success"], s["time_s"]
        table.add_row(
            Text(s["name"]),
            seconds(times["median"]),
            " ".join(seconds(x) for x in times["all"]),
            millions(s["env_steps"]["median"]),
            f"{final['median']:.3f} (lowest {min(final['all']):.3f})",
            f"{s['steps_per_s']['median']:,.0f}",
            f"{s['cores']['median']:.2f}",
        )
    return table


def seconds(value: float | None) -> str:
    """12.3 s, or never."""
    return "never" if value is None else f"{value:.1f} s"


def millions(value: float | None) -> str:
    """1.23 M, or none."""
    return "none" if value is None else f"{value / 1e6:.2f} M"


def comparisons(summaries: list[Summary]) -> Iterator[str]:
    """A line for each case but the first, with its ratios to the first."""
    first, *others = summaries
    for other in others:
        parts = [
            f"{COMPARED[key][0]} {'?' if value is None else f'× {value:.2f}'}"
            for key, value in ratios(first, other).items()
        ]
        yield f"{other['name']} is better than {first['name']} by: {', '.join(parts)}"


def draw(summaries: list[Summary], target: float, path: Path) -> None:
    """Draw success of each seed over training time and over samples."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    for axis, (key, label, scale) in zip(
        axes, (("time_s", "training [s]", 1.0), ("env_steps", "samples [M]", 1e-6)), strict=True
    ):
        for n, s in enumerate(summaries):
            for i, result in enumerate(s["training_runs"]):
                rows = result["actors"]
                x = [scale * row[key] for row in rows]
                y = [row["scores"]["success"] for row in rows]
                axis.plot(x, y, f"C{n}", lw=1, label=s["name"] if i == 0 else None)
                first = first_success(result)[key]
                if first is not None:
                    axis.plot([scale * first], [target], f"C{n}o", ms=5)
        axis.axhline(target, color="gray", lw=0.5, ls="--")
        axis.set_xlabel(label)
    axes[0].set_ylabel("success")
    axes[0].legend(loc="lower right", fontsize="small")
    figure.savefig(out := io.BytesIO(), format=path.suffix[1:])
    write_whole(path, out.getvalue())


def write(cfg: dict[str, Any], summaries: list[Summary]) -> None:
    """Write the files that `out` and `picture` name, if they do."""
    first, *others = summaries
    keys = ("seeds", "every", "target", "require", "judge", "episodes")
    results = {
        "command": output.command_line(),
        "task": cfg["task"]["name"],
        **{key: cfg[key] for key in keys},
        "machine": {"cpu": processor(), "cores": os.cpu_count()},
        "ratios": {other["name"]: ratios(first, other) for other in others},
        "cases": summaries,
    }
    if cfg["out"]:
        output.write_json(cfg["out"], results)
    if cfg["picture"]:
        draw(summaries, cfg["target"], Path(cfg["picture"]))


def main(words: list[str]) -> None:
    """Compose, train, judge, print and write. `words` are those behind `time`."""
    console = output.make_console(120)
    with errors.one_line_errors():
        cfg = compose.compose_plain(NAME, words)
        check(cfg, words)
    keys_here = user_files.load(CONF / f"{NAME}.yaml").keys()
    key_of = {word: compose.parse([word])[0].key_or_group for word in words}
    shared = [word for word, key in key_of.items() if key not in keys_here]
    job = {key: cfg[key] for key in ("every", "episodes", "judge")} | {"check": False}
    job["conditions"] = [("success", ">=", cfg["target"]), *map(parse, cfg["require"])]
    required = cfg["require"] if "require" in key_of.values() else []
    summaries: list[Summary] = []
    with tempfile.TemporaryDirectory(prefix="gpusim-bench-") as temporary:
        folder = Path(temporary)
        with Progress(console) as progress:
            with errors.one_line_errors():
                cases = make_cases(cfg, shared, folder)
                for case in cases:
                    run(case, job | {"words": case.words, "check": True}, folder, progress.show)
            with errors.one_line_errors(1):
                for summaries in measure(cases, job, cfg["seeds"], folder, progress):
                    check_scores(summaries, required)
                    write(cfg, summaries)
    console.print(case_table(summaries))
    lines = [f"wrote {cfg[key]}" for key in ("out", "picture") if cfg[key]]
    output.say(console, [*comparisons(summaries), *lines])
