"""The samples of a rollout: what PPO learns from, with a name for each column."""

import torch
from torch import Tensor

from gpusim_rl.algorithms.ppo.settings import Settings
from gpusim_rl.algorithms.returns import end_values, gae, normalize_advantages
from gpusim_rl.core.distributed import SINGLE, ProcessGroup
from gpusim_rl.core.record import NUMBER, Record
from gpusim_rl.core.symmetry import Flip, Mirrors
from gpusim_rl.networks.actor_critic import Policy


def sample_widths(no: int, nc: int, nu: int) -> dict[str, int]:
    """The columns of a sample.

    - `obs` (no,), `critic` (nc,): normalized observations of actor and critic;
    - `action` (nu,), and `mean` (nu,), `std` (nu,), `logp` of the policy that acted;
    - `advantage`, normalized; `target`, the return that the critic should predict;
    - `value` that it predicted; `valid`: 1, or 0 for a quarantined sample.
    """
    numbers = ("logp", "advantage", "target", "value", "valid")
    return dict(obs=no, critic=nc, action=nu, mean=nu, std=nu) | dict.fromkeys(numbers, NUMBER)


def sample_flips(mirrors: Mirrors) -> dict[str, Flip]:
    """How the columns of a sample look in a mirror; the others stay as they are."""
    action = mirrors.action
    deviation = Flip(action.order, tuple(abs(sign) for sign in action.signs))
    return dict(obs=mirrors.obs, critic=mirrors.critic, action=action, mean=action, std=deviation)


def clear_faults(rollout: Record) -> None:
    """Write zeros, and deviations of 1, where a step was quarantined: NaN times zero is NaN.

    In place.
    """
    fault = rollout.fault[..., None]
    rollout.span("obs", "std").masked_fill_(fault, 0.0)
    rollout.std.masked_fill_(fault, 1.0)


@torch.no_grad()
def make_samples(
    rollout: Record,
    policy: Policy,
    cfg: Settings,
    *,
    horizon: int,
    group: ProcessGroup = SINGLE,
) -> dict[str, Tensor]:
    """The samples (T, B, …) of a rollout, with the normalizers that it was collected with.

    Clears what quarantined steps hold. `horizon` is that of an episode, in control steps.
    """
    r = rollout
    clear_faults(r)
    obs, critic = policy.actor.normalizer(r.obs), policy.critic_normalizer(r.critic)
    value, truncated, fault = policy.value(critic).squeeze(-1), r.truncated, r.fault
    ends = end_values(value, r.end, truncated, policy.evaluate, horizon=horizon)
    advantage = gae(
        r.reward, value, ends, r.terminated, truncated, fault, gamma=cfg.gamma, lam=cfg.gae_lambda
    )
    valid = (~fault).float()
    return dict(
        obs=obs,
        critic=critic,
        action=r.action,
        mean=r.mean,
        std=r.std,
        logp=r.logp,
        advantage=normalize_advantages(advantage, valid, group),
        target=value + advantage,
        value=value,
        valid=valid,
    )
