"""The numbers of distillation."""

from dataclasses import dataclass

from gpusim_rl.core.ranges import COUNT, POSITIVE, SHARE, Range
from gpusim_rl.core.sections import check, number, word
from gpusim_rl.networks.settings import NetworkSettings


@dataclass(kw_only=True, frozen=True)
class Settings(NetworkSettings):
    """The numbers of distillation. Where a curriculum changes one, it is a tensor ().

    Args:
        share: β of the first iteration, the probability that the teacher acts in a world.
        share_iterations: after so many, β is zero. It falls in a straight line.
        update_epochs: passes over a rollout; num_minibatches: parts of each pass, of whole worlds.
        learning_rate: of the student, at first. Each iteration multiplies it by lr_decay.
        max_grad_norm: the largest norm of its gradient.
        symmetry: auto, none or net.
    """

    share: float = number(SHARE)
    share_iterations: int = number(COUNT)
    update_epochs: int = number(COUNT)
    num_minibatches: int = number(COUNT)
    learning_rate: float = number(POSITIVE)
    lr_decay: float = number(Range(0, 1, above=True))
    max_grad_norm: float = number(POSITIVE)
    symmetry: str = word("auto", "none", "net")

    def __post_init__(self) -> None:
        check(self, "algo")
