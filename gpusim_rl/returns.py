"""One backward recurrence, A_t = δ_t + k_t A_{t+1}; an estimator is a choice of δ and k."""

# The kernel is Warp's dialect of Python:
# pyright: reportOperatorIssue=false, reportIndexIssue=false

from typing import Any

import torch
import warp as wp
from torch import Tensor

from gpusim_rl.graph import warp_stream


def recurrence(delta: Tensor, k: Tensor, out: Tensor | None = None) -> Tensor:
    """A_t = δ_t + k_t A_{t+1} with A_T = 0; δ, k and the result are (T, B) of one type. One kernel, a thread for each world."""
    out = torch.empty_like(delta) if out is None else out
    arrays = [wp.from_torch(x) for x in (delta, k, out)]
    stream, device = warp_stream(delta.device), wp.device_from_torch(delta.device)
    wp.launch(backward, dim=delta.shape[1], inputs=arrays[:2], outputs=arrays[2:], stream=stream, device=device)
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
    """Generalised advantage estimation (arXiv:1506.02438, eq. 16), all (T, B).

        δ_t = r_t + γ (1 - terminated_t) V(s'_t) - V(s_t),    k_t = γ λ (1 - done_t)

    s'_t is the state the step ended in, before any restart, so that a time-out bootstraps from its own last state.
    A quarantined step tells nothing: its δ is 0, so that the step before it bootstraps from V(s_t) as at a time-out.
    """
    delta = reward + gamma * torch.where(terminated, 0.0, end_value) - value
    k = gamma * lam * (~(terminated | truncated | fault)).to(value.dtype)
    return recurrence(torch.where(fault, 0.0, delta), k)
