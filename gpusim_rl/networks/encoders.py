"""From a view to a network's output: layers, and encoders before them that remember an episode."""

import math
from itertools import pairwise
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from gpusim_rl.core.ranges import WIDTH
from gpusim_rl.networks.attention import Attention

LAYERS = {
    "relu": nn.ReLU,
    "elu": nn.ELU,
    "tanh": nn.Tanh,
    "silu": nn.SiLU,
    "hardswish": nn.Hardswish,
}


# Why: docs/decisions/0015-memory-of-a-policy.md
class Encoder(Protocol):
    """The part of a network that remembers an episode, before its layers.

    Its memory h has a row for each of B worlds, of any shape (B, …). All zeros are a blank one, so
    that whoever restarts a world needs to know no more.

    Attributes:
        size: numbers of the features y that the layers are given.
    """

    size: int

    def blank(self, worlds: int) -> Tensor:
        """h (worlds, …) as an episode begins: zeros."""
        ...

    def step(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        """x (…, width) and h (…) → y (…, size) and the next h."""
        ...

    def unroll(self, x: Tensor, h: Tensor, begins: Tensor) -> tuple[Tensor, Tensor]:
        """Sequences x (T, B, width) from h (B, …) → y and the h after each step, (T B, …) each.

        begins (T, B) is 1 where an episode begins: h is blank before that step.
        """
        ...


class GRU(nn.Module):
    """Gated recurrent unit (arXiv:1406.1078, with the gates of torch.nn.GRUCell).

        r = σ(W_r x + U_r h),  z = σ(W_z x + U_z h),  n = tanh(W_n x + r ⊙ U_n h)
        h' = n + z ⊙ (h - n),  y = h'

    W and U are orthogonal at first, each gate by itself, and the biases zero.

    Args:
        width: of x; size: of h and y.
        generator: of the first weights.
    """

    def __init__(self, width: int, size: int, generator: torch.Generator):
        super().__init__()
        WIDTH.check("algo.memory_size", size)
        self.size = size
        self.input, self.recurrent = nn.Linear(width, 3 * size), nn.Linear(size, 3 * size)
        for layer in (self.input, self.recurrent):
            for gate in layer.weight.detach().chunk(3):
                nn.init.orthogonal_(gate, generator=generator)
            nn.init.zeros_(layer.bias)

    def blank(self, worlds: int) -> Tensor:
        """h (worlds, size) as an episode begins: zeros."""
        return self.input.bias.new_zeros(worlds, self.size)

    def step(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        """x (…, width) and h (…, size) → h' (…, size), as features and as memory."""
        h = self._next(self.input(x), h)
        return h, h

    def unroll(self, x: Tensor, h: Tensor, begins: Tensor) -> tuple[Tensor, Tensor]:
        """`step` after `step`, as `Encoder` has it."""
        gates, keeps, states = self.input(x), begins[..., None] == 0, []
        for gate, keep in zip(gates, keeps, strict=True):
            h = self._next(gate, torch.where(keep, h, 0.0))
            states.append(h)
        after = torch.cat(states)
        return after, after

    def _next(self, gates: Tensor, h: Tensor) -> Tensor:
        """h' for gates (…, 3 size) = W x + b."""
        reset, update, new = gates.chunk(3, -1)
        u_reset, u_update, u_new = self.recurrent(h).chunk(3, -1)
        candidate = torch.tanh(new + torch.sigmoid(reset + u_reset) * u_new)
        return candidate + torch.sigmoid(update + u_update) * (h - candidate)


ENCODERS = {"gru": GRU, "attention": Attention}  # by algo.memory


class MemoryMLP(nn.Module):
    """x (B, width) and h (B, …) → y (B, out) and h': an encoder, then a multi-layer perceptron.

    Args:
        encoder: one of `ENCODERS`; head: layers on its features.
    """

    encoder: Any

    def __init__(self, encoder: nn.Module, head: nn.Sequential):
        super().__init__()
        self.encoder, self.head = encoder, head

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        y, h = self.encoder.step(x, h)
        return self.head(y), h

    def unroll(self, x: Tensor, h: Tensor, begins: Tensor) -> tuple[Tensor, Tensor]:
        """y and h' after each step, (T, B, …) each, of sequences as `Encoder.unroll` has them."""
        y, after = self.encoder.unroll(x, h, begins)
        steps = x.shape[:2]
        return mlp_forward(self.head, y).unflatten(0, steps), after.unflatten(0, steps)


def check_hidden(hidden: tuple[int, ...], activation: str) -> None:
    """ValueError for a width or an activation that no layer can have."""
    WIDTH.check("algo.hidden", hidden)
    if activation not in LAYERS:
        raise ValueError(f"algo.activation={activation!r}: choose one of {', '.join(LAYERS)}")


def mlp(
    width: int,
    hidden: tuple[int, ...],
    out: int,
    activation: str,
    gain: float,
    generator: torch.Generator,
) -> nn.Sequential:
    """Linear layers with orthogonal weights (gain √2, `gain` on the last) and zero biases."""
    check_hidden(hidden, activation)
    sizes, layers = [width, *hidden, out], []
    for i, (a, b) in enumerate(pairwise(sizes)):
        last = i == len(hidden)
        layers.append(linear(a, b, gain if last else math.sqrt(2), generator))
        layers += [] if last else [LAYERS[activation]()]
    return nn.Sequential(*layers)


def linear(a: int, b: int, gain: float, generator: torch.Generator, bias: bool = True) -> nn.Linear:
    """A linear layer with orthogonal weights, times a gain, and a zero bias."""
    layer = nn.Linear(a, b, bias=bias)
    nn.init.orthogonal_(layer.weight, gain, generator=generator)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


def mlp_forward(net: nn.Sequential, x: Tensor) -> Tensor:
    """net(x) for x (n, width), on the CPU with a faster gradient of the first layer's weight.

    That of nn.Linear is (gᵀ x), which takes MKL 1.7 times as long as xᵀ g where width is no
    multiple of 16. The width of an observation seldom is.
    """
    if x.is_cuda or not torch.is_grad_enabled():
        return net(x)
    first, *rest = net
    assert isinstance(first, nn.Linear)
    x = torch.addmm(first.bias, x, first.weight.t().contiguous())
    for layer in rest:
        x = layer(x)
    return x
