"""Adam on vectors, one for each group, beside torch's own."""

import pytest
import torch

from gpusim_rl.algorithms.flat_adam import FlatAdam
from tests.worlds import make_policy

KERNELS = pytest.mark.parametrize("kernels", [False, True])  # those of CUDA


def twin(optimizer: FlatAdam) -> torch.optim.Adam:
    """Torch's optimizer of copies of the weights, with a group and a rate for each."""
    rates = optimizer.rates.values()
    twins = [torch.nn.Parameter(w.detach().clone()) for w in optimizer.weights.values()]
    groups = [{"params": [w], "lr": r.clone()} for w, r in zip(twins, rates, strict=True)]
    return torch.optim.Adam(groups, eps=1e-5, fused=True)


@KERNELS
@pytest.mark.parametrize("max_norm", [None, 1.0, 1e6])
def test_it_is_torchs_adam(max_norm, kernels):
    """Ten steps are those of clip_grad_norm_ and torch.optim.Adam, unclipped to the bit."""
    groups = make_policy(6, 8, 2, hidden=(64, 64)).groups()
    optimizer = FlatAdam(groups, 1e-2, max_norm or 1.0, kernels)
    optimizer.rates["critic"].fill_(3e-3)
    vectors, theirs = optimizer.weights.values(), twin(optimizer)
    twins = [group["params"][0] for group in theirs.param_groups]
    generator, share = torch.Generator().manual_seed(1), torch.tensor([0.1])
    optimizer.share.copy_(share)
    exact = max_norm is None and not kernels
    close = dict(rtol=0, atol=0) if exact else dict(rtol=2e-6, atol=2e-7)
    for _ in range(10):
        before = [w.detach().clone() for w in vectors]
        for w, other in zip(vectors, twins, strict=True):
            w.grad.normal_(generator=generator)
            other.grad = w.grad.clone() if max_norm is None else share * w.grad
        if max_norm is not None:
            norms = optimizer.clip(torch.zeros(5))
            want = [torch.nn.utils.clip_grad_norm_(w, max_norm) for w in twins]
            torch.testing.assert_close(norms, torch.stack(want))
        optimizer.step()
        theirs.step()
        for w, other in zip(vectors, twins, strict=True):
            torch.testing.assert_close(w.data, other.data, **close)
            torch.testing.assert_close(w.grad, other.grad, **close)
        assert not any(w.equal(b) for w, b in zip(vectors, before, strict=True))
    for moments, other in zip(optimizer.moments.values(), twins, strict=True):
        assert moments["step"] == 10
        for key, x in moments.items():
            torch.testing.assert_close(x, theirs.state[other][key], **close)


@KERNELS
@pytest.mark.parametrize("where", ["by hand", "gradient", "stats"])
def test_a_bad_step_changes_nothing(where, kernels):
    """Where a number is not finite, weights and moments stay, and the step is not counted."""
    optimizer = FlatAdam(make_policy(6, 8, 2, hidden=(64, 64)).groups(), 1e-2, kernels=kernels)
    stats, state = torch.zeros(5), optimizer.tensors()
    for bad in (False, True, False):
        before = [x.clone() for x in (*optimizer.weights.values(), *state.values())]
        optimizer.grads.fill_(1.0)
        optimizer.weights["critic"].grad[70] = torch.nan if bad and where == "gradient" else 1.0
        stats[3] = torch.inf if bad and where == "stats" else 0.0
        if where == "by hand":
            optimizer.bad.fill_(bad)
        else:
            optimizer.clip(stats)
        assert optimizer.bad == bad
        optimizer.step()
        after = *optimizer.weights.values(), *state.values()
        assert {x.equal(b) for x, b in zip(after, before, strict=True)} == {bad}


def test_a_step_is_clipped_once():
    """A step that no `clip` precedes takes the gradients as they are."""
    optimizers = [FlatAdam(make_policy(6, 8, 2).groups(), 1e-2, 1e-3, x) for x in (False, True)]
    for optimizer in optimizers:
        optimizer.grads.fill_(1.0)
        optimizer.clip(torch.zeros(5))
        optimizer.step()
        optimizer.grads.fill_(2.0)
        optimizer.step()
        assert (optimizer.grads == 2.0).all() and (optimizer.norms > 1.0).all()


def test_squares_are_summed_in_a_fixed_order():
    """Norms of long vectors have the same bits in each call, and are those of float64."""
    layer = torch.nn.Linear(300, 200)
    optimizer = FlatAdam({"one": list(layer.parameters())}, 1e-2, kernels=True)
    optimizer.grads.normal_(generator=torch.Generator().manual_seed(1))
    first, second = (optimizer.clip(torch.zeros(1)).clone() for _ in range(2))
    want = optimizer.grads.double().norm()[None].float()
    assert torch.equal(first, second) and torch.allclose(first, want, rtol=1e-6)


def two_networks() -> tuple[dict[str, torch.nn.Linear], FlatAdam]:
    """A network in each of two groups, and their optimizer."""
    nets = {"actor": torch.nn.Linear(5, 3), "q": torch.nn.Linear(4, 1)}
    return nets, FlatAdam({name: list(net.parameters()) for name, net in nets.items()}, 0.1)


def test_groups_are_apart():
    """Parameters are views with their values; a group without a gradient stays."""
    torch.manual_seed(0)
    before = torch.nn.Linear(5, 3).weight.detach()
    torch.manual_seed(0)
    nets, optimizer = two_networks()
    actor, q = nets.values()
    assert torch.equal(actor.weight, before)
    assert list(optimizer.gradients) == [*actor.parameters(), *q.parameters()]
    assert list(optimizer.weights) == list(optimizer.rates) == ["actor", "q"]
    assert [*optimizer.tensors()] == [
        f"{name}/{key}" for name in nets for key in ("step", "exp_avg", "exp_avg_sq")
    ]
    grads = torch.autograd.grad(q(torch.ones(2, 4)).sum(), list(q.parameters()))
    optimizer.write(grads, first=2)
    assert torch.equal(optimizer.gradients[q.weight], torch.full((1, 4), 2.0))
    old = q.weight.detach().clone()
    optimizer.step()
    assert torch.equal(actor.weight, before)
    torch.testing.assert_close(q.weight, old - 0.1, rtol=0, atol=1e-5)


def test_a_target_follows():
    """A target network moves by a share τ of the distance, in one operation."""
    nets, optimizer = two_networks()
    target = torch.nn.Linear(4, 1)
    target.load_state_dict(nets["q"].state_dict())
    vector = optimizer.target("q", list(target.parameters()))
    first = nets["q"].weight.detach().clone()
    assert torch.equal(target.weight, first) and target.weight.data_ptr() != first.data_ptr()
    with torch.no_grad():
        nets["q"].weight.add_(1.0)
        assert torch.equal(target.weight, first)
        vector.lerp_(optimizer.weights["q"], 0.25)
    torch.testing.assert_close(target.weight, first + 0.25)
    assert torch.equal(target.bias, nets["q"].bias)
