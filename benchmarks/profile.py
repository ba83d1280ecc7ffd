"""Which part of a training bounds its speed.

    python -m benchmarks.profile task=quadruped

Trains for some seconds. Prints which share of the time physics, the rest of the environment, the
policy and the update take, and how many cores are busy in each. The last line says what bounds the
speed: simulation, learning, the host or memory. The keys are those of train.py, and these:

    seconds=10.0  length [s] of the training that is measured
    warmup=5      iterations before it
    out=null      JSON file for the results

On CUDA, graphs hold the first part of the environment together with the policy: it counts as
policy.
"""

import os
import sys
from typing import Any

import torch
from rich.table import Table

from benchmarks import program
from benchmarks.levels import group_parts, make_training, measure_seconds
from gpusim_rl.algorithms.iteration import Iteration
from gpusim_rl.core.provenance import cores_available, processor, versions
from gpusim_rl.core.waiting import waiting
from gpusim_rl.training.bottleneck import pages_read, verdict


def measure(training: Iteration, seconds: float) -> dict[str, Any]:
    """Train for some seconds, one iteration at least. Returns shares, cores and the verdict."""
    device = training.env.device
    training.timer.read()
    iterations, total, host, pages = 0, 0.0, 0.0, pages_read()
    while not iterations or total < seconds:
        whole, launch_s = measure_seconds(device, training.iteration)
        iterations, total, host = iterations + 1, total + whole, host + launch_s
    parts = group_parts(training.timer.read()(), total)
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
        "steps_per_s": iterations * training.size / total,
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


def memory_in_use(device: torch.device) -> float:
    """Share of a GPU's memory that is in use."""
    free, total = torch.cuda.mem_get_info(device)
    return 1 - free / total


def share_table(results: dict[str, Any]) -> Table:
    """A row for each share, and one for all."""
    table = program.table_of_numbers("", "share", "ms an iteration", "cores busy")
    for name, share in results["shares"].items():
        cores = results["cores"].get(name)
        busy = "" if cores is None or name == "other" else f"{cores:.1f}"
        table.add_row(name, f"{share:.1%}", f"{results['milliseconds'][name]:.1f}", busy)
    busy = results["cores_busy"]
    all_busy = "" if busy is None else f"{busy:.1f} of {results['cores_available']}"
    whole = 1e3 * results["seconds"] / results["iterations"]
    table.add_row("all", "100%", f"{whole:.1f}", all_busy)
    return table


def main(words: list[str]) -> None:
    """Compose, measure, print and write."""
    own, words = program.split_words(__doc__, words, seconds=10.0, warmup=5, out=None)
    console = program.make_console()
    training, cfg = make_training(words, mirrored=True)
    for _ in range(own.warmup):
        training.iteration()
    with waiting("training"):
        numbers = measure(training, own.seconds)
    results = {
        "command": program.command_line("profile"),
        "task": cfg["task"]["name"],
        **{key: cfg[key] for key in ("num_envs", "num_steps")},
        **numbers,
        "on": versions() | {"cpu": processor(), "load": os.getloadavg()},
    }
    console.print(share_table(results))
    speed = (
        f"{results['task']}, {cfg['num_envs']} worlds × {cfg['num_steps']} steps:"
        f" {results['steps_per_s']:,.0f} steps/s in {results['iterations']} iterations"
    )
    program.finish(console, results, [speed, results["verdict"]], own.out)


if __name__ == "__main__":
    main(sys.argv[1:])
