"""Rows of named columns in one tensor: a rollout, a ring, the samples of an update, a minibatch."""

from functools import partial
from itertools import accumulate
from math import prod
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from gpusim_rl.core.symmetry import Flip, MirrorModule, concatenated, unmoved


class Column(NamedTuple):
    """An entry of a record: for each row a value of this shape and type."""

    shape: tuple[int, ...] = ()
    dtype: torch.dtype = torch.float32

    @property
    def storage(self) -> torch.dtype:
        """The type of the tensor that holds it: truth values lie among the float32 numbers."""
        # so that one kernel writes all that a step gives. Why: docs/decisions/records.md
        return torch.float32 if self.dtype == torch.bool else self.dtype


Columns = dict[str, Column]
T = TypeVar("T")
NUMBER, FLAG = Column(), Column(dtype=torch.bool)
ENDS: Columns = dict.fromkeys(("terminated", "truncated", "fault"), FLAG)  # how a step ends


def vector(width: int) -> Column:
    """A column of `width` float32 numbers."""
    return Column((width,))


def view_columns(views: dict[str, T]) -> dict[str, T]:
    """What belongs to each view by the name of its column: `obs` is the actor's."""
    return {"obs" if name == "actor" else name: x for name, x in views.items()}


class Record:
    """Rows (…, width) whose columns have names: `record.reward` is a view of that column.

    Columns of one type share one tensor of `parts`. A column of truth values is a copy.
    """

    def __init__(self, columns: Columns, parts: dict[torch.dtype, Tensor]):
        self.columns, self.parts = columns, parts
        # of the policy before the first of the steps, name → (B, …)
        self.memory: dict[str, Tensor] = {}
        self._place: dict[str, slice] = {}
        self._views: dict[str, Tensor] = {}
        self._runs: dict[tuple[str, ...], list[list[str]]] = {}  # what `put` was given → its runs
        for dtype, rows in parts.items():
            mine = {name: x.shape for name, x in columns.items() if x.storage == dtype}
            ends = accumulate(prod(shape) for shape in mine.values())
            for (name, shape), end in zip(mine.items(), ends, strict=True):
                place = self._place[name] = slice(end - prod(shape), end)
                view = rows[..., place]
                view = view if len(shape) == 1 else view.squeeze(-1) if not shape else view
                self._views[name] = view.unflatten(-1, shape) if len(shape) > 1 else view

    @classmethod
    def zeros(cls, columns: Columns, *shape: int, device: torch.device) -> "Record":
        """A record (*shape, …) of zeros."""
        new = partial(torch.zeros, *shape, device=device)
        return cls(columns, {kind: new(n, dtype=kind) for kind, n in widths(columns).items()})

    def __getattr__(self, name: str) -> Tensor:
        if name.startswith("_"):
            raise AttributeError(name)
        if name not in self._views:
            raise AttributeError(f"{name!r} is no column of {', '.join(self.__dict__['columns'])}")
        view = self._views[name]
        return view != 0 if self.columns[name].dtype == torch.bool else view

    def __len__(self) -> int:
        """Rows along the first axis: steps of a rollout or of a ring."""
        return len(next(iter(self.parts.values())))

    @property
    def rows(self) -> Tensor:
        """(…, width) the columns of float32 numbers and truth values."""
        return self.parts[torch.float32]

    @property
    def schema(self) -> str:
        """The columns as a text, which two sides of a wire can compare."""
        figures = (
            f"{name}:{str(x.dtype).removeprefix('torch.')}{list(x.shape)}"
            for name, x in self.columns.items()
        )
        return " ".join(figures).replace(", ", ",")

    def column(self, name: str) -> Tensor:
        """(…, *shape) the numbers that hold a column, truth values as 0 and 1."""
        return self._views[name]

    def span(self, first: str, last: str) -> Tensor:
        """(…, n) adjacent columns of one type as one view."""
        rows = self.parts[self.columns[first].storage]
        return rows[..., self._place[first].start : self._place[last].stop]

    def put(self, t: Tensor, values: dict[str, Tensor]) -> None:
        """Write values that are columns (B, …) at t (1,), adjacent ones by one kernel. In place."""
        names = tuple(values)
        if names not in self._runs:
            self._runs[names] = self._adjacent(names)
        for run in self._runs[names]:
            rows = packed({name: values[name] for name in run})
            span = self.span(run[0], run[-1])
            span.index_copy_(0, t, rows.to(span.dtype)[None])

    def first_steps(self) -> Tensor:
        """(T, …) 1 where an episode begins; 0 in row 0, of which a policy's memory says it."""
        ended = (self.terminated | self.truncated | self.fault).float()
        return torch.cat([torch.zeros_like(ended[:1]), ended[:-1]])

    def _adjacent(self, names: tuple[str, ...]) -> list[list[str]]:
        """Runs of adjacent columns of one type, of the names that are columns."""
        runs: list[list[str]] = []
        end: tuple[torch.dtype, int] | None = None
        for name in self._place:
            place, storage = self._place[name], self.columns[name].storage
            if name in names:
                if end != (storage, place.start):
                    runs.append([])
                runs[-1].append(name)
                end = storage, place.stop
        return runs

    def mirror(self, flips: dict[str, Flip]) -> MirrorModule:
        """The mirror of a row of numbers, of the flips of its columns; the others stay."""
        numbers = {name: x for name, x in self.columns.items() if x.storage == torch.float32}
        same = {name: unmoved(*[1.0] * prod(x.shape)) for name, x in numbers.items()}
        return MirrorModule(concatenated((same | flips).values()))


def widths(columns: Columns) -> dict[torch.dtype, int]:
    """Type → the width of all columns together that are stored as that type."""
    sizes: dict[torch.dtype, int] = {}
    for column in columns.values():
        sizes[column.storage] = sizes.get(column.storage, 0) + prod(column.shape)
    return sizes


def row_bytes(columns: Columns) -> int:
    """Bytes of a row."""
    return sum(width * dtype.itemsize for dtype, width in widths(columns).items())


def packed(values: dict[str, Tensor], out: Tensor | None = None) -> Tensor:
    """(B, width) values (B, …) side by side."""
    columns = [x if x.ndim == 2 else x.reshape(len(x), -1) for x in values.values()]
    return torch.cat(columns, dim=1, out=out)
