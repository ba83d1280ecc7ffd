"""Evaluation: the numbers that say whether a policy is good, always from MuJoCo C with a converged solver."""

import sys
from collections.abc import Callable

import torch
from rich.progress import track
from torch import Tensor

from gpusim_rl.env import Env
from gpusim_rl.ppo import torch_threads
from gpusim_rl.sim.driven import drive
from gpusim_rl.task import Task

SEED = 0x5EED_0000  # final evaluations; training seeds are below it, and `stop_at` uses STOP_SEED
STOP_SEED = 0x5EED_0001
EPISODES = 512


@torch.no_grad()
@torch_threads(1)
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
    env = evaluation_env(task, episodes, weights=weights, noise=noise, seed=seed)
    task = env.task
    record: dict[str, list[Tensor]] = {}
    first, total = torch.ones(episodes), torch.zeros(episodes)

    def note(values: dict[str, Tensor]) -> None:
        for name, value in values.items():
            value = torch.nan_to_num(value.float(), posinf=0.0, neginf=0.0)  # a quarantined world counts as failed
            record.setdefault(name, []).append(value.clamp(-1e6, 1e6))

    steps = track(range(task.horizon), "evaluating", disable=not (progress and sys.stdout.isatty()), transient=True)
    for _ in steps:
        step = env.step(act(env.views.obs), watch=lambda s: note(task.measure(s)))
        total += first * step.reward
        failed = step.terminated | step.fault
        first *= (~failed).float()
        note({"terminated": failed})
    scores = task.score({name: torch.stack(values) for name, values in record.items()})
    # outside the iteration: an evaluation is on the host, in MuJoCo C
    return {**scores, "return": total.mean().item(), "episodes": episodes}


@torch.no_grad()
@torch_threads(1)
def observe(act: Callable[[Tensor], Tensor], task: Task, *, weights: dict[str, float], noise: dict[str, float]) -> Tensor:
    """(2048, no) observations of the task as it is evaluated, from 64 worlds under the mean action: to check an export on."""
    env = evaluation_env(task, 64, weights=weights, noise=noise, seed=STOP_SEED)
    seen = []
    for _ in range(32):
        seen.append(env.views.obs.clone())
        env.step(act(env.views.obs))
    return torch.cat(seen)


def evaluation_env(task: Task, num_envs: int, *, weights: dict[str, float], noise: dict[str, float], seed: int) -> Env:
    """The task as it is evaluated, in MuJoCo C."""
    task = task.evaluation()
    actuator, substeps = task.actuator, task.substeps
    sim = drive("native", task.mjm, num_envs, actuator=actuator, substeps=substeps, device="cpu", fields=task.fields)
    return Env(task, sim, seed=seed, weights=weights, noise=noise, stagger=False)
