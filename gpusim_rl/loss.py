"""PPO's loss (arXiv:1707.06347) in torch operations: its numbers, its minibatch, its formula."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gpusim_rl.maths import entropy, log_prob, total
from gpusim_rl.policy import Policy

STATS = ("policy_loss", "value_loss", "entropy", "approx_kl", "clipped", "actor_norm", "critic_norm")


@dataclass(kw_only=True)
class Settings:
    """The numbers of PPO, in CleanRL's names; one that a curriculum moves is a tensor ().

    Args:
        gamma, gae_lambda: of the returns.
        clip_coef: ε of the clipped surrogate.
        clip_value: how far a value may move in one update, in units of the return.
        ent_coef: weight of the entropy bonus.
        update_epochs, num_minibatches: passes over a rollout, and parts of each.
        learning_rate, lr_min, lr_max: of the actor; it adapts between the bounds. The critic keeps learning_rate.
        target_kl: the rate shrinks by lr_factor above twice this KL [nat] and grows below half of it.
        max_grad_norm: for the actor and for the critic.
        mirror_coef: weight of `asymmetry` with symmetry=loss.
        fused: loss and gradient in Warp kernels (`gpusim_rl.fused`) instead of torch operations under autograd.
    """

    gamma: float = 0.99
    gae_lambda: float = 0.95
    clip_coef: float = 0.2
    clip_value: float = 1.0
    ent_coef: float = 0.003
    update_epochs: int = 5
    num_minibatches: int = 4
    learning_rate: float = 1e-3
    lr_min: float = 1e-5
    lr_max: float = 1e-2
    lr_factor: float = 1.2
    target_kl: float = 0.01
    max_grad_norm: float = 1.0
    mirror_coef: float = 1.0
    fused: bool = True

    def __post_init__(self) -> None:
        for name in ("gamma", "gae_lambda"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"algo.{name}={getattr(self, name)}: expected a number from 0 to 1")
        for name in ("clip_coef", "clip_value", "learning_rate", "lr_min", "lr_max", "target_kl", "max_grad_norm"):
            if not getattr(self, name) > 0:
                raise ValueError(f"algo.{name}={getattr(self, name)}: expected more than 0")
        if not self.mirror_coef >= 0:
            raise ValueError(f"algo.mirror_coef={self.mirror_coef}: expected at least 0")
        if not self.lr_factor >= 1:
            raise ValueError(f"algo.lr_factor={self.lr_factor}: expected at least 1")


class Batch:
    """A minibatch: columns (n,) or (n, width) of one packed tensor, so that one gather serves all. Views are normalised."""

    def __init__(self, packed: Tensor, no: int, nc: int, nu: int):
        self.obs, self.critic, self.action, self.mean, rest = packed.split([no, nc, nu, nu, 5], dim=1)
        self.logp, self.advantage, self.target, self.value, self.valid = rest.unbind(1)


def asymmetry(policy: Policy, batch: Batch, mean: Tensor) -> Tensor:
    """Σ valid · |π(M o) - A π(o)|² / nu, with π(o) the mean (n, nu) held fast: the mirror loss of rsl_rl (arXiv:2403.04359)."""
    assert policy.obs_mirror and policy.action_mirror
    miss = policy.mean(policy.obs_mirror(batch.obs)) - policy.action_mirror(mean.detach())
    return ((miss * miss).mean(1) * batch.valid).sum()


def loss(policy: Policy, batch: Batch, old_std: Tensor, cfg: Settings, copies: int = 1) -> tuple[Tensor, Tensor]:
    """The loss to descend and the sums of its statistics (5,): each a sum over valid samples over their global count.

    L = Σ valid · [ max(-A ρ, -A clip(ρ, 1 ± ε)) + ½ max((V - R)², (V_clip - R)²) - c_H H ] / Σ valid

    Of `copies` of each sample the KL is that of the first, as they came from the policy that acted.
    """
    share = batch.valid / total(batch.valid.sum()).clamp(min=1)
    mean, std = policy.mean(batch.obs), policy.std
    log_ratio = log_prob(batch.action, mean, std) - batch.logp
    ratio = log_ratio.exp()
    surrogate = torch.minimum(batch.advantage * ratio, batch.advantage * ratio.clamp(1 - cfg.clip_coef, 1 + cfg.clip_coef))
    value = policy.value(batch.critic).squeeze(-1)
    near = batch.value + (value - batch.value).clamp(-cfg.clip_value, cfg.clip_value)
    value_loss = 0.5 * torch.maximum((value - batch.target) ** 2, (near - batch.target) ** 2)
    bonus = entropy(std)
    policy_loss, value_loss = -(surrogate * share).sum(), (value_loss * share).sum()
    with torch.no_grad():
        # KL(old ‖ new) of two diagonal Gaussians, exact: far less noisy than an estimate from the ratios
        spread = (old_std**2 + (batch.mean - mean) ** 2) / (2 * std**2)
        kl = (std.log() - old_std.log() + spread - 0.5).sum(-1) * share
        kl = copies * kl[: len(kl) // copies].sum()
        clipped = (((ratio - 1).abs() > cfg.clip_coef) * share).sum()
        stats = total(torch.stack([policy_loss, value_loss, bonus * share.sum(), kl, clipped]))
    objective = policy_loss + value_loss - cfg.ent_coef * bonus * share.sum()
    if policy.symmetry == "loss":
        objective = objective + cfg.mirror_coef * asymmetry(policy, batch, mean) / total(batch.valid.sum()).clamp(min=1)
    return objective, stats
