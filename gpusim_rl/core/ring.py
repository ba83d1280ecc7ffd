"""The last steps of many worlds, from which a learner draws windows again and again."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from gpusim_rl.core.metrics import Metric
from gpusim_rl.core.record import Columns, Record
from gpusim_rl.core.states import Live, per_world

WHOLE = slice(None)  # all worlds


class Draw(NamedTuple):
    """n windows that were drawn."""

    places: Tensor  # (n, 2) int64: the row of the ring at which each begins, and its world
    weights: Tensor  # (n,) by which the loss of each counts; 1 where all are drawn alike


class Returns(NamedTuple):
    """What n windows of steps pay."""

    gain: Tensor  # (n,) discounted rewards, up to a termination
    discount: Tensor  # (n,) of the value of what follows: 0 after a termination
    valid: Tensor  # (n,) 1, or 0 where a time limit or a fault cuts the window


class Sampler(Protocol):
    """How windows are drawn. It may remember a number of each step, such as a priority."""

    def draw(self, ring: "Ring", unit: Tensor, length: int, before: int) -> Draw:
        """As `Ring.draw` has it."""
        ...

    def write(self, rows: Tensor, worlds: slice) -> None:
        """Rows (T, b) of these worlds are new. In place."""

    def update(self, places: Tensor, errors: Tensor) -> None:
        """The errors (…, n) of windows that were learned from. In place."""

    def tensors(self) -> dict[str, Tensor]:
        """What it remembers, name → (B, …)."""
        ...


class Uniform:
    """Each window of a world is as likely."""

    def __init__(self, rows: int, worlds: int, device: torch.device):
        self.weights = torch.ones(1, device=device)

    def draw(self, ring: "Ring", unit: Tensor, length: int, before: int) -> Draw:
        count, rows = ring.count[:, None], len(ring.record)
        choices = (count.clamp(max=rows) - length - before).clamp(min=1)
        back = length + 1 + (unit * choices).long().minimum(choices - 1)
        worlds = ring.worlds[:, None].expand_as(back)
        places = torch.stack([(count - back).remainder(rows), worlds], -1).flatten(0, 1)
        return Draw(places, self.weights.expand(len(places)))

    def write(self, rows: Tensor, worlds: slice) -> None: ...

    def update(self, places: Tensor, errors: Tensor) -> None: ...

    def tensors(self) -> dict[str, Tensor]:
        return {}


@dataclass(frozen=True)
class RingSpec:
    """The ring that a learner draws from: rows of each world, and how it draws."""

    rows: int
    saved: bool = True  # a checkpoint holds it; without it, it is filled anew
    sampler: Callable[[int, int, torch.device], Sampler] = Uniform  # of rows, worlds, a device


# Why: docs/decisions/records.md
class Ring:
    """The last R steps of each of B worlds. Everything is written in place.

    Attributes:
        record: (R, B, …), whose rows a world writes one after another, again from the first on.
        count: (B,) int64, how many steps each world has written, in all.
        worlds: (B,) int64, their numbers.
        drawn: (2,) of the last draw, as `metrics` names them.
    """

    metrics = (
        Metric("draw_share", "train/effective_draws", "effective share of draws", ".2f"),
        Metric("draw_age", "train/age_of_draws", "age of what is drawn [steps]", ".0f"),
    )

    def __init__(self, columns: Columns, spec: RingSpec, worlds: int, device: torch.device):
        self.record = Record.zeros(columns, spec.rows, worlds, device=device)
        self.spec, self.sampler = spec, spec.sampler(spec.rows, worlds, device)
        self.count = torch.zeros(worlds, dtype=torch.int64, device=device)
        self.worlds = torch.arange(worlds, device=device)
        self.drawn = torch.zeros(2, device=device)

    def __len__(self) -> int:
        return len(self.record)

    def describe(self) -> str:
        """A line on its size, which each checkpoint has if it is `saved`."""
        size = sum(x.nbytes for x in self.record.parts.values()) / 1e6
        where = ", also in each checkpoint" if self.spec.saved else ""
        return f"ring: {len(self):,} steps of {len(self.count):,} worlds, {size:,.1f} MB{where}"

    @property
    def written(self) -> Tensor:
        """() int64, how many steps each world has written at least."""
        return self.count.min()

    def write(self, slab: Record, worlds: slice = WHOLE) -> None:
        """Append the steps (T, b, …) of some worlds, T ≤ R. In place."""
        steps = torch.arange(len(slab), device=self.count.device)[:, None]
        rows = (self.count[worlds] + steps).remainder(len(self))
        places = (rows * len(self.count) + self.worlds[worlds]).flatten()
        for dtype, x in self.record.parts.items():
            x.flatten(0, 1).index_copy_(0, places, slab.parts[dtype].flatten(0, 1))
        self.count[worlds] += len(slab)
        self.sampler.write(rows, worlds)

    def cut(self, worlds: slice) -> None:
        """Let no window go on from the newest step of some worlds to the next one. In place."""
        row = (self.count[worlds] - 1).remainder(len(self))
        at = row, self.worlds[worlds]
        self.record.column("truncated")[at] = 1.0 - self.record.column("terminated")[at]

    def newest(self, steps: int) -> Record:
        """A copy of the last steps (T, B, …) of each world."""
        ages = torch.arange(-steps, 0, device=self.count.device)[:, None]
        return self.take((self.count + ages).remainder(len(self)), self.worlds)

    def take(self, rows: Tensor, worlds: Tensor) -> Record:
        """A copy of rows (…) of the ring and of worlds that broadcast against them."""
        places = rows * len(self.count) + worlds
        flat, parts = places.flatten(), self.record.parts.items()
        taken = {x: rows.flatten(0, 1).index_select(0, flat) for x, rows in parts}
        shape = places.shape
        return Record(self.record.columns, {x: y.unflatten(0, shape) for x, y in taken.items()})

    def may_begin(self, length: int, before: int = 0) -> Tensor:
        """(R, B) whether a window may begin at a row, as `draw` has it."""
        rows = torch.arange(len(self), device=self.count.device)[:, None]
        age = (self.count - 1 - rows).remainder(len(self))
        return (age >= length) & (age < self.count.clamp(max=len(self)) - before)

    def draw(self, unit: Tensor, length: int, before: int = 0) -> Draw:
        """B k windows, which begin after `before` steps that are there, too.

        None reaches beyond the newest row, of which only what was observed belongs to a window.

        Args:
            unit: (B, k) numbers in [0, 1), which choose k windows of each world.
            length: steps of a window.
        """
        drawn = self.sampler.draw(self, unit, length, before)
        weights, (rows, worlds) = drawn.weights, drawn.places.T
        # measured at once: tensors of a recording do not outlive its replay
        # (Σ w)² / (n Σ w²): the share of as many draws that all count alike
        share = weights.mean().square() / weights.square().mean()
        age = (self.count[worlds] - 1 - rows).remainder(len(self)).float().mean()
        self.drawn.copy_(torch.stack([share.nan_to_num(), age]))  # 0 / 0 without a window
        return drawn

    def measures(self) -> Tensor:
        """(len(metrics),) of the last draw, by this process."""
        return self.drawn.clone()

    def windows(self, places: Tensor, length: int, before: int = 0) -> "Windows":
        """The steps of windows from places (n, 2) on, and some before."""
        steps = torch.arange(-before, length + 1, device=places.device)
        first, worlds = places[:, :1], places[:, 1:]
        return Windows(self, (first + steps).remainder(len(self)), worlds, before)

    def update(self, places: Tensor, errors: Tensor) -> None:
        """Tell the errors (…, n) of windows that were learned from; 0 of those cut. In place."""
        self.sampler.update(places, errors)

    def tensors(self) -> dict[str, Live]:
        """What a checkpoint holds of it, by name: all, or nothing unless it is `saved`."""
        if not self.spec.saved:
            return {}
        parts = self.record.parts.items()
        rows = {str(dtype).removeprefix("torch."): x.transpose(0, 1) for dtype, x in parts}
        return per_world("ring/", rows | {"count": self.count} | self.sampler.tensors())


class Windows:
    """n windows of consecutive steps of one world each. Numbers that are not finite are zeros.

    Args:
        rows: (n, before + length + 1) int64 of the ring, the last one after the window.
        worlds: (n, 1) int64.
    """

    def __init__(self, ring: Ring, rows: Tensor, worlds: Tensor, before: int):
        self.ring, self.rows, self.worlds, self.before = ring, rows, worlds, before

    def at(self, step: int) -> Record:
        """The rows (n, …) of a step of the windows; those before them are negative."""
        return cleared(self.ring.take(self.rows[:, self.before + step], self.worlds[:, 0]))

    def steps(self) -> Record:
        """All rows (before + length + 1, n, …)."""
        return cleared(self.ring.take(self.rows.T, self.worlds.T))

    def returns(self, gamma: Tensor | float) -> Returns:
        """What the steps of the windows pay, with a discount for each."""
        ring, rows = self.ring, self.rows[:, self.before :]
        places = (rows * len(ring.count) + self.worlds)[:, :-1]
        ends = ring.record.span("reward", "fault").flatten(0, 1).index_select(0, places.flatten())
        ends = ends.nan_to_num(0.0, 0.0, 0.0).view(*places.shape, 4)
        reward, terminated, truncated, fault = ends.unbind(-1)
        stop = (terminated + truncated + fault).clamp(max=1.0)
        alive = torch.cumprod(1 - torch.cat([torch.zeros_like(stop[:, :1]), stop[:, :-1]], 1), 1)
        powers = gamma ** torch.arange(rows.shape[1], device=rows.device)
        gain = (alive * powers[:-1] * reward).sum(1)
        died = (alive * terminated).sum(1)
        valid = 1 - (alive * (truncated + fault)).sum(1).clamp(max=1.0)
        return Returns(gain, powers[-1] * (1 - died), valid)


def cleared(rows: Record) -> Record:
    """The same rows with zeros where numbers are not finite. In place."""
    for kind, x in rows.parts.items():
        if kind.is_floating_point:
            x.nan_to_num_(0.0, 0.0, 0.0)
    return rows
