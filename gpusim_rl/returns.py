"""One backward recurrence, A_t = δ_t + k_t A_{t+1}; an estimator is a choice of δ and k."""

import torch
from torch import Tensor


def recurrence(delta: Tensor, k: Tensor, out: Tensor | None = None) -> Tensor:
    """A_t = δ_t + k_t A_{t+1} with A_T = 0; δ, k and the result are (T, B)."""
    out = torch.empty_like(delta) if out is None else out
    a = torch.zeros_like(delta[0])
    for t in range(len(delta) - 1, -1, -1):
        a = delta[t] + k[t] * a
        out[t] = a
    return out


def gae(
    reward: Tensor,
    value: Tensor,
    end_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    fault: Tensor,
    *,
    gamma: float,
    lam: float,
) -> Tensor:
    """Generalised advantage estimation (arXiv:1506.02438, eq. 16), all (T, B).

        δ_t = r_t + γ (1 - terminated_t) V(s'_t) - V(s_t),    k_t = γ λ (1 - done_t)

    s'_t is the state the step ended in, before any restart, so that a time-out bootstraps from its own last state.
    A quarantined step tells nothing: its δ is 0, so that the step before it bootstraps from V(s_t) as at a time-out.
    """
    delta = reward + gamma * torch.where(terminated, 0.0, end_value) - value
    k = gamma * lam * (~(terminated | truncated | fault)).to(value.dtype)
    return recurrence(torch.where(fault, 0.0, delta), k)
