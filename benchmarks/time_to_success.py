"""Time and samples until a policy is good.

    python -m benchmarks.time_to_success task=quadruped 'seeds=[1,2,3]' out=time.json

Trains as train.py does, once for each seed, each time in a process of its own. Every n-th actor
stays in memory. After the training, each is judged as the final evaluation does it, on the model's
own physics. The time to success is that of the first actor that counts: its success is at least
`target`, and its scores meet `require`.

Time is that of training alone: iterations, with the log lines and checkpoints among them. Start-up,
compilation, evaluations and the copies of actors are not in it.

The keys are those of train.py, and these:

    seeds=[1,2,3]   of the trainings
    every=5         iterations between two actors that are kept and judged
    target=0.95     success from which an actor counts
    require=["foot_lift>=0.03","drift_still<=0.05"]
                    what else its scores must show; a task that does not report a score need not
    judge=all       or first: in order until one counts, and the last; or bisect: few of them, on
                    the assumption that an actor that counts is followed by such alone
    episodes=128    with which each actor is judged
    settings=[]     command lines to compare, such as ["algo.symmetry=none","num_envs=256"]; they
                    take turns for each seed, in the other order for the next seed
    out=null        JSON file for the results, written after each training
    picture=null    success over time and samples: a file .svg, .png or .pdf
"""

import io
import math
import os
import re
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from rich.table import Table
from rich.text import Text

from benchmarks import program
from gpusim_rl.algorithms.iteration import Iteration
from gpusim_rl.config import compose, resume, validate
from gpusim_rl.core import errors
from gpusim_rl.core.files import write_whole
from gpusim_rl.core.provenance import processor, versions
from gpusim_rl.evaluation.evaluate import SEED
from gpusim_rl.training import trainer
from gpusim_rl.training.loop import Training, TrainingFailed

# Why: docs/decisions/benchmarks.md
REQUIRE = ["foot_lift>=0.03", "drift_still<=0.05"]
JUDGES = ("all", "first", "bisect")
PICTURES = (".svg", ".png", ".pdf")
CONDITION = re.compile(r"(\w+)(>=|<=)(-?[\d.]+(?:e-?\d+)?)")
WARM_UP = 4  # iterations before the clock runs: kernels compile, CUDA graphs are captured
# Keys of train.py that make no sense here, and why.
REFUSED = {"seed": "say seeds=[1,2,3]", "plan": "it trains"}
REFUSED |= dict.fromkeys(("run_dir", "resume", "auto_resume"), "each training is a new run")
COMPARED = {  # key of a summary → its name, and whether less of it is better
    "time_s": ("time to success", True),
    "env_steps": ("samples to success", True),
    "steps_per_s": ("steps/s", False),
}

Condition = tuple[str, str, float]  # score, >= or <=, bound
TrainingRun = dict[str, Any]  # what `train` returns, and the seed
Summary = dict[str, Any]  # of a case


class Case(NamedTuple):
    """A command line of train.py."""

    name: str
    words: list[str]


class Actor(NamedTuple):
    """The weights of an actor, and when it had them."""

    iteration: int
    env_steps: int
    time_s: float  # wall time of training
    cpu_s: float  # processor time of training, of all threads
    weights: dict[str, Any]


