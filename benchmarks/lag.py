"""How many control steps PPO needs if the policy that acts is K updates old.

    python -m benchmarks.lag [KEY=VALUE …] [lags=[0,1,2,4,8]] [seeds=5]
        [corrections=[none,proximal,vtrace]] [limit=409600] [out=lags.jsonl]

One process collects with the weights of exactly K updates ago, and learns from that. A run goes on
to the limit. `steps` is when it first had a success of 0.95. `success_after` is the mean success of
its evaluations from then on. KEY=VALUE are words of train.py;
task=cartpole unless given. Runs that `out` holds are not repeated. Prints a line for each run, and
a table.
"""

import json
import sys
import time
from collections import deque
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from benchmarks import program
from gpusim_rl.algorithms.iteration import Iteration
from gpusim_rl.assembly.iteration import make_iteration
from gpusim_rl.core.states import Live, copy_state, load_state
from gpusim_rl.training.trainer import success
from tests.worlds import make_config

WORDS = ("task=cartpole", "sim=native", "sim.threads=1", "threads=1", "device=cpu", "log=none")
GOAL, EVERY = 0.95, 10  # success, and iterations between its evaluations


def weights(training: Iteration) -> dict[str, Live]:
    """The live tensors of the policy, by name."""
    tensors = training.learner.tensors().items()
    return {name: x for name, x in tensors if name.startswith("policy/")}


def collect_with(training: Iteration, old: dict[str, Tensor]) -> None:
    """Collect with old weights of the policy, and put the present ones back. In place."""
    live = weights(training)
    now = copy_state(live)
    load_state(live, old)
    training.collect()
    load_state(live, now)


def run(words: tuple[str, ...], lag: int, seed: int, correction: str, limit: int) -> dict[str, Any]:
    """Train once. `steps` to the goal are None if it is not reached."""
    cfg = make_config(*words, f"seed={seed}", f"algo.correction={correction}")
    training, old = make_iteration(cfg), deque(maxlen=lag + 1)
    begun, steps, first, best = time.process_time(), 0, None, 0.0
    distances: list[float] = []
    after: list[float] = []
    while steps < limit:
        old.append(copy_state(weights(training)))
        collect_with(training, old[0])
        training.update()
        training.iterations += 1
        steps += training.size
        record: Any = training.source.record
        distances.append(distance(training.policy, record))
        if training.iterations % EVERY == 0:
            share = success(cfg, training)
            best = max(best, share)
            if first is None and share >= GOAL:
                first = steps
            if first is not None:
                after.append(share)
    return {
        "lag": lag,
        "seed": seed,
        "correction": correction,
        "steps": first,
        "best": best,
        "success_after": sum(after) / len(after) if after else None,
        "distance": sum(distances[-20:]) / len(distances[-20:]),
        "cpu_s": time.process_time() - begun,
    }


@torch.no_grad()
def distance(policy: Any, record: Any) -> float:
    """Mean |log π/μ| of the updated policy to the one that acted."""
    obs, _ = policy.normalize(record.obs, record.critic)
    now = policy.distributions(obs, {}).log_prob(record.action)
    return (now - record.logp).abs().mean().item()


def table(rows: list[dict[str, Any]]) -> str:
    """For each lag and correction: the median of steps, how many seeds reached the goal, and the
    steps and the success from then on of each."""
    lines = []
    for key in sorted({(x["correction"], x["lag"]) for x in rows}):
        of = [x for x in rows if (x["correction"], x["lag"]) == key]
        steps = [x["steps"] or float("inf") for x in of]
        each = ", ".join(
            f"{x['steps']:,} and {x['success_after']:.2f}" if x["steps"] else f"({x['best']:.2f})"
            for x in of
        )
        reached = sum(x["steps"] is not None for x in of)
        lines.append(
            f"{key[0]}, lag {key[1]}: {reached} of {len(of)}, median "
            f"{median(steps):,.0f}, distance {median(x['distance'] for x in of):.2f}: {each}"
        )
    return "\n".join(lines)


def main(words: list[str]) -> None:
    """Train each case, and print the table."""
    keys = dict(lags=[0, 1, 2, 4, 8], corrections=["none", "proximal", "vtrace"])
    own, more = program.split_words(
        __doc__, words, **keys, seeds=5, limit=409_600, out="lags.jsonl"
    )
    out = Path(own.out)
    rows = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    done = {(x["lag"], x["correction"], x["seed"]) for x in rows}
    for case in product(own.lags, own.corrections, range(1, own.seeds + 1)):
        if case not in done:
            lag, correction, seed = case
            rows.append(row := run((*WORDS, *more), lag, seed, correction, own.limit))
            print(json.dumps(row), flush=True)
            with out.open("a") as file:
                file.write(json.dumps(row) + "\n")
    print(table(rows))


if __name__ == "__main__":
    main(sys.argv[1:])
