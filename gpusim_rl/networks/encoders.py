"""From a view to a network's output: layers, and encoders before them that remember an episode."""

# torch has no types for some of its members:
# pyright: reportUnknownVariableType=false

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn

from gpusim_rl.core.ranges import WIDTH
from gpusim_rl.core.record import Column, Columns
from gpusim_rl.networks.attention import Attention
from gpusim_rl.networks.settings import MemorySettings, NetworkSettings

LAYERS = dict(relu=nn.ReLU, elu=nn.ELU, tanh=nn.Tanh, silu=nn.SiLU, hardswish=nn.Hardswish)


# Why: docs/decisions/networks.md
class Encoder(Protocol):
    """The part of a network that remembers an episode, before its layers.

    Its memory h has a row for each of B worlds, of any shape (B, …). All zeros are a blank one, so
    that whoever restarts a world needs to know no more.
    """

    size: int  # numbers of the features y that the layers are given

    def blank(self, worlds: int) -> Tensor: ...  # h (worlds, …) as an episode begins: zeros
    # x (…, width) and h (…) → y (…, size) and the next h
    def step(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]: ...
    # sequences x (T, B, width) from h (B, …) → y and the h after each step, (T B, …) each.
    # begins (T, B) is 1 where an episode begins: h is blank before that step
    def unroll(self, x: Tensor, h: Tensor, begins: Tensor) -> tuple[Tensor, Tensor]: ...


class GRU(nn.Module):
    """Gated recurrent unit (arXiv:1406.1078, with the gates of torch.nn.GRUCell).

        r = σ(W_r x + U_r h),  z = σ(W_z x + U_z h),  n = tanh(W_n x + r ⊙ U_n h)
        h' = n + z ⊙ (h - n),  y = h'

    W and U are orthogonal at first, each gate by itself, and the biases zero. x has `width`
    numbers, h and y have `size`.
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
        """As `Encoder` has it: (worlds, size)."""
        return self.input.bias.new_zeros(worlds, self.size)

    def step(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        """x (…, width) and h (…, size) → h' (…, size), as features and as memory."""
        h = self._next(self.input(x), h)
        return h, h

    def unroll(self, x: Tensor, h: Tensor, begins: Tensor) -> tuple[Tensor, Tensor]:
        """`step` after `step`, as `Encoder` has it."""
        gates, keeps, states = self.input(x), begins[..., None] == 0, list[Tensor]()
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
    """x (B, width) and h (B, …) → y (B, out) and h': an encoder, then layers on its features."""

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


