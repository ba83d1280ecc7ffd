"""What zero actions and random actions score on each task, judged as a policy is.

    python -m benchmarks.chance [TASK …] [episodes=512] [out=chance.json]

Random actions are uniform within ± `task.clip`, drawn anew in each control step. An evaluation of a
few hundred episodes takes some seconds to a minute a task.
"""

import sys

import torch
from torch import Tensor

from benchmarks import program
from gpusim_rl.assembly.environment import make_task
from gpusim_rl.evaluation.evaluate import evaluate
from tests.worlds import TASKS, Stateless, make_config

SEED = 0  # of the random actions


def chance(name: str, episodes: int) -> dict[str, dict[str, float | None]]:
    """The scores of zero actions and of random actions on a task."""
    cfg = make_config(f"task={name}")
    task, generator = make_task(cfg, "cpu"), torch.Generator().manual_seed(SEED)

    def random(obs: Tensor) -> Tensor:
        unit = torch.rand(len(obs), task.mjm.nu, generator=generator)
        return task.clip * (2 * unit - 1)

    def zero(obs: Tensor) -> Tensor:
        return torch.zeros(len(obs), task.mjm.nu)

    numbers = {"weights": cfg.task.weights, "noise": cfg.task.noise}
    actions = {"zero": zero, "random": random}
    return {
        how: evaluate(Stateless(act), task, episodes=episodes, **numbers)  # pyright: ignore
        for how, act in actions.items()
    }


def main(words: list[str]) -> None:
    """Print a table, and write all scores to out=."""
    own, names = program.split_words(__doc__, words, episodes=512, out=None)
    rows = {}
    for name in program.choose(names, TASKS):
        rows[name] = chance(name, own.episodes)
        scores = [
            f"{kind}: success {x['success']:.3f} return {x['return']:.4g}"
            for kind, x in rows[name].items()
        ]
        print(f"{name}: {'; '.join(scores)}", flush=True)
    if own.out:
        program.write_json(own.out, rows)


if __name__ == "__main__":
    main(sys.argv[1:])
