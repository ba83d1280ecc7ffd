"""Networks side by side, with layer norm: the critics of an ensemble, or an actor by itself."""

# torch has no types for some of its members:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gpusim_rl.networks.encoders import LAYERS, HiddenLayers
from gpusim_rl.networks.symmetric import EvenOddMerge, EvenOddSplit

EPS = 1e-5  # of a layer norm, as torch has it


def weights(copies: int, n: int, m: int, gain: float, generator: torch.Generator) -> nn.Parameter:
    """(copies, n, m) orthogonal matrices times a gain."""
    w = torch.empty(copies, n, m)
    for each in w if w.numel() else ():
        nn.init.orthogonal_(each, gain, generator=generator)
    return nn.Parameter(w)


def constants(copies: int, n: int, value: float) -> nn.Parameter:
    """(copies, 1, n) of one value, which a batch of rows shares."""
    return nn.Parameter(torch.full((copies, 1, n), value))


class Ensemble(nn.Module):
    """x (n, width) → (copies, n, out): linear layers, each with layer norm before its activation.

    y = φ(g LN(W x) + b), where LN is that of arXiv:1607.06450. The last layer is linear. All
    copies see the same x, and each product is one for all of them. They differ by their first
    weights, of which the last layer's have `gain` and the others √2.
    """

    def __init__(self, copies: int, width: int, out: int, layers: HiddenLayers, gain: float):
        super().__init__()
        sizes = [*pairwise((width, *layers.widths, out))]
        scaled = zip(sizes, layers.gains(gain), strict=True)
        self.w = nn.ParameterList(weights(copies, *size, g, layers.generator) for size, g in scaled)
        self.b = nn.ParameterList(constants(copies, m, 0.0) for _, m in sizes)
        self.g = nn.ParameterList(constants(copies, m, 1.0) for m in layers.widths)
        self.activation = LAYERS[layers.activation]()

    def forward(self, x: Tensor) -> Tensor:
        x = x.expand(len(self.w[0]), *x.shape)
        for w, g, b in zip(self.w, self.g, self.b, strict=False):
            y = torch.bmm(x, w)
            x = self.activation(F.layer_norm(y, y.shape[-1:], eps=EPS) * g + b)
        return torch.baddbmm(self.b[-1], x, self.w[-1])


class SymmetricEnsemble(nn.Module):
    """As `Ensemble`, and f(M x) = A f(x), exactly: the layers of `SymmetricMLP`.

    The moments of a layer norm are those of both units of each pair, a + c and a - c, so that it
    commutes with the mirror. x is given in the parts of `split`; f(x) is whole again.
    """

    def __init__(
        self, copies: int, split: EvenOddSplit, out: EvenOddSplit, layers: HiddenLayers, gain: float
    ):
        super().__init__()
        self.widths, pairs, generator = list(split.widths), layers.pairs, layers.generator
        *scales, last = layers.gains(gain, paired=True)
        given = [split.widths, *((n, n) for n in pairs[:-1])]
        self.even, self.odd = nn.ParameterList(), nn.ParameterList()
        for widths, n, scale in zip(given, pairs, scales, strict=True):
            for width, part in zip(widths, (self.even, self.odd), strict=True):
                part.append(weights(copies, width, n, scale, generator))
        self.b = nn.ParameterList(constants(copies, n, 0.0) for n in pairs)
        self.g = nn.ParameterList(constants(copies, n, 1.0) for n in pairs)
        even, odd = out.widths
        self.last_even = weights(copies, pairs[-1], even, last, generator) if even else None
        self.last_odd = weights(copies, pairs[-1], odd, last, generator) if odd else None
        self.bias = constants(copies, even, 0.0) if even else None
        self.activation, self.whole = LAYERS[layers.activation](), EvenOddMerge(out)

    def forward(self, x: Tensor) -> Tensor:
        """The parts of x (n, …) → f(x) (copies, n, out)."""
        copies = len(self.b[0])
        even, odd = (part.expand(copies, *part.shape) for part in x.split(self.widths, -1))
        for p, q, g, b in zip(self.even, self.odd, self.g, self.b, strict=True):
            a, c = torch.bmm(even, p), torch.bmm(odd, q)
            a = a - a.mean(-1, keepdim=True)  # on the CPU, var_mean takes ten times as long
            var = a.square().mean(-1, keepdim=True) + c.square().mean(-1, keepdim=True)
            scale = torch.rsqrt(var + EPS) * g
            a, c = torch.addcmul(b, a, scale), c * scale
            u, v = self.activation(a + c), self.activation(a - c)
            even, odd = u + v, u - v
        parts = []
        if self.last_even is not None and self.bias is not None:
            parts.append(torch.baddbmm(self.bias, even, self.last_even))
        if self.last_odd is not None:
            parts.append(torch.bmm(odd, self.last_odd))
        return self.whole(parts[0] if len(parts) == 1 else torch.cat(parts, -1))
