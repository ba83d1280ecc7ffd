"""Symmetric networks on CUDA: two Warp kernels for a hidden layer, one for the last gradients and
one for columns in pairs.

`SymmetricMLP.forward` is the same in torch operations, of which autograd makes four times as many
launches. On the CPU torch is faster, since its operations take vector instructions and all threads.
"""

# ruff: noqa: UP018 (in a kernel float(0.0) is a variable, 0.0 a constant)
# The kernels are Warp's dialect of Python:
# pyright: reportOperatorIssue=false, reportArgumentType=false, reportIndexIssue=false
# pyright: reportAssignmentType=false, reportGeneralTypeIssues=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUntypedFunctionDecorator=false, reportAttributeAccessIssue=false
# pyright: reportUnnecessaryComparison=false, reportUnknownParameterType=false

import math
from itertools import accumulate, pairwise
from typing import Any

import torch
import warp as wp
from torch import Tensor
from torch.autograd.function import once_differentiable

from gpusim_rl.core.streams import launch
from gpusim_rl.fuse.trace import FunctionRun
from gpusim_rl.networks.encoders import LAYERS

# A fused product and sum would round one of two mirrored terms, and not the other.
wp.set_module_options({"fuse_fp": False})
SHARES = 64  # of the rows of a product, a power of two
LINE = 32  # numbers: matrices begin at whole lines of memory
RELU, ELU, TANH, SILU, HARDSWISH = range(len(LAYERS))  # in the order of LAYERS


@wp.func
def activate(kind: int, x: float):
    """φ(x)."""
    y = wp.where(x <= 0.0, 0.0, x)
    if kind == ELU and x <= 0.0:
        y = wp.exp(x) - 1.0
    elif kind == TANH:
        y = wp.tanh(x)
    elif kind == SILU:
        y = x / (1.0 + wp.exp(-x))
    elif kind == HARDSWISH:
        y = x * wp.clamp(x + 3.0, 0.0, 6.0) / 6.0
    return y


@wp.func
def slope(kind: int, x: float):
    """φ'(x)."""
    y = wp.where(x <= 0.0, 0.0, 1.0)
    if kind == ELU and x <= 0.0:
        y = wp.exp(x)
    elif kind == TANH:
        tanh = wp.tanh(x)
        y = 1.0 - tanh * tanh
    elif kind == SILU:
        gate = 1.0 / (1.0 + wp.exp(-x))
        y = gate * (1.0 + x * (1.0 - gate))
    elif kind == HARDSWISH:
        y = wp.where(x <= -3.0, 0.0, wp.where(x < 3.0, x / 3.0 + 0.5, 1.0))
    return y


@wp.kernel(enable_backward=False)
def pair(
    kind: int,
    a: wp.array2d[float],
    b: wp.array2d[float],
    bias: wp.array[float],
    out: wp.array3d[float],
):
    """Even part u + v and odd part u - v of units u = φ(a + bias + b), v = φ(a + bias - b)."""
    i, j = wp.tid()
    x = a[i, j] + bias[j]
    u, v = activate(kind, x + b[i, j]), activate(kind, x - b[i, j])
    out[0, i, j] = u + v
    out[1, i, j] = u - v


@wp.func
def by_products(kind: int, x: float, b: float, even: float, odd: float):
    """The gradients by a and by b of a pair, of those by its even and its odd part."""
    u, v = (even + odd) * slope(kind, x + b), (even - odd) * slope(kind, x - b)
    return u + v, u - v


@wp.kernel(enable_backward=False)
def pair_gradient(
    kind: int,
    a: wp.array2d[float],
    b: wp.array2d[float],
    bias: wp.array[float],
    grad: wp.array3d[float],
    out: wp.array3d[float],
):
    """The gradients by a and by b, of those by the even and the odd part."""
    i, j = wp.tid()
    x = a[i, j] + bias[j]
    by_a, by_b = by_products(kind, x, b[i, j], grad[0, i, j], grad[1, i, j])
    out[0, i, j] = by_a
    out[1, i, j] = by_b


@wp.func
def column(even: wp.array2d[float], odd: wp.array2d[float], i: int, j: int):
    """Column j of row i of two arrays side by side."""
    y = float(0.0)
    if j < even.shape[1]:
        y = even[i, j]
    else:
        y = odd[i, j - even.shape[1]]
    return y


@wp.kernel(enable_backward=False)
def last_gradient(
    kind: int,
    a: wp.array2d[float],
    b: wp.array2d[float],
    hidden_bias: wp.array[float],
    even: wp.array2d[float],
    odd: wp.array2d[float],
    first: wp.array[wp.int64],
    second: wp.array[wp.int64],
    scales: wp.array2d[float],
    grad: wp.array2d[float],
    halves: wp.array3d[float],
    out: wp.array3d[float],
):
    """The gradients by both parts of f(x), and by a and b of the hidden layer before them."""
    i, j = wp.tid()
    by_even, by_odd = float(0.0), float(0.0)
    evens = even.shape[0]
    for k in range(first.shape[0]):
        half = grad[i, int(first[k])] * scales[0, k] + grad[i, int(second[k])] * scales[1, k]
        part, column = wp.where(k < evens, 0, 1), wp.where(k < evens, k, k - evens)
        if j == k:
            halves[part, i, column] = half
        if j < a.shape[1]:
            if part == 0:
                by_even += half * even[column, j]
            else:
                by_odd += half * odd[column, j]
    if j < a.shape[1]:
        x = a[i, j] + hidden_bias[j]
        by_a, by_b = by_products(kind, x, b[i, j], by_even, by_odd)
        out[0, i, j] = by_a
        out[1, i, j] = by_b


