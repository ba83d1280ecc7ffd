"""The numbers of PPO (arXiv:1707.06347), and its loss in torch operations."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gpusim_rl.core import ranges
from gpusim_rl.core.distributed import SINGLE, ProcessGroup
from gpusim_rl.core.record import Record
from gpusim_rl.networks.policy import ActorCritic

# Statistics of a minibatch. `loss` gives the first five, the optimizer the norms of the gradients.
STATS = (
    "policy_loss",
    "value_loss",
    "entropy",
    "approx_kl",
    "clipped",
    "actor_norm",
    "critic_norm",
)
POLICY_LOSS, VALUE_LOSS, ENTROPY, APPROX_KL, CLIPPED, *_ = range(len(STATS))


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


def loss(
    policy: ActorCritic,
    batch: Record,
    cfg: Settings,
    memory: dict[str, Tensor] | None = None,
    copies: int = 1,
    group: ProcessGroup = SINGLE,
) -> tuple[Tensor, Tensor]:
    """The loss, and the first five of `STATS` (5,): means over the valid samples of all processes.

    L = Σ valid · [ -min(A ρ, A clip(ρ, 1 ± ε)) + ½ max((V - R)², (V_clip - R)²) - c_H H ] / Σ valid

    `memory` is that before the samples of a policy that has one. With `copies` of each sample, the
    KL is that of the first ones: only they were acted.
    """
    total = group.all_reduce
    count = total(batch.valid.sum()).clamp(min=1)
    share = batch.valid / count
    mean, value = policy.outputs(batch, memory or {})
    value, new = value.squeeze(-1), policy.distribution(mean)
    log_ratio = new.log_prob(batch.action) - batch.logp
    ratio = log_ratio.exp()
    surrogate = torch.minimum(
        batch.advantage * ratio, batch.advantage * ratio.clamp(1 - cfg.clip_coef, 1 + cfg.clip_coef)
    )
    near = batch.value + (value - batch.value).clamp(-cfg.clip_value, cfg.clip_value)
    value_loss = 0.5 * torch.maximum((value - batch.target) ** 2, (near - batch.target) ** 2)
    bonus = new.entropy()
    bonus = (bonus * share).sum() if bonus.ndim else bonus * share.sum()
    policy_loss, value_loss = -(surrogate * share).sum(), (value_loss * share).sum()
    with torch.no_grad():
        # The exact KL is less noisy than an estimate from the ratios.
        kl = new.kl(new.from_record(batch)) * share
        kl = copies * kl[: len(kl) // copies].sum()
        clipped = (((ratio - 1).abs() > cfg.clip_coef) * share).sum()
        stats = total(torch.stack([policy_loss, value_loss, bonus, kl, clipped]))
    return policy_loss + value_loss - cfg.ent_coef * bonus, stats
