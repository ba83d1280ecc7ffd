"""What an Env shows its controllers, and what they do: to check an exported file on."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gpusim_rl.core.streams import torch_threads
from gpusim_rl.deploy.controller import COMMAND, Controller
from gpusim_rl.envs.env import Env

MOMENTS = 100  # of an episode whose readings make the ranges
ENDS = (0.5, 99.5)  # percentiles
Array = np.ndarray
Ranges = dict[str, tuple[list[float], list[float]]]  # input → least and greatest of each column


class Recorded(NamedTuple):
    """What an Env showed and did in T control steps of B worlds."""

    given: dict[str, Array]  # (T, B, …) the readings and the command
    restart: Array  # (T, B) bool: an episode begins
    memory: dict[str, Array]  # (T, B, …) the task's memory, which an episode begins with
    targets: Array  # (T, B, nu)
    action: Array  # (T, B, nu)


@torch.no_grad()
@torch_threads(1)
def record(
    env: Env, act: Callable[[Tensor, Tensor], Tensor], controller: Controller, steps: int
) -> Recorded:
    """Step an Env, and record what its controller would have been given and has to answer.

    Args:
        env: fresh: an episode begins in every world.
        act: observation (B, no), and (B,) bool where an episode begins → action (B, nu).
        steps: T.
    """
    restart = torch.ones(env.num_envs, dtype=torch.bool, device=env.device)
    rows: list[tuple[dict[str, Array], Array, dict[str, Array], Array, Array]] = []
    for _ in range(steps):
        shown = env.memory | env.readings
        given = {name: shown[name].numpy().copy() for name in controller.given}
        memory = {n: x.numpy().copy() for n, x in env.memory.items() if n in controller.start}
        env.act(act(env.observation.actor, restart))
        ctrl = env.sim.ctrl.float()
        if "encoder" in env.memory:  # Env has moved the targets by the encoders' offsets
            ctrl = env.task.randomization.servo(ctrl, -env.memory["encoder"])
        action = env.action.numpy().copy()
        rows.append((given, restart.numpy(), memory, ctrl.numpy().copy(), action))
        env.advance()
        end = env.settle()
        restart = end.terminated | end.truncated | end.fault
    given, restarts, memory, *did = zip(*rows, strict=True)
    return Recorded(
        stacked(given), np.stack(restarts), stacked(memory), *(np.stack(x) for x in did)
    )


def stacked(rows: tuple[dict[str, Array], ...]) -> dict[str, Array]:
    """Arrays of each row by name, as one array by name; nothing of no rows."""
    return {name: np.stack([row[name] for row in rows]) for name in (rows[0] if rows else ())}


def percentiles(given: dict[str, Array]) -> Ranges:
    """The 0.5 and 99.5 percentiles of each column of each input (…, width)."""
    ranges = {}
    for name, x in given.items():
        finite = x[np.isfinite(x).all(-1)]  # the others are of a world that failed
        low, high = np.percentile(
            finite if len(finite) else np.zeros((1, x.shape[-1])), ENDS, axis=0
        )
        ranges[name] = low.tolist(), high.tolist()
    return ranges


class Seen:
    """The readings and commands that an Env showed, at a hundred moments of an episode."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Array]] = []

    def __call__(self, env: Env, step: int) -> None:
        """Note what the robots get at control step `step`, if it is one of these moments."""
        if step % max(1, env.task.horizon // MOMENTS) == 0:
            shown = env.readings | {k: x for k, x in env.memory.items() if k == COMMAND}
            self.rows.append({name: x.numpy().copy() for name, x in shown.items()})

    def ranges(self) -> Ranges:
        """Of all that was noted."""
        return percentiles(stacked(tuple(self.rows)))