class Convolutions(nn.Module):
    """Pictures (…, channels, height, width) → features (…, size), by convolutions and ReLU.

    The first has kernels of 5 × 5 and steps of 3 pixels, each further one 3 × 3 and 2: a CPU takes
    these for little more than a layer on all pixels. Numbers should be about 1; those of a uint8
    view are divided by 255. ValueError, which names the view, if it is no picture.
    """

    def __init__(self, name: str, view: Column, channels: Any, generator: torch.Generator):
        super().__init__()
        key = f"algo.encoders.{name}"
        if len(view.shape) != 3:
            wanted = "convolutions take (channels, height, width)"
            raise ValueError(f"{key}: the view has the shape {view.shape}, and {wanted}")
        WIDTH.check(key, channels)
        if channels in ((), []) or isinstance(channels, int):
            raise ValueError(f"{key}={channels!r}: expected a list of channels, such as [8, 16]")
        self.view, self.scale = view, 1 / 255 if view.dtype == torch.uint8 else 1.0
        layers: list[nn.Module] = []
        for i, (a, b) in enumerate(pairwise((view.shape[0], *channels))):
            size, step = (3, 2) if i else (5, 3)
            layer = nn.Conv2d(a, b, size, step, padding=size // 2)
            nn.init.orthogonal_(layer.weight, math.sqrt(2), generator=generator)
            nn.init.zeros_(cast(Tensor, layer.bias))
            layers += [layer, nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Flatten())
        self.size = self(torch.zeros(1, *view.shape)).shape[-1]

    def forward(self, x: Tensor) -> Tensor:
        pictures = x.reshape(-1, *self.view.shape).float() * self.scale
        return self.layers(pictures).reshape(*x.shape[:-3], -1)


@dataclass(frozen=True)
class HiddenLayers:
    """The hidden layers that several networks have alike; ValueError if none can be so."""

    widths: tuple[int, ...]  # where a network commutes with a mirror, both units of a pair count
    activation: str  # one of `LAYERS`
    generator: torch.Generator  # of the first weights, of the last layer as well

    def __post_init__(self) -> None:
        WIDTH.check("algo.hidden", self.widths)
        if self.activation not in LAYERS:
            choices = ", ".join(LAYERS)
            raise ValueError(f"algo.activation={self.activation!r}: choose one of {choices}")

    @property
    def pairs(self) -> list[int]:
        """Pairs of units of each layer; ValueError for what no symmetric network can have."""
        if any(n % 2 for n in self.widths):
            widths = list(self.widths)
            raise ValueError(f"algo.hidden={widths}: expected even numbers with algo.symmetry=net")
        return [n // 2 for n in self.widths]

    def gains(self, last: float, *, paired: bool = False) -> list[float]:
        """Gains of the first weights of each layer: √2, and `last` for that after the hidden ones.

        paired: of weights of even and odd parts. u + v is √2 times, and so is each of u and v of
        orthonormal parts.
        """
        end = len(self.widths)
        halves = [(i > 0) + (i < end) if paired else 0 for i in range(end + 1)]
        gains = zip([*[math.sqrt(2)] * end, last], halves, strict=True)
        return [gain * math.sqrt(0.5) ** n for gain, n in gains]


def make_encoders(
    encoders: Mapping[str, Any], views: Columns, generator: torch.Generator
) -> nn.ModuleDict:
    """The convolutions of some views, by their names; ValueError if the task lacks one."""
    if unknown := sorted(encoders.keys() - views.keys()):
        names = ", ".join(x for x in views if x not in ("actor", "critic")) or "none"
        raise ValueError(f"algo.encoders: {unknown[0]!r} is no view of the task (views: {names})")
    made = {x: Convolutions(x, views[x], encoders[x], generator) for x in encoders}
    return nn.ModuleDict(made)


def make_memory(cfg: MemorySettings, width: int, generator: torch.Generator) -> Any:
    """The encoder that remembers, of x (…, width)."""
    more = {"frames": cfg.memory_frames} if cfg.memory == "attention" else {}
    return ENCODERS[cfg.memory](width, cfg.memory_size, generator, **more)


def make_net(
    cfg: NetworkSettings, width: int, out: int, layers: HiddenLayers, gain: float
) -> nn.Module:
    """The layers of an actor or a critic, after an encoder if it remembers."""
    if cfg.memory == "none":
        return mlp(width, out, layers, gain)
    encoder = make_memory(cfg, width, layers.generator)
    return MemoryMLP(encoder, mlp(encoder.size, out, layers, gain))


def mlp(width: int, out: int, layers: HiddenLayers, gain: float) -> nn.Sequential:
    """Linear layers with orthogonal weights (gain √2, `gain` on the last) and zero biases."""
    made: list[nn.Module] = []
    sizes = pairwise((width, *layers.widths, out))
    for (a, b), scale in zip(sizes, layers.gains(gain), strict=True):
        made += [linear(a, b, scale, layers.generator), LAYERS[layers.activation]()]
    return nn.Sequential(*made[:-1])


def linear(a: int, b: int, gain: float, generator: torch.Generator, bias: bool = True) -> nn.Linear:
    """A linear layer with orthogonal weights, times a gain, and a zero bias."""
    layer = nn.Linear(a, b, bias=bias)
    nn.init.orthogonal_(layer.weight, gain, generator=generator)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


def mlp_forward(net: nn.Sequential, x: Tensor) -> Tensor:
    """net(x) for x (n, width), on the CPU with a faster gradient of the first layer's weight.

    That of nn.Linear, gᵀ x, takes MKL 1.7 times as long as xᵀ g where width is no multiple of 16.
    """
    if x.is_cuda or not torch.is_grad_enabled():
        return net(x)
    first, *rest = net
    assert isinstance(first, nn.Linear)
    x = torch.addmm(first.bias, x, first.weight.t().contiguous())
    for layer in rest:
        x = layer(x)
    return x
