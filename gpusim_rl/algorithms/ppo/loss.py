"""The loss of PPO (arXiv:1707.06347) in torch operations."""

import torch
from torch import Tensor

from gpusim_rl.algorithms.ppo.settings import Settings
from gpusim_rl.core.distributed import SINGLE, ProcessGroup
from gpusim_rl.core.record import Record
from gpusim_rl.networks.policy import ActorCritic

# Statistics of a minibatch. `loss` gives the first five, the optimizer the norms of the gradients.
STATS = "policy_loss value_loss entropy approx_kl clipped actor_norm critic_norm".split()
POLICY_LOSS, VALUE_LOSS, ENTROPY, APPROX_KL, CLIPPED, *_ = range(len(STATS))


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
