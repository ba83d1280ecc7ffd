"""A learned model of a control step's physics: a ridge regression under an ensemble of networks."""

# torch has no types for some of its members:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

import math
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gpusim_rl.algorithms.dream.physics import Physics
from gpusim_rl.core.distributed import ProcessGroup
from gpusim_rl.core.states import Rows

RIDGE = 1e-4  # of the regression, in units of the inputs' variance
LAST_GAIN = 0.1  # of the networks' last layers: at first the regression predicts alone
FARTHEST = 8.0  # deviations: of inputs and outputs beyond it nothing was learned


class Model(nn.Module):
    """Rows of the physics → those of the next control step, by one of `members` networks each.

    change = m + L z + s f(z), with z the inputs in units of their deviation, L a ridge regression
    on recorded steps, and f a network that learns in units s what L leaves. The difference of a
    target and a joint is small beside both: a network alone is slow to find it.
    """

    center: Tensor
    width: Tensor
    mean: Tensor
    scale: Tensor
    linear: Tensor

    def __init__(
        self, physics: Physics, rows: Rows, *, members: int, hidden: tuple[int, ...], seed: int
    ):
        super().__init__()
        self.physics, self.members = physics, members
        width, out = physics.inputs(rows).shape[1], sum(physics.readings.values())
        sizes = [*pairwise((width, *hidden, out))]
        gains = [math.sqrt(2)] * len(hidden) + [LAST_GAIN]
        generator = torch.Generator().manual_seed(seed)
        self.w = nn.ParameterList(
            torch.randn(members, a, b, generator=generator) * gain / math.sqrt(a)
            for (a, b), gain in zip(sizes, gains, strict=True)
        )
        self.b = nn.ParameterList(torch.zeros(members, 1, b) for _, b in sizes)
        buffers = {"center": width, "width": width, "mean": out, "scale": out}
        for name, size in buffers.items():
            self.register_buffer(name, torch.full((size,), float(name in ("width", "scale"))))
        self.register_buffer("linear", torch.zeros(width, out))

    def normalized(self, x: Tensor) -> Tensor:
        return ((x - self.center) / self.width).clamp(-FARTHEST, FARTHEST)

    def networks(self, z: Tensor) -> Tensor:
        """(n, width) → (n, out), row i by network i modulo members."""
        y = z.view(-1, self.members, z.shape[1]).transpose(0, 1)
        for i, (w, b) in enumerate(zip(self.w, self.b, strict=True)):
            y = torch.baddbmm(b, F.silu(y) if i else y, w)
        return y.transpose(0, 1).reshape(len(z), -1)

    def predict(self, x: Tensor) -> Tensor:
        """The change (n, k) of inputs (n, width)."""
        z = self.normalized(x)
        rest = self.networks(z).clamp(-FARTHEST, FARTHEST)
        return torch.addmm(self.mean, z, self.linear) + self.scale * rest

    def loss(self, x: Tensor, change: Tensor, valid: Tensor) -> Tensor:
        """Sum over valid (n,) inputs (n, width) of the mean squared error of what L leaves."""
        z = self.normalized(x)
        rest = (change - torch.addmm(self.mean, z, self.linear)) / self.scale
        error = self.networks(z) - rest.clamp(-FARTHEST, FARTHEST)
        return (error.square().mean(1) * valid).sum()

    def regress(self, x: Tensor, change: Tensor, valid: Tensor, group: ProcessGroup) -> None:
        """Fit L and the deviations to steps where valid (n,) is 1. In place."""
        weight = valid[:, None]
        count = group.all_reduce(valid.sum()).clamp(min=1)

        def mean(values: Tensor) -> Tensor:
            return group.all_reduce((values * weight).sum(0)) / count

        self.center.copy_(mean(x))
        self.mean.copy_(mean(change))
        self.width.copy_(mean((x - self.center) ** 2).sqrt().clamp(min=1e-3))
        z, y = self.normalized(x).double(), (change - self.mean).double()
        square, both = (group.all_reduce((z * weight).T @ values) for values in (z, y))
        square = square + RIDGE * count * torch.eye(len(square), device=x.device)
        linear = solve(square, both)
        self.linear.copy_(linear)
        self.scale.copy_(mean((y - z @ linear) ** 2).sqrt().clamp(min=1e-6))

    def error(self, x: Tensor, change: Tensor, valid: Tensor, group: ProcessGroup) -> Tensor:
        """(readings,) shares of the variance of changes (n, k) that the ensemble leaves."""
        z, weight = self.normalized(x), valid[:, None]
        count = group.all_reduce(valid.sum()).clamp(min=1)
        each = z.repeat_interleave(self.members, 0)  # by all networks
        rest = self.networks(each).view(len(z), self.members, -1).mean(1)
        wrong = change - torch.addmm(self.mean, z, self.linear) - self.scale * rest
        mean = group.all_reduce((change * weight).sum(0)) / count
        left, all_of_it = (
            group.all_reduce((y.square() * weight).sum(0)) / count for y in (wrong, change - mean)
        )
        shares = (left / all_of_it.clamp(min=1e-12)).nan_to_num(10.0, 10.0).clamp(max=10.0)
        return torch.stack([x.mean() for x in shares.split([*self.physics.readings.values()])])


def solve(a: Tensor, b: Tensor) -> Tensor:
    """(n, k) the x of a x = b by Gauss-Jordan elimination; a (n, n) is positive definite.

    torch.linalg.solve cannot be part of a CUDA graph: github.com/pytorch/pytorch/issues/96632.
    """
    rows = torch.cat([a, b], 1)
    for i in range(len(a)):
        pivot = rows[i] / rows[i, i]
        rows = torch.addr(rows, rows[:, i], pivot, alpha=-1)
        rows[i] = pivot
    return rows[:, len(a) :]
