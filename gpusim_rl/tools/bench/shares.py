"""What bounds the speed of a training: `python -m gpusim_rl.bench profile task=quadruped`.

Trains for some seconds. Prints which share of the time physics, the rest of the environment, the
policy and the update take, and how many cores are busy in each. The last line says what bounds the
speed: simulation, learning, the host or memory. The keys are those of train.py, and those of
conf/bench_profile.yaml.

On CUDA, graphs hold the first part of the environment together with the policy: it counts as
policy.
"""

import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from gpusim_rl.algorithms.iteration import SHARES, Iteration
from gpusim_rl.build import make_iteration
from gpusim_rl.config import compose, recipe, validate
from gpusim_rl.config.robot_size import fit_to_robot
from gpusim_rl.core import errors, ranges
from gpusim_rl.core.files import write_whole
from gpusim_rl.core.graphs import Spent
from gpusim_rl.core.provenance import cores_available, processor, versions
from gpusim_rl.envs import curriculum
from gpusim_rl.tools.bench.levels import timed
from gpusim_rl.training.bottleneck import pages_read, verdict

NAME = "bench_profile"  # of its file in conf/
OTHERS = ("resume", "auto_resume", "run_dir", "plan", "stop_at")  # keys that mean nothing here


def settle(cfg: dict[str, Any], words: list[str]) -> dict[str, Any]:
    """The configuration, with what composition does not see; ValueError names a wrong value."""
    validate.check_values(cfg)
    keys = [o.key_or_group for o in compose.parse(words)]
    for key in set(keys) & set(OTHERS):
        raise ValueError(f"{key}=: `bench profile` does not take it: it measures a new training")
    ranges.check(cfg, table=ranges.BENCH)
    validate.writable("out", cfg["out"])
    curriculum.check_overrides(cfg, keys)
    cfg |= validate.find_codes(cfg, compose.named(words))
    return fit_to_robot(recipe.choose_recipe(recipe.open_recipe(cfg, keys))[0], keys)


def measure(ppo: Iteration, seconds: float, progress: Progress | None = None) -> dict[str, Any]:
    """Train for some seconds, one iteration at least. Returns shares, cores and the verdict."""
    device = ppo.env.device
    ppo.timer.take()
    iterations, total, host, pages = 0, 0.0, 0.0, pages_read()
    bar = progress.add_task("training", total=seconds) if progress else None
    while not iterations or total < seconds:
        whole, launched = timed(device, ppo.iteration)
        iterations, total, host = iterations + 1, total + whole, host + launched
        if progress and bar is not None:
            progress.update(bar, completed=total)
    parts = grouped(ppo.timer.take()(), total)
    shares = {name: part.wall / total for name, part in parts.items()}
    cuda = device.type == "cuda"
    cores = None if cuda else sum(part.processor for part in parts.values()) / total
    bound = verdict(
        shares,
        cores=cores,
        pages=(pages_read() - pages) / total,
        full=memory_in_use(device) if cuda else 0.0,
        launching=host / total if cuda else None,
    )
    rollout = sum(shares[name] for name in ("physics", "environment", "policy"))
    return {
        "iterations": iterations,
        "seconds": total,
        "steps_per_s": iterations * ppo.size / total,
        "shares": shares,
        "milliseconds": {name: 1e3 * part.wall / iterations for name, part in parts.items()},
        "cores": {
            name: part.processor / part.wall
            for name, part in parts.items()
            if part.wall and not cuda
        },
        "cores_busy": cores,
        "cores_available": cores_available(),
        "environment_of_rollout": shares["environment"] / rollout if rollout else None,
        "bound_by": bound.bound,
        "verdict": bound.line,
    }


def grouped(parts: dict[str, Spent], total: float) -> dict[str, Spent]:
    """The time of each group of parts, as the log has it, and of what is in none: `other`."""
    groups = {
        name: [parts.get(part, Spent()) for part in members] for name, members in SHARES.items()
    }
    sums = {
        name: Spent(sum(x.wall for x in members), sum(x.processor for x in members))
        for name, members in groups.items()
    }
    rest = total - sum(x.wall for x in sums.values())
    return sums | {"other": Spent(max(rest, 0.0), 0.0)}


def memory_in_use(device: torch.device) -> float:
    """Share of a GPU's memory that is in use."""
    free, total = torch.cuda.mem_get_info(device)
    return 1 - free / total


def table(results: dict[str, Any]) -> Table:
    """A row for each share, and one for all."""
    shown = Table("", "share", "ms an iteration", "cores busy", box=None, pad_edge=False)
    for column in shown.columns[1:]:
        column.justify = "right"
    for name, share in results["shares"].items():
        cores = results["cores"].get(name)
        busy = "" if cores is None or name == "other" else f"{cores:.1f}"
        shown.add_row(name, f"{share:.1%}", f"{results['milliseconds'][name]:.1f}", busy)
    busy = results["cores_busy"]
    everything = "" if busy is None else f"{busy:.1f} of {results['cores_available']}"
    whole = 1e3 * results["seconds"] / results["iterations"]
    shown.add_row("all", "100%", f"{whole:.1f}", everything)
    return shown


def main(words: list[str]) -> None:
    """Compose, measure, print and write. `words` are those behind `profile`."""
    if {"-h", "--help"} & set(words):
        print(__doc__)
        return
    console = Console() if sys.stdout.isatty() else Console(width=100)
    with errors.one_line_errors():
        cfg = settle(compose.compose_plain(NAME, words), words)
        ppo = make_iteration(cfg)
    for _ in range(cfg["warmup"]):
        timed(ppo.env.device, ppo.iteration)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        results = measure(ppo, cfg["seconds"], progress)
    command = shlex.join(["python", "-m", "gpusim_rl.bench", *sys.argv[1:]])
    made = versions() | {"cpu": processor(), "load": os.getloadavg()}
    sizes = {key: cfg[key] for key in ("num_envs", "num_steps")}
    results = {"command": command, "task": cfg["task"]["name"], **sizes, **results, "on": made}
    console.print(table(results))
    lines = [
        f"{results['task']}, {cfg['num_envs']} worlds × {cfg['num_steps']} steps:"
        f" {results['steps_per_s']:,.0f} steps/s in {results['iterations']} iterations",
        results["verdict"],
    ]
    if cfg["out"]:
        write_whole(Path(cfg["out"]), (json.dumps(results, indent=1) + "\n").encode())
        lines.append(f"wrote {cfg['out']}")
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)
