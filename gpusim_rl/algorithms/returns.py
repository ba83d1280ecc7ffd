"""One backward recurrence, A_t = δ_t + k_t A_{t+1}; an estimator is a choice of δ and k."""

# ruff: noqa: UP018 (in a kernel float(0.0) is a variable, 0.0 a constant)
# The kernels are Warp's dialect of Python:
# pyright: reportOperatorIssue=false, reportIndexIssue=false, reportAttributeAccessIssue=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUntypedFunctionDecorator=false
# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false
# pyright: reportAssignmentType=false

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
    if value.is_cuda:
        return gae_by_kernel(reward, value, end_value, terminated, truncated, fault, gamma, lam)
    delta = reward + gamma * torch.where(terminated, 0.0, end_value) - value
    k = gamma * lam * (~(terminated | truncated | fault)).to(value.dtype)
    return recurrence(torch.where(fault, 0.0, delta), k)


def gae_by_kernel(*rows: Tensor | float) -> Tensor:
    """`gae` of the same arguments in one kernel."""
    *columns, gamma, lam = rows
    value: Any = columns[1]
    rates = [x.view(1) if isinstance(x, Tensor) else value.new_full((1,), x) for x in (gamma, lam)]
    out = torch.empty_like(value)
    launch(gae_backward, value.shape[1], [*columns, *rates], [out])
    return out


@wp.kernel(enable_backward=False)
def gae_backward(
    reward: wp.array2d[float],
    value: wp.array2d[float],
    end_value: wp.array2d[float],
    terminated: wp.array2d[wp.bool],
    truncated: wp.array2d[wp.bool],
    fault: wp.array2d[wp.bool],
    gamma: wp.array[float],
    lam: wp.array[float],
    out: wp.array2d[float],
):
    """`gae` in one world."""
    i = wp.tid()
    steps = value.shape[0]
    a = float(0.0)
    for s in range(steps):
        t = steps - 1 - s
        delta = reward[t, i] - value[t, i]
        if not terminated[t, i]:
            delta += gamma[0] * end_value[t, i]
        if not (terminated[t, i] or truncated[t, i]):
            delta += gamma[0] * lam[0] * a
        a = wp.where(fault[t, i], 0.0, delta)
        out[t, i] = a


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
    if advantage.is_cuda:
        return normalized_by_kernels(advantage, valid, group)
    # sums, not means: processes may have unequal numbers of valid samples
    count = group.all_reduce(valid.sum()).clamp(min=1)
    mean = group.all_reduce((advantage * valid).sum()) / count
    var = group.all_reduce(((advantage - mean) ** 2 * valid).sum()) / count
    return (advantage - mean) / (var.sqrt() + 1e-8)


def normalized_by_kernels(advantage: Tensor, valid: Tensor, group: ProcessGroup) -> Tensor:
    """`normalize_advantages` in two kernels and a sum, of squares in float64."""
    parts = advantage.new_empty(advantage.shape[1], 3, dtype=torch.float64)
    launch(add_moments, len(parts), [advantage, valid], [parts])
    inputs, out = [advantage, group.all_reduce(parts.sum(0))], torch.empty_like(advantage)
    launch(standardize, tuple(out.shape), inputs, [out])
    return out


@wp.kernel(enable_backward=False)
def add_moments(
    advantage: wp.array2d[float], valid: wp.array2d[float], sums: wp.array2d[wp.float64]
):
    """The number of valid samples of a world, and the sums of A and A² over them."""
    i = wp.tid()
    count, total, square = wp.float64(0.0), wp.float64(0.0), wp.float64(0.0)
    for t in range(advantage.shape[0]):
        if valid[t, i] > 0.0:
            a = wp.float64(advantage[t, i])
            count += wp.float64(1.0)
            total += a
            square += a * a
    sums[i, 0] = count
    sums[i, 1] = total
    sums[i, 2] = square


@wp.kernel(enable_backward=False)
def standardize(advantage: wp.array2d[float], sums: wp.array[wp.float64], out: wp.array2d[float]):
    """(A - mean) / std from the sums of all processes."""
    t, i = wp.tid()
    n = wp.max(sums[0], wp.float64(1.0))
    mean = sums[1] / n
    std = wp.sqrt(wp.max(sums[2] / n - mean * mean, wp.float64(0.0)))
    out[t, i] = (advantage[t, i] - float(mean)) / (float(std) + 1e-8)
