"""The samples of a rollout: what PPO learns from, with a name for each column."""

from itertools import accumulate, pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from gpusim_rl.algorithms.ppo.settings import Settings
from gpusim_rl.algorithms.returns import end_values, gae, normalize_advantages
from gpusim_rl.algorithms.rollout import Rollout
from gpusim_rl.core.distributed import SINGLE, ProcessGroup
from gpusim_rl.core.maths import log_prob
from gpusim_rl.core.symmetry import Mirror, Mirrors, join, keep
from gpusim_rl.networks.actor_critic import Policy


class Batch(NamedTuple):
    """n samples, or (T, B) of them. Observations are normalized."""

    obs: Tensor  # (n, no)  of the actor
    critic: Tensor  # (n, nc)  of the critic
    action: Tensor  # (n, nu)
    mean: Tensor  # (n, nu)  of the policy that acted
    logp: Tensor  # (n,)  log-probability of the action under that policy
    advantage: Tensor  # (n,)  normalized
    target: Tensor  # (n,)  return that the critic should predict
    value: Tensor  # (n,)  that the critic predicted
    valid: Tensor  # (n,)  1, or 0 for a quarantined sample


class Columns(NamedTuple):
    """The columns of a packed row, by the names of `Batch`: slices, or the index of one column."""

    obs: slice
    critic: slice
    action: slice
    mean: slice
    logp: int
    advantage: int
    target: int
    value: int
    valid: int

    @classmethod
    def of(cls, no: int, nc: int, nu: int) -> "Columns":
        """The columns for observations of no and nc numbers and actions of nu."""
        ends = list(accumulate([no, nc, nu, nu], initial=0))
        slices = [slice(start, end) for start, end in pairwise(ends)]
        return cls._make([*slices, *range(ends[-1], ends[-1] + 5)])

    @property
    def width(self) -> int:
        """Number of columns."""
        return self.valid + 1

    def batch(self, rows: Tensor) -> Batch:
        """Views of the columns of rows (n, width)."""
        return Batch(*(rows[:, column] for column in self))


def row_mirror(mirrors: Mirrors) -> Mirror:
    """The mirror of a packed row; the columns after `mean` stay as they are."""
    obs, critic, action = mirrors
    unchanged = keep(*[1.0 for column in Columns.of(1, 1, 1) if isinstance(column, int)])
    return Mirror(join([obs, critic, action, action, unchanged]))


@torch.no_grad()
def make_samples(
    rollout: Rollout,
    policy: Policy,
    cfg: Settings,
    *,
    old_std: Tensor,
    group: ProcessGroup = SINGLE,
) -> Batch:
    """The samples (T, B, …) of a rollout, with the normalizers that it was collected with.

    Clears what quarantined steps hold. `old_std` (nu,) is that of the policy that acted.
    """
    r = rollout
    r.clear_faults()
    obs, critic = policy.actor.normalizer(r.obs), policy.critic_normalizer(r.critic)
    value, truncated, fault = policy.value(critic).squeeze(-1), r.truncated, r.fault
    horizon = r.env.task.horizon
    ends = end_values(value, r.end, truncated, policy.evaluate, horizon=horizon)
    advantage = gae(
        r.reward, value, ends, r.terminated, truncated, fault, gamma=cfg.gamma, lam=cfg.gae_lambda
    )
    valid = (~fault).float()
    return Batch(
        obs=obs,
        critic=critic,
        action=r.action,
        mean=r.mean,
        logp=log_prob(r.action, r.mean, old_std),
        advantage=normalize_advantages(advantage, valid, group),
        target=value + advantage,
        value=value,
        valid=valid,
    )
