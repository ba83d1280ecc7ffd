"""The numbers of cloning."""

from dataclasses import dataclass

from gpusim_rl.core.file_keys import FileKey
from gpusim_rl.core.ranges import AT_LEAST_0, COUNT, POSITIVE, Range
from gpusim_rl.core.sections import check, number

FILES = (FileKey("demos", "keep", "demos.safetensors"),)


@dataclass(kw_only=True, frozen=True)
class Settings:
    """The numbers of `Cloning`, which the section `cloning` of conf/config.yaml explains."""

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
