"""The bar under the pictures of a film: the command, how fast the robot is, where they differ."""

import functools
import math
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from gpusim_rl.core.errors import printable
from gpusim_rl.envs.command_columns import Description, plain_columns
from gpusim_rl.robots.free_bodies import robot_joint

if TYPE_CHECKING:
    from mujoco import MjData, MjModel

MEAN = 0.4  # s over which the speed is averaged
SETTLED = 0.8  # s: age of a command from which on a robot does what it says
FASTEST = 30.0  # m/s; a robot that is faster has begun again somewhere else
ALLOWED = 0.25  # m/s and rad/s by which a robot may miss the command, as in an evaluation
DISC = 0.9  # width of a disc and its gap, in sizes of the letters
SHADE = 0.35  # share of a picture's light that is left under the bar
WHITE, ORANGE = (255, 255, 255), (255, 178, 64)
LONGEST_NAME = 24  # characters of a name or unit, which may come from a stranger's file
TOOL = "tool_position"  # sensor of an arm's model at the place that is to reach a goal


class Place(NamedTuple):
    """Where a robot is at a time [s]: position (3,) [m] and heading [rad] of its base."""

    t: float
    position: np.ndarray
    heading: float


class Caption:
    """Writes into pictures.

    Args:
        model: a mujoco.MjModel. The speed is that of the robot's base, or of its first body that
            moves, unless that can only turn.
        description: what a policy's description says of its command; None if it has none.
        command: gives it at a time [s].
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
        description = description or {"names": ()}
        self.command, self.names = command, self.named(description)
        self.columns, self.has_goal = plain_columns(description), "shown_by" in description
        tool = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_SENSOR, TOOL)
        is_site = tool >= 0 and model.sensor_objtype[tool] == mujoco.mjtObj.mjOBJ_SITE
        self.tool = int(model.sensor_objid[tool]) if is_site else None
        self.is_free = travels and model.jnt_type[first] == mujoco.mjtJoint.mjJNT_FREE
        self.places: deque[Place] = deque()  # of late
        self.since, self.last = 0.0, np.zeros(0)  # when the command became what it is

    @staticmethod
    def named(description: Description) -> list[tuple[str, ...]]:
        """Name and unit of each number that is shown, which those of a rotation are not."""
        pairs = list(zip(description["names"], description.get("units", ()), strict=False))
        pairs = [pairs[i] for i in plain_columns(description) if i < len(pairs)]
        return [tuple(printable(str(x))[:LONGEST_NAME] for x in pair) for pair in pairs]

    def text(self, t: float, data: "MjData | None") -> str:
        """The text at a time [s], of a robot in a MjData; None if there are several."""
        return self.GAP.join(words for words, _ in self.parts(t, data))

    def parts(self, t: float, data: "MjData | None") -> list[tuple[str, bool]]:
        """The words of `text`, and which of them differ from a command that is not young."""
        parts, values, units = list[tuple[str, bool]](), np.zeros(0), list[str]()
        if self.command:
            values, units = self.command(t)[self.columns], [unit for _, unit in self.names]
            if not np.array_equal(values, self.last):
                self.since, self.last = t, values.copy()
            pairs = zip(self.names, values, strict=False)
            parts = [(quantity(name, unit, x), False) for (name, unit), x in pairs]
        measured = ""
        if parts:  # a reader tells what is asked from what is measured
            parts[0], measured = (f"command: {parts[0][0]}", False), "measured: "
        if data is None:
            return parts
        if self.has_goal and (place := self.place(data)) is not None:
            n = min(3, len(values))
            distance = float(np.linalg.norm(place[:n] - values[:n]))
            parts.append((f"{measured}{distance:.2f} m from the goal", False))
            measured = ""
        if self.body is None:
            return parts
        speed, rate = self.velocity(t, data)
        settled = t - self.since > SETTLED - 1e-9
        planar = [x for x, unit in zip(values[:2], units[:2], strict=False) if unit == "m/s"]
        request = float(np.linalg.norm(planar)) if planar else speed
        differs = abs(speed - request) > ALLOWED and settled
        asked = f" of {request:.2f}" if differs else ""
        parts.append((f"{measured}speed {speed:.2f}{asked} m/s", differs))
        if planar and units[2:3] == ["rad/s"] and settled and abs(rate - values[2]) > ALLOWED:
            parts.append((f"turns {rate:.2f} of {values[2]:.2f} rad/s", True))
        return parts

    def place(self, data: "MjData") -> np.ndarray | None:
        """Where what has a goal is (3,) [m]: an arm's tool or a free base, else unknown."""
        if self.tool is not None:
            return data.site_xpos[self.tool]
        return data.xpos[self.body] if self.is_free else None

    def velocity(self, t: float, data: "MjData") -> tuple[float, float]:
        """The mean speed [m/s] and rate of the heading [rad/s] of late."""
        places, position = self.places, data.xpos[self.body].copy()
        heading = math.atan2(*data.xmat[self.body][[3, 0]])
        if places:
            last = places[-1]
            if np.linalg.norm(position - last.position) > FASTEST * max(t - last.t, 1e-3):
                places.clear()
            else:  # without a jump at the turn of a circle
                heading = last.heading + math.remainder(heading - last.heading, math.tau)
        places.append(Place(t, position, heading))
        while t - places[0].t > MEAN + 1e-9:
            places.popleft()
        passed = max(t - places[0].t, 1e-9)
        return (
            float(np.linalg.norm(position - places[0].position)) / passed,
            (heading - places[0].heading) / passed,
        )

    def write(self, picture: np.ndarray, t: float, data: "MjData | None") -> np.ndarray:
        """A picture (height, width, 3) uint8 with the text of `text` in a bar at its lower edge.

        Words that differ from the command are orange and have a disc before them.
        """
        from PIL import Image, ImageDraw

        if not (parts := self.parts(t, data)):
            return picture
        height, width, _ = picture.shape
        size = max(9, height // 30)  # pixels
        while size > 9 and self.length(parts, size) > width - size:
            size -= 1
        lines = self.lines(parts, width - size, size)
        top = height - round(1.5 * size * len(lines)) - size // 2
        picture = picture.copy()
        picture[top:] = picture[top:] * SHADE
        image = Image.fromarray(picture)
        draw = ImageDraw.Draw(image)
        for i, line in enumerate(lines):
            x, y = size / 2, top + size / 2 + 1.5 * size * i
            for words, differs in line:
                color = ORANGE if differs else WHITE
                if differs:
                    draw.ellipse((x, y + 0.3 * size, x + 0.6 * size, y + 0.9 * size), fill=color)
                    x += DISC * size
                draw.text((x, y), words, color, font(size))
                x += font(size).getlength(words + self.GAP)
        return np.asarray(image)

    @classmethod
    def length(cls, parts: list[tuple[str, bool]], size: int) -> float:
        """How long a line of these parts is [pixels], with their discs, in letters of a size."""
        words = cls.GAP.join(words for words, _ in parts)
        return font(size).getlength(words) + DISC * size * sum(differs for _, differs in parts)

    @classmethod
    def lines(cls, parts: list[tuple[str, bool]], width: float, size: int) -> list[list[Any]]:
        """The parts in lines that are not wider than `width` [pixels], if each of them fits."""
        rows: list[list[Any]] = [[]]
        for part in parts:
            if rows[-1] and cls.length([*rows[-1], part], size) > width:
                rows.append([])
            rows[-1].append(part)
        return rows


@functools.cache
def font(size: int) -> Any:
    """Pillow's own font of a size [pixels], which takes milliseconds to load."""
    from PIL import ImageFont

    return ImageFont.load_default(size)


def quantity(name: str, unit: str, x: float) -> str:
    """A number with its name and unit; one without a unit, which may count, as it is."""
    return f"{name} {x:.3g}" if unit == "1" else f"{name} {x:.2f} {unit}"
