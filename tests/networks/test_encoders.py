"""Encoders that remember: torch's own unit, sequences with restarts, and what is exported."""

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gpusim_rl.networks.attention import Attention
from gpusim_rl.networks.encoders import GRU, HiddenLayers, MemoryMLP, mlp
from gpusim_rl.networks.policy import restarted
from tests.worlds import make_policy

MEMORIES = pytest.mark.parametrize(
    ("memory", "shapes"),
    [
        ("gru", {"actor": (8,), "critic": (8,)}),
        ("attention", {"actor": (7, 4), "critic": (7, 5)}),
    ],
    ids=("gru", "attention"),
)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def small(seed: int = 0, encoder: Any = GRU, size: int = 6, **more: int) -> MemoryMLP:
    """x (3,) and h → y (2,)."""
    g = generator(seed)
    return MemoryMLP(encoder(3, size, g, **more), mlp(size, 2, HiddenLayers((8,), "elu", g), 1.0))


def attentive() -> MemoryMLP:
    """With four frames, and a place for each that is not zero."""
    net = small(encoder=Attention, size=8, frames=4)
    torch.nn.init.normal_(net.encoder.position, generator=generator(6))
    return net


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
    """Each gate is orthogonal, and the seed decides."""
    for layer in (GRU(5, 5, generator()).input, GRU(5, 5, generator()).recurrent):
        for gate in layer.weight.detach().chunk(3):
            torch.testing.assert_close(gate @ gate.T, torch.eye(5), rtol=0, atol=1e-6)
    a, b, c = (small(seed).encoder.input.weight for seed in (1, 1, 2))
    assert torch.equal(a, b) and not torch.equal(a, c)


@torch.no_grad()
def test_attention_is_its_equation():
    """It is that of a sequence without restarts in NumPy; blank frames have no part."""
    net, x = attentive().encoder, torch.randn(6, 3, generator=generator(3))
    e = x.numpy() @ net.embed.weight.numpy().T + net.embed.bias.numpy()
    q, k, v = (e @ layer.weight.numpy().T for layer in (net.query, net.key, net.value))
    want = []
    for t in range(6):
        rows = [e[t]]
        for head, columns in enumerate((slice(0, 2), slice(2, 4))):
            last = range(max(0, t - 3), t + 1)
            score = k[last, columns] @ q[t, columns] / np.sqrt(2)
            share = np.exp(score + net.position[head, 3 - t + np.array(last)].numpy())
            rows.append(share @ v[last, columns] / share.sum())
        want.append(np.concatenate(rows))
    got, after = net.unroll(x[:, None], net.blank(1), torch.zeros(6, 1))
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-5)
    torch.testing.assert_close(after[-1], torch.cat([x[3:], torch.ones(3, 1)], 1), rtol=0, atol=0)
    assert after[1, :, 3].tolist() == [0, 1, 1]


def test_attention_has_no_loop_over_time():
    """A sequence ten times as long takes no more operators."""

    class Count(TorchDispatchMode):
        seen = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.seen += 1
            return func(*args, **(kwargs or {}))

    net, counts = attentive().encoder, []
    for steps in (5, 50):
        with Count() as count:
            y, _ = net.unroll(torch.randn(steps, 2, 3), net.blank(2), torch.zeros(steps, 2))
            y.sum().backward()
        counts.append(count.seen)
    assert abs(counts[0] - counts[1]) < 10


@pytest.mark.parametrize("make", [small, attentive])
def test_a_sequence_is_its_steps(make):
    """Blank where an episode begins: what was before does not matter, not even NaN."""
    net, g = make(), generator(4)
    x, h = torch.randn(5, 4, 3, generator=g), net.encoder.blank(4)
    for _ in range(2):
        _, h = net.encoder.step(torch.randn(4, 3, generator=g), h)
    h = h.detach()
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


@MEMORIES
def test_a_policy_remembers(memory, shapes):
    """Its memory changes what it does, is blank at a restart, and is a part of no other policy."""
    policy, g = make_policy(3, 4, 2, hidden=(8,), memory=memory, memory_size=8), generator(5)
    assert make_policy(3, 4, 2).blank_memory(5) == {}
    blank = policy.blank_memory(5)
    assert {name: x.shape[1:] for name, x in blank.items()} == shapes
    obs = torch.randn(5, 3, generator=g)
    action, _ = policy.act(dict(actor=obs), blank)
    _, after = policy.act(dict(actor=torch.randn(5, 3, generator=g)), blank)
    again, _ = policy.act(dict(actor=obs), after)
    assert not torch.equal(action, again)
    mask = torch.tensor([True, False, False, True, False])
    restart, _ = policy.act(dict(actor=obs), restarted(after, mask))
    assert torch.equal(restart[mask], action[mask]) and torch.equal(restart[~mask], again[~mask])


@MEMORIES
def test_the_actor_is_traced(memory, shapes):
    """torch.export takes the actor with its memory for any number of worlds."""
    actor = make_policy(3, 4, 2, hidden=(8,), memory=memory, memory_size=8).actor.eval()
    batch = torch.export.Dim("batch")
    dynamic = {"obs": {0: batch}, "memory": {"actor": {0: batch}}}
    program = torch.export.export(
        actor, (torch.randn(2, 3), actor.blank_memory(2)), dynamic_shapes=dynamic
    )
    obs, before = torch.randn(9, 3), {"actor": torch.randn(9, *shapes["actor"])}
    for a, b in zip(program.module()(obs, before), actor(obs, before), strict=True):
        torch.testing.assert_close(a, b)
