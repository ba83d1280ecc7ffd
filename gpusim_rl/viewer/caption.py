"""The bar under the pictures of a film: the command, how fast the robot is, where they differ."""

import functools
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from gpusim_rl.core.errors import printable
from gpusim_rl.envs.command_columns import Description, plain_columns
from gpusim_rl.robots.free_bodies import robot_joint

if TYPE_CHECKING:
    from mujoco import MjModel

MEAN = 0.4  # s over which the speed is averaged
FASTEST = 30.0  # m/s; a robot that is faster has begun again somewhere else
ALLOWED = 0.25  # m/s by which the speed may miss the command, as in an evaluation
SHADE = 0.35  # share of a picture's light that is left under the bar
WHITE, ORANGE = (255, 255, 255), (255, 178, 64)
LONGEST_NAME = 24  # characters of a name or unit, which may come from a stranger's file


class Caption:
    """Writes into pictures.

    The speed is that of the robot's base, or of its first body that moves, unless that can only
    turn. `command` gives what `description` describes at a time [s].
    """

    GAP: ClassVar = "     "  # between parts

    def __init__(
        self,
        model: "MjModel",
        description: Description | None = None,
        command: Callable[[float], np.ndarray] | None = None,
    ):
        import mujoco

        kinds = (mujoco.mjtJoint.mjJNT_FREE, mujoco.mjtJoint.mjJNT_SLIDE)
        first = robot_joint(model)
        travels = first is not None and mujoco.mjtJoint(int(model.jnt_type[first])) in kinds
        self.body = int(model.jnt_bodyid[first]) if travels else None
        described = description or {"names": ()}
        self.command, self.columns = command, plain_columns(described)
        pairs = list(zip(described["names"], described.get("units", ()), strict=False))
        pairs = [pairs[i] for i in self.columns if i < len(pairs)]
        # name and unit of each number that is shown, which those of a rotation are not
        self.names = [tuple(printable(str(x))[:LONGEST_NAME] for x in pair) for pair in pairs]
        self.places: deque[tuple[float, np.ndarray]] = deque()  # time [s] and position [m], of late

    def text(self, t: float, position: np.ndarray | None) -> str:
        """The text at a time [s], of a robot at a position (3,) [m]; None if there are several."""
        return self.GAP.join(words for words, _ in self.parts(t, position))

    def parts(self, t: float, position: np.ndarray | None) -> list[tuple[str, bool]]:
        """The words of `text`, and which of them differ from the command."""
        parts, request = [], None
        if self.command:
            values = self.command(t)
            pairs = [*zip(self.names, values[self.columns], strict=False)]
            parts = [(f"{name} {x:.2f} {unit}", False) for (name, unit), x in pairs]
            velocity = [x for (_, unit), x in pairs[:2] if unit == "m/s"]
            request = float(np.linalg.norm(velocity)) if velocity else None
        if position is not None and self.body is not None:
            speed = self.speed(t, position)
            # the mean speed says nothing yet of a robot that has just begun
            full = t - self.places[0][0] > MEAN - 0.05
            differs = request is not None and abs(speed - request) > ALLOWED and full
            asked = f" of {request:.2f}" if differs else ""
            parts.append((f"speed {speed:.2f}{asked} m/s", differs))
        return parts

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
        """A picture (height, width, 3) uint8 with the text of `text` in a bar at its lower edge."""
        from PIL import Image, ImageDraw

        if not (parts := self.parts(t, position)):
            return picture
        height, width, _ = picture.shape
        size = max(9, height // 30)  # pixels
        while size > 9 and font(size).getlength(self.GAP.join(x for x, _ in parts)) > width - size:
            size -= 1
        lines = self.lines(parts, width - size, font(size))
        top = height - round(1.5 * size * len(lines)) - size // 2
        picture = picture.copy()
        picture[top:] = picture[top:] * SHADE
        image = Image.fromarray(picture)
        draw = ImageDraw.Draw(image)
        for i, line in enumerate(lines):
            x, y = size / 2, top + size / 2 + 1.5 * size * i
            for words, differs in line:
                color = ORANGE if differs else WHITE  # from the command: with a disc before it
                if differs:
                    draw.ellipse((x, y + 0.3 * size, x + 0.6 * size, y + 0.9 * size), fill=color)
                    x += 0.9 * size
                draw.text((x, y), words, color, font(size))
                x += font(size).getlength(words + self.GAP)
        return np.asarray(image)

    @classmethod
    def lines(cls, parts: list[tuple[str, bool]], width: float, letters: Any) -> list[list[Any]]:
        """The parts in lines that are not wider than `width` [pixels], if each of them fits."""
        rows: list[list[Any]] = [[]]
        for part in parts:
            text = cls.GAP.join(x for x, _ in [*rows[-1], part])
            if rows[-1] and letters.getlength(text) > width:
                rows.append([])
            rows[-1].append(part)
        return rows


@functools.cache
def font(size: int) -> Any:
    """Pillow's own font of a size [pixels], which takes milliseconds to load."""
    from PIL import ImageFont

    return ImageFont.load_default(size)
