"""Where the time of training goes: `python -m gpusim_rl.bench task=quadruped out=bench.json`.

Keys are train.py's, and repeats= seconds= warmup= compare= out= (conf/bench.yaml). All levels step the same recorded states the
same number of times, interleaved, `repeats` times, so that a ratio is one of neighbours in time. `bare` is the engine as
it comes: MuJoCo C's `Batch` on all cores or a captured `mujoco_warp.step`, the training model, no sensors copied, nothing
randomised, replaying the recorded controls. The roofline of training is training/bare. `update` is PPO's, `plain` the same
written plainly (gpusim_rl/plain.py).
"""

import json
import math
import os
import platform
import re
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from rich.console import Console
from rich.table import Table

from gpusim_rl import compare, config, curriculum, values
from gpusim_rl.assemble import make_ppo
from gpusim_rl.disk import write_whole
from gpusim_rl.graph import WARM
from gpusim_rl.levels import LEVELS, PARTS, Levels, bare_native, bare_warp, launches, memory, record, timed
from gpusim_rl.ppo import PPO
from gpusim_rl.run import versions
from gpusim_rl.sim.driven import engine
from gpusim_rl.sim.warp import Warp

RATIOS = tuple((level, "bare") for level in LEVELS[1:]) + tuple(zip(LEVELS[2:], LEVELS[1:-1], strict=True))


def spread(values: list[float]) -> dict[str, Any]:
    """Median, extremes and all."""
    return {"median": median(values), "min": min(values), "max": max(values), "all": values}


def processor() -> str:
    """Name of the CPU."""
    info = Path("/proc/cpuinfo")
    names = re.findall("model name.*: (.*)", info.read_text()) if info.exists() else []
    return names[0] if names else platform.machine()


def bench(ppo: PPO, cfg: dict[str, Any], built: float, say: Callable[[str], None]) -> dict[str, Any]:
    """Measure every level cfg["repeats"] times; all that `out` holds. `built`: seconds that making ppo took."""
    env, load = ppo.env, os.getloadavg()
    first = timed(env.device, ppo.iteration)[0]
    times = [timed(env.device, ppo.iteration)[0] for _ in range(cfg["warmup"])]
    tape = record(ppo, math.ceil(cfg["seconds"] / min(times)))
    sim = engine(env.sim)  # bare, the engine's own servos follow the targets
    bare = bare_warp(env.task, sim) if isinstance(sim, Warp) else bare_native(env.task, env.num_envs)
    steps, levels = tape.actions[..., 0].numel(), Levels(ppo, bare)
    rounds: list[dict[str, float]] = []
    for i in range(cfg["repeats"] + 1):
        seconds = levels.measure(tape)
        rounds += [seconds] if i else []  # the first is a warm-up
        speeds = "  ".join(f"{level} {steps / seconds[level]:,.0f}" for level in LEVELS)
        say(f"{f'repetition {i}' if i else 'warm-up'}: {speeds} steps/s")
    rates = {level: [steps / seconds[level] for seconds in rounds] for level in LEVELS}
    iterations = len(tape.starts)
    parts = {
        name: [1e3 * seconds.get(name, 0.0) / iterations for seconds in rounds] for name in (*PARTS, "host", "update", "plain")
    }
    ratios = {f"{a}/{b}": [x / y for x, y in zip(rates[a], rates[b], strict=True)] for a, b in RATIOS}
    return {
        "command": " ".join(["python -m gpusim_rl.bench", *sys.argv[1:]]),
        "task": cfg["task"]["name"],
        "sim": type(engine(env.sim)).__name__.lower(),
        "device": str(env.device),
        **{key: cfg[key] for key in ("num_envs", "num_steps", "repeats", "warmup")},
        "substeps": env.task.substeps,
        "steps": steps,
        "steps_per_s": {level: spread(x) for level, x in rates.items()},
        "physics_steps_per_s": {level: spread([env.task.substeps * v for v in x]) for level, x in rates.items()},
        "ratios": {name: spread(x) for name, x in ratios.items()},
        "milliseconds": {name: spread(x) for name, x in parts.items()},
        "update_speedup": spread([x / y for x, y in zip(parts["plain"], parts["update"], strict=True)]),
        "an_iteration": launches(ppo),
        "start_s": {"build": built, "first_iteration": first, "next": times[:WARM]},
        "memory": memory(env.device),
        "versions": versions() | {"cpu": processor(), "cores": os.cpu_count()},
        "load": {"before": load, "after": os.getloadavg()},
    }


