"""Running mean and variance of observations."""

import torch
from torch import Tensor, nn

from gpusim_rl.core.distributed import SINGLE, ProcessGroup
from gpusim_rl.core.symmetry import MirrorModule
from gpusim_rl.networks import normalizer_kernels
from gpusim_rl.networks.symmetric_kernels import runs_kernels


# Why: docs/decisions/networks.md
class Normalizer(nn.Module):
    """(x - mean) / std, clamped. The statistics change only in `update`.

    They are merged as in Chan, Golub, LeVeque (1979), from sums, sums of squares and counts over
    all processes. With a mirror they are those of the observations and of their mirror images, so
    that the image of a normalized observation is normalized. With `parts`, the result is split into
    them.
    """

    mean: Tensor
    var: Tensor
    count: Tensor

    def __init__(
        self,
        width: int,
        clamp: float = 5.0,
        mirror: MirrorModule | None = None,
        parts: nn.Module | None = None,
    ):
        super().__init__()
        self.clamp, self.mirror, self.parts = clamp, mirror, parts
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("var", torch.ones(width))
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if runs_kernels(x):
            return normalizer_kernels.forward(x, self.mean, self.var, self.clamp, self.parts)
        # 1e-4: a column that hardly varies is not blown up
        x = ((x - self.mean) * torch.rsqrt(self.var + 1e-4)).clamp(-self.clamp, self.clamp)
        return self.parts(x) if self.parts else x

    @torch.no_grad()
    def update(self, x: Tensor, valid: Tensor, group: ProcessGroup = SINGLE) -> None:
        """Add observations x (N, width) where valid (N,) is true. In place."""
        if x.is_cuda:
            buffers = self.mean, self.var, self.count
            return normalizer_kernels.update(buffers, x, valid, self.mirror, group)
        keep = valid[:, None]
        sums = group.all_reduce(
            torch.cat([torch.where(keep, x - self.mean, 0.0).sum(0), keep.sum(0).to(x.dtype)])
        )
        n, shift = sums[-1], sums[:-1] / sums[-1].clamp(min=1)  # of the new mean from the old
        if self.mirror:
            shift = self.mirror.symmetrized(shift)
        # Deviations from the batch's own mean, in a second pass: E x² - (E x)² may cancel.
        centered = torch.where(keep, x - (self.mean + shift), 0.0)
        var = group.all_reduce((centered * centered).sum(0)) / n.clamp(min=1)
        if self.mirror:
            var = self.mirror.symmetrized_magnitudes(var)
        share = n / (self.count + n).clamp(min=1)
        # Σ(x - m)²/N about the new mean m: both parts, and what lies between their means
        self.var.lerp_(var, share).add_(shift * shift * share * (1 - share))
        self.mean.add_(shift * share)
        self.count.add_(n)
