"""The numbers of adversarial motion priors."""

from dataclasses import dataclass

from gpusim_rl.core.file_keys import FileKey
from gpusim_rl.core.ranges import AT_LEAST_0, COUNT, POSITIVE, WIDTH
from gpusim_rl.core.sections import check, number

FILES = (FileKey("reward.demos", "keep", "style.safetensors"),)


@dataclass(kw_only=True, frozen=True)
class Settings:
    """What conf/reward/amp.yaml explains. A `weight` that a curriculum changes is a tensor ()."""

    demos: str | None
    weight: float = number(AT_LEAST_0)
    terms: list[str]
    learning_rate: float = number(POSITIVE)
    steps: int = number(COUNT)
    batch: int = number(COUNT)
    gradient_penalty: float = number(AT_LEAST_0)
    hidden: list[int] = number(WIDTH)

    def __post_init__(self) -> None:
        check(self, "reward")
        if not isinstance(self.demos, str):
            raise ValueError("reward=amp needs reward.demos=FILE, or a run that shows the style")
