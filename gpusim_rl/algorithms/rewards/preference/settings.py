"""The numbers of a reward that is learned from answers."""

from dataclasses import dataclass

from gpusim_rl.core.ranges import AT_LEAST_0, COUNT, POSITIVE, SHARE, WIDTH, Range
from gpusim_rl.core.sections import check, number, word


@dataclass(kw_only=True, frozen=True)
class Settings:
    """What conf/reward/preference.yaml explains."""

    judge: str | None
    labels: str | None
    answers: int = number(COUNT)
    first: int = number(COUNT)
    round: int = number(COUNT)
    every: int = number(COUNT)
    wait: bool
    seconds: float = number(POSITIVE)
    alike: list[str]
    ask: str = word("disagreement", "random")
    across: float = number(SHARE)
    weight: float = number(AT_LEAST_0)
    task: float = number(AT_LEAST_0)
    fall: float = number(AT_LEAST_0)
    budget: float = number(POSITIVE)
    ramp: float = number(Range(1))
    coefficient: float = number(POSITIVE)
    gain: float = number(AT_LEAST_0)
    warm: int = number(Range(0, 2**31 - 1, whole=True))
    rate: float = number(POSITIVE)
    members: int = number(Range(2, 64, whole=True))
    hidden: list[int] = number(WIDTH)
    learning_rate: float = number(POSITIVE)
    epochs: int = number(COUNT)

    def __post_init__(self) -> None:
        check(self, "reward")
        file, _, function = (self.judge or "file:function").partition(":")
        if not (file.isidentifier() and function.isidentifier()):
            raise ValueError(f"reward.judge={self.judge}: expected FILE:FUNCTION of judges/FILE.py")

    def asked(self, rounds: int) -> int:
        """How many questions so many rounds have."""
        return min(self.answers, self.first + (rounds - 1) * self.round) if rounds > 0 else 0
