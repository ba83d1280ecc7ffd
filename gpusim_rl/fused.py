"""The update's arithmetic between the networks and the optimiser in three Warp kernels, forward and gradient at once.

`loss.loss` is the same in torch operations, differentiated by autograd: 140 operators more a minibatch.
"""

# ruff: noqa: UP018 (in a kernel float(0.0) is a variable, 0.0 a constant)
# The kernels are Warp's dialect of Python:
# pyright: reportOperatorIssue=false, reportArgumentType=false, reportIndexIssue=false
# pyright: reportAssignmentType=false, reportGeneralTypeIssues=false, reportCallIssue=false

from typing import Any

import torch
import warp as wp
from torch import Tensor

from gpusim_rl.graph import warp_stream
from gpusim_rl.maths import LOG_2PI, total

SUMS = 5  # policy loss, value loss, KL, clipped, valid: what a sample adds, before its part in the gradient of std


@wp.kernel(enable_backward=False)
def prepare(
    log_std: wp.array[float],
    floor: float,
    old_std: wp.array[float],
    scale: wp.array2d[float],
    offset: wp.array[float],
):
    """What all samples share: rows of `scale` are 1/σ, σ_old² and σ; `offset` is Σ log σ + ½ log 2π, and Σ log σ/σ_old - ½."""
    norm, kl = float(0.0), float(0.0)
    for j in range(log_std.shape[0]):
        std = floor + wp.exp(log_std[j])
        scale[0, j] = 1.0 / std
        scale[1, j] = old_std[j] * old_std[j]
        scale[2, j] = std
        norm += wp.log(std) + 0.5 * LOG_2PI
        kl += wp.log(std / old_std[j]) - 0.5
    offset[0] = norm
    offset[1] = kl


@wp.kernel(enable_backward=False)
def sample(
    mean: wp.array2d[float],
    value: wp.array2d[float],
    rows: wp.array2d[float],
    first: int,
    scale: wp.array2d[float],
    offset: wp.array[float],
    clip_coef: wp.array[float],
    clip_value: wp.array[float],
    originals: int,
    terms: wp.array2d[float],
    grad_mean: wp.array2d[float],
    grad_value: wp.array2d[float],
):
    """One sample: what it adds to the sums, and the gradient of the sum of losses, not yet divided by the count.

    `rows` (n, …) holds from column `first` on: action, old mean, log-probability, advantage, target, value, valid. The KL is
    that of the first `originals` rows; the others are copies of them, in whatever mirror.
    """
    i = wp.tid()
    nu = mean.shape[1]
    last = first + 2 * nu
    logp, advantage, target = rows[i, last], rows[i, last + 1], rows[i, last + 2]
    before, valid = rows[i, last + 3], rows[i, last + 4]
    log_prob, kl = -offset[0], float(offset[1])
    for j in range(nu):
        z = (rows[i, first + j] - mean[i, j]) * scale[0, j]
        moved = (rows[i, first + nu + j] - mean[i, j]) * scale[0, j]
        log_prob -= 0.5 * z * z
        kl += 0.5 * (scale[1, j] * scale[0, j] * scale[0, j] + moved * moved)
    ratio = wp.exp(log_prob - logp)
    within = wp.clamp(ratio, 1.0 - clip_coef[0], 1.0 + clip_coef[0])
    surrogate = wp.min(advantage * ratio, advantage * within)
    slope = float(0.0)  # of the surrogate, times the ratio: by the log-probability
    if within == ratio or advantage * ratio < advantage * within:
        slope = advantage * ratio
    for j in range(nu):
        z = (rows[i, first + j] - mean[i, j]) * scale[0, j]
        grad_mean[i, j] = -valid * slope * z * scale[0, j]
        terms[i, 5 + j] = -valid * slope * (z * z - 1.0) * scale[0, j]
    error = value[i, 0] - target
    moved = value[i, 0] - before
    far = clip_value[0]
    near = before + wp.clamp(moved, -far, far) - target
    grad = float(0.0)  # where the clipped value is the worse one it does not move
    if error * error > near * near or (moved >= -far and moved <= far):
        grad = error
    grad_value[i, 0] = valid * grad
    terms[i, 0] = -valid * surrogate
    terms[i, 1] = valid * 0.5 * wp.max(error * error, near * near)
    terms[i, 2] = valid * kl * (float(mean.shape[0]) / float(originals))
    if i >= originals:
        terms[i, 2] = 0.0
    clipped = float(0.0)
    if wp.abs(ratio - 1.0) > clip_coef[0]:
        clipped = valid
    terms[i, 3] = clipped
    terms[i, 4] = valid


