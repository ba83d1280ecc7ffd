"""The kernels of a minibatch of PPO: its loss, and what a step means for rate and statistics.

Loss, statistics and gradient are three Warp kernels for a Gaussian. `loss.loss` is the same in
torch operations under autograd. It takes 140 operators more for each minibatch.
"""

# ruff: noqa: UP018 (in a kernel float(0.0) is a variable, 0.0 a constant)
# The kernels are Warp's dialect of Python:
# pyright: reportOperatorIssue=false, reportArgumentType=false, reportIndexIssue=false
# pyright: reportAssignmentType=false, reportGeneralTypeIssues=false, reportCallIssue=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUntypedFunctionDecorator=false
# pyright: reportAttributeAccessIssue=false, reportUnknownParameterType=false
# pyright: reportUnnecessaryComparison=false

from functools import partial
from typing import Any

import torch
import warp as wp
from torch import Tensor

from gpusim_rl.algorithms.flat_adam import count_step
from gpusim_rl.algorithms.ppo.loss import APPROX_KL, CLIPPED, ENTROPY, POLICY_LOSS, VALUE_LOSS
from gpusim_rl.algorithms.ppo.settings import Settings
from gpusim_rl.core.distributed import SINGLE, ProcessGroup
from gpusim_rl.core.maths import LOG_2PI
from gpusim_rl.core.record import Record
from gpusim_rl.core.streams import as_array, launch, rebind, warp_stream
from gpusim_rl.networks.policy import ActorCritic

# The columns of `terms`: what each sample adds. From SUMS on, its part of the gradient of std.
SUM_POLICY, SUM_VALUE, SUM_KL, SUM_CLIPPED, SUM_VALID, SUMS = range(6)


@wp.struct
class Samples:
    """The columns of a minibatch that the kernels read, by their names."""

    action: wp.array2d[float]
    mean: wp.array2d[float]
    std: wp.array2d[float]
    logp: wp.array[float]
    advantage: wp.array[float]
    target: wp.array[float]
    value: wp.array[float]
    valid: wp.array[float]


@wp.kernel(enable_backward=False)
def prepare(
    log_std: wp.array[float], min_std: float, scale: wp.array2d[float], offset: wp.array[float]
):
    """Numbers of all samples: rows 1/σ and σ of `scale`, `offset` = Σ (log σ + ½ log 2π)."""
    norm = float(0.0)
    for j in range(log_std.shape[0]):
        std = min_std + wp.exp(log_std[j])
        scale[0, j] = 1.0 / std
        scale[1, j] = std
        norm += wp.log(std) + 0.5 * LOG_2PI
    offset[0] = norm


@wp.func
def log_spread(scale: wp.array2d[float], old_std: wp.array2d[float], i: int):
    """Σ log σ/σ_old - ½ of sample i."""
    total = float(0.0)
    for j in range(scale.shape[1]):
        total += wp.log(scale[1, j] / old_std[i, j]) - 0.5
    return total


@wp.func
def value_loss(value: float, target: float, old_value: float, clip_value: float):
    """(loss, its gradient by the value) of one sample."""
    error = value - target
    moved = value - old_value
    clipped_error = old_value + wp.clamp(moved, -clip_value, clip_value) - target
    grad = float(0.0)  # Where the clipped value is worse, it does not depend on the value.
    if error * error > clipped_error * clipped_error or (
        moved >= -clip_value and moved <= clip_value
    ):
        grad = error
    return 0.5 * wp.max(error * error, clipped_error * clipped_error), grad


@wp.func
def surrogate(ratio: float, advantage: float, clip_coef: float):
    """(clipped surrogate, its gradient by the log-probability) of one sample."""
    clipped_ratio = wp.clamp(ratio, 1.0 - clip_coef, 1.0 + clip_coef)
    grad = float(0.0)
    if clipped_ratio == ratio or advantage * ratio < advantage * clipped_ratio:
        grad = advantage * ratio
    return wp.min(advantage * ratio, advantage * clipped_ratio), grad


