"""Exported policies for the tests: an actor that is not at rest, real observations of its task, and
the file."""

from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gpusim_rl.deploy.export import export
from gpusim_rl.envs.env import Env
from gpusim_rl.envs.task import Task
from gpusim_rl.networks.actor_critic import Actor
from tests.worlds import (
    make_env,
    make_policy,
    numbers,
)


class Exported(NamedTuple):
    """A file and what it was made from."""

    path: Path
    actor: Actor
    task: Task
    observations: Tensor  # (N, no)
    error: float  # that export reports
    settings: dict[str, Any]  # of the task, beside its YAML
    widths: dict[str, int]  # of its observation terms


def make_actor(env: Env, push: float = 20.0) -> Actor:
    """An untrained actor whose last layer is `push` times larger than at the start of training, so
    that its actions matter."""
    actor = make_policy(*env.dims, hidden=(128, 128), seed=3).actor
    with torch.no_grad():
        actor.net[-1].weight *= push  # pyright: ignore
        actor.net[-1].bias += torch.linspace(-0.2, 0.2, env.dims[2])  # pyright: ignore
    return actor


@torch.no_grad()
def record(env: Env, actor: Actor, steps: int) -> Tensor:
    """(steps · B, no) observations along a rollout; the actor's normalizer takes them in on the
    way."""
    seen = []
    for _ in range(steps):
        seen.append(env.observation.actor.clone())
        actor.normalizer.update(env.observation.actor, torch.ones(env.num_envs, dtype=torch.bool))
        env.step(actor(env.observation.actor))
    return torch.cat(seen)


def export_task(name: str, path: Path, **settings: Any) -> Exported:
    """Export an actor of tasks/<name>.py; `settings` change the task's numbers."""
    env = make_env(name, 64, **settings)
    actor = make_actor(env)
    observations = record(env, actor, 20)
    about = {"name": name, "noise": numbers(name)["noise"], "widths": env.term_widths}
    error = export(actor, env.task, path, **about, observations=observations)
    return Exported(path, actor, env.task, observations, error, settings, env.term_widths)
