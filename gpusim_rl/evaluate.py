"""Evaluation: the numbers that say whether a policy is good, always from MuJoCo C with a converged solver."""

import sys
from collections.abc import Callable

import torch
from rich.progress import track
from torch import Tensor

from gpusim_rl.env import Env
from gpusim_rl.sim import make
from gpusim_rl.task import Task

SEED = 0x5EED_0000  # final evaluations; training seeds are below it, and `stop_at` uses STOP_SEED
STOP_SEED = 0x5EED_0001
EPISODES = 512


@torch.no_grad()
def evaluate(
    act: Callable[[Tensor], Tensor],
    task: Task,
    *,
    weights: dict[str, float],
    noise: dict[str, float],
    episodes: int = EPISODES,
    seed: int = SEED,
    progress: bool = False,
) -> dict[str, float]:
    """Run `episodes` worlds for one episode's length with the mean action and score them.

    Args:
        act: obs (B, no) → action (B, nu), on the CPU.
        task: as trained; its `evaluation()` is what runs.

    Returns `success`, `return`, `episodes` and the task's own measures. A world that fails is restarted and goes on, its
    episode counted once; `return` is the mean sum of rewards of the first episodes of the worlds.
    """
    task = task.evaluation()
    sim = make("native", task.mjm, episodes, device="cpu", fields=task.fields)
    env = Env(task, sim, seed=seed, weights=weights, noise=noise, stagger=False)
    record: dict[str, list[Tensor]] = {}
    first, total = torch.ones(episodes), torch.zeros(episodes)

    def note(values: dict[str, Tensor]) -> None:
        for name, value in values.items():
            record.setdefault(name, []).append(value)

    steps = track(range(task.horizon), "evaluating", disable=not (progress and sys.stdout.isatty()), transient=True)
    for _ in steps:
        step = env.step(act(env.views.obs), watch=lambda s: note(task.measure(s)))
        total += first * step.reward
        failed = step.terminated | step.fault
        first *= (~failed).float()
        note({"terminated": failed})
    scores = task.score({name: torch.stack(values) for name, values in record.items()})
    return {**scores, "return": total.mean().item(), "episodes": episodes}
