"""`Learner`: all that training, evaluation, bench and verify know of an algorithm."""

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from gpusim_rl.algorithms.collector import Collector
from gpusim_rl.core.states import Live
from gpusim_rl.envs.env import Env
from gpusim_rl.envs.schedule import Curriculum
from gpusim_rl.networks.actor_critic import Policy


class Learner(Protocol):
    """A policy, an Env and what improves the one by steps of the other.

    Attributes:
        env, policy: on one device.
        collector: fills the record that `update` learns from.
        schedule: the numbers that `iteration` changes.
        graph: what is captured in CUDA graphs: parts, whole or off.
        size: control steps of all worlds of this process in an iteration.
        iterations: how many are done.
    """

    env: Env
    policy: Policy
    collector: Collector
    schedule: Curriculum
    graph: str
    size: int
    iterations: int

    def iteration(self) -> None:
        """Collect, and `update`. Reads no tensor on the host."""
        ...

    def update(self) -> None:
        """Learn from what was collected. In place."""
        ...

    def report(self) -> Callable[[], dict[str, float]]:
        """Begin to read the means since the last report; the function returned waits for them."""
        ...

    def tensors(self) -> dict[str, Live]:
        """Every live tensor that a continuation needs, by its name in a checkpoint."""
        ...

    def state(self) -> dict[str, Tensor]:
        """Copies of `tensors`, with the worlds of all processes: a checkpoint."""
        ...

    def load(self, state: dict[str, Tensor], where: str) -> None:
        """Continue from what `state` returned, in place; ValueError unless it fits."""
        ...

    def slow_down(self, factor: float) -> None:
        """Multiply the learning rates, after a training went wrong. In place."""
        ...
