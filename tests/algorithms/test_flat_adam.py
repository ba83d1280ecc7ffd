"""Adam on two vectors, beside torch's own."""

import torch

from gpusim_rl.algorithms.flat_adam import FlatAdam
from tests.worlds import make_policy


def test_it_is_torchs_adam():
    """Ten steps are, to the bit, those of torch.optim.Adam with fused=True; where `bad` is 1, none
    is taken."""
    policy = make_policy(6, 8, 2, hidden=(8,))
    optimizer = FlatAdam(policy, 1e-2)
    twins = [torch.nn.Parameter(w.detach().clone()) for w in optimizer.weights]
    rates = torch.tensor(1e-2), torch.tensor(3e-3)
    groups = [{"params": [w], "lr": r} for w, r in zip(twins, rates, strict=True)]
    theirs = torch.optim.Adam(groups, eps=1e-5, fused=True)
    optimizer.critic_rate.fill_(3e-3)
    generator = torch.Generator().manual_seed(1)
    for step in range(10):
        optimizer.grads.normal_(generator=generator)
        before = [w.detach().clone() for w in optimizer.weights]
        if step == 4:
            optimizer.bad.fill_(1)
            optimizer.step()
            optimizer.bad.zero_()
            assert all(w.equal(b) for w, b in zip(optimizer.weights, before, strict=True))
        for w, twin in zip(optimizer.weights, twins, strict=True):
            twin.grad = w.grad.clone()
        optimizer.step()
        theirs.step()
        assert all(w.equal(twin) for w, twin in zip(optimizer.weights, twins, strict=True))
        assert not any(w.equal(b) for w, b in zip(optimizer.weights, before, strict=True))
    for moments, twin in zip(optimizer.moments, twins, strict=True):
        assert moments["step"] == 10
        assert all(moments[key].equal(theirs.state[twin][key]) for key in moments)