@wp.kernel(enable_backward=False)
def sample(
    mean: wp.array2d[float],
    value: wp.array2d[float],
    batch: Samples,
    scale: wp.array2d[float],
    offset: wp.array[float],
    clip_coef: wp.array[float],
    clip_value: wp.array[float],
    originals: int,
    terms: wp.array2d[float],
    grad_mean: wp.array2d[float],
    grad_value: wp.array2d[float],
):
    """The terms of one sample, and the gradients of the sum of losses, not of the mean.

    The KL is that of the first `originals` samples; the others are mirror images of them.
    """
    i = wp.tid()
    log_prob, kl = -offset[0], log_spread(scale, batch.std, i)
    for j in range(mean.shape[1]):
        z = (batch.action[i, j] - mean[i, j]) * scale[0, j]
        moved = (batch.mean[i, j] - mean[i, j]) * scale[0, j]
        log_prob -= 0.5 * z * z
        old = batch.std[i, j] * batch.std[i, j]
        kl += 0.5 * (old * scale[0, j] * scale[0, j] + moved * moved)
    ratio, valid = wp.exp(log_prob - batch.logp[i]), batch.valid[i]
    gain, slope = surrogate(ratio, batch.advantage[i], clip_coef[0])
    for j in range(mean.shape[1]):
        z = (batch.action[i, j] - mean[i, j]) * scale[0, j]
        grad_mean[i, j] = -valid * slope * z * scale[0, j]
        terms[i, SUMS + j] = -valid * slope * (z * z - 1.0) * scale[0, j]
    error, grad = value_loss(value[i, 0], batch.target[i], batch.value[i], clip_value[0])
    grad_value[i, 0] = valid * grad
    terms[i, SUM_POLICY] = -valid * gain
    terms[i, SUM_VALUE] = valid * error
    terms[i, SUM_KL] = valid * kl * (float(mean.shape[0]) / float(originals))
    if i >= originals:
        terms[i, SUM_KL] = 0.0
    terms[i, SUM_CLIPPED] = wp.where(wp.abs(ratio - 1.0) > clip_coef[0], valid, 0.0)
    terms[i, SUM_VALID] = valid


@wp.kernel(enable_backward=False)
def conclude(
    local_sums: wp.array[float],
    all_: wp.array[float],
    log_std: wp.array[float],
    min_std: float,
    scale: wp.array2d[float],
    offset: wp.array[float],
    ent_coef: wp.array[float],
    images: wp.array[wp.int64],
    grad_log_std: wp.array[float],
    stats: wp.array[float],
    share: wp.array[float],
):
    """The gradient of log_std from the sums of this process; statistics and 1 / count from all.

    It becomes the mean of itself and of its mirror image, whose columns are `images`.
    """
    for j in range(log_std.shape[0]):
        by_std = local_sums[SUMS + j] - ent_coef[0] * local_sums[SUM_VALID] * scale[0, j]
        grad_log_std[j] = by_std * (scale[1, j] - min_std)
    for j in range(log_std.shape[0]):
        image = int(images[j])
        if j < image:  # both at once, to be equal to the bit
            grad_log_std[j] = 0.5 * (grad_log_std[j] + grad_log_std[image])
            grad_log_std[image] = grad_log_std[j]
    share[0] = 1.0 / wp.max(all_[SUM_VALID], 1.0)
    entropy = offset[0] + 0.5 * float(log_std.shape[0])
    stats[POLICY_LOSS] = all_[SUM_POLICY] * share[0]
    stats[VALUE_LOSS] = all_[SUM_VALUE] * share[0]
    stats[ENTROPY] = entropy * all_[SUM_VALID] * share[0]
    stats[APPROX_KL] = all_[SUM_KL] * share[0]
    stats[CLIPPED] = all_[SUM_CLIPPED] * share[0]


@wp.kernel(enable_backward=False)
def conclude_update(
    valid: wp.array[wp.int64],
    samples: int,
    minibatches: float,
    max_std: wp.array[float],
    min_std: float,
    log_std: wp.array[float],
    skips: wp.array[float],
):
    """Lower the standard deviation of each action to `max_std` where it is larger.

    Count a bad iteration: of its samples most were not valid, or most minibatches were skipped.
    """
    j = wp.tid()
    log_std[j] = wp.min(log_std[j], wp.log(wp.max(max_std[0] - min_std, 1.0e-4)))
    if j == 0:
        bad = 2 * int(valid[0]) < samples or 2.0 * skips[1] > minibatches
        skips[2] = wp.where(bad, skips[2] + 1.0, 0.0)


