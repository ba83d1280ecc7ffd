"""Time and samples until a policy is good: `python -m gpusim_rl.bench time 'seeds=[1,2,3]'`.

Trains as train.py does, once for each seed, each time in a process of its own. Every n-th actor is
kept in memory. After the training, each is judged as the final evaluation does it, on the model's
own physics. The time to success is that of the first actor that counts: its success is at least
`target`, and its scores meet `require`.

Time is that of training alone: iterations, with the log lines and checkpoints among them. Start-up,
compilation, evaluations and the copies of actors are not in it.

A commit from before the section `gpu` trains on a GPU with other numbers of worlds: name them.

`commits=` and `settings=` are compared. They take turns for each seed, in the other order for the
next seed. The keys are those of train.py, and those of conf/bench_time.yaml.
"""

import json
import os
import re
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from gpusim_rl.config import compose, user_files, validate
from gpusim_rl.config.check_words import KINDS
from gpusim_rl.core import errors, ranges
from gpusim_rl.core.files import write_whole
from gpusim_rl.core.paths import CONF
from gpusim_rl.core.provenance import processor
from gpusim_rl.tools.bench import summary
from gpusim_rl.tools.bench.trees import Variant, run, variants

# Why: docs/decisions/0065-time-to-success.md
NAME = "bench_time"  # of its file in conf/
JUDGES = ("all", "first", "bisect")
PICTURES = (".svg", ".png", ".pdf")
CONDITION = re.compile(r"(\w+)(>=|<=)(-?[\d.]+(?:e-?\d+)?)")
PATIENCE = 10.0  # s between two lines of progress, where there is no terminal
# Keys of train.py that make no sense here, and why.
OWN = {"seed": "say seeds=[1,2,3]", "plan": "it trains"}
OWN |= dict.fromkeys(("run_dir", "resume", "auto_resume"), "each training is a new run")


class Progress:
    """What the current training says: a line that changes in a terminal, else one now and then."""

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
            self.say(f"  {line}")

    def say(self, line: str) -> None:
        """A line that stays."""
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)


def parse(condition: str) -> tuple[str, str, float]:
    """(score, >= or <=, bound) of a condition; ValueError if it is none."""
    match = CONDITION.fullmatch(condition.replace(" ", ""))
    if not match:
        raise ValueError(f"require: {condition!r} is no condition such as 'foot_lift>=0.03'")
    return match[1], match[2], float(match[3])


def settle(cfg: dict[str, Any], words: list[str]) -> None:
    """Check what composition does not see; ValueError names the first wrong value."""
    numbers = [entry for entry in cfg["commits"] if not isinstance(entry, str)]
    if numbers:
        raise ValueError(f"commits: {numbers[0]} is a number: put the commit in quotes")
    for key, kind in (("seeds", int), ("require", str), ("settings", str)):
        if any(type(entry) is not kind for entry in cfg[key]):
            raise ValueError(f"{key}={cfg[key]}: expected a list, each entry {KINDS[kind]}")
    own = [word for text in cfg["settings"] for word in shlex.split(text)]
    for key in (o.key_or_group for o in compose.parse([*words, *own])):
        if key in OWN:
            raise ValueError(f"{key}=: `bench time` does not take it: {OWN[key]}")
    ranges.check(cfg, table=ranges.BENCH)
    if not cfg["seeds"] or len(set(cfg["seeds"])) < len(cfg["seeds"]):
        raise ValueError(f"seeds={cfg['seeds']}: expected different seeds, at least one")
    for condition in cfg["require"]:
        parse(condition)
    if cfg["judge"] not in JUDGES:
        raise ValueError(f"judge={cfg['judge']}: choose one of {', '.join(JUDGES)}")
    validate.writable("out", cfg["out"])
    if cfg["picture"] is not None:
        validate.writable("picture", cfg["picture"], PICTURES)
        if not find_spec("matplotlib"):
            raise ValueError("picture= needs matplotlib: pip install matplotlib")


