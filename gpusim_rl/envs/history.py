"""The past of what the actor sees: histories of observation terms, and readings that come late."""

import torch
from torch import Tensor

from gpusim_rl.core.rng import Rng
from gpusim_rl.core.states import beside


# Why: docs/decisions/observations.md
class Frames:
    """The last values (B, n) of B worlds; a restart fills them with the first. Methods are pure.

    Those of agents are (B, A, n), and their frames (B, count, A, n).

    Attributes:
        frames: (B, count, n) live, oldest first.
    """

    def __init__(self, shape: tuple[int, ...], count: int, width: int, device: torch.device):
        self.frames = torch.zeros(shape[0], count, *shape[1:], width, device=device)

    def pushed(self, frames: Tensor, now: Tensor, began: Tensor | None, first: Tensor) -> Tensor:
        """The frames (B, count, n) after values now (B, n): of a new moment, or of the same one.

        began (B,) bool: the worlds whose episode begins now; None: it is the same moment. first
        (B,) bool: those whose episode began at this moment, also if it is the same.
        """
        if began is None:
            began, after = first, torch.cat([frames[:, :-1], now[:, None]], 1)
        else:
            after = self.after(frames, now)
        return torch.where(beside(began, after), now[:, None], after)

    def after(self, frames: Tensor, now: Tensor) -> Tensor:
        """(B, count, n) the frames after a moment at which the values are now (B, n)."""
        return torch.cat([frames[:, 1:], now[:, None]], 1)


class History(Frames):
    """The last observations of worlds (B,) or agents (B, A), term by term, each oldest first.

    widths: term → width at one moment, in the order of the view. steps: term → control steps of it
    that the actor sees; 1 unless given, 0 for none.
    """

    def __init__(
        self,
        widths: dict[str, int],
        steps: dict[str, int],
        shape: tuple[int, ...],
        device: torch.device,
    ):
        n, longest = sum(widths.values()), max(steps.get(name, 1) for name in widths)
        super().__init__(shape, longest, n, device)
        columns, begin = [], 0
        for name, width in widths.items():
            first = longest - steps.get(name, 1)
            columns += [t * n + begin + i for t in range(first, longest) for i in range(width)]
            begin += width
        self.columns = torch.tensor(columns, device=device)
        self.width = len(columns)

    def view(self, frames: Tensor) -> Tensor:
        """(B, width) what the actor sees of such frames."""
        return frames.movedim(1, -2).flatten(-2).index_select(-1, self.columns)

    def state(self) -> dict[str, Tensor]:
        """Every live tensor, by name; B rows each."""
        return {"history/frames": self.frames}


class DelayLine(Frames):
    """The last readings of B worlds, of which the robot gets older ones.

    low, high: least and largest age [control steps], drawn for each episode.
    """

    def __init__(self, low: int, high: int, worlds: int, width: int, device: torch.device):
        super().__init__((worlds,), high + 1, width, device)
        self.low, self.high = low, high
        self.age = torch.zeros(worlds, dtype=torch.int64, device=device)

    def drawn(self, age: Tensor, began: Tensor, rng: Rng) -> Tensor:
        """(B,) the ages, drawn anew in the worlds of began (B,), whose episode begins now."""
        drawn = self.low + rng.integers("observe/delay", self.high - self.low + 1)[:, 0]
        return torch.where(began, drawn, age)

    def view(self, frames: Tensor, age: Tensor) -> Tensor:
        """(B, n) what the robot gets of such frames."""
        at = (self.high - age)[:, None, None].expand(-1, 1, frames.shape[2])
        return frames.gather(1, at)[:, 0]

    def state(self) -> dict[str, Tensor]:
        """Every live tensor, by name; B rows each."""
        return {"delay/frames": self.frames, "delay/age": self.age}