class Clock:
    """Wall time and the processor time of all threads [s], without what is `paused`."""

    def __init__(self) -> None:
        self.start, self.away = self.now(), (0.0, 0.0)

    def now(self) -> tuple[float, float]:
        """(wall, processor) [s]."""
        return time.perf_counter(), time.process_time()

    def read(self) -> tuple[float, float]:
        """(wall, processor) [s] since the start."""
        (wall, cpu), start, away = self.now(), self.start, self.away
        return wall - start[0] - away[0], cpu - start[1] - away[1]

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Work inside takes no time."""
        before, away = self.now(), self.away
        yield
        wall, cpu = self.now()
        self.away = away[0] + wall - before[0], away[1] + cpu - before[1]


# -- one training, in a process of its own ---------------------------------------------------------


def meets(scores: dict[str, float | None], conditions: list[Condition]) -> bool:
    """Whether scores meet all conditions. One of a score that is not reported is met."""
    for score, sign, bound in conditions:
        value = scores.get(score, bound)
        if value is None:  # no episode tells
            return False
        if not (value >= bound if sign == ">=" else value <= bound):  # a NaN meets none
            return False
    return True


def warm_up(iteration: Iteration) -> None:
    """Do some iterations, and return to the beginning exactly. In place."""
    start = iteration.state()
    for _ in range(WARM_UP):
        iteration.iteration()
    iteration.report()()
    iteration.load(start, "the beginning")


def keep_actors(loop: Training, clock: Clock, every: int) -> list[Actor]:
    """Make a loop copy every n-th actor and its last one into the list that is returned.

    The clock does not count the copies, nor evaluations during training.
    """
    step, evaluate, actors, count = loop.step, loop.evaluate, [], 0

    def step_and_keep(stop: Any) -> bool:
        nonlocal count
        last, iteration = step(stop), loop.iteration
        count += 1  # not iteration.iterations, which a roll-back lowers
        if last or count % every == 0:
            wait(iteration)
            times = clock.read()
            with clock.paused():
                weights = {k: v.detach().clone() for k, v in iteration.policy.state_dict().items()}
            steps = count * iteration.size * iteration.env.group.size
            actors.append(Actor(count, steps, *times, weights))
        return last

    def evaluate_paused(iteration: Iteration) -> float:
        wait(iteration)
        with clock.paused():
            return evaluate(iteration)

    loop.step, loop.evaluate = step_and_keep, evaluate_paused
    return actors


def wait(iteration: Iteration) -> None:
    """Wait until a GPU has done all its work, so that the clock is right."""
    if iteration.env.device.type == "cuda":
        torch.cuda.synchronize(iteration.env.device)


def scores_of(iteration: Iteration, section: Any, episodes: int) -> dict[str, Any]:
    """The scores of the final evaluation of a policy: of its drives too, if it has them."""
    told = trainer.tracking(iteration, section.weights)  # it calibrates the policy
    scores = trainer.evaluate(section, iteration, SEED, episodes)
    passed = scores["success"] or 0.0
    return scores | {"tracking": told, "episodes_passed": passed, "success": passed * told}


def judge(
    actors: list[Actor],
    score: Callable[[Actor], dict[str, Any]],
    conditions: list[Condition],
    which: str,
) -> list[dict[str, Any]]:
    """A row for each judged actor: when it had its weights, its scores, whether it counts.

    Args:
        which: `all`; `first`, in order until one counts, and the last; or `bisect`, which takes an
            actor that counts after one that does not, if the last counts, and else is `first`.
    """
    rows: dict[int, dict[str, Any]] = {}
    last = len(actors) - 1

    def counts(n: int) -> bool:
        if n not in rows:
            scores, when = score(actors[n]), actors[n]._asdict()
            del when["weights"]
            rows[n] = when | {"counts": meets(scores, conditions), "scores": scores}
        return rows[n]["counts"]

    if which == "bisect" and counts(last):
        low, high = -1, last
        while high - low > 1:
            center = (low + high) // 2
            low, high = (low, center) if counts(center) else (center, high)
    else:
        for n in range(last):
            if counts(n) and which != "all":
                break
        counts(last)
    return [rows[n] for n in sorted(rows)]


def train(words: list[str], own: SimpleNamespace) -> TrainingRun:
    """Train with these words, and judge the actors as the keys of this program say."""
    begun = time.perf_counter()
    cfg = check_words(words)
    made, failed = trainer.Trainer(cfg), ""
    warm_up(made.loop.iteration)
    start_s, clock = time.perf_counter() - begun, Clock()
    actors = keep_actors(made.loop, clock, own.every)
    try:
        if signal := made.train().signal:
            raise SystemExit(128 + signal)
    except TrainingFailed as error:
        failed = str(error)
    if not actors:
        raise ValueError(failed)
    iteration, end, begun = made.loop.iteration, actors[-1], time.perf_counter()

    def score(actor: Actor) -> dict[str, Any]:
        iteration.policy.load_state_dict(actor.weights)
        return scores_of(iteration, cfg.task, own.episodes)

    conditions = [("success", ">=", own.target), *map(parse, own.require)]
    return {
        "actors": judge(actors, score, conditions, own.judge),
        **{"start_s": start_s, "train_s": end.time_s, "judge_s": time.perf_counter() - begun},
        **{"env_steps": end.env_steps, "steps_per_s": end.env_steps / end.time_s},
        **{"cores": end.cpu_s / end.time_s, "failed": failed, "versions": versions()},
    }


# -- all trainings, and what is made of them -------------------------------------------------------


def parse(condition: str) -> Condition:
    """(score, >= or <=, bound) of a condition; ValueError if it is none."""
    match = CONDITION.fullmatch(condition.replace(" ", ""))
    if not match:
        raise ValueError(f"require: {condition!r} is no condition such as 'foot_lift>=0.03'")
    return match[1], match[2], float(match[3])


def check_words(words: list[str]) -> Any:
    """The configuration of a training; ValueError in one line if a word is wrong."""
    return resume.check_training(compose.compose_plain("config", words), words)


def check(own: SimpleNamespace, words: list[str]) -> None:
    """ValueError names the first wrong value of a key, or a key of train.py of no use here."""
    for key, kind in (("seeds", int), ("require", str), ("settings", str)):
        if wrong := [entry for entry in getattr(own, key) if type(entry) is not kind]:
            raise ValueError(f"{key}: {wrong[0]!r} is no {kind.__name__}")
    of_settings = [word for text in own.settings for word in shlex.split(text)]
    for key in (override.key_or_group for override in compose.parse([*words, *of_settings])):
        if key in REFUSED:
            raise ValueError(f"{key}=: time_to_success does not take it: {REFUSED[key]}")
    if not own.seeds or len(set(own.seeds)) < len(own.seeds):
        raise ValueError(f"seeds={own.seeds}: expected different seeds, at least one")
    for condition in own.require:
        parse(condition)
    if own.judge not in JUDGES:
        raise ValueError(f"judge={own.judge}: choose one of {', '.join(JUDGES)}")
    validate.writable("picture", own.picture, PICTURES)


def make_cases(own: SimpleNamespace, words: list[str]) -> list[Case]:
    """A case for each of `settings`, which are checked with each seed."""
    cases: list[Case] = []
    for setting in own.settings or [""]:
        name = setting or "as it is"
        again = sum(other.name.partition(" #")[0] == name for other in cases)
        name += f" #{again + 1}" if again else ""  # the same twice shows the noise
        cases.append(Case(name, ["log=none", *words, *shlex.split(setting)]))
        for seed in own.seeds:
            check_words([*cases[-1].words, f"seed={seed}"])
    return cases


def measure(cases: list[Case], own: SimpleNamespace, folder: str) -> Iterator[list[Summary]]:
    """Train each case with each seed, in turn. Yields the summaries after each training.

    ValueError if a training fails.
    """
    runs: list[list[TrainingRun]] = [[] for _ in cases]
    for n, seed in enumerate(own.seeds):
        turns = list(enumerate(cases))
        for i, case in reversed(turns) if n % 2 else turns:
            load = os.getloadavg()[0]
            words = [*case.words, f"seed={seed}", f"run_dir={folder}/run-{seed}-{i}"]
            made = program.apart(train, words, own)
            runs[i].append({"seed": seed, "load": load} | made)
            print(f"seed {seed}, {case.name}: {describe(runs[i][-1])}", flush=True)
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
        **{"name": case.name, "words": case.words},
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
    table = program.table_of_numbers("", *heads)
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


def write(own: SimpleNamespace, task: str, summaries: list[Summary]) -> None:
    """Write the files that `out` and `picture` name, if they do."""
    first, *others = summaries
    results = {"command": program.command_line("time_to_success"), "task": task}
    results |= {"machine": {"cpu": processor(), "cores": os.cpu_count()}, **vars(own)}
    results |= {"ratios": {other["name"]: ratios(first, other) for other in others}}
    if own.out:
        program.write_json(own.out, results | {"cases": summaries})
    if own.picture:
        draw(summaries, own.target, Path(own.picture))


def main(words: list[str]) -> None:
    """Compose, train, judge, print and write."""
    keys: dict[str, Any] = dict(seeds=[1, 2, 3], every=5, target=0.95, require=REQUIRE, judge="all")
    keys |= dict(episodes=128, settings=[], out=None, picture=None)
    own, words = program.split_words(__doc__, words, **keys)
    with errors.one_line_errors():
        check(own, words)
        cases = make_cases(own, words)
        task = check_words(cases[0].words).task.name
    summaries: list[Summary] = []
    required = [] if own.require is REQUIRE else own.require
    with tempfile.TemporaryDirectory(prefix="gpusim-bench-") as folder, errors.one_line_errors(1):
        for summaries in measure(cases, own, folder):
            check_scores(summaries, required)
            write(own, task, summaries)
    console = program.make_console(120)
    console.print(case_table(summaries))
    lines = [f"wrote {file}" for file in (own.out, own.picture) if file]
    program.say(console, [*comparisons(summaries), *lines])


if __name__ == "__main__":
    main(sys.argv[1:])
