"""`Learner`: what an algorithm is to everything else. It knows no Env and no Sim."""

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from gpusim_rl.core.states import Live
from gpusim_rl.networks.policy import Policy


class Learner(Protocol):
    """What improves a policy from a record.

    Attributes:
        numbers: the live numbers that a curriculum may write, by key of the section `algo`.
        rates: learning rates, which `slow_down` multiplies.
        metrics: the names of `measures`.
        iteration_count: () int64 updates done.
    """

    policy: Policy
    numbers: dict[str, Tensor]
    rates: list[Tensor]
    metrics: tuple[str, ...]
    iteration_count: Tensor

    def update(self, mark: Callable[[str], None]) -> None:
        """Learn from the record. `mark` names the part that follows, for the timing. In place."""
        ...

    def measures(self) -> Tensor:
        """(len(metrics),) means since they were cleared."""
        ...

    def clear_measures(self) -> None:
        """Begin new means. In place."""
        ...

    def tensors(self) -> dict[str, Live]:
        """Every live tensor that a continuation needs, by its name in a checkpoint."""
        ...
