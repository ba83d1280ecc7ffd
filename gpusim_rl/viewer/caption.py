"""The text in the pictures of a film: the command, and how fast the robot is."""

import functools
import textwrap
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from gpusim_rl.core.errors import printable
from gpusim_rl.core.free_bodies import robot_joint
from gpusim_rl.viewer.target import plain_columns

MEAN = 0.4  # s over which the speed is averaged
FASTEST = 30.0  # m/s; a robot that is faster has begun again somewhere else
LONGEST = 24  # characters of a name or unit, which may come from a stranger's file


class Caption:
    """Writes into pictures.

    Args:
        model: a mujoco.MjModel. The speed is that of the robot's base, or of its first body that
            moves, unless that can only turn.
        about: what a policy's description says of its command; None if it has none.
        command: gives it at a time [s].
    """

    def __init__(
        self,
        model: Any,
        about: Mapping[str, Any] | None = None,
        command: Callable[[float], np.ndarray] | None = None,
    ):
        import mujoco

        kinds = (mujoco.mjtJoint.mjJNT_FREE, mujoco.mjtJoint.mjJNT_SLIDE)
        first = robot_joint(model)
        travels = first is not None and mujoco.mjtJoint(int(model.jnt_type[first])) in kinds
        self.body = int(model.jnt_bodyid[first]) if travels else None
        self.command, self.names = command, self.named(about or {"names": ()})
        self.columns = plain_columns(about or {"names": ()})
        self.places: deque[tuple[float, np.ndarray]] = deque()  # time [s] and position [m], of late

    @staticmethod
    def named(about: Mapping[str, Any]) -> list[tuple[str, ...]]:
        """Name and unit of each number that is shown, which those of a rotation are not."""
        pairs = list(zip(about["names"], about.get("units", ()), strict=False))
        pairs = [pairs[i] for i in plain_columns(about) if i < len(pairs)]
        return [tuple(printable(str(x))[:LONGEST] for x in pair) for pair in pairs]

    def text(self, t: float, position: np.ndarray | None) -> str:
        """The text at a time [s], of a robot at a position (3,) [m]; None if there are several."""
        parts = []
        if self.command:
            values = self.command(t)
            pairs = zip(self.names, values[self.columns], strict=False)
            parts.append("   ".join(f"{name} {x:.2f} {unit}" for (name, unit), x in pairs))
        if position is not None and self.body is not None:
            parts.append(f"speed {self.speed(t, position):.2f} m/s")
        return "\n".join(parts)

    def speed(self, t: float, position: np.ndarray) -> float:
        """The mean speed of late [m/s]."""
        places = self.places
        if places:
            last, before = places[-1]
            if np.linalg.norm(position - before) > FASTEST * max(t - last, 1e-3):
                places.clear()
        places.append((t, position.copy()))
        while t - places[0][0] > MEAN + 1e-9:
            places.popleft()
        (begun, before), passed = places[0], t - places[0][0]
        return float(np.linalg.norm(position - before)) / passed if t > begun else 0.0

    def write(self, picture: np.ndarray, t: float, position: np.ndarray | None) -> np.ndarray:
        """A picture (height, width, 3) uint8 with the text of `text` in its upper left corner."""
        from PIL import Image, ImageDraw

        if not (text := self.text(t, position)):
            return picture
        size = max(10, len(picture) // 28)  # pixels
        columns = int(1.8 * picture.shape[1] / size)  # that fit in a line
        lines = [textwrap.fill(line, columns) for line in text.split("\n")]
        image = Image.fromarray(picture)
        ImageDraw.Draw(image).text(
            (size // 2, size // 2),
            "\n".join(lines),
            "white",
            font(size),
            stroke_width=max(1, size // 10),
            stroke_fill="black",
        )
        return np.asarray(image)


@functools.cache
def font(size: int) -> Any:
    """Pillow's own font of a size [pixels], which takes milliseconds to load."""
    from PIL import ImageFont

    return ImageFont.load_default(size)
