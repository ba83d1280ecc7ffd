"""Rows of named columns in one tensor: a rollout, the samples of an update, a minibatch."""

from itertools import accumulate

import torch
from torch import Tensor

from gpusim_rl.core.symmetry import Flip, Mirror, join, keep

NUMBER, FLAG = 0, -1  # instead of a width: one number, or one truth value, without an axis


class Record:
    """Rows (…, width) whose columns have names: `record.reward` is a view of that column.

    Args:
        widths: name of a column → its width, or NUMBER for (…), or FLAG for (…) bool, a copy.
        rows: (…, width of all columns together), which views share.
    """

    def __init__(self, widths: dict[str, int], rows: Tensor):
        self.widths, self.rows = widths, rows
        sizes = [max(n, 1) for n in widths.values()]
        self._ends = dict(zip(widths, accumulate(sizes), strict=True))
        parts = dict(zip(widths, rows.split(sizes, dim=-1), strict=True))
        self._columns = {
            name: part if widths[name] > 0 else part.squeeze(-1) for name, part in parts.items()
        }

    @classmethod
    def zeros(cls, widths: dict[str, int], *shape: int, device: torch.device) -> "Record":
        """A record (*shape, …) of zeros."""
        return cls(widths, torch.zeros(*shape, row_width(widths), device=device))

    def __getattr__(self, name: str) -> Tensor:
        if name.startswith("_") or name not in self._columns:
            raise AttributeError(f"{name!r} is no column of {', '.join(self.__dict__['widths'])}")
        column = self._columns[name]
        return column != 0 if self.widths[name] == FLAG else column

    def span(self, first: str, last: str) -> Tensor:
        """(…, n) adjacent columns as one view."""
        return self.rows[..., self._ends[first] - max(self.widths[first], 1) : self._ends[last]]

    def put(self, t: Tensor, values: dict[str, Tensor]) -> None:
        """Write adjacent columns (B, …), in their order, at the places t (1,). In place."""
        first, *_, last = values
        self.span(first, last).index_copy_(0, t, packed(values)[None])

    def mirror(self, flips: dict[str, Flip]) -> Mirror:
        """The mirror of a row, of the flips of its columns; the others stay as they are."""
        same = {name: keep(*[1.0] * max(n, 1)) for name, n in self.widths.items()}
        return Mirror(join((same | flips).values()))


def row_width(widths: dict[str, int]) -> int:
    """The width of all columns together."""
    return sum(max(n, 1) for n in widths.values())


def packed(values: dict[str, Tensor], out: Tensor | None = None) -> Tensor:
    """(B, width) values (B, n) or (B,) side by side."""
    columns = [x if x.ndim == 2 else x[:, None] for x in values.values()]
    return torch.cat(columns, dim=1, out=out)
