"""The numbers of cloning."""

from dataclasses import dataclass

from gpusim_rl.core.ranges import AT_LEAST_0, COUNT, POSITIVE, Range
from gpusim_rl.core.sections import check, number


@dataclass(kw_only=True, frozen=True)
class Settings:
    """The numbers of `Cloning`.

    Args:
        episodes: that are used, from the first on; None: all.
        epochs: passes over the demonstrations before the first rollout; batch: steps of each
            gradient; learning_rate: of these steps.
        std: standard deviation of the actions of the clone.
        count: observations that the normalizers count the demonstrations as.
        critic_iterations: first iterations, in which the critic alone learns.
        rate: learning rate of the anchor's steps, and the actor's first one in the algorithm.
        anchor_steps: steps of cloning after each iteration.
        anchor_iterations: in these the rate of the anchor falls to zero.
    """

    episodes: int | None = number(Range(1, 2**31 - 1, whole=True, null=True, single=True))
    epochs: int = number(COUNT)
    batch: int = number(COUNT)
    learning_rate: float = number(POSITIVE)
    std: float = number(POSITIVE)
    count: float = number(POSITIVE)
    critic_iterations: int = number(Range(0, 2**31 - 1, whole=True))
    rate: float = number(POSITIVE)
    anchor_steps: int = number(Range(0, 2**31 - 1, whole=True))
    anchor_iterations: float = number(AT_LEAST_0)

    def __post_init__(self) -> None:
        check(self, "cloning")
