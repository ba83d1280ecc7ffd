"""The numbers of PPO."""

from dataclasses import dataclass

from gpusim_rl.core.ranges import AT_LEAST_0, COUNT, POSITIVE, SHARE, Range
from gpusim_rl.core.sections import check, number, word
from gpusim_rl.networks.settings import NetworkSettings


@dataclass(kw_only=True, frozen=True)
class Settings(NetworkSettings):
    """The numbers of PPO, in CleanRL's names, which conf/algo/ppo.yaml explains.

    Where a curriculum changes one, it is a tensor ().
    """

    gamma: float = number(SHARE)
    gae_lambda: float = number(SHARE)
    clip_coef: float = number(POSITIVE)
    clip_value: float = number(POSITIVE)
    ent_coef: float = number(AT_LEAST_0)
    update_epochs: int = number(COUNT)
    num_minibatches: int = number(COUNT)
    learning_rate: float = number(POSITIVE)
    lr_min: float = number(POSITIVE)
    lr_max: float = number(POSITIVE)
    lr_factor: float = number(Range(1))
    target_kl: float = number(POSITIVE)
    correction: str = word("auto", "none", "proximal", "vtrace")
    max_grad_norm: float = number(POSITIVE)
    fused: bool
    symmetry: str = word("auto", "none", "augment", "net")
    tf32: bool
    max_std: float = number(POSITIVE)

    def __post_init__(self) -> None:
        check(self, "algo")
        if not self.lr_min <= self.lr_max:
            raise ValueError(f"algo.lr_min={self.lr_min}: expected at most lr_max={self.lr_max}")
