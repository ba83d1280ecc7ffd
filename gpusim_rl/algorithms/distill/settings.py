"""The numbers of distillation."""

from dataclasses import dataclass

from gpusim_rl.core.file_keys import FileKey
from gpusim_rl.core.ranges import COUNT, POSITIVE, SHARE, Range
from gpusim_rl.core.sections import check, number, word
from gpusim_rl.networks.settings import NetworkSettings

FILES = (FileKey("teacher", "keep", "model/teacher.safetensors"),)


@dataclass(kw_only=True, frozen=True)
class Settings(NetworkSettings):
    """What conf/algo/distill.yaml explains. What a curriculum changes is a tensor ()."""

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
