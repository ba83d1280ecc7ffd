"""The numbers of PPO."""

from dataclasses import dataclass

from gpusim_rl.core.ranges import AT_LEAST_0, COUNT, POSITIVE, SHARE, Range
from gpusim_rl.core.sections import check, number, word
from gpusim_rl.networks.settings import NetworkSettings


@dataclass(kw_only=True, frozen=True)
class Settings(NetworkSettings):
    """The numbers of PPO, in CleanRL's names. Where a curriculum changes one, it is a tensor ().

    Args:
        gamma, gae_lambda: of the returns.
        clip_coef: ε of the clipped surrogate.
        clip_value: how far a value may move in one update, in units of the return.
        ent_coef: weight of the entropy bonus.
        update_epochs: passes over a rollout; num_minibatches: parts of each pass.
        learning_rate: of actor and critic, at first. The critic keeps it.
        lr_min, lr_max: bounds of the actor's learning rate, which adapts between them.
        lr_factor: divides it above twice `target_kl` and multiplies it below half of that.
        target_kl: KL divergence [nat] between the policies before and after an update.
        correction: how steps of an older policy are learned from: `make_samples` tells it. auto:
            proximal where there are such steps, else none.
        max_grad_norm: for the actor and for the critic.
        fused: compute the loss and its gradient in the Warp kernels of `loss_kernels`, instead of
            in torch operations with autograd.
        symmetry: auto, none, augment or net.
        tf32: multiply float32 matrices in TF32 on CUDA.
        max_std: the largest standard deviation of the actions after an update.
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
