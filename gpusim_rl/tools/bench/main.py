"""Where the time of training goes: `python -m gpusim_rl.bench task=quadruped out=bench.json`.

The keys are those of train.py, and repeats= seconds= warmup= compare= out= (conf/bench.yaml). All
levels step the same recorded states the same number of times. They take turns `repeats` times, so
that a ratio compares neighbors in time.

`bare` is the engine as it comes: MuJoCo C's `Batch` on all cores, or a captured `mujoco_warp.step`.
It replays the recorded controls with the training model; no sensor is copied, nothing randomized.
It bounds the speed of training: see training/bare. `update` is PPO's, `plain` the same as it is
usually written (gpusim_rl/tools/bench/reference_ppo.py).
"""

import json
import math
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from rich.console import Console
from rich.table import Table

from gpusim_rl.algorithms.iteration import Iteration
from gpusim_rl.build import make_iteration
from gpusim_rl.config import compose, recipe, validate
from gpusim_rl.config.robot_size import fit_to_robot
from gpusim_rl.core import errors, ranges
from gpusim_rl.core.files import write_whole
from gpusim_rl.core.graphs import WARM_UP
from gpusim_rl.core.provenance import processor, versions
from gpusim_rl.core.waiting import waiting
from gpusim_rl.envs import curriculum
from gpusim_rl.sim.actuated import engine
from gpusim_rl.sim.warp import Warp
from gpusim_rl.tools.bench import mjlab
from gpusim_rl.tools.bench.levels import (
    LEVELS,
    PARTS,
    Levels,
    Tape,
    bare_native,
    bare_warp,
    launches,
    memory,
    record,
    timed,
)

RATIOS = tuple((level, "bare") for level in LEVELS[1:]) + tuple(
    zip(LEVELS[2:], LEVELS[1:-1], strict=True)
)


def spread(values: list[float]) -> dict[str, Any]:
    """Median, extremes and all."""
    return {"median": median(values), "min": min(values), "max": max(values), "all": values}


def bench(
    ppo: Iteration, cfg: dict[str, Any], built: float, say: Callable[[str], None]
) -> dict[str, Any]:
    """Measure every level cfg["repeats"] times. Returns all that `out` holds.

    `built` are the seconds that making ppo took.
    """
    env, load = ppo.env, os.getloadavg()
    first = timed(env.device, ppo.iteration)[0]
    times = [timed(env.device, ppo.iteration)[0] for _ in range(cfg["warmup"])]
    tape = record(ppo, math.ceil(cfg["seconds"] / min(times)))
    rounds = measure_rounds(ppo, tape, cfg["repeats"], say)
    return {
        "command": " ".join(["python -m gpusim_rl.bench", *sys.argv[1:]]),
        "task": cfg["task"]["name"],
        "sim": type(engine(env.sim)).__name__.lower(),
        "device": str(env.device),
        **{key: cfg[key] for key in ("num_envs", "num_steps", "repeats", "warmup")},
        "substeps": env.task.substeps,
        **summary(rounds, tape, env.task.substeps),
        "an_iteration": launches(ppo),
        "start_s": {"build": built, "first_iteration": first, "next": times[:WARM_UP]},
        "memory": memory(env.device),
        "versions": versions() | {"cpu": processor(), "cores": os.cpu_count()},
        "load": {"before": load, "after": os.getloadavg()},
    }


def measure_rounds(
    ppo: Iteration, tape: Tape, repeats: int, say: Callable[[str], None]
) -> list[dict[str, float]]:
    """Seconds of each level and part, `repeats` times after a warm-up."""
    task, sim = ppo.env.task, engine(ppo.env.sim)  # Bare, the engine's own servos follow targets.
    bare = bare_warp(task, sim) if isinstance(sim, Warp) else bare_native(task, ppo.env.num_envs)
    steps, levels = tape.actions[..., 0].numel(), Levels(ppo, bare)
    rounds: list[dict[str, float]] = []
    for i in range(repeats + 1):
        turn = f"repetition {i} of {repeats}" if i else "warm-up"
        with waiting(turn):
            seconds = levels.measure(tape)
        rounds += [seconds] if i else []
        speeds = "  ".join(f"{level} {steps / seconds[level]:,.0f}" for level in LEVELS)
        say(f"{turn}: {speeds} steps/s")
    return rounds


def summary(rounds: list[dict[str, float]], tape: Tape, substeps: int) -> dict[str, Any]:
    """Speeds, their ratios and milliseconds of an iteration's parts, each spread over rounds."""
    steps, iterations = tape.actions[..., 0].numel(), len(tape.starts)
    rates = {level: [steps / seconds[level] for seconds in rounds] for level in LEVELS}
    physics = {level: [substeps * v for v in x] for level, x in rates.items()}
    ratios = {
        f"{a}/{b}": [x / y for x, y in zip(rates[a], rates[b], strict=True)] for a, b in RATIOS
    }
    parts = {
        name: [1e3 * seconds.get(name, 0.0) / iterations for seconds in rounds]
        for name in (*PARTS, "host", "update", "plain")
    }
    speedup = [x / y for x, y in zip(parts["plain"], parts["update"], strict=True)]
    return {
        "steps": steps,
        "steps_per_s": {level: spread(x) for level, x in rates.items()},
        "physics_steps_per_s": {level: spread(x) for level, x in physics.items()},
        "ratios": {name: spread(x) for name, x in ratios.items()},
        "milliseconds": {name: spread(x) for name, x in parts.items()},
        "update_speedup": spread(speedup),
    }