# Why: docs/decisions/ppo.md
@wp.kernel(enable_backward=False)
def adapt(
    stats: wp.array[float],
    norms: wp.array[float],
    target_kl: wp.array[float],
    lr_min: wp.array[float],
    lr_max: wp.array[float],
    lr_factor: wp.array[float],
    count: float,
    bad: wp.array[float],
    rates: wp.array[float],
    divisors: wp.array[float],
    steps: wp.array[float],
    factors: wp.array2d[float],
    sums: wp.array[float],
    skips: wp.array[float],
):
    """Adapt the actor's rate to the KL; add means over `count` minibatches, or count a skipped one.

    The rate shrinks where the KL is large, and grows where it is small. Then all groups begin their
    step, of which the actor's is the first.
    """
    factor = float(1.0)
    if bad[0] == 0.0:
        if stats[APPROX_KL] > 2.0 * target_kl[0]:
            factor = 1.0 / lr_factor[0]
        elif stats[APPROX_KL] < 0.5 * target_kl[0]:
            factor = lr_factor[0]
        for i in range(stats.shape[0]):
            sums[i] += stats[i] / count
        for i in range(norms.shape[0]):
            sums[stats.shape[0] + i] += norms[i] / count
    rates[0] = wp.clamp(rates[0] * factor, lr_min[0], lr_max[0])
    for i in range(skips.shape[0]):
        skips[i] += bad[0]
    for group in range(rates.shape[0]):
        count_step(group, bad, rates, divisors, steps, factors)


# Why: docs/decisions/update-kernels.md
class FusedLoss:
    """Loss, statistics and gradients of a minibatch of fixed size, at fixed addresses.

    The caller writes the minibatch `batch` (n, …). A call with `mean` (n, nu) and `value` (n, 1) of
    the networks gives the gradients of the sum of losses by them, and `stats` of `loss.loss`.
    With symmetry=net the gradient of log_std is made equal left and right.

    Args:
        cfg: its clip_coef, clip_value and ent_coef. Tensors () may be written at any time.
        grad_log_std: (nu,) where the gradient of log_std goes.
        share: (1,) where 1 / the number of valid samples of all processes goes. The gradients are
            to be multiplied by it.
        copies: of each sample; the first n / copies samples are those that were acted.
    """

    def __init__(
        self,
        policy: ActorCritic,
        batch: Record,
        cfg: Settings,
        *,
        grad_log_std: Tensor,
        share: Tensor,
        copies: int = 1,
        group: ProcessGroup = SINGLE,
    ):
        (n, nu), device = batch.action.shape, batch.action.device
        log_std, min_std = policy.log_std.detach(), float(policy.min_std)
        self.device, self.group = device, group
        new = partial(torch.zeros, device=device)
        self.grad_mean, self.grad_value = new(n, nu), new(n, 1)
        self.stats, self.share = new(5), share
        self.terms, self.scale, self.offset = new(n, SUMS + nu), new(2, nu), new(1)
        scale, offset = self.scale, self.offset
        self.local_sums = self.all = new(SUMS + nu)
        if group.size > 1:
            self.all = new(SUMS + nu)
        names = "clip_coef", "clip_value", "ent_coef"
        self.numbers = {name: as_array(getattr(cfg, name), device) for name in names}
        clip_coef, clip_value, ent_coef = self.numbers.values()
        record = partial(launch, record=True)
        self._prepare = record(prepare, 1, [log_std, min_std], [scale, offset])
        inputs = [
            self.grad_mean,
            self.grad_value,
            samples(batch),
            scale,
            offset,
            clip_coef,
            clip_value,
        ]
        outputs = [self.terms, self.grad_mean, self.grad_value]
        self._sample = record(sample, n, [*inputs, n // copies], outputs)
        mirror = policy.action_mirror if policy.symmetry == "net" else None
        images = mirror.order if mirror else torch.arange(nu, device=device)
        inputs = [self.local_sums, self.all, log_std, min_std, scale, offset, ent_coef, images]
        self._conclude = record(conclude, 1, inputs, [grad_log_std, self.stats, self.share])
        # A launch holds addresses alone: these references keep the tensors alive.
        self._tensors = batch, log_std, grad_log_std, images

    def __call__(self, mean: Tensor, value: Tensor) -> None:
        """From these and the minibatch to gradients and statistics. In place."""
        stream = warp_stream(self.device)
        self._prepare.launch(stream)
        rebind(self._sample, 0, mean)
        rebind(self._sample, 1, value)
        self._sample.launch(stream)
        torch.sum(self.terms, 0, out=self.local_sums)
        if self.all is not self.local_sums:
            self.all.copy_(self.local_sums)
            self.group.all_reduce(self.all)
        self._conclude.launch(stream)


def samples(batch: Record) -> Any:
    """The columns of a batch as the kernels take them."""
    columns = Samples()
    for name in Samples.vars:
        setattr(columns, name, wp.from_torch(getattr(batch, name)))
    return columns
