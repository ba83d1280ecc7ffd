"""`Normalizer` on CUDA: one Warp kernel forward; three and two sums, in a fixed order, to update.

On the CPU torch is faster, since its operations take vector instructions and all threads.
"""

# ruff: noqa: UP018 (in a kernel float(0.0) is a variable, 0.0 a constant)
# The kernels are Warp's dialect of Python:
# pyright: reportOperatorIssue=false, reportArgumentType=false, reportIndexIssue=false
# pyright: reportAttributeAccessIssue=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUntypedFunctionDecorator=false, reportUnknownParameterType=false
# pyright: reportGeneralTypeIssues=false, reportCallIssue=false, reportAssignmentType=false

from typing import Any

import torch
import warp as wp
from torch import Tensor

from gpusim_rl.core.distributed import ProcessGroup
from gpusim_rl.core.streams import launch
from gpusim_rl.core.symmetry import MirrorModule

# A fused product and sum would round one of two mirrored terms, and not the other.
wp.set_module_options({"fuse_fp": False})
ROWS = 32  # whose numbers one thread adds: neighbors read neighboring columns


@wp.func
def normal(x: float, mean: float, var: float, clamp: float):
    """(x - mean) / std, clamped."""
    return wp.clamp((x - mean) * (1.0 / wp.sqrt(var + 1e-4)), -clamp, clamp)


@wp.kernel(enable_backward=False)
def normalize(
    x: wp.array2d[float],
    mean: wp.array[float],
    var: wp.array[float],
    clamp: float,
    first: wp.array[wp.int64],
    second: wp.array[wp.int64],
    scales: wp.array2d[float],
    out: wp.array2d[float],
):
    """`Normalizer.forward`: normalized columns, or `Pairs` of them."""
    i, k = wp.tid()
    j = k
    if scales.shape[1] > 0:
        j = int(first[k])
    y = normal(x[i, j], mean[j], var[j], clamp)
    if scales.shape[1] > 0:
        j = int(second[k])
        y = y * scales[0, k] + normal(x[i, j], mean[j], var[j], clamp) * scales[1, k]
    out[i, k] = y


@wp.kernel(enable_backward=False)
def add_rows(
    x: wp.array2d[float],
    valid: wp.array[wp.bool],
    mean: wp.array[float],
    sums: wp.array2d[float],
):
    """Σ (x - mean) over the valid rows of each chunk; their number in the last column."""
    i, j = wp.tid()
    total = float(0.0)
    for row in range(i * ROWS, wp.min((i + 1) * ROWS, x.shape[0])):
        if valid[row]:
            if j < x.shape[1]:
                total += x[row, j] - mean[j]
            else:
                total += 1.0
    sums[i, j] = total


@wp.func
def shift(sums: wp.array[float], order: wp.array[wp.int64], signs: wp.array[float], j: int):
    """Distance of the batch's mean from the old one, symmetrized if there is a mirror."""
    n = wp.max(sums[sums.shape[0] - 1], 1.0)
    y = sums[j] / n
    if order.shape[0] > 0:
        y = 0.5 * (y + signs[j] * (sums[int(order[j])] / n))
    return y


@wp.kernel(enable_backward=False)
def add_squares(
    x: wp.array2d[float],
    valid: wp.array[wp.bool],
    mean: wp.array[float],
    count: wp.array[float],
    sums: wp.array[float],
    order: wp.array[wp.int64],
    signs: wp.array[float],
    squares: wp.array2d[float],
    share: wp.array[float],
):
    """Σ (x - m)² over the valid rows of each chunk, about the batch's mean; its share of all."""
    i, j = wp.tid()
    center = mean[j] + shift(sums, order, signs, j)
    total = float(0.0)
    for row in range(i * ROWS, wp.min((i + 1) * ROWS, x.shape[0])):
        if valid[row]:
            distance = x[row, j] - center
            total += distance * distance
    squares[i, j] = total
    if i == 0 and j == 0:
        n = sums[sums.shape[0] - 1]
        share[0] = n / wp.max(count[0] + n, 1.0)


@wp.kernel(enable_backward=False)
def merge(
    sums: wp.array[float],
    squares: wp.array[float],
    share: wp.array[float],
    order: wp.array[wp.int64],
    signs: wp.array[float],
    mean: wp.array[float],
    var: wp.array[float],
    count: wp.array[float],
):
    """Mean and variance of both parts, and what lies between their means."""
    j = wp.tid()
    n, moved, part = sums[sums.shape[0] - 1], shift(sums, order, signs, j), share[0]
    square = squares[j]
    if order.shape[0] > 0:
        square = 0.5 * (square + squares[int(order[j])])
    # not var + part (… - var), which loses a small variance beside the first one, which is 1
    old, new = (1.0 - part) * var[j], part * (square / wp.max(n, 1.0))
    var[j] = old + new + moved * moved * part * (1.0 - part)
    mean[j] += moved * part
    if j == 0:
        count[0] += n


def forward(x: Tensor, mean: Tensor, var: Tensor, clamp: float, pairs: Any | None = None) -> Tensor:
    """(…, n) normalized x (…, width), combined to `pairs` if there are any."""
    none = mean.new_empty(0, dtype=torch.int64)
    entries = [none, none, mean.new_empty(2, 0)]
    if pairs:
        entries = [pairs.first, pairs.second, pairs.scales]
    rows = x.reshape(-1, x.shape[-1])
    out = rows.new_empty(len(rows), len(pairs.first) if pairs else rows.shape[1])
    launch(normalize, tuple(out.shape), [rows, mean, var, clamp, *entries], [out])
    return out.view(*x.shape[:-1], -1)


def update(
    buffers: tuple[Tensor, Tensor, Tensor],
    x: Tensor,
    valid: Tensor,
    mirror: MirrorModule | None,
    group: ProcessGroup,
) -> None:
    """Merge rows x (N, width) where valid (N,) into mean, variance and count. In place."""
    (mean, var, count), (n, width) = buffers, x.shape
    chunks, count = -(-n // ROWS), count.view(1)
    images: list[Any] = [x.new_empty(0, dtype=torch.int64), x.new_empty(0)]
    if mirror:
        images = [mirror.order, mirror.signs]
    parts, share = x.new_empty(chunks, width + 1), x.new_empty(1)
    launch(add_rows, (chunks, width + 1), [x, valid, mean], [parts])
    sums, parts = group.all_reduce(parts.sum(0)), parts[:, :width]
    inputs = [x, valid, mean, count, sums, *images]
    launch(add_squares, (chunks, width), inputs, [parts, share])
    inputs = [sums, group.all_reduce(parts.sum(0)), share, *images]
    launch(merge, width, inputs, [mean, var, count])
