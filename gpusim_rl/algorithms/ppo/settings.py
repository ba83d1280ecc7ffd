"""The numbers of PPO."""

from dataclasses import dataclass

from gpusim_rl.core import ranges


@dataclass(kw_only=True)
class Settings:
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
        max_grad_norm: for the actor and for the critic.
        fused: compute the loss and its gradient in the Warp kernels of `loss_kernels`, instead of
            in torch operations with autograd.
        symmetry: auto, none, augment or net.
        tf32: multiply float32 matrices in TF32 on CUDA.
        hidden, activation, memory, memory_size, std, floor, amp: as `Policy` has them.
    """

    gamma: float
    gae_lambda: float
    clip_coef: float
    clip_value: float
    ent_coef: float
    update_epochs: int
    num_minibatches: int
    learning_rate: float
    lr_min: float
    lr_max: float
    lr_factor: float
    target_kl: float
    max_grad_norm: float
    fused: bool
    symmetry: str
    tf32: bool
    hidden: tuple[int, ...]
    activation: str
    memory: str
    memory_size: int
    std: float
    floor: float
    amp: str | None

    def __post_init__(self) -> None:
        fixed = {key: x for key, x in vars(self).items() if isinstance(x, int | float)}
        ranges.check(fixed, "algo")  # scheduled numbers were checked before they became tensors
        if not self.lr_min <= self.lr_max:
            raise ValueError(f"algo.lr_min={self.lr_min}: expected at most lr_max={self.lr_max}")