@wp.kernel(enable_backward=False)
def conclude(
    ours: wp.array[float],
    all_: wp.array[float],
    log_std: wp.array[float],
    floor: float,
    scale: wp.array2d[float],
    offset: wp.array[float],
    ent_coef: wp.array[float],
    grad_log_std: wp.array[float],
    stats: wp.array[float],
    share: wp.array[float],
):
    """The gradient of log_std from our rank's sums, the statistics from all ranks', and 1 / count."""
    nu = log_std.shape[0]
    for j in range(nu):
        by_std = ours[5 + j] - ent_coef[0] * ours[4] * scale[0, j]
        grad_log_std[j] = by_std * (scale[2, j] - floor)
    share[0] = 1.0 / wp.max(all_[4], 1.0)
    entropy = offset[0] + 0.5 * float(nu)
    stats[0] = all_[0] * share[0]
    stats[1] = all_[1] * share[0]
    stats[2] = entropy * all_[4] * share[0]
    stats[3] = all_[2] * share[0]
    stats[4] = all_[3] * share[0]


class FusedLoss:
    """Loss, statistics and gradients of a minibatch of fixed size; every tensor stays where it is.

    Args:
        rows: (n, …) the minibatch, as `loss.Batch` reads it; written by the caller before each call.
        first: column where the actions begin.
        log_std: (nu,); grad_log_std: (nu,) where its gradient goes; floor: added to exp(log_std).
        old_std: (nu,) of the policy that acted.
        clip_coef, clip_value, ent_coef: of `loss.Settings`; a tensor () may be written at any time.
        copies: of each sample; the first n / copies rows are those that were acted.

    `mean` (n, nu) and `value` (n, 1) take what the networks gave; after a call `grad_mean` and `grad_value` hold the gradients
    by them and grad_log_std that by log_std, all of the *sum* over our samples; `share` (1,) is 1 / the global count, what to
    multiply gradients with, and `stats` (5,) are the statistics of `loss.loss`.
    """

    def __init__(
        self,
        rows: Tensor,
        *,
        first: int,
        log_std: Tensor,
        grad_log_std: Tensor,
        floor: float,
        old_std: Tensor,
        clip_coef: float | Tensor,
        clip_value: float | Tensor,
        ent_coef: float | Tensor,
        copies: int = 1,
    ):
        n, nu, device = len(rows), len(log_std), rows.device
        self.device = device
        new = lambda *shape: torch.zeros(shape, device=device)  # noqa: E731
        self.mean, self.value = new(n, nu), new(n, 1)
        self.grad_mean, self.grad_value = new(n, nu), new(n, 1)
        self.stats, self.share = new(SUMS), new(1)
        self.terms, self.scale, self.offset = new(n, SUMS + nu), new(3, nu), new(2)
        self.ours, self.all = new(SUMS + nu), new(SUMS + nu)
        numbers = [torch.as_tensor(x, dtype=torch.float32, device=device).view(1) for x in (clip_coef, clip_value, ent_coef)]
        self._kept = log_std, grad_log_std, rows, old_std, numbers  # a launch holds addresses alone
        scale, offset = self.scale, self.offset
        self._prepare = self._record(prepare, 1, [log_std, floor, old_std], [scale, offset])
        self._sample = self._record(
            sample,
            n,
            [self.mean, self.value, rows, first, scale, offset, *numbers[:2], n // copies],
            [self.terms, self.grad_mean, self.grad_value],
        )
        self._conclude = self._record(
            conclude,
            1,
            [self.ours, self.all, log_std, floor, scale, offset, numbers[2]],
            [grad_log_std, self.stats, self.share],
        )

    def __call__(self) -> None:
        """From `mean`, `value` and the minibatch to gradients and statistics. In place; the host reads nothing."""
        stream = warp_stream(self.device)
        self._prepare.launch(stream)
        self._sample.launch(stream)
        torch.sum(self.terms, 0, out=self.ours)
        self.all.copy_(self.ours)
        total(self.all)
        self._conclude.launch(stream)

    def _record(self, kernel: Any, dim: int, inputs: list[Any], outputs: list[Tensor]) -> Any:
        """A launch to repeat on the same addresses."""
        inputs, out = ([wp.from_torch(x) if isinstance(x, Tensor) else x for x in xs] for xs in (inputs, outputs))
        device = wp.device_from_torch(self.device)
        return wp.launch(kernel, dim=dim, inputs=inputs, outputs=out, device=device, record_cmd=True)
