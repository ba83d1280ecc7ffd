"""The numbers of the learner that dreams."""

from dataclasses import dataclass

from gpusim_rl.algorithms.sac.settings import SoftSettings
from gpusim_rl.core.ranges import COUNT, POSITIVE, SHARE, WIDTH, Range
from gpusim_rl.core.sections import number


@dataclass(kw_only=True, frozen=True)
class Settings(SoftSettings):
    """What conf/algo/dream.yaml explains. What a curriculum changes is a tensor ()."""

    lam: float = number(SHARE)
    steps: int = number(Range(1, 64, whole=True))
    members: int = number(Range(1, 16, whole=True))
    model_hidden: tuple[int, ...] = number(WIDTH)
    model_rate: float = number(POSITIVE)
    model_updates: int = number(COUNT)
    model_batch: int = number(COUNT)
