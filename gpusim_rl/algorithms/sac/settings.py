"""The numbers of soft actor-critic."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpusim_rl.core.ranges import COUNT, POSITIVE, SHARE, WIDTH, Range
from gpusim_rl.core.sections import check, number, word


@dataclass(kw_only=True, frozen=True)
class SoftSettings:
    """Numbers of all learners from a ring, with a temperature. What a curriculum changes is a
    tensor ()."""

    gamma: float = number(SHARE)
    replay: int = number(COUNT)
    save_ring: bool
    warmup: int = number(COUNT)
    updates: int = number(COUNT)
    batch_size: int = number(COUNT)
    learning_rate: float = number(POSITIVE)
    alpha: float = number(POSITIVE)
    alpha_rate: float = number(POSITIVE)
    target_std: float = number(POSITIVE)
    tau: float = number(Range(0, 1, above=True))
    bound: float = number(POSITIVE)
    std: float = number(Range(0.01, 2.0))
    max_grad_norm: float = number(POSITIVE)
    symmetry: str = word("auto", "none", "net")
    tf32: bool
    hidden: tuple[int, ...] = number(WIDTH)
    activation: str

    def __post_init__(self) -> None:
        check(self, "algo")


@dataclass(kw_only=True, frozen=True)
class Settings(SoftSettings):
    """What conf/algo/sac.yaml explains."""

    policy_delay: int = number(COUNT)
    window: int = number(COUNT)
    encoders: Mapping[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.window >= self.replay:
            raise ValueError(f"algo.window={self.window}: expected less than algo.replay")
