"""The normalizer against numpy."""

import math

import numpy as np
import pytest
import torch

from gpusim_rl.core.distributed import SINGLE
from gpusim_rl.core.symmetry import Flip, MirrorModule
from gpusim_rl.networks import normalizer_kernels
from gpusim_rl.networks.normalizer import Normalizer
from gpusim_rl.networks.symmetric import EvenOddSplit

KERNELS = pytest.mark.parametrize("kernels", [False, True])  # those of CUDA


def update(normalizer: Normalizer, x: torch.Tensor, valid: torch.Tensor, kernels: bool) -> None:
    """Add rows by torch, or by the kernels, run on the CPU."""
    if not kernels:
        return normalizer.update(x, valid)
    buffers = normalizer.mean, normalizer.var, normalizer.count
    normalizer_kernels.update(buffers, x, valid, normalizer.mirror, SINGLE)


def batches(offset: np.ndarray, scale: np.ndarray) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Unequal batches with masks, one of which is empty, and one of a single row."""
    rng = np.random.default_rng(0)
    made = []
    for n in (7, 300, 1, 0, 64, 2000, 33):
        x = torch.from_numpy(offset + scale * rng.standard_normal((max(n, 5), len(offset)))).float()
        valid = torch.from_numpy(rng.random(max(n, 5)) < 0.7) if n > 1 else torch.arange(5) < n
        made.append((x, valid))
    return made


@KERNELS
@pytest.mark.parametrize("poison", [0.0, 1e30, math.nan])
def test_absorb_as_numpy(poison, kernels):
    """The statistics are numpy's of all valid rows, also 10⁶ deviations from zero."""
    offset, scale = np.array([0.0, 3.0, -1e5, 1e6, 1e-3]), np.array([1.0, 0.1, 2.0, 1.0, 1e-4])
    normalizer, valid_rows = Normalizer(5), []
    for x, valid in batches(offset, scale):
        valid_rows.append(x[valid].double().numpy())
        x[~valid] = poison
        update(normalizer, x, valid, kernels)
    rows = np.concatenate(valid_rows)
    assert normalizer.count == len(rows) > 1000
    # float32 holds 10⁶ to 0.06: the mean is exact to a sixteenth of a deviation there, the variance
    # to a per cent
    np.testing.assert_allclose(normalizer.mean, rows.mean(0), rtol=2e-7, atol=1e-7)
    np.testing.assert_allclose(normalizer.var[[0, 1, 4]], rows.var(0)[[0, 1, 4]], rtol=1e-4)
    np.testing.assert_allclose(normalizer.var[[2, 3]], rows.var(0)[[2, 3]], rtol=2e-2)


def test_kernels_mirror_as_torch():
    """With a mirror the kernels' statistics are torch's, and their own images to the bit."""
    mirror = MirrorModule(Flip((1, 0, 2, 4, 3, 5), (1.0, 1.0, -1.0, -1.0, -1.0, 1.0)))
    ours, theirs = (Normalizer(6, mirror=mirror) for _ in range(2))
    for x, valid in batches(np.linspace(-3, 4, 8), np.linspace(0.1, 2, 8)):
        update(ours, x[:, 1:7], valid, kernels=True)  # rows of a record
        update(theirs, x[:, 1:7], valid, kernels=False)
    torch.testing.assert_close(dict(ours.named_buffers()), dict(theirs.named_buffers()))
    assert torch.equal(ours.mean, mirror(ours.mean)) and ours.mean[0].abs() > 0.1
    assert torch.equal(ours.var, ours.var[mirror.order]) and ours.mean[2] == 0


def test_kernel_normalizes_as_torch():
    """Forward, the kernel of CUDA gives what torch does, split to even and odd parts or not."""
    split = EvenOddSplit(Flip((1, 0, 2), (1.0, 1.0, -1.0)))
    for parts in (None, split):
        normalizer, x = Normalizer(3, clamp=2.0, parts=parts), torch.randn(4, 5, 3)
        normalizer.update(x[0] + 1, torch.ones(5, dtype=torch.bool))
        mean, var = normalizer.mean, normalizer.var
        ours = normalizer_kernels.forward(x, mean, var, 2.0, parts)
        torch.testing.assert_close(ours, normalizer(x))


@KERNELS
def test_empty_batch_changes_nothing(kernels):
    """A batch without a valid row leaves the statistics as they were, even as the first one."""
    normalizer = Normalizer(3)
    update(normalizer, torch.full((4, 3), 9.0), torch.zeros(4, dtype=torch.bool), kernels)
    assert (
        normalizer.mean.tolist() == [0, 0, 0]
        and normalizer.var.tolist() == [1, 1, 1]
        and normalizer.count == 0
    )


def test_forward_normalises_and_keeps_still():
    """forward subtracts the mean, divides by the deviation, clamps, and moves nothing."""
    normalizer = Normalizer(2, clamp=3.0)
    normalizer.mean.copy_(torch.tensor([1.0, -2.0]))
    normalizer.var.copy_(torch.tensor([4.0, 0.25]))
    before = {k: v.clone() for k, v in normalizer.state_dict().items()}
    y = normalizer(torch.tensor([[3.0, -2.5], [1e9, -1e9]]))
    torch.testing.assert_close(y, torch.tensor([[1.0, -1.0], [3.0, -3.0]]), rtol=0, atol=1e-3)
    assert all(torch.equal(before[k], v) for k, v in normalizer.state_dict().items())
