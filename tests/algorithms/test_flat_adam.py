"""Adam on vectors, one for each group, beside torch's own."""

import torch

from gpusim_rl.algorithms.flat_adam import FlatAdam
from tests.worlds import make_policy


def test_it_is_torchs_adam():
    """Ten steps are, to the bit, those of torch.optim.Adam with fused=True; where `bad` is 1, none
    is taken."""
    optimizer = FlatAdam(make_policy(6, 8, 2, hidden=(8,)).groups(), 1e-2)
    vectors = optimizer.weights.values()
    twins = [torch.nn.Parameter(w.detach().clone()) for w in vectors]
    rates = torch.tensor(1e-2), torch.tensor(3e-3)
    groups = [{"params": [w], "lr": r} for w, r in zip(twins, rates, strict=True)]
    theirs = torch.optim.Adam(groups, eps=1e-5, fused=True)
    optimizer.rates["critic"].fill_(3e-3)
    generator = torch.Generator().manual_seed(1)
    for step in range(10):
        optimizer.grads.normal_(generator=generator)
        before = [w.detach().clone() for w in vectors]
        if step == 4:
            optimizer.bad.fill_(1)
            optimizer.step()
            optimizer.bad.zero_()
            assert all(w.equal(b) for w, b in zip(vectors, before, strict=True))
        for w, twin in zip(vectors, twins, strict=True):
            twin.grad = w.grad.clone()
        optimizer.step()
        theirs.step()
        assert all(w.equal(twin) for w, twin in zip(vectors, twins, strict=True))
        assert not any(w.equal(b) for w, b in zip(vectors, before, strict=True))
    for moments, twin in zip(optimizer.moments.values(), twins, strict=True):
        assert moments["step"] == 10
        assert all(moments[key].equal(theirs.state[twin][key]) for key in moments)


def two_networks() -> tuple[dict[str, torch.nn.Linear], FlatAdam]:
    """A network in each of two groups, and their optimizer."""
    nets = {"actor": torch.nn.Linear(5, 3), "q": torch.nn.Linear(4, 1)}
    return nets, FlatAdam({name: list(net.parameters()) for name, net in nets.items()}, 0.1)


def test_groups_are_apart():
    """Parameters keep their values and become views; a group without a gradient and its rate do not
    touch the other; gradients are written by parameter."""
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
    """A target network keeps what its copy had, and moves by a share τ of the distance, all of its
    parameters in one operation."""
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
