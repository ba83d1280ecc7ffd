"""Readings and targets of an Env, recorded to check an exported file on."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gpusim_rl.core.streams import torch_threads
from gpusim_rl.deploy.controller import COMMAND, Controller
from gpusim_rl.envs.agents import unfolded
from gpusim_rl.envs.env import Env
from gpusim_rl.envs.observation import Observation
from gpusim_rl.envs.step import ended

MOMENTS = 100  # of an episode whose readings make the ranges
ENDS = (0, 0.5, 99.5, 100)  # percentiles: of all numbers, and without the rarest
Array = np.ndarray
# input → (least, low, high, greatest), each a list of its columns
Ranges = dict[str, tuple[list[float], list[float], list[float], list[float]]]


class Trace(NamedTuple):
    """Readings, memory and targets of B worlds in T control steps."""

    readings: dict[str, Array]  # (T, B, …) the readings, the command and the further views
    restart: Array  # (T, B) bool: an episode begins
    memory: dict[str, Array]  # (T, B, …) the task's memory, which an episode begins with
    targets: Array  # (T, B, nu)
    after: dict[str, Array]  # (T, B, …) what the Env remembers when the targets are set


@torch.no_grad()
@torch_threads(1)
def record(
    env: Env, act: Callable[[Observation, Tensor], Tensor], controller: Controller, steps: int
) -> Trace:
    """T steps of a fresh Env: the inputs and the targets of its controller.

    act: the observation, and (rows,) bool where an episode begins → action (rows, nu).
    """
    restart = torch.ones(env.num_rows, dtype=torch.bool, device=env.device)
    rows: list[tuple[dict[str, Array], Array, dict[str, Array], Array, dict[str, Array]]] = []
    for _ in range(steps):
        values = seen_by(env)
        readings = {name: values[name].numpy().copy() for name in controller.readings}
        memory = {n: x.numpy().copy() for n, x in env.memory.items() if n in controller.start}
        env.apply_action(act(env.observation, restart))
        ctrl = env.sim.ctrl.float()
        if "encoder" in env.memory:  # Env has moved the targets by the encoders' offsets
            ctrl = env.task.randomization.servo(ctrl, -env.memory["encoder"])
        now = {"action": env.action, "previous": env.previous, "time": env.time}
        after = memory | {n: x.numpy().copy() for n, x in now.items() if n in controller.start}
        began = restart[:: env.agents].numpy()
        rows.append((readings, began, memory, ctrl.numpy().copy(), after))
        env.step_physics()
        restart = ended(env.finish_step())
    return Trace(*(stacked(column) for column in zip(*rows, strict=True)))


def seen_by(env: Env) -> dict[str, Tensor]:
    """(B, …) the memory and the readings of worlds, and the further views of their task."""
    further = {name: unfolded(x, env.agents) for name, x in env.observer.further.items()}
    return env.memory | env.readings | further


def stacked(rows: Sequence[Any]) -> Any:
    """The arrays of some rows as one array; of dictionaries, those of each name."""
    if not rows or isinstance(rows[0], dict):
        return {name: np.stack([row[name] for row in rows]) for name in (rows[0] if rows else ())}
    return np.stack(rows)


def percentiles(readings: dict[str, Array]) -> Ranges:
    """The percentiles 0, 0.5, 99.5 and 100 of each column of each input (T, B, width)."""
    ranges = {}
    for name, x in readings.items():
        if x.ndim > 3:  # a picture
            continue
        finite = x[np.isfinite(x).all(-1)]  # the others are of a world that failed
        ends = np.percentile(finite if len(finite) else np.zeros((1, x.shape[-1])), ENDS, axis=0)
        ranges[name] = tuple(ends.tolist())
    return ranges


def greatest_changes(recorded: Trace) -> list[float]:
    """(nu,) how much each target changed at most, from one control step to the next."""
    changes = np.abs(np.diff(recorded.targets, axis=0))
    goes_on = ~recorded.restart[1:]
    return changes[goes_on].max(0, initial=0.0).tolist()


class ReadingSamples:
    """Readings and commands of an Env at a hundred moments of an episode."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Array]] = []

    def __call__(self, env: Env, step: int) -> None:
        """Note what the robots get at control step `step`, if it is one of these moments."""
        if step % max(1, env.task.horizon // MOMENTS) == 0:
            values = env.readings | {k: x for k, x in env.memory.items() if k == COMMAND}
            self.rows.append({name: x.numpy().copy() for name, x in values.items()})

    def ranges(self) -> Ranges:
        """The percentiles of all samples."""
        return percentiles(stacked(self.rows))