def show(results: dict[str, Any], console: Console) -> None:
    """Print the table and what it was measured on."""
    console.print(speed_table(results))
    for line in notes(results):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def speed_table(results: dict[str, Any]) -> Table:
    """A row for each level."""
    heads = ("steps/s", "lowest", "highest", "physics steps/s", "of bare", "of the one above")
    table = Table("", *heads, box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for i, level in enumerate(LEVELS):
        rate = results["steps_per_s"][level]
        physics = results["physics_steps_per_s"][level]["median"]
        speeds = [f"{value:,.0f}" for value in (rate["median"], rate["min"], rate["max"], physics)]
        others = ("bare", LEVELS[i - 1]) if i else ()
        ratios = [results["ratios"][f"{level}/{other}"]["median"] for other in others]
        table.add_row(level, *speeds, *(f"{ratio:.2f}" for ratio in ratios))
    return table


def notes(results: dict[str, Any]) -> Iterator[str]:
    """The lines below the table."""
    made, load, start = results["versions"], results["load"], results["start_s"]
    spent = {name: x["median"] for name, x in results["milliseconds"].items()}
    yield (
        f"{results['task']}, {results['num_envs']} worlds, sim={results['sim']},"
        f" device={results['device']}; medians of {results['repeats']} repetitions of"
        f" {results['steps']:,} steps of {results['substeps']} timesteps"
    )
    parts = ", ".join(f"{part} {spent[part]:.4g}" for part in (*PARTS, "host"))
    yield f"an iteration in ms: {parts}"
    yield (
        f"update {spent['update']:.4g} ms, written plainly {spent['plain']:.4g} ms:"
        f" x {results['update_speedup']['median']:.2f}"
    )
    asked = (f"{n:,} {name.replace('_', ' ')}" for name, n in results["an_iteration"].items())
    used = (f"{name} {n / 2**30:.2f} GiB" for name, n in results["memory"].items())
    yield f"an iteration: {', '.join(asked)}; memory: {', '.join(used)}"
    yield (
        f"building took {start['build']:.1f} s,"
        f" the first iteration {start['first_iteration']:.1f} s"
    )
    yield (
        f"{made['cpu']}, {made['cores']} cores, GPU {made['gpu']};"
        f" load {load['before'][0]:.1f} to {load['after'][0]:.1f}"
    )
    packages = ("python", "torch", "mujoco", "mujoco-warp", "warp-lang")
    yield ", ".join(f"{key} {made[key]}" for key in packages)
    yield f"commit {made['commit']}"


def settle(cfg: dict[str, Any]) -> None:
    """Check what no constructor sees; ValueError names the first wrong value."""
    validate.check_values(cfg)
    ranges.check(cfg, table=ranges.BENCH)
    if cfg["algo"]["name"] != compose.ALGO:
        name = cfg["algo"]["name"]
        raise ValueError(f"algo={name}: the benchmark compares updates of algo={compose.ALGO}")
    symmetry = cfg["algo"]["symmetry"]
    if symmetry == "auto":
        symmetry = cfg["algo"]["symmetry"] = "none"
    if cfg["compare"] is not None:
        cfg["task"]["training"] = "exact"  # as the other one has it
    if symmetry != "none":  # The plain update has none.
        raise ValueError(
            f"algo.symmetry={symmetry}: the benchmark compares updates with algo.symmetry=none"
        )
    if cfg["algo"]["memory"] != "none":
        raise ValueError("algo.memory: the benchmark compares updates with algo.memory=none")
    if cfg["compare"] is not None:
        mjlab.available(cfg["compare"])
    validate.writable("out", cfg["out"])


def main(words: list[str]) -> None:
    """Compose, measure, print and write."""
    if {"-h", "--help"} & set(words):
        print(__doc__)
        return
    console = Console() if sys.stdout.isatty() else Console(width=100)
    with errors.one_line_errors():
        cfg = compose.compose_plain("bench", words)
        settle(cfg)
        keys = [o.key_or_group for o in compose.parse(words)]
        curriculum.check_overrides(cfg, keys)
        cfg |= validate.find_codes(cfg, compose.named(words))
        cfg, _ = recipe.choose_recipe(recipe.open_recipe(cfg, keys))
        cfg = fit_to_robot(cfg, keys)
        start = perf_counter()
        with waiting("building"):
            ppo = make_iteration(cfg)
    results = bench(
        ppo,
        cfg,
        perf_counter() - start,
        lambda line: console.print(line, highlight=False, soft_wrap=True),
    )
    show(results, console)
    if cfg["compare"]:
        with errors.one_line_errors():
            results["mjlab"] = mjlab.mjlab(cfg["num_envs"])
        ours, theirs = results["steps_per_s"]["training"]["median"], results["mjlab"]["steps_per_s"]
        task = results["mjlab"]["task"]
        line = f"mjlab trains {task} at {theirs:,.0f} steps/s, this is {ours / theirs:.2f} times it"
        console.print(line, highlight=False, soft_wrap=True)
    if cfg["out"]:
        write_whole(Path(cfg["out"]), (json.dumps(results, indent=1) + "\n").encode())
        console.print(f"wrote {cfg['out']}", markup=False, highlight=False, soft_wrap=True)
