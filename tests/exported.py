"""Exported policies for the tests: a moving actor, what its Env did with it, and the file."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor

from gpusim_rl.deploy.controller import Controller
from gpusim_rl.deploy.export import export
from gpusim_rl.deploy.record import Trace, percentiles, record
from gpusim_rl.envs.env import Env
from gpusim_rl.envs.observation import Observation
from gpusim_rl.envs.task import Task
from gpusim_rl.evaluation.evaluate import evaluation_env
from gpusim_rl.networks.policy import Actor
from tests import onnx_operators
from tests.worlds import make_policy, make_task, numbers, widths

WORLDS, STEPS = 32, 40  # that a file is compared on
onnx_operators.list_once()


class Exported(NamedTuple):
    """A file and what it was made from."""

    path: Path
    controller: Controller
    recorded: Trace
    error: float  # that export reports

    @property
    def task(self) -> Task:
        return self.controller.task

    @property
    def actor(self) -> Any:
        return self.controller.actor


def make_actor(env: Env, push: float = 20.0) -> Actor:
    """An untrained actor whose last layer is `push` times larger, so that actions matter."""
    actor = make_policy(*widths(env), hidden=(128, 128), seed=3).actor
    last: Any = actor.net[-1]
    with torch.no_grad():
        last.weight *= push
        last.bias += torch.linspace(-0.2, 0.2, len(last.bias))
    return actor


@torch.no_grad()
def record_observations(env: Env, actor: Actor, steps: int) -> Tensor:
    """(steps · B, no) observations of a rollout, which the normalizer takes in."""
    seen = []
    for _ in range(steps):
        seen.append(env.observation["actor"].clone())
        actor.normalizer.update(
            env.observation["actor"], torch.ones(env.num_envs, dtype=torch.bool)
        )
        env.step(actor(env.observation["actor"]))
    return torch.cat(seen)


def fresh_env(task: Task, name: str, worlds: int = WORLDS) -> Env:
    """Worlds as an evaluation has them, with the noise of tasks/<name>.py, at its start."""
    yaml = numbers(name)
    return evaluation_env(task, worlds, weights=yaml["weights"], noise=yaml["noise"], seed=5)


def export_task(
    name: str,
    path: Path,
    *,
    task: Task | None = None,
    steps: int = STEPS,
    actor: Any = None,
    rest: dict[str, Any] | None = None,
    **settings: Any,
) -> Exported:
    """Export an actor of tasks/<name>.py; `settings` change the task's numbers.

    rest: what `standing` says of the robot.
    """
    task = task or make_task(name, **settings)
    if actor is None:
        env = fresh_env(task, name)
        actor = make_actor(env)
        record_observations(env, actor, 10)
    env = fresh_env(task, name)
    controller = Controller(env.task, actor)
    return export_env(
        env, controller, path, lambda views, _: actor(views["actor"]), name, steps, rest
    )


def export_env(
    env: Env,
    controller: Controller,
    path: Path,
    act: Callable[[Observation, Tensor], Tensor],
    name: str,
    steps: int,
    rest: dict[str, Any] | None = None,
) -> Exported:
    """Export the controller of a fresh Env, in which `act` acts as `record` has it."""
    recorded = record(env, act, controller, steps)
    ranges = percentiles(recorded.readings)
    about: Any = dict(name=name, recorded=recorded, ranges=ranges, lineage={}, rest=rest)
    return Exported(path, controller, recorded, export(controller, path, **about))


def notes_of(model: onnx.ModelProto) -> dict[str, str]:
    """The metadata of a model."""
    return {x.key: x.value for x in model.metadata_props}


def use_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an export compare the controller and not its file, which takes ten times as long."""

    @torch.no_grad()
    def run(controller: Controller, _: Any, feed: dict[str, np.ndarray]) -> list[np.ndarray]:
        return [x.numpy() for x in controller(*map(torch.as_tensor, feed.values()))]

    def session(controller: Controller) -> Any:
        return SimpleNamespace(run=partial(run, controller))

    module = "gpusim_rl.deploy.export"
    for name in ("to_onnx", "finished"):
        monkeypatch.setattr(f"{module}.{name}", lambda controller, *_: controller)
    monkeypatch.setattr(f"{module}.session", session)
    monkeypatch.setattr(f"{module}.write_whole", lambda *_: None)
