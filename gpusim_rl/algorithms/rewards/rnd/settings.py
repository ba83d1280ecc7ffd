"""The numbers of random network distillation, which conf/reward/rnd.yaml explains."""

from dataclasses import dataclass

from gpusim_rl.core.ranges import AT_LEAST_0, CHANCE, POSITIVE, WIDTH
from gpusim_rl.core.sections import check, number


@dataclass(kw_only=True, frozen=True)
class Settings:
    weight: float = number(AT_LEAST_0)
    gamma: float = number(CHANCE)
    learning_rate: float = number(POSITIVE)
    hidden: list[int] = number(WIDTH)
    features: int = number(WIDTH)

    def __post_init__(self) -> None:
        check(self, "reward")
