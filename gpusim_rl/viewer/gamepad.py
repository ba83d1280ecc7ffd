"""A gamepad: what its sticks and buttons ask for, in a window and on a page."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

DEAD_ZONE = 0.15  # of a stick's way: worn sticks rest at up to a tenth of it
AXES = (1, 0, 2)  # of a command's first three numbers: left stick up and left, right stick left
REST = (0.0,) * 4, (False, False)  # axes and buttons


class Change(NamedTuple):
    """What a gamepad asks for since it was read last.

    sticks: (3,) where the first three numbers of the command go, -1 to 1 from the lowest to the
    highest, 0 where they rest; None while no stick is moved.
    """

    sticks: np.ndarray | None
    pause: bool
    restart: bool


class Gamepad:
    """Tells what changes on a gamepad. One that nobody touches leaves the command to others."""

    def __init__(self) -> None:
        self.sticks, self.buttons = np.zeros(len(AXES)), REST[1]

    def read(self, axes: Sequence[float], buttons: Sequence[bool]) -> Change:
        """What these axes, right and down positive, and buttons ask for.

        axes: of the left and the right stick, x and y each. buttons: the first two; both as GLFW's
        gamepads and the browser's standard mapping have them.
        """
        way = -np.clip(axes, -1, 1)[[*AXES]]
        sticks = np.sign(way) * np.maximum(0, (np.abs(way) - DEAD_ZONE) / (1 - DEAD_ZONE))
        moved = sticks.any() or self.sticks.any()  # one that is let go goes back to rest
        pause, restart = (now and not was for now, was in zip(buttons, self.buttons, strict=True))
        self.sticks, self.buttons = sticks, (bool(buttons[0]), bool(buttons[1]))
        return Change(sticks if moved else None, pause, restart)


def between(low: float, rest: float, high: float, stick: float) -> float:
    """The number of a command at a stick's -1 to 1."""
    return rest + stick * ((high - rest) if stick > 0 else (rest - low))