def measure(
    several: list[Variant], job: dict[str, Any], seeds: list[int], folder: Path, progress: Progress
) -> Iterator[list[summary.Summary]]:
    """Train each variant with each seed, in turn. Yields the summaries after each training.

    ValueError if a training fails.
    """
    trials: list[list[summary.Trial]] = [[] for _ in several]
    for n, seed in enumerate(seeds):
        turns = list(enumerate(several))
        for i, variant in reversed(turns) if n % 2 else turns:
            load = os.getloadavg()[0]
            words = [*variant.words, f"seed={seed}", f"run_dir={folder}/run-{seed}-{i}"]
            done = run(variant, job | {"words": words}, folder, progress.show)
            trials[i].append({"seed": seed, "load": load} | done)
            progress.say(f"seed {seed}, {variant.name}: {said(trials[i][-1])}")
            yield [summary.summarize(v, t) for v, t in zip(several, trials, strict=True) if t]


def said(done: summary.Trial) -> str:
    """A training in a line."""
    reached, last = summary.first_success(done), done["actors"][-1]
    return (
        f"success after {summary.seconds(reached['time_s'])}"
        f" and {summary.millions(reached['env_steps'])} samples;"
        f" at the end {last['scores']['success']:.3f} after {done['train_s']:.1f} s,"
        f" {done['steps_per_s']:,.0f} steps/s, {done['cores']:.2f} cores busy, load before"
        f" {done['load']:.1f}" + (f"; {done['failed']}" if done["failed"] else "")
    )


def check_scores(summaries: list[summary.Summary], required: list[str]) -> None:
    """ValueError if a condition of the command line is of a score that is not reported."""
    scores = summaries[0]["trials"][0]["actors"][-1]["scores"]
    for condition in required:
        if parse(condition)[0] not in scores:
            raise ValueError(f"require={condition}: the scores are {', '.join(scores)}")


def report(cfg: dict[str, Any], summaries: list[summary.Summary]) -> dict[str, Any]:
    """All that `out` holds."""
    first, *others = summaries
    keys = ("seeds", "every", "target", "require", "judge", "episodes")
    return {
        "command": shlex.join(["python", "-m", "gpusim_rl.bench", *sys.argv[1:]]),
        "task": cfg["task"]["name"],
        **{key: cfg[key] for key in keys},
        "machine": {"cpu": processor(), "cores": os.cpu_count()},
        "ratios": {other["name"]: summary.ratios(first, other) for other in others},
        "variants": summaries,
    }


def main(words: list[str]) -> None:
    """Compose, train, judge, print and write. `words` are those behind `time`."""
    if {"-h", "--help"} & set(words):
        print(__doc__)
        return
    console = Console() if sys.stdout.isatty() else Console(width=120)
    with errors.one_line_errors():
        cfg = compose.compose_plain(NAME, words)
        settle(cfg, words)
    own = user_files.load(CONF / f"{NAME}.yaml").keys()
    given = {word: compose.parse([word])[0].key_or_group for word in words}
    shared = [word for word, key in given.items() if key not in own]
    job = {key: cfg[key] for key in ("every", "episodes", "judge")} | {"check": False}
    job["conditions"] = [("success", ">=", cfg["target"]), *map(parse, cfg["require"])]
    summaries: list[summary.Summary] = []
    with tempfile.TemporaryDirectory(prefix="gpusim-bench-") as temporary:
        folder = Path(temporary)
        with Progress(console) as progress:
            with errors.one_line_errors():
                several = variants(cfg, shared, folder)
                for variant in several:
                    job_of_check = job | {"words": variant.words, "check": True}
                    run(variant, job_of_check, folder, progress.show)
            with errors.one_line_errors(1):
                for summaries in measure(several, job, cfg["seeds"], folder, progress):
                    check_scores(summaries, cfg["require"] if "require" in given.values() else [])
                    write(cfg, summaries)
    show(cfg, summaries, console)


def write(cfg: dict[str, Any], summaries: list[summary.Summary]) -> None:
    """Write what is asked for."""
    if cfg["out"]:
        text = json.dumps(report(cfg, summaries), indent=1) + "\n"
        write_whole(Path(cfg["out"]), text.encode())
    if cfg["picture"]:
        summary.draw(summaries, cfg["target"], Path(cfg["picture"]))


def show(cfg: dict[str, Any], summaries: list[summary.Summary], console: Console) -> None:
    """Print the table, the ratios and what was written."""
    console.print(summary.table(summaries))
    lines = list(summary.comparisons(summaries))
    lines += [f"wrote {cfg[key]}" for key in ("out", "picture") if cfg[key]]
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)
