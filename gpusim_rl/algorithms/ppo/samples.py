"""The samples of a rollout: what PPO learns from, with a name for each column."""

import torch
from torch import Tensor

from gpusim_rl.algorithms.ppo.settings import Settings
from gpusim_rl.algorithms.returns import end_values, gae, normalize_advantages
from gpusim_rl.core.distributed import SINGLE, ProcessGroup
from gpusim_rl.core.record import NUMBER, Columns, Record, vector
from gpusim_rl.core.symmetry import Flip, Mirrors
from gpusim_rl.networks.actor_critic import Policy


def sample_columns(no: int, nc: int, nu: int, remembers: bool = False) -> Columns:
    """The columns of a sample.

    - `obs` (no,), `critic` (nc,): normalized observations of actor and critic;
    - `action` (nu,), and `mean` (nu,), `std` (nu,), `logp` of the policy that acted;
    - `advantage`, normalized; `target`, the return that the critic should predict;
    - `value` that it predicted; `valid`: 1, or 0 for a quarantined sample;
    - `begins`, for a policy that remembers: 1 where an episode begins after the first step.
    """
    numbers = ("logp", "advantage", "target", "value", "valid", *["begins"] * remembers)
    sizes = dict(obs=no, critic=nc, action=nu, mean=nu, std=nu)
    columns = {name: vector(n) for name, n in sizes.items()}
    return columns | dict.fromkeys(numbers, NUMBER)


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
    first: dict[str, Tensor],
    *,
    horizon: int,
    group: ProcessGroup = SINGLE,
) -> dict[str, Tensor]:
    """The samples (T, B, …) of a rollout, with the normalizers that it was collected with.

    Clears what quarantined steps hold. `first` is the memory of the policy before the first step,
    `horizon` that of an episode in control steps.
    """
    r = rollout
    clear_faults(r)
    obs, critic = policy.actor.normalizer(r.obs), policy.critic_normalizer(r.critic)
    truncated, fault = r.truncated, r.fault
    begins: dict[str, Tensor] = {}
    if first:
        begins["begins"] = begin = first_steps(r)
        value, end = remembered_values(r, policy, critic, first, begin)
    else:
        value, end = policy.value(critic).squeeze(-1), r.end
    ends = end_values(value, end, truncated, policy.evaluate, horizon=horizon)
    advantage = gae(
        r.reward, value, ends, r.terminated, truncated, fault, gamma=cfg.gamma, lam=cfg.gae_lambda
    )
    valid = (~fault).float()
    return dict(
        obs=obs,
        critic=critic,
        **{name: getattr(r, name) for name in ("action", "mean", "std", "logp")},
        advantage=normalize_advantages(advantage, valid, group),
        target=value + advantage,
        value=value,
        valid=valid,
        **begins,
    )


def first_steps(rollout: Record) -> Tensor:
    """(T, B) 1 where an episode begins; the first row is 0, since the memory before it says it."""
    ended = (rollout.terminated | rollout.truncated | rollout.fault).float()
    return torch.cat([torch.zeros_like(ended[:1]), ended[:-1]])


def remembered_values(
    rollout: Record, policy: Policy, critic: Tensor, first: dict[str, Tensor], begins: Tensor
) -> tuple[Tensor, Tensor]:
    """V (T, B) by a critic that remembers, and what it knows at the end of each step (T, B, ·).

    Args:
        critic: (T, B, nc) normalized observations; first, begins: as `make_samples` has them.
    """
    value, after = policy.unroll("critic", critic.flatten(0, 1), first, begins.flatten())
    shape = begins.shape
    return value.view(shape), torch.cat([rollout.end, after.view(*shape, -1)], dim=2)
