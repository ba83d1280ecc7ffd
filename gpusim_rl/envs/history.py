"""What the actor sees of the last control steps: histories of terms, and late readings."""

import torch
from torch import Tensor

from gpusim_rl.core.rng import Rng


class History:
    """The last observations of B worlds, with their noise; a restart fills it with the first.

    Args:
        widths: term → width at one moment, in the order of the view.
        history: term → control steps of it that the actor sees; 1 unless given.
        delay: least and largest age [control steps] of the `late` terms, drawn for each episode.
        late: terms that come late: what sensors measure, not what the robot's computer knows.
        worlds: B.

    `now` (B, n) takes the observation of this moment. `update` then writes the actor's view
    (B, width), term by term, each oldest first. `state` returns all that changes.
    """

    def __init__(
        self,
        widths: dict[str, int],
        history: dict[str, int],
        delay: tuple[int, int],
        late: set[str],
        worlds: int,
        device: torch.device,
    ):
        steps = {name: history.get(name, 1) for name in widths}
        n, most = sum(widths.values()), max(steps.values())
        self.low, self.high = delay
        self.now = torch.zeros(worlds, n, device=device)
        self.frames = torch.zeros(worlds, most + self.high, n, device=device)  # oldest first
        self.age = torch.zeros(worlds, dtype=torch.int64, device=device)
        columns, begin = [], 0
        for name, width in widths.items():
            columns += [
                step * n + begin + i
                for step in range(most - steps[name], most)
                for i in range(width)
            ]
            begin += width
        self.columns = torch.tensor(columns, device=device)
        self.width, self.most = len(columns), most
        lags = [float(name in late) for name, width in widths.items() for _ in range(width)]
        self.lags = torch.tensor(lags, device=device).long()  # (n,) 1 for a column that comes late
        self.recent = torch.arange(self.high, self.high + most, device=device)[:, None]

    def update(self, began: Tensor | None, rng: Rng, out: Tensor) -> None:
        """Write the view to out (B, width): at a new moment, or if began is None at the same one.

        began (B,) bool: the worlds whose episode begins now. They draw their delay.
        """
        if began is None:
            self.frames[:, -1].copy_(self.now)
        else:
            now = self.now[:, None]
            self.frames.copy_(
                torch.where(began[:, None, None], now, torch.cat([self.frames[:, 1:], now], 1))
            )
        if self.high and began is not None:
            drawn = self.low + rng.integers("observe/delay", self.high - self.low + 1)[:, 0]
            self.age.copy_(torch.where(began, drawn, self.age))
        out.copy_(self.view(self.frames, self.age))

    def view(self, frames: Tensor, age: Tensor) -> Tensor:
        """(B, width) what the actor sees of such frames, when readings are age (B,) late."""
        seen = frames[:, -self.most :]
        if self.high:
            seen = frames.gather(1, self.recent - age[:, None, None] * self.lags)
        return seen.flatten(1).index_select(1, self.columns)

    def state(self) -> dict[str, Tensor]:
        """Every live tensor, by name; B rows each."""
        return {"history/frames": self.frames, "history/age": self.age}
