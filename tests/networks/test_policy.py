"""The actor-critic: its smallest deviation, and first weights as a function of the seed."""

import pytest
import torch

from tests.worlds import copies, differing, make_policy


def test_floor_holds_with_a_gradient():
    """However low log_std falls, the deviation stays at `min_std` and the gradient is not zero."""
    policy = make_policy(3, 4, 2, std=1.0, min_std=0.05)
    torch.testing.assert_close(policy.std, torch.ones(2))
    with torch.no_grad():
        policy.log_std.fill_(-40.0)
    policy.std.sum().backward()
    assert policy.std.tolist() == pytest.approx([0.05, 0.05])
    assert policy.log_std.grad is not None and (policy.log_std.grad > 0).all()


ATTENTION = {"memory": "attention"}


@pytest.mark.parametrize(
    "says, keys",
    [
        *((r"algo\.min_std", {"std": 1.0, "min_std": x}) for x in (0.0, 1.0, 2.0)),
        ("'gelu2': choose one of relu, elu, tanh, silu", {"activation": "gelu2"}),
        ("memory_size=0: expected", {"memory": "gru", "memory_size": 0}),
        ("memory_size=8193: expected", {"memory": "gru", "memory_size": 8193}),
        ("memory_size=6: expected a multiple of 4 for att", ATTENTION | {"memory_size": 6}),
        ("memory_frames=1: expected a whole number from 2 to 64", ATTENTION | {"memory_frames": 1}),
        (r"memory=gru needs algo\.symmetry=none, not net", {"memory": "gru", "symmetry": "net"}),
    ],
)
def test_what_makes_no_network_is_named(says, keys):
    """A number out of range, an unknown choice, and what does not go together are one line."""
    with pytest.raises(ValueError, match=says):
        make_policy(3, 4, 2, **keys)


def test_first_weights_are_a_function_of_the_seed():
    """Whatever torch's own generator did before; another seed gives others."""

    def weights(seed: int, foreign: int) -> dict[str, torch.Tensor]:
        torch.manual_seed(foreign)
        return make_policy(5, 7, 2, hidden=(16, 16), seed=seed).state_dict()

    a, b, c = weights(3, 0), weights(3, 1), weights(4, 0)
    assert all(torch.equal(a[k], b[k]) for k in a)
    matrices = [k for k, v in a.items() if v.ndim == 2]
    assert len(matrices) == 6
    assert all(not torch.equal(a[k], c[k]) for k in matrices)


def test_first_actions_are_small():
    """The untrained mean action is near zero, so that exploration starts from the task's rest."""
    policy = make_policy(5, 7, 2, hidden=(64, 64))
    obs = torch.randn(100, 5, generator=torch.Generator().manual_seed(0))
    assert 0 < policy.actor(obs).abs().max() < 0.1


@pytest.mark.parametrize("name", ["mean", "value"])
def test_bf16_multiplies_alone(name):
    """Weights, views and results stay float32, the numbers are bfloat16's; off is exact."""
    plain, amp = (make_policy(6, 6, 2, hidden=(64, 64), amp=amp) for amp in (None, "bf16"))
    view = torch.randn(50, 6, generator=torch.Generator().manual_seed(0))
    a, b = (getattr(policy, name)(view) for policy in (plain, amp))
    exact = (plain.actor.net if name == "mean" else plain.critic)(view)
    assert a.dtype == b.dtype == torch.float32 and torch.equal(a, exact)
    scale = a.abs().max()
    assert 1e-5 * scale < (a - b).abs().max() < 2e-2 * scale
    b.square().sum().backward()
    assert all(p.dtype == torch.float32 for p in amp.parameters())
    assert any(p.grad is not None and p.grad.abs().max() > 0 for p in amp.parameters())


@pytest.mark.parametrize("change", ["shape", "type", "missing", "more"])
def test_a_state_that_does_not_fit_changes_nothing(change):
    """It is refused by name, and no weight was written; one that fits gives every tensor."""
    policy, other = (make_policy(5, 7, 2, hidden=(16, 16), seed=seed) for seed in (1, 2))
    before = copies(policy.state_dict())
    state = {f"policy/{name}": value for name, value in other.state_dict().items()}
    last, right = list(state)[-1], dict(state)
    if change == "missing":
        del state[last]
    elif change == "more":
        last += ".more"
        state[last] = torch.zeros(1)
    else:
        state[last] = state[last].double() if change == "type" else torch.zeros(99)
    with pytest.raises(ValueError, match=rf"a\.safetensors does not fit .*{last[7:]}"):
        policy.load(state, "a.safetensors")
    assert differing(before, policy.state_dict()) == []
    policy.load(right, "a.safetensors")
    assert differing(other.state_dict(), policy.state_dict()) == []
