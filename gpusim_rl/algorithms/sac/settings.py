"""The numbers of soft actor-critic."""

from dataclasses import dataclass

from gpusim_rl.core.ranges import COUNT, POSITIVE, SHARE, WIDTH, Range
from gpusim_rl.core.sections import check, number, word


@dataclass(kw_only=True, frozen=True)
class Settings:
    """The numbers of soft actor-critic. Where a curriculum changes one, it is a tensor ().

    Args:
        gamma: discount per control step.
        replay: steps of each world that the ring holds; save_ring: checkpoints hold it, too.
        warmup: samples before the first update.
        updates: of the critics, for each control step of an iteration.
        policy_delay: updates of the critics for each of actor and temperature.
        batch_size: windows of an update, drawn from all worlds alike; window: steps of each.
        learning_rate: of actor and critics; alpha_rate: of the temperature.
        alpha: temperature at first, in units of the scale of returns.
        target_std: deviation of the action, as a share of `bound`, whose entropy is aimed at.
        tau: share of the critics that their targets take at each update.
        bound: the largest action.
        max_grad_norm: for actor and critics.
        symmetry: auto, none or net.
        tf32: multiply float32 matrices in TF32 on CUDA.
        hidden, activation: of all networks.
    """

    gamma: float = number(SHARE)
    replay: int = number(COUNT)
    save_ring: bool
    warmup: int = number(COUNT)
    updates: int = number(COUNT)
    policy_delay: int = number(COUNT)
    batch_size: int = number(COUNT)
    window: int = number(COUNT)
    learning_rate: float = number(POSITIVE)
    alpha: float = number(POSITIVE)
    alpha_rate: float = number(POSITIVE)
    target_std: float = number(POSITIVE)
    tau: float = number(Range(0, 1, above=True))
    bound: float = number(POSITIVE)
    max_grad_norm: float = number(POSITIVE)
    symmetry: str = word("auto", "none", "net")
    tf32: bool
    hidden: tuple[int, ...] = number(WIDTH)
    activation: str

    def __post_init__(self) -> None:
        check(self, "algo")
        if self.window >= self.replay:
            raise ValueError(f"algo.window={self.window}: expected less than algo.replay")
