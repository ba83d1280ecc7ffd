"""The samples of a rollout: what PPO learns from, with a name for each column."""

import torch
from torch import Tensor

from gpusim_rl.algorithms.ppo.settings import Settings
from gpusim_rl.algorithms.returns import end_values, gae, normalize_advantages
from gpusim_rl.core.distributed import SINGLE, ProcessGroup
from gpusim_rl.core.record import NUMBER, Columns, Record
from gpusim_rl.core.symmetry import Flip, ViewMirrors
from gpusim_rl.networks.policy import ActorCritic


def sample_columns(policy: ActorCritic) -> Columns:
    """The columns of a sample.

    - `obs` (no,), `critic` (nc,): normalized observations of actor and critic;
    - what the policy stored that acted: `action` (nu,), its `logp` and its distribution;
    - `advantage`, normalized; `target`, the return that the critic should predict;
    - `value` that it predicted; `valid`: 1, or 0 for a quarantined sample;
    - `begins`, for a policy that remembers: 1 where an episode begins after the first step.
    """
    remembers = bool(policy.blank_memory(1))
    numbers = ("advantage", "target", "value", "valid", *["begins"] * remembers)
    return policy.views | policy.stored | dict.fromkeys(numbers, NUMBER)


def sample_flips(policy: ActorCritic, mirrors: ViewMirrors) -> dict[str, Flip]:
    """How the columns of a sample look in a mirror; the others stay as they are."""
    return mirrors._asdict() | policy.family.flips(mirrors.action)


def clear_faults(rollout: Record, policy: ActorCritic) -> None:
    """Write numbers where a step was quarantined: NaN times zero is NaN. In place.

    They are zeros, and ones for the parameters of the distribution, such as a deviation.
    """
    fault, columns = rollout.fault[..., None], policy.family.columns
    rollout.span("obs", "logp").masked_fill_(fault, 0.0)
    rollout.span(columns[0], columns[-1]).masked_fill_(fault, 1.0)


@torch.no_grad()
def make_samples(
    rollout: Record,
    policy: ActorCritic,
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
    clear_faults(r, policy)
    obs, critic = policy.normalize(r.obs, r.critic)
    truncated, fault = r.truncated, r.fault
    begins = {"begins": first_steps(r)} if first else {}
    value, after = policy.values(critic, first, **begins)
    ends = end_values(value, [r.end, *after], truncated, policy.evaluate, horizon=horizon)
    advantage = gae(
        r.reward, value, ends, r.terminated, truncated, fault, gamma=cfg.gamma, lam=cfg.gae_lambda
    )
    valid = (~fault).float()
    return dict(
        obs=obs,
        critic=critic,
        **{name: getattr(r, name) for name in policy.stored},
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
