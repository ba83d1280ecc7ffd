"""Windows of consecutive steps, drawn from a ring of all that was collected."""

from typing import NamedTuple

import torch
from torch import Tensor

from gpusim_rl.core.record import Record


class Windows(NamedTuple):
    """n windows of steps of one world each."""

    first: Record  # rows (n, …) of the first step
    then: Record  # and of the one after the last
    gain: Tensor  # (n,) discounted rewards, up to a termination
    discount: Tensor  # (n,) of the value of `then`: 0 after a termination
    valid: Tensor  # (n,) 1, or 0 where a time limit or a fault cuts the window


def draw_windows(
    ring: Record, count: Tensor, unit: Tensor, *, length: int, gamma: Tensor | float
) -> Windows:
    """B k windows that begin at any row of a ring (R, B, …), as likely at each.

    None reaches beyond the newest row, or before the oldest. Numbers that are not finite are zeros.

    Args:
        count: () int64, how many rows were written, in all.
        unit: (B, k) numbers in [0, 1), which choose k windows of each world.
        length: steps of a window; gamma: discount of a step.
    """
    rows, worlds = len(ring), unit.shape[0]
    choices = (count.clamp(max=rows) - length).clamp(min=1)
    back = length + 1 + (unit * choices).long().minimum(choices - 1)
    steps = torch.arange(length + 1, device=unit.device)
    t = (count - back)[..., None] + steps  # (B, k, length + 1)
    places = t.remainder(rows) * worlds + torch.arange(worlds, device=unit.device)[:, None, None]
    places = places.flatten(0, 1)
    flat = Record(ring.columns, {kind: x.flatten(0, 1) for kind, x in ring.parts.items()})
    first, then = (take(flat, places[:, i]) for i in (0, length))
    ends = flat.span("reward", "fault").index_select(0, places[:, :-1].flatten())
    reward, terminated, truncated, fault = (
        ends.nan_to_num(0.0, 0.0, 0.0).view(-1, length, 4).unbind(-1)
    )
    stop = (terminated + truncated + fault).clamp(max=1.0)
    alive = torch.cumprod(1 - torch.cat([torch.zeros_like(stop[:, :1]), stop[:, :-1]], 1), 1)
    powers = gamma**steps
    gain = (alive * powers[:-1] * reward).sum(1)
    died = (alive * terminated).sum(1)
    valid = 1 - (alive * (truncated + fault)).sum(1).clamp(max=1.0)
    return Windows(first, then, gain, powers[-1] * (1 - died), valid)


def take(flat: Record, places: Tensor) -> Record:
    """Rows of a record (n, …), with zeros where numbers are not finite."""
    parts = {kind: x.index_select(0, places) for kind, x in flat.parts.items()}
    for kind, x in parts.items():
        if kind.is_floating_point:
            x.nan_to_num_(0.0, 0.0, 0.0)
    return Record(flat.columns, parts)