def show(found: dict[str, Any], console: Console) -> None:
    """The table and what it was measured on."""
    table = Table(
        "", "steps/s", "lowest", "highest", "physics steps/s", "of bare", "of the one above", box=None, pad_edge=False
    )
    for column in table.columns[1:]:
        column.justify = "right"
    for i, level in enumerate(LEVELS):
        rate, physics = found["steps_per_s"][level], found["physics_steps_per_s"][level]["median"]
        above = [found["ratios"][f"{level}/{other}"]["median"] for other in ("bare", LEVELS[i - 1])] if i else []
        speeds = [f"{value:,.0f}" for value in (rate["median"], rate["min"], rate["max"], physics)]
        table.add_row(level, *speeds, *(f"{ratio:.2f}" for ratio in above))
    made, load = found["versions"], found["load"]
    spent = {name: found["milliseconds"][name]["median"] for name in found["milliseconds"]}
    asked = ", ".join(f"{n:,} {name.replace('_', ' ')}" for name, n in found["an_iteration"].items())
    used = ", ".join(f"{name} {n / 2**30:.2f} GiB" for name, n in found["memory"].items())
    console.print(table)
    for line in (
        f"{found['task']}, {found['num_envs']} worlds, sim={found['sim']}, device={found['device']}; medians of "
        f"{found['repeats']} repetitions of {found['steps']:,} steps of {found['substeps']} timesteps",
        "an iteration in ms: " + ", ".join(f"{part} {spent[part]:.4g}" for part in (*PARTS, "host")),
        f"update {spent['update']:.4g} ms, written plainly {spent['plain']:.4g} ms: x {found['update_speedup']['median']:.2f}",
        f"an iteration: {asked}; memory: {used}",
        f"building took {found['start_s']['build']:.1f} s, the first iteration {found['start_s']['first_iteration']:.1f} s",
        f"{made['cpu']}, {made['cores']} cores, GPU {made['gpu']}; load {load['before'][0]:.1f} to {load['after'][0]:.1f}",
        ", ".join(f"{key} {made[key]}" for key in ("python", "torch", "mujoco", "mujoco-warp", "warp-lang")),
        f"commit {made['commit']}",
    ):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def settle(cfg: dict[str, Any]) -> None:
    """Check what no constructor sees; ValueError names the first wrong value."""
    values.settle(cfg)
    values.positive(cfg, "repeats", "warmup")
    if cfg["algo"]["symmetry"] != "none":  # the plain update knows none
        raise ValueError(f"algo.symmetry={cfg['algo']['symmetry']}: the benchmark compares updates with algo.symmetry=none")
    if not 0 < cfg["seconds"] <= 3600:
        raise ValueError(f"seconds={cfg['seconds']}: expected a number above 0, of at most 3600")
    if cfg["compare"] is not None:
        compare.available(cfg["compare"])
    values.writable("out", cfg["out"])


def main(words: list[str]) -> None:
    """Compose, measure, print and write."""
    if {"-h", "--help"} & set(words):
        print(__doc__)
        return
    console = Console() if sys.stdout.isatty() else Console(width=100)
    with config.one_line():
        cfg = config.compose_plain("bench", words)
        settle(cfg)
        curriculum.clash(cfg, [o.key_or_group for o in config.parse(words)])
        start = perf_counter()
        ppo = make_ppo(cfg)
    found = bench(ppo, cfg, perf_counter() - start, lambda line: console.print(line, highlight=False, soft_wrap=True))
    show(found, console)
    if cfg["compare"]:
        with config.one_line():
            found["mjlab"] = compare.mjlab(cfg["num_envs"])
        ours, theirs = found["steps_per_s"]["training"]["median"], found["mjlab"]["steps_per_s"]
        theirs = f"mjlab trains {found['mjlab']['task']} at {theirs:,.0f} steps/s, this is {ours / theirs:.2f} times it"
        console.print(theirs, highlight=False, soft_wrap=True)
    if cfg["out"]:
        write_whole(Path(cfg["out"]), (json.dumps(found, indent=1) + "\n").encode())
        console.print(f"wrote {cfg['out']}", highlight=False, soft_wrap=True)


if __name__ == "__main__":
    main(sys.argv[1:])
