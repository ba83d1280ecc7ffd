"""The normaliser against numpy, the deviation's floor, and first weights as a function of the seed."""

import math

import numpy as np
import pytest
import torch

from gpusim_rl.policy import Normaliser, Policy


def batches(offset: np.ndarray, scale: np.ndarray) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Unequal batches with masks, one of which is empty, and one of a single row."""
    rng = np.random.default_rng(0)
    made = []
    for n in (7, 300, 1, 0, 64, 2000, 33):
        x = torch.from_numpy(offset + scale * rng.standard_normal((max(n, 5), len(offset)))).float()
        valid = torch.from_numpy(rng.random(max(n, 5)) < 0.7) if n > 1 else torch.arange(5) < n
        made.append((x, valid))
    return made


@pytest.mark.parametrize("poison", [0.0, 1e30, math.nan])
def test_absorb_as_numpy(poison):
    """After many batches the statistics are numpy's of all valid rows, at offsets 10⁶ deviations from zero as well."""
    offset, scale = np.array([0.0, 3.0, -1e5, 1e6, 1e-3]), np.array([1.0, 0.1, 2.0, 1.0, 1e-4])
    normaliser, kept = Normaliser(5), []
    for x, valid in batches(offset, scale):
        kept.append(x[valid].double().numpy())
        x[~valid] = poison
        normaliser.absorb(x, valid)
    rows = np.concatenate(kept)
    assert normaliser.count == len(rows) > 1000
    # float32 holds 10⁶ to 0.06: the mean is exact to a sixteenth of a deviation there, the variance to a per cent
    np.testing.assert_allclose(normaliser.mean, rows.mean(0), rtol=2e-7, atol=1e-7)
    np.testing.assert_allclose(normaliser.var[[0, 1, 4]], rows.var(0)[[0, 1, 4]], rtol=1e-4)
    np.testing.assert_allclose(normaliser.var[[2, 3]], rows.var(0)[[2, 3]], rtol=2e-2)


def test_empty_batch_changes_nothing():
    """A batch without a valid row leaves the statistics as they were, even as the first one."""
    normaliser = Normaliser(3)
    normaliser.absorb(torch.full((4, 3), 9.0), torch.zeros(4, dtype=torch.bool))
    assert normaliser.mean.tolist() == [0, 0, 0] and normaliser.var.tolist() == [1, 1, 1] and normaliser.count == 0


def test_split_does_not_matter():
    """One batch and the same rows in three give the same statistics."""
    x = torch.randn(300, 4, generator=torch.Generator().manual_seed(0)) * 5 + 2
    everyone = torch.ones(300, dtype=torch.bool)
    whole, parts = Normaliser(4), Normaliser(4)
    whole.absorb(x, everyone)
    for rows in x.split([10, 250, 40]):
        parts.absorb(rows, everyone[: len(rows)])
    torch.testing.assert_close(parts.mean, whole.mean)
    torch.testing.assert_close(parts.var, whole.var)


def test_forward_normalises_and_keeps_still():
    """forward subtracts the mean, divides by the deviation, clamps, and does not move the statistics."""
    normaliser = Normaliser(2, clamp=3.0)
    normaliser.mean.copy_(torch.tensor([1.0, -2.0]))
    normaliser.var.copy_(torch.tensor([4.0, 0.25]))
    before = {k: v.clone() for k, v in normaliser.state_dict().items()}
    y = normaliser(torch.tensor([[3.0, -2.5], [1e9, -1e9]]))
    torch.testing.assert_close(y, torch.tensor([[1.0, -1.0], [3.0, -3.0]]), rtol=0, atol=1e-3)
    assert all(torch.equal(before[k], v) for k, v in normaliser.state_dict().items())


def test_floor_holds_with_a_gradient():
    """However low log_std falls, the deviation stays at its floor and the gradient is not zero."""
    policy = Policy(3, 4, 2, std=1.0, floor=0.05)
    torch.testing.assert_close(policy.std, torch.ones(2))
    with torch.no_grad():
        policy.log_std.fill_(-40.0)
    policy.std.sum().backward()
    assert policy.std.tolist() == pytest.approx([0.05, 0.05])
    assert policy.log_std.grad is not None and (policy.log_std.grad > 0).all()


def test_floor_must_lie_below_std():
    """A floor that is not between 0 and the first deviation is refused by name."""
    for floor in (0.0, 1.0, 2.0):
        with pytest.raises(ValueError, match=r"algo\.floor"):
            Policy(3, 4, 2, std=1.0, floor=floor)


def test_unknown_activation():
    """An unknown activation is refused with the choices."""
    with pytest.raises(ValueError, match="'gelu2': choose one of relu, elu, tanh, silu"):
        Policy(3, 4, 2, activation="gelu2")


def test_first_weights_are_a_function_of_the_seed():
    """Equal seeds give equal weights whatever torch's own generator did before; another seed gives others."""

    def weights(seed: int, foreign: int) -> dict[str, torch.Tensor]:
        torch.manual_seed(foreign)
        return Policy(5, 7, 2, hidden=(16, 16), seed=seed).state_dict()

    a, b, c = weights(3, 0), weights(3, 1), weights(4, 0)
    assert all(torch.equal(a[k], b[k]) for k in a)
    matrices = [k for k, v in a.items() if v.ndim == 2]
    assert len(matrices) == 6
    assert all(not torch.equal(a[k], c[k]) for k in matrices)


def test_first_actions_are_small():
    """The untrained mean action is near zero, so that exploration starts from the task's rest."""
    policy = Policy(5, 7, 2, hidden=(64, 64))
    obs = torch.randn(100, 5, generator=torch.Generator().manual_seed(0))
    assert 0 < policy.actor(obs).abs().max() < 0.1


def test_actor_holds_its_normaliser():
    """The actor module alone, as exported, maps raw observations: its normaliser acts inside."""
    policy = Policy(2, 3, 1)
    x = torch.tensor([[4.0, -1.0]])
    policy.actor.normaliser.mean.copy_(torch.tensor([4.0, -1.0]))
    assert torch.equal(policy.actor(x), policy.actor.net(torch.zeros(1, 2)))


@pytest.mark.parametrize("name", ["mean", "value"])
def test_bf16_multiplies_alone(name):
    """With amp="bf16" weights, views and results stay float32 and the numbers are those of bfloat16 matrices; off is exact."""
    plain, amp = (Policy(6, 6, 2, hidden=(64, 64), amp=amp) for amp in (None, "bf16"))
    view = torch.randn(50, 6, generator=torch.Generator().manual_seed(0))
    a, b = (getattr(policy, name)(view) for policy in (plain, amp))
    exact = (plain.actor.net if name == "mean" else plain.critic)(view)
    assert a.dtype == b.dtype == torch.float32 and torch.equal(a, exact)
    scale = a.abs().max()
    assert 1e-5 * scale < (a - b).abs().max() < 2e-2 * scale
    b.square().sum().backward()
    assert all(p.dtype == torch.float32 for p in amp.parameters())
    assert any(p.grad is not None and p.grad.abs().max() > 0 for p in amp.parameters())
