"""The numbers of soft actor-critic."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpusim_rl.core.ranges import COUNT, POSITIVE, SHARE, WIDTH, Range
from gpusim_rl.core.sections import check, number, word


@dataclass(kw_only=True, frozen=True)
class Settings:
    """What conf/algo/sac.yaml explains. What a curriculum changes is a tensor ()."""

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
    std: float = number(Range(0.01, 2.0))
    max_grad_norm: float = number(POSITIVE)
    symmetry: str = word("auto", "none", "net")
    tf32: bool
    hidden: tuple[int, ...] = number(WIDTH)
    activation: str
    encoders: Mapping[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    draw: str = word("uniform", "prioritized")
    priority_exponent: float = number(SHARE)
    importance_exponent: float = number(SHARE)

    def __post_init__(self) -> None:
        check(self, "algo")
        if self.window >= self.replay:
            raise ValueError(f"algo.window={self.window}: expected less than algo.replay")
