"""The kernels of symmetric networks, run on the CPU, beside the same networks in torch."""

import pytest
import torch
from torch import Tensor, nn

from gpusim_rl.core.symmetry import Flip, MirrorModule, ViewMirrors, concatenated, unmoved
from gpusim_rl.networks import symmetric
from gpusim_rl.networks.encoders import LAYERS
from gpusim_rl.networks.policy import ActorCritic
from gpusim_rl.networks.symmetric import EvenOddMerge, EvenOddSplit
from gpusim_rl.networks.symmetric_kernels import stacked
from tests.worlds import make_policy

# Columns that keep or change their sign, and pairs that change places with and without a sign.
VIEW = concatenated([unmoved(1, -1), Flip((1, 0, 2), (-1, -1, 1)), Flip((2, 3, 0, 1), (1,) * 4)])
ACTION = Flip((1, 0, 2), (1, 1, -1))


def use_kernels(monkeypatch: pytest.MonkeyPatch, on: bool) -> None:
    """Run networks by the kernels, or by torch."""
    monkeypatch.setattr(symmetric, "runs_kernels", lambda x: on and not x.requires_grad)


def policy(activation: str, action: Flip = ACTION) -> ActorCritic:
    """A symmetric policy with large weights and biases of all layers."""
    mirrors, width = ViewMirrors(VIEW, VIEW, action), len(action.order)
    made = make_policy(
        9, 9, width, hidden=(12, 8, 16), symmetry="net", mirrors=mirrors, activation=activation
    )
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in made.parameters():
            p.copy_(torch.randn(p.shape, generator=generator))
    return made


def results(net: nn.Module, x: Tensor) -> list[Tensor]:
    """f(x), and the gradient by each parameter of a sum with fixed weights."""
    y = net(x)
    weights = torch.randn(y.shape, generator=torch.Generator().manual_seed(2))
    return [y.detach(), *torch.autograd.grad(y, [*net.parameters()], weights)]


@pytest.mark.parametrize("activation", LAYERS)
@pytest.mark.parametrize("action", [ACTION, unmoved(1, 1), unmoved(-1), unmoved(1, -1)])
def test_kernels_are_the_network(monkeypatch, activation, action):
    """Results and gradients of actor and critic are torch's, for any number of axes."""
    made, split = policy(activation, action), EvenOddSplit(VIEW)
    x = 2 * torch.randn(5, 40, 9, generator=torch.Generator().manual_seed(3))
    for net in (made.actor.net, made.critic):
        both = []
        for on in (False, True):
            use_kernels(monkeypatch, on)
            both.append(results(net, split(x)))
        for ours, theirs in zip(*both, strict=True):
            assert ours.abs().max() > 1e-2
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4 * theirs.abs().max())
        with torch.no_grad():
            assert torch.equal(net(split(x)), both[1][0])


@pytest.mark.parametrize("activation", LAYERS)
def test_kernels_commute_with_the_mirror(monkeypatch, activation):
    """f(M x) is A f(x) to the bit."""
    use_kernels(monkeypatch, True)
    made, x = policy(activation), 2 * torch.randn(500, 9)
    image = made.actor(MirrorModule(VIEW)(x))
    assert torch.equal(image, MirrorModule(ACTION)(made.actor(x)))
    assert image.abs().min(0).values.max() > 0
    value = made.evaluate(MirrorModule(VIEW)(x))
    assert torch.equal(value, made.evaluate(x))


def test_columns_are_combined(monkeypatch):
    """Split and merge are torch's to the bit, and each the other's inverse."""
    split, x = EvenOddSplit(VIEW), torch.randn(7, 3, 9)
    merge = EvenOddMerge(split)
    want = split(x), merge(split(x))
    use_kernels(monkeypatch, True)
    assert torch.equal(split(x), want[0]) and torch.equal(merge(split(x)), want[1])
    torch.testing.assert_close(want[1], x)
    assert EvenOddMerge(EvenOddSplit(unmoved(1.0))).is_identity and not merge.is_identity


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("activation", LAYERS)
def test_a_number_that_is_none_is_seen(monkeypatch, activation, value):
    """Where torch's result is not finite, that of the kernels is not either."""
    made, x = policy(activation), torch.randn(4, 9)
    x[2, 3] = value
    both = []
    for on in (False, True):
        use_kernels(monkeypatch, on)
        both.append(made.mean(x).isfinite())
    assert torch.equal(*both) and both[0][[0, 1, 3]].all()
    assert not both[0][2].any() or value == torch.inf


def test_two_weights_are_one_view():
    """Two weights in one vector, the second behind the first, are not copied; others are."""
    vector = torch.randn(100)
    p, q = vector[8:20].view(3, 4), vector[64:76].view(3, 4)
    assert torch.equal(stacked(p, q), torch.stack([p, q]))
    assert stacked(p, q).data_ptr() == p.data_ptr()
    for first, second in ((q, p), (p, torch.randn(3, 4))):
        assert torch.equal(stacked(first, second), torch.stack([first, second]))
