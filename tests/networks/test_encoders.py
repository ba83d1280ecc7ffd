"""Encoders that remember: torch's own unit, sequences with restarts, and what is exported."""

import pytest
import torch

from gpusim_rl.networks.encoders import GRU, MemoryMLP, mlp
from gpusim_rl.networks.policy import restarted
from tests.worlds import make_policy


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def small(seed: int = 0) -> MemoryMLP:
    """x (3,) and h (6,) → y (2,)."""
    g = generator(seed)
    return MemoryMLP(GRU(3, 6, g), mlp(6, (8,), 2, "elu", 1.0, g))


def test_the_unit_is_torchs():
    """With the same weights it gives what torch.nn.GRUCell gives."""
    ours, theirs = GRU(3, 5, generator()), torch.nn.GRUCell(3, 5)
    with torch.no_grad():
        for layer in (ours.input, ours.recurrent):
            layer.bias.normal_(generator=generator(1))
        for name, layer in (("ih", ours.input), ("hh", ours.recurrent)):
            getattr(theirs, f"weight_{name}").copy_(layer.weight)
            getattr(theirs, f"bias_{name}").copy_(layer.bias)
    x, h = torch.randn(7, 3, generator=generator(2)), torch.randn(7, 5, generator=generator(3))
    for output in ours.step(x, h):
        torch.testing.assert_close(output, theirs(x, h), rtol=0, atol=1e-6)


def test_first_weights():
    """Each gate is orthogonal, the seed decides, and a size that makes no sense is refused."""
    for layer in (GRU(5, 5, generator()).input, GRU(5, 5, generator()).recurrent):
        for gate in layer.weight.detach().chunk(3):
            torch.testing.assert_close(gate @ gate.T, torch.eye(5), rtol=0, atol=1e-6)
    a, b, c = (small(seed).encoder.input.weight for seed in (1, 1, 2))
    assert torch.equal(a, b) and not torch.equal(a, c)
    for size in (0, 8193):
        with pytest.raises(ValueError, match=f"memory_size={size}: expected"):
            make_policy(3, 4, 2, memory="gru", memory_size=size)


def test_a_sequence_is_its_steps():
    """`unroll` gives what steps one by one give, with a blank memory where an episode begins; what
    was before does not matter then, not even NaN, and no gradient reaches it."""
    net, g = small(), generator(4)
    x, h = torch.randn(5, 4, 3, generator=g), torch.randn(4, 6, generator=g)
    begins = torch.zeros(5, 4)
    begins[2, 1] = begins[4, 3] = 1
    want, now = [], h
    for t in range(5):
        y, now = net(x[t], restarted({"h": now}, begins[t] == 1)["h"])
        want.append(y)
    got, after = net.unroll(x, h, begins)
    torch.testing.assert_close(got, torch.stack(want))
    torch.testing.assert_close(after[-1], now)
    x.requires_grad_()
    net.unroll(x, h, begins)[0][2:, 1].sum().backward()
    assert (x.grad[:2] == 0).all() and (x.grad[2:, 1] != 0).all()
    spoilt = x.detach().clone()
    spoilt[:2, 1] = torch.nan
    with torch.no_grad():
        again = net.unroll(spoilt, h, begins)[0]
    torch.testing.assert_close(again[2:, 1], got[2:, 1])


def test_a_policy_remembers():
    """Its memory changes what it does, is blank at a restart, and is a part of no other policy."""
    policy, g = make_policy(3, 4, 2, hidden=(8,), memory="gru", memory_size=6), generator(5)
    assert make_policy(3, 4, 2).blank_memory(5) == {}
    blank = policy.blank_memory(5)
    assert {name: x.shape for name, x in blank.items()} == dict.fromkeys(blank, (5, 6))
    obs = torch.randn(5, 3, generator=g)
    action, memory = policy.act(obs, blank)
    again, _ = policy.act(obs, memory)
    assert not torch.equal(action, again)
    mask = torch.tensor([True, False, False, True, False])
    restart, _ = policy.act(obs, restarted(memory, mask))
    assert torch.equal(restart[mask], action[mask]) and torch.equal(restart[~mask], again[~mask])


def test_the_actor_is_traced():
    """torch.export takes the actor with its memory for any number of worlds."""
    actor = make_policy(3, 4, 2, hidden=(8,), memory="gru", memory_size=6).actor.eval()
    batch = torch.export.Dim("batch")
    shapes = {"obs": {0: batch}, "memory": {"actor": {0: batch}}}
    program = torch.export.export(
        actor, (torch.randn(2, 3), actor.blank_memory(2)), dynamic_shapes=shapes
    )
    obs, memory = torch.randn(9, 3), {"actor": torch.randn(9, 6)}
    for a, b in zip(program.module()(obs, memory), actor(obs, memory), strict=True):
        torch.testing.assert_close(a, b)


def test_what_does_not_go_together():
    """A memory with a symmetry is refused in one line."""
    with pytest.raises(ValueError, match=r"algo\.memory=gru needs algo\.symmetry=none, not net"):
        make_policy(3, 4, 2, memory="gru", symmetry="net")