@wp.kernel(enable_backward=False)
def combine(
    even: wp.array2d[float],
    odd: wp.array2d[float],
    first: wp.array[wp.int64],
    second: wp.array[wp.int64],
    scales: wp.array2d[float],
    out: wp.array2d[float],
):
    """`Pairs` of the columns of two arrays side by side."""
    i, k = wp.tid()
    y = column(even, odd, i, int(first[k])) * scales[0, k]
    out[i, k] = y + column(even, odd, i, int(second[k])) * scales[1, k]


def runs_kernels(x: Tensor) -> bool:
    """Whether the kernels take x: on CUDA, in float32 and where no gradient by x is computed."""
    # where operators are followed, none shows what a kernel does
    if not x.is_cuda or FunctionRun.running:
        return False
    mixed = torch.is_autocast_enabled(x.device.type)
    return x.dtype == torch.float32 and not mixed and not x.requires_grad


def combined(pairs: Any, even: Tensor, odd: Tensor) -> Tensor:
    """`pairs` of two tensors (n, ·) side by side."""
    out = even.new_empty(len(even), len(pairs.first))
    launch(combine, tuple(out.shape), [even, odd, *tables(pairs)], [out])
    return out


def tables(pairs: Any) -> list[Tensor]:
    """The entries of `pairs`, as kernels take them."""
    return [pairs.first, pairs.second, pairs.scales]


def stacked(p: Tensor, q: Tensor) -> Tensor:
    """(2, m, n) two weights (m, n): a view if the second one lies behind the first, else a copy."""
    distance = (q.data_ptr() - p.data_ptr()) // p.element_size()
    if distance > 0 and p.untyped_storage().data_ptr() == q.untyped_storage().data_ptr():
        return p.detach().as_strided((2, *p.shape), (distance, *p.stride()))
    return torch.stack([p, q])


class SymmetricForward(torch.autograd.Function):
    """f(x) of a `SymmetricMLP` for the parts of x (n, …), and its gradient by the parameters.

    Hidden layers after the first multiply both parts in one batched product. Gradients go to `net`
    in the order of its parameters.
    """

    @staticmethod
    def forward(ctx: Any, net: Any, x: Tensor, *_: Tensor) -> Tensor:
        ctx.net, ctx.layers = net, []
        parts: Any = x.split(net.widths, 1)
        for i, (p, q) in enumerate(net.hidden):
            if i:
                a, b = torch.bmm(parts, stacked(p.weight, q.weight).mT)
            else:
                a, b = (part @ layer.weight.t() for part, layer in zip(parts, (p, q), strict=True))
            ctx.layers.append((parts, a, b))
            parts = x.new_empty(2, *a.shape)
            launch(pair, tuple(a.shape), [net.kind, a, b, p.bias], [parts])
        ctx.parts = parts
        layers = zip(net.last, parts, strict=True)
        even, odd = (layer(part) if layer else part[:, :0] for layer, part in layers)
        if all(net.last):
            return combined(net.whole, even, odd)
        return even if net.last[0] else odd

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        net, parts, grads = ctx.net, ctx.parts, {}
        ends = [0, *accumulate(p.out_features for p, _ in net.hidden)]
        width = -(-max(net.split.widths) // LINE) * LINE
        # of all layers side by side, so that one sum gives the gradients by all biases
        slopes = parts.new_empty(2, len(grad), ends[-1] + width)
        *by_hidden, halves = (slopes[:, :, i:j] for i, j in pairwise([*ends, slopes.shape[2]]))
        (_, a, b), (even, odd) = ctx.layers[-1], last_weights(net)
        inputs = [net.kind, a, b, net.hidden[-1][0].bias, even, odd, *tables(net.split), grad]
        dim = len(grad), max(a.shape[1], grad.shape[1])
        launch(last_gradient, dim, inputs, [halves, by_hidden[-1]])
        for layer, half, part in zip(net.last, halves, parts, strict=True):
            if layer:
                grads[layer.weight] = half[:, : layer.out_features].t() @ part
        for i, (p, q) in reversed([*enumerate(net.hidden)]):
            parts, by_product = ctx.layers[i][0], by_hidden[i]
            if i:
                grads[p.weight], grads[q.weight] = tall_products(by_product, parts)
                by_parts = torch.bmm(by_product, stacked(p.weight, q.weight))
                _, a, b = ctx.layers[i - 1]
                inputs = [net.kind, a, b, net.hidden[i - 1][0].bias, by_parts]
                launch(pair_gradient, tuple(a.shape), inputs, [by_hidden[i - 1]])
            else:
                grads[p.weight], grads[q.weight] = (
                    half.t() @ part for half, part in zip(by_product, parts, strict=True)
                )
        sums = slopes[0].sum(0)
        for layer, begin in zip(net.even, ends, strict=False):
            grads[layer.bias] = sums[begin : begin + layer.out_features]
        return None, None, *(grads[parameter] for parameter in net.parameters())


def last_weights(net: Any) -> list[Tensor]:
    """Weights of the even and the odd part of f(x); empty where there is none."""
    hidden, _ = net.hidden[-1]
    blank = hidden.weight.new_empty(0, hidden.out_features)
    return [layer.weight if layer else blank for layer in net.last]


def tall_products(a: Tensor, b: Tensor) -> Tensor:
    """(2, m, n): aᵀ b of both pairs of a (2, N, m) and b (2, N, n) with many rows.

    Shares of the rows are multiplied side by side and added. cuBLAS gives the two small results to
    two multiprocessors: 248 µs on an H200 for 24,576 rows and 64 columns.
    """
    shares = math.gcd(a.shape[1], SHARES)
    parts = [x.unflatten(1, (shares, -1)).flatten(0, 1) for x in (a, b)]
    return torch.bmm(parts[0].mT, parts[1]).unflatten(0, (2, shares)).sum(1)
