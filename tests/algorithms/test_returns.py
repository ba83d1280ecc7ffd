"""Advantages against the explicit sum over future steps, and V-trace against the paper's."""

import pytest
import torch

from gpusim_rl.algorithms.returns import (
    gae,
    gae_by_kernel,
    normalize_advantages,
    normalized_by_kernels,
    recurrence,
    vtrace,
)
from gpusim_rl.core.distributed import SINGLE
from gpusim_rl.core.graphs import record as record_graph

T, B = 40, 12


def record() -> dict[str, torch.Tensor]:
    """A random rollout (T, B), float64; a tenth of the steps ends in each of the ways."""
    g = torch.Generator().manual_seed(0)
    reward, value, end_value = (
        torch.randn(T, B, generator=g, dtype=torch.float64) for _ in range(3)
    )
    kind = torch.randint(0, 10, (T, B), generator=g)
    kind[-1, :4] = torch.arange(4)
    reward[kind == 2] = 0  # as Env has it
    return dict(
        reward=reward,
        value=value,
        end_value=end_value,
        terminated=kind == 0,
        truncated=kind == 1,
        fault=kind == 2,
    )


def brute(r: dict[str, torch.Tensor], t: int, b: int, gamma: float, lam: float) -> float:
    """Â_t = Σ_l (γλ)^l δ_{t+l} to the episode's or record's end (arXiv:1506.02438, eq. 16)."""
    advantage = 0.0
    for length, i in enumerate(range(t, T)):
        now = {name: x[i, b].item() for name, x in r.items()}
        # Nothing is known of this step: the sum stops before it, where V(s_i) stood in for its
        # future.
        if now["fault"]:
            break
        delta = (
            now["reward"] - now["value"] + (0 if now["terminated"] else gamma * now["end_value"])
        )
        advantage += (gamma * lam) ** length * delta
        if now["terminated"] or now["truncated"]:
            break
    return advantage


@pytest.mark.parametrize("gamma, lam", [(0.99, 0.95), (0.9, 0.0), (0.97, 1.0), (1.0, 1.0)])
def test_gae_by_brute_force(gamma, lam):
    """GAE is the explicit sum, with terminations, time-outs and quarantines mixed."""
    r = record()
    assert all(r[name].any() for name in ("terminated", "truncated", "fault"))
    want = torch.tensor(
        [[brute(r, t, b, gamma, lam) for b in range(B)] for t in range(T)], dtype=torch.float64
    )
    torch.testing.assert_close(gae(**r, gamma=gamma, lam=lam), want, rtol=0, atol=1e-12)


def test_the_kernel_is_gae():
    """The kernel of CUDA, run on the CPU, is torch's formula; no value of a terminal state is."""
    r = record()
    want, rates = gae(**r, gamma=0.97, lam=0.9), (torch.tensor(0.97), 0.9)
    r["end_value"][r["terminated"] | r["fault"]] = torch.nan
    columns = (x.float() if x.is_floating_point() else x for x in r.values())
    ours = gae_by_kernel(*columns, *rates)
    torch.testing.assert_close(ours.double(), want, rtol=0, atol=1e-5)


def test_kernels_normalize_as_torch():
    """Advantages of valid samples are normalized as in torch, also far from zero."""
    advantage = 100 + torch.randn(9, 40, generator=torch.Generator().manual_seed(1))
    for valid in (torch.rand(9, 40) < 0.8, torch.ones(9, 40)):
        want = normalize_advantages(advantage.double(), valid.double())
        ours = normalized_by_kernels(advantage, valid.float(), SINGLE)[valid > 0]
        torch.testing.assert_close(ours.double(), want[valid > 0], rtol=0, atol=1e-4)


def test_terminal_value_is_never_used():
    """NaN as the value of a terminal state or of a quarantined one reaches no advantage."""
    r = record()
    want = gae(**r, gamma=0.99, lam=0.95)
    r["end_value"][r["terminated"] | r["fault"]] = torch.nan
    assert torch.equal(gae(**r, gamma=0.99, lam=0.95), want)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_recurrence_fills_its_output(dtype):
    """Every entry of a poisoned output is written, also from a CPU graph."""
    g = torch.Generator().manual_seed(0)
    delta, k = (torch.randn(13, 7, generator=g, dtype=dtype) for _ in range(2))
    out = torch.full_like(delta, torch.nan)
    assert recurrence(delta, k, out) is out
    for replay in (lambda: None, record_graph(lambda: recurrence(delta, k, out), out.device)):
        replay()
        assert torch.isfinite(out).all() and torch.equal(out[-1], delta[-1])
        exact = 1e-6 if dtype == torch.float32 else 1e-14
        torch.testing.assert_close(out[:-1], delta[:-1] + k[:-1] * out[1:], rtol=exact, atol=exact)
        out.fill_(torch.nan)


def test_vtrace_by_the_paper():
    """Targets are V-trace's double sum; where both policies are one, the result is GAE's."""
    worlds, steps, gamma, lam = 1000, 20, 0.97, 0.9
    g = torch.Generator().manual_seed(2)
    x, v, end, r = (torch.randn(steps, worlds, generator=g, dtype=torch.float64) for _ in range(4))
    kind = torch.randint(0, 12, (steps, worlds), generator=g)
    terminated, truncated, fault = kind == 0, kind == 1, kind == 2
    ratio, parts = (0.7 * x).exp(), (r, v, end, terminated, truncated, fault)
    rho, c = ratio.clamp(max=1.3), lam * ratio.clamp(max=0.9)
    want = v.clone()
    for s in range(steps):
        weight = torch.ones(worlds, dtype=torch.float64)  # γ^(t-s) c_s … c_(t-1)
        for t in range(s, steps):
            delta = r[t] + gamma * torch.where(terminated[t], 0.0, end[t]) - v[t]
            want[s] += weight * rho[t] * torch.where(fault[t], 0.0, delta)
            weight = weight * gamma * c[t] * ~(kind[t] < 3)
    how = {"gamma": gamma, "lam": lam}
    _, change = vtrace(*parts, ratio, rho_max=1.3, c_max=0.9, **how)
    torch.testing.assert_close(v + change, want, rtol=0, atol=1e-12)
    advantage, change = vtrace(*parts, torch.ones_like(ratio), **how)
    torch.testing.assert_close(advantage, gae(*parts, **how), rtol=0, atol=1e-12)
    torch.testing.assert_close(change, advantage, rtol=0, atol=1e-12)
