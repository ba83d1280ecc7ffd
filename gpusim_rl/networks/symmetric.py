"""Networks that commute with a mirror: of an image they make the image of the result."""

import math
from itertools import pairwise

import torch
from torch import Tensor, nn

from gpusim_rl.core.symmetry import Flip
from gpusim_rl.networks.encoders import LAYERS, check_hidden


class Parts(nn.Module):
    """x (…, n) → its even part, which the mirror keeps, and its odd part, whose sign it changes.

    A pair of columns that change places becomes their sum and difference, divided by √2. So x is
    turned by an orthonormal matrix, and lengths stay. The tensors are no parameters.

    Attributes:
        widths: columns of the even part, which comes first, and of the odd one.
    """

    first: Tensor
    second: Tensor
    scales: Tensor  # (2, n) of the first and the second column

    def __init__(self, flip: Flip):
        super().__init__()
        even, odd, c = [], [], math.sqrt(0.5)
        for i, (j, sign) in enumerate(zip(*flip, strict=True)):
            if i == j:
                (even if sign > 0 else odd).append((i, i, 1.0, 0.0))
            elif i < j:
                even.append((i, j, c, c * sign))
                odd.append((i, j, c, -c * sign))
        self.widths = len(even), len(odd)
        first, second, *scales = zip(*even, *odd, strict=True)
        self.register_buffer("first", torch.tensor(first), persistent=False)
        self.register_buffer("second", torch.tensor(second), persistent=False)
        self.register_buffer("scales", torch.tensor(scales), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.scales
        return x.index_select(-1, self.first) * a + x.index_select(-1, self.second) * b


class Whole(nn.Module):
    """The inverse of `Parts`: parts (…, n) → x (…, n)."""

    first: Tensor
    second: Tensor
    scales: Tensor

    def __init__(self, parts: Parts):
        super().__init__()
        n, c = len(parts.first), math.sqrt(0.5)
        first, second, scales = [0] * n, [0] * n, [[1.0] * n, [0.0] * n]
        for column, (i, j, _, b) in enumerate(
            zip(parts.first.tolist(), parts.second.tolist(), *parts.scales.tolist(), strict=True)
        ):
            if i == j:
                first[i] = second[i] = column
            elif column < parts.widths[0]:  # the sum
                sign = math.copysign(1.0, b)
                first[i] = first[j] = column
                scales[0][i], scales[0][j] = c, c * sign
            else:
                sign = -math.copysign(1.0, b)
                second[i] = second[j] = column
                scales[1][i], scales[1][j] = c, -c * sign
        self.register_buffer("first", torch.tensor(first), persistent=False)
        self.register_buffer("second", torch.tensor(second), persistent=False)
        self.register_buffer("scales", torch.tensor(scales), persistent=False)

    def forward(self, y: Tensor) -> Tensor:
        a, b = self.scales
        return y.index_select(-1, self.first) * a + y.index_select(-1, self.second) * b


class Constant(nn.Module):
    """What a linear map of no columns gives: its bias (…, n), or nothing without one."""

    def __init__(self, n: int, bias: bool):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(n)) if bias else None

    def forward(self, x: Tensor) -> Tensor | float:
        return 0.0 if self.bias is None else self.bias.expand(*x.shape[:-1], -1)


def linear(
    a: int, b: int, gain: float, generator: torch.Generator, *, bias: bool
) -> nn.Linear | Constant:
    """Orthogonal weights, scaled, and zero biases."""
    if a == 0:
        return Constant(b, bias)
    layer = nn.Linear(a, b, bias=bias)
    nn.init.orthogonal_(layer.weight, gain, generator=generator)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


class SymmetricMLP(nn.Module):
    """A multi-layer perceptron f with f(M x) = A f(x), exactly: M and A are mirrors.

    Hidden units come in pairs (u, v) that the mirror exchanges. With even parts e = u + v and odd
    parts o = u - v of every layer, a layer is

        u' = φ(P e + Q o + b),  v' = φ(P e - Q o + b)

    These are all linear layers that commute (arXiv:1602.07576 for groups of two), at half the
    products of one that does not. Exact in floating point, too: of an image, o is -o to the bit.

    Args:
        given: the parts of x; wanted: those of f(x).
        hidden: units of the hidden layers, each an even number.
        activation, gain, generator: as `mlp` has them.
    """

    def __init__(
        self,
        given: Parts,
        hidden: tuple[int, ...],
        wanted: Parts,
        activation: str,
        gain: float,
        generator: torch.Generator,
    ):
        super().__init__()
        check_hidden(hidden, activation)
        if any(n % 2 for n in hidden):
            raise ValueError(
                f"algo.hidden={list(hidden)}: expected even numbers with algo.symmetry=net"
            )
        pairs = [n // 2 for n in hidden]
        widths = [given.widths, *((n, n) for n in pairs), wanted.widths]
        self.widths, self.depth = list(given.widths), len(hidden)
        self.even, self.odd = nn.ModuleList(), nn.ModuleList()
        for i, (a, b) in enumerate(pairwise(widths)):
            last = i == len(hidden)
            scale = gain if last else math.sqrt(2)
            # u + v is √2 times, and so is each of u and v of orthonormal parts
            scale *= math.sqrt(0.5) ** ((i > 0) + (not last))
            for part, layers in enumerate((self.even, self.odd)):
                if b[part]:
                    layers.append(linear(a[part], b[part], scale, generator, bias=part == 0))
        self.activation, self.whole = LAYERS[activation](), Whole(wanted)

    def forward(self, x: Tensor) -> Tensor:
        """The parts of x (…, n) → f(x) (…, out)."""
        even, odd = x.split(self.widths, -1)
        for p, q in zip(self.even[: self.depth], self.odd[: self.depth], strict=True):
            a, b = p(even), q(odd)
            u, v = self.activation(a + b), self.activation(a - b)
            even, odd = u + v, u - v
        last = [self.even[self.depth :], self.odd[self.depth :]]
        parts = [layer(x) for layers, x in zip(last, (even, odd), strict=True) for layer in layers]
        return self.whole(torch.cat(parts, -1))
