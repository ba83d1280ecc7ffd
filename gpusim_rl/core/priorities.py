"""Windows that are drawn as much as was to be learned from them, world by world."""

from functools import partial

import torch
from torch import Tensor

from gpusim_rl.core.ring import Draw, Ring

LEAST_ERROR = 1e-3  # that any window counts for which is not cut
FORGET = 1e-3  # share of the largest priority, at each update


class Prioritized:
    """Prioritized replay (arXiv:1511.05952): a window is drawn with P = pᵅ / Σ pᵅ.

    The sum is that of its world. p is the size of the window's last error, of a new one the largest
    of its world, and of one that is cut zero. Its loss counts (N P)⁻ᵝ for a world's N windows. So
    neither sum nor weight goes over processes.

    Args:
        exponent: α, 0 draws all alike. importance: β, 1 makes the mean loss that of all windows.

    Attributes:
        mass: (B, R) pᵅ of the window that begins at each row.
        largest: (B,) pᵅ of new rows.
    """

    def __init__(
        self, rows: int, worlds: int, device: torch.device, *, exponent: float, importance: float
    ):
        self.exponent, self.importance = exponent, importance
        self.mass = torch.zeros(worlds, rows, device=device)
        self.largest = torch.ones(worlds, device=device)

    def draw(self, ring: Ring, unit: Tensor, length: int, before: int) -> Draw:
        size, count = len(ring), ring.count[:, None]
        steps = partial(torch.arange, device=unit.device)
        # no window begins among the newest or the oldest rows, or among those not written, which
        # after a roll-back hold what was written before it
        ends = torch.cat([count - 1 - steps(length), count.clamp(min=size) + steps(before)], 1)
        mass = torch.where(steps(size) < count, self.mass, 0.0)
        mass.scatter_(1, ends.remainder(size), 0.0)
        # of 65,536 sums a search takes no longer than a tree
        sums = mass.cumsum(1, dtype=torch.float64)  # (B, R)
        total = sums[:, -1:].contiguous()
        rows = torch.searchsorted(sums, unit.double() * total, right=True)
        rows = rows.minimum(torch.searchsorted(sums, total))  # no row behind the last with a mass
        share = mass.gather(1, rows) / total.clamp(min=torch.finfo(torch.float32).tiny)
        n = (count.clamp(max=size) - length - before).clamp(min=1)
        weights = (n * share).pow(-self.importance)
        weights = torch.where(share > 0, weights, 0.0)  # of a world whose windows are all cut
        places = torch.stack([rows, ring.worlds[:, None].expand_as(rows)], -1)
        return Draw(places.flatten(0, 1), weights.flatten().float())

    def write(self, rows: Tensor, worlds: slice) -> None:
        first = self.largest[worlds, None]
        self.mass[worlds].scatter_(1, rows.T, first.expand(rows.T.shape))

    def update(self, places: Tensor, errors: Tensor) -> None:
        rows, worlds = places.T
        new, flat = self.priority(errors.view(-1, len(places)).abs().mean(0)), self.mass.view(-1)
        at = worlds * self.mass.shape[1] + rows
        # of one drawn twice the larger, which no order changes
        flat.index_fill_(0, at, 0.0).scatter_reduce_(0, at, new, "amax")
        self.largest.mul_(1 - FORGET).scatter_reduce_(0, worlds, new, "amax")

    def priority(self, errors: Tensor) -> Tensor:
        """pᵅ of errors (…); those that are no numbers count as zeros."""
        size = errors.abs().nan_to_num(0.0, 0.0, 0.0)
        return torch.where(size > 0, (size + LEAST_ERROR).pow(self.exponent), 0.0)

    def tensors(self) -> dict[str, Tensor]:
        return {"mass": self.mass, "largest": self.largest}
