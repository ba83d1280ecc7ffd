"""What zero actions and random actions score on each task, judged as a policy is.

    python -m tests.acceptance.chance [TASK …] [episodes=512] [out=chance.json]

Random actions are uniform within ± `task.clip`, drawn anew in each control step. An evaluation of a
few hundred episodes takes some seconds to a minute a task.
"""

import json
import sys
from pathlib import Path

import torch
from torch import Tensor

from gpusim_rl.build.environment import make_task
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
    if {"-h", "--help"} & {*words}:
        print(__doc__)
        raise SystemExit
    keys = dict(word.split("=", 1) for word in words if "=" in word)
    names = [word for word in words if "=" not in word] or TASKS
    if unknown := sorted({*names} - {*TASKS}):
        raise SystemExit(f"error: unknown task {unknown[0]!r}: choose one of {', '.join(TASKS)}")
    rows = {}
    for name in names:
        rows[name] = chance(name, int(keys.get("episodes", 512)))
        said = [
            f"{how}: success {x['success']:.3f} return {x['return']:.4g}"
            for how, x in rows[name].items()
        ]
        print(f"{name}: {'; '.join(said)}", flush=True)
    if "out" in keys:
        Path(keys["out"]).write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
