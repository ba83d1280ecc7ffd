"""Networks that commute with a mirror: of an image they make the image of the result."""

# torch has no types for some of its members:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

import math
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from gpusim_rl.core.symmetry import Flip
from gpusim_rl.networks.encoders import LAYERS, HiddenLayers, linear
from gpusim_rl.networks.symmetric_kernels import SymmetricForward, combined, runs_kernels


class Pairs(nn.Module):
    """x (…, n) → y (…, m), y_k = a x_i + b x_j for entries (i, j, a, b). They are no parameters."""

    first: Tensor
    second: Tensor
    scales: Tensor  # (2, m) of the first and the second column

    def __init__(self, entries: list[tuple[int, int, float, float]]):
        super().__init__()
        first, second, *scales = zip(*entries, strict=True)
        self.is_identity = entries == [(i, i, 1.0, 0.0) for i in range(len(entries))]
        for name, x in {"first": first, "second": second, "scales": scales}.items():
            self.register_buffer(name, torch.tensor(x), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.is_identity:
            return x
        if runs_kernels(x):
            rows = x.flatten(0, -2)
            return combined(self, rows, rows[:, :0]).view(*x.shape[:-1], -1)
        a, b = self.scales
        return x.index_select(-1, self.first) * a + x.index_select(-1, self.second) * b


class EvenOddSplit(Pairs):
    """x (…, n) → its even part, which the mirror keeps, and its odd part, whose sign it changes.

    A pair of columns that change places becomes their sum and difference, divided by √2. So x is
    turned by an orthonormal matrix, and lengths stay. The even part comes first.
    """

    def __init__(self, flip: Flip):
        even, odd, c = [], [], math.sqrt(0.5)
        for i, (j, sign) in enumerate(zip(*flip, strict=True)):
            if i == j:
                (even if sign > 0 else odd).append((i, i, 1.0, 0.0))
            elif i < j:
                even.append((i, j, c, c * sign))
                odd.append((i, j, c, -c * sign))
        super().__init__([*even, *odd])
        self.widths = len(even), len(odd)


class EvenOddMerge(Pairs):
    """Joins an even and an odd part to the vector that `split` made them from."""

    def __init__(self, split: EvenOddSplit):
        # for each column of x, those of the parts that it is a sum of, and how much of each
        columns: list[list[tuple[int, float]]] = [[] for _ in split.first]
        entries = (x.tolist() for x in (split.first, split.second, *split.scales))
        for column, (i, j, a, b) in enumerate(zip(*entries, strict=True)):
            columns[i].append((column, a))
            if i != j:
                columns[j].append((column, b))
        pairs = ((one, *two, (one[0], 0.0))[:2] for one, *two in columns)
        super().__init__([(i, j, a, b) for (i, a), (j, b) in pairs])


class Constant(nn.Module):
    """A linear map of no columns: its bias (…, n), or nothing without one."""

    def __init__(self, n: int, bias: bool):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(n)) if bias else None

    def forward(self, x: Tensor) -> Tensor | float:
        return 0.0 if self.bias is None else self.bias.expand(*x.shape[:-1], -1)


# Why: docs/decisions/symmetry.md
class SymmetricMLP(nn.Module):
    """A multi-layer perceptron f with f(M x) = A f(x), exactly: M and A are mirrors.

    Hidden units come in pairs (u, v) that the mirror exchanges. With even parts e = u + v and odd
    parts o = u - v of every layer, a layer is

        u' = φ(P e + Q o + b),  v' = φ(P e - Q o + b)

    These are all linear layers that commute (arXiv:1602.07576 for groups of two), at half the
    products of one that does not. Exact in floating point, too: of an image, o is -o to the bit.

    Args:
        split: the parts of x; out: those of f(x).
        layers: their widths are even numbers; gain: as `mlp` has it.
    """

    def __init__(self, split: EvenOddSplit, out: EvenOddSplit, layers: HiddenLayers, gain: float):
        super().__init__()
        sizes = pairwise([split.widths, *((n, n) for n in layers.pairs), out.widths])
        self.widths, self.depth = list(split.widths), len(layers.widths)
        self.even, self.odd = nn.ModuleList(), nn.ModuleList()
        for size, scale in zip(sizes, layers.gains(gain, paired=True), strict=True):
            for n, m, part in zip(*size, (self.even, self.odd), strict=True):
                bias = part is self.even  # an odd part has none
                if m and n:
                    part.append(linear(n, m, scale, layers.generator, bias))
                elif m:
                    part.append(Constant(m, bias))
        self.activation = LAYERS[layers.activation]()
        self.kind = list(LAYERS).index(layers.activation)
        self.split, self.whole = out, EvenOddMerge(out)

    @property
    def hidden(self) -> list[tuple[Any, Any]]:
        """The layers (P, Q) of each hidden layer."""
        return [(self.even[i], self.odd[i]) for i in range(self.depth)]

    @property
    def last(self) -> tuple[Any, Any]:
        """The layers of the even and of the odd part of the result; None where it has none."""
        even, odd = (next(iter(x[self.depth :]), None) for x in (self.even, self.odd))
        return even, odd

    def forward(self, x: Tensor) -> Tensor:
        """The parts of x (…, n) → f(x) (…, out)."""
        if runs_kernels(x) and self.depth and all(self.widths):
            y = SymmetricForward.apply(self, x.flatten(0, -2), *self.parameters())
            return y.view(*x.shape[:-1], -1)
        even, odd = x.split(self.widths, -1)
        for p, q in self.hidden:
            a, b = p(even), q(odd)
            u, v = self.activation(a + b), self.activation(a - b)
            even, odd = u + v, u - v
        parts = [layer(part) for layer, part in zip(self.last, (even, odd), strict=True) if layer]
        return self.whole(parts[0] if len(parts) == 1 else torch.cat(parts, -1))
