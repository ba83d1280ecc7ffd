"""One backward recurrence, A_t = δ_t + k_t A_{t+1}; an estimator is a choice of δ and k."""

# The kernel is Warp's dialect of Python:
# pyright: reportOperatorIssue=false, reportIndexIssue=false, reportAttributeAccessIssue=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUntypedFunctionDecorator=false

from collections.abc import Callable, Sequence
from typing import Any

import torch
import warp as wp
from torch import Tensor

from gpusim_rl.core.distributed import SINGLE, ProcessGroup
from gpusim_rl.core.streams import launch


def recurrence(delta: Tensor, k: Tensor, out: Tensor | None = None) -> Tensor:
    """A_t = δ_t + k_t A_{t+1} with A_T = 0, in one kernel with a thread for each world.

    δ, k and the result are (T, B) and of one type.
    """
    out = torch.empty_like(delta) if out is None else out
    launch(backward, delta.shape[1], [delta, k], [out])
    return out


@wp.kernel(enable_backward=False)
def backward(delta: wp.array2d[Any], k: wp.array2d[Any], out: wp.array2d[Any]):
    """`recurrence` in one world."""
    i = wp.tid()
    steps = delta.shape[0]
    a = delta.dtype(0.0)
    for s in range(steps):
        t = steps - 1 - s
        a = delta[t, i] + k[t, i] * a
        out[t, i] = a


def gae(
    reward: Tensor,
    value: Tensor,
    end_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    fault: Tensor,
    *,
    gamma: float | Tensor,
    lam: float | Tensor,
) -> Tensor:
    """Generalized advantage estimation (arXiv:1506.02438, eq. 16), all (T, B).

        δ_t = r_t + γ (1 - terminated_t) V(s'_t) - V(s_t),    k_t = γ λ (1 - done_t)

    s'_t is the state the step ended in, before any restart. So a time-out bootstraps from its own
    last state. A quarantined step has δ = 0: the step before it bootstraps from V(s_t), as at a
    time-out.
    """
    delta = reward + gamma * torch.where(terminated, 0.0, end_value) - value
    k = gamma * lam * (~(terminated | truncated | fault)).to(value.dtype)
    return recurrence(torch.where(fault, 0.0, delta), k)


def vtrace(
    reward: Tensor,
    value: Tensor,
    end_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    fault: Tensor,
    ratio: Tensor,
    *,
    gamma: float | Tensor,
    lam: float | Tensor,
    rho_max: float = 1.0,
    c_max: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """V-trace (arXiv:1802.01561, remark 1 and section 4.2), all (T, B).

        ρ_t = min(ρ̄, π/μ),    c_t = λ min(c̄, π/μ)
        δ_t = ρ_t (r_t + γ (1 - terminated_t) V(s'_t) - V(s_t)),    k_t = γ c_t (1 - done_t)
        v_t - V(s_t) = δ_t + k_t (v_{t+1} - V(s_{t+1}))
        A_t = r_t + γ (1 - terminated_t) V(s'_t) - V(s_t) + γ λ (1 - done_t) (v_{t+1} - V(s_{t+1}))

    The ratio π/μ is that of the policy that learns to the one that acted. A has no factor ρ_t: the
    ratio of PPO's loss is one. Where π = μ, both are those of `gae`. Ends of episodes and
    quarantined steps are as there.

    Returns:
        The advantages A, and what is to be added to V for its targets v.
    """
    go = (~(terminated | truncated | fault)).to(value.dtype)
    delta = reward + gamma * torch.where(terminated, 0.0, end_value) - value
    delta = torch.where(fault, 0.0, delta)
    k = gamma * lam * go
    change = recurrence(ratio.clamp(max=rho_max) * delta, k * ratio.clamp(max=c_max))
    later = torch.cat([change[1:], torch.zeros_like(change[:1])])
    return delta + k * later, change


# Why: docs/decisions/records.md
def end_values(
    value: Tensor,
    end: Sequence[Tensor],
    truncated: Tensor,
    critic: Callable[..., Tensor],
    *,
    horizon: int,
) -> Tensor:
    """V (T, B) of the states that the steps ended in.

    A step ends where the next one begins, unless the world restarted. So the critic is evaluated at
    the last step and at the time-outs only, of which a world has few. After a termination or a
    fault the result has no meaning.

    Args:
        value: (T, B) V of the states that the steps began in.
        end: (T, B, nc) the critic's observation at the end of each step, before any restart; and
            what it remembers then (T, B, …), if anything.
        truncated: (T, B) bool.
        critic: as many tensors (…, B, ·) → values (…, B).
        horizon: steps of an episode.
    """
    steps, worlds = value.shape
    time_outs = min(steps - 1, -(-steps // horizon))  # of one world in a rollout, at most
    # Where a world has fewer time-outs, topk adds other rows. Their values are right too.
    rows = truncated[:-1].float().topk(time_outs, 0).indices
    rows = torch.cat([rows, rows.new_full((1, worlds), steps - 1)])
    columns = torch.arange(worlds, device=rows.device)
    return value.roll(-1, 0).scatter_(0, rows, critic(*(x[rows, columns] for x in end)))


def normalize_advantages(advantage: Tensor, valid: Tensor, group: ProcessGroup = SINGLE) -> Tensor:
    """(A - mean) / std over the valid samples of all processes; advantage and valid are (T, B)."""
    # sums, not means: processes may have unequal numbers of valid samples
    count = group.all_reduce(valid.sum()).clamp(min=1)
    mean = group.all_reduce((advantage * valid).sum()) / count
    var = group.all_reduce(((advantage - mean) ** 2 * valid).sum()) / count
    return (advantage - mean) / (var.sqrt() + 1e-8)
