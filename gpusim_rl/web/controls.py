"""The controls of the web page: requests of its users, and plots of how it goes.

All open pages share them. A control's callback only puts a request into a queue; whoever steps
the robots takes it out. No text of a stranger's file is shown as Markdown or HTML.
"""

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from queue import SimpleQueue
from typing import Any, NamedTuple

import numpy as np
import viser
from viser import ViserServer

from gpusim_rl.core.errors import printable
from gpusim_rl.envs.command_columns import angles, leaning, plain_columns, rotations
from gpusim_rl.viewer.gamepad import between
from gpusim_rl.viewer.window import tour

SPEEDS = {"1": 1.0, "1/2": 0.5, "1/4": 0.25, "1/10": 0.1}  # × real time
DIRECTIONS = {"+x": (1, 0), "-x": (-1, 0), "+y": (0, 1), "-y": (0, -1)}
TURNS = ("turn", "lean", "lean towards")  # [rad], instead of the four numbers of a rotation
PLOTTED = 150  # points of a plot
LONGEST_NAME = 48  # characters of a name
SLIDERS = 40  # at most
LAST = 1e6  # order of a control below the others
COLORS = "#1f77b4 #ff7f0e #2ca02c #d62728 #9467bd #8c564b #e377c2 #7f7f7f #bcbd22 #17becf".split()

Description = Mapping[str, Any]  # what a policy's file says of its command
Request = Callable[[], None]
Requests = SimpleQueue[Request]


def short(text: str, length: int = LONGEST_NAME) -> str:
    """A text of a stranger's file as the page shows it: a line of at most `length` characters."""
    text = printable(" ".join(text[:10000].split()))
    return text if len(text) <= length else f"{text[: length - 1]}…"


class Controls:
    """Time, pushes and camera.

    worlds: the largest number of robots of a policy. restart, push: what the buttons do; a push
    takes a velocity (2,) [m/s].
    """

    def __init__(
        self,
        server: ViserServer,
        requests: Requests,
        worlds: int,
        restart: Request,
        push: Callable[[np.ndarray], None],
    ):
        gui, self.paused, self.steps = server.gui, False, 0
        self.state = gui.add_text("state", "", disabled=True)
        with gui.add_folder("Time"):
            self.pause = gui.add_button("pause")
            others = gui.add_button_group("simulation", ("step", "reset"))
            self.speed = gui.add_dropdown("× real time", tuple(SPEEDS), initial_value="1")
        with gui.add_folder("Push"):
            self.strength = gui.add_slider("velocity [m/s]", 0.1, 3.0, 0.1, 1.0)
            direction = gui.add_button_group("direction", tuple(DIRECTIONS))
        with gui.add_folder("Camera", order=LAST):
            self.follow = gui.add_checkbox("follow", True)
            side = math.ceil(math.sqrt(worlds))
            center = min(worlds // 2 + side // 2, worlds - 1) if worlds > 2 else 0
            numbers = 0, max(1, worlds - 1), 1, center
            options = {"visible": worlds > 1, "hint": "that is followed"}
            self.robot = gui.add_slider("robot", *numbers, **options)
        self.pause.on_click(lambda _: requests.put(self.toggle))
        others.on_click(
            lambda event: requests.put(restart if event.target.value == "reset" else self.step_once)
        )
        direction.on_click(lambda event: requests.put(partial(push, self.velocity(event.target))))
        for changed in (self.follow, self.robot):
            changed.on_update(lambda _: requests.put(lambda: None))

    def velocity(self, direction: viser.GuiButtonGroupHandle) -> np.ndarray:
        """(2,) what a push in the direction that was clicked adds [m/s]."""
        return self.strength.value * np.array(DIRECTIONS[direction.value], float)

    def toggle(self) -> None:
        """Pause, or go on."""
        self.paused = not self.paused
        self.pause.label = "go on" if self.paused else "pause"

    def step_once(self) -> None:
        """Pause, and ask for one more control step."""
        if not self.paused:
            self.toggle()
        self.steps += 1

    @property
    def followed(self) -> int | None:
        """The world that the camera follows, if it does."""
        return int(self.robot.value) if self.follow.value else None


class Number(NamedTuple):
    """A number of a command that has a slider."""

    name: str
    unit: str
    low: float
    high: float
    first: float  # before the slider is moved


class Sliders:
    """The command that policies get: a tour of it [s] until a slider is moved.

    fixed: command= of the command line; empty for a tour.
    """

    def __init__(
        self, server: ViserServer, requests: Requests, fixed: Sequence[float], seconds: float
    ):
        self.gui, self.requests, self.seconds = server.gui, requests, seconds
        self.fixed = np.array(fixed, float)
        self.folder = server.gui.add_folder("Command")
        with self.folder:
            self.touring = server.gui.add_checkbox("tour", not len(self.fixed))
        self.sliders: dict[str, viser.GuiSliderHandle] = {}
        self.places: dict[str, float] = {}  # where the tour has put sliders
        self.rest: dict[str, float] = {}  # where sliders are before they are moved

    def rebuild(self, descriptions: Sequence[Description]) -> None:
        """Have a slider for each number that one of the policies follows."""
        for slider in self.sliders.values():
            slider.remove()
        self.sliders, self.places, self.rest = {}, {}, {}
        union: dict[str, Number] = {}
        for description in descriptions:
            for i, x in enumerate(numbers(description)):
                if len(self.fixed) > i and not rotations(description):
                    x = x._replace(first=float(np.clip(self.fixed[i], x.low, x.high)))
                before = union.get(x.name, x)
                low, high = min(x.low, before.low), max(x.high, before.high)
                union[x.name] = x._replace(low=low, high=high, first=before.first)
        self.folder.visible = bool(union)
        for x in [*union.values()][:SLIDERS]:
            label = f"{short(x.name)} [{short(x.unit)}]"
            ends = (x.low, x.high, max(x.high - x.low, 1e-7) / 100)
            low, high, step = (float(f"{y:.4g}") for y in ends)
            high = max(high, low + step)
            first = self.rest[x.name] = min(max(x.first, low), high)
            with self.folder:
                self.sliders[x.name] = self.gui.add_slider(label, low, high, step, first)
            self.sliders[x.name].on_update(self.moved)

    def moved(self, event: viser.GuiEvent) -> None:
        """Let the sliders say the command, if a page moves one; the tour moves them, too."""
        if event.client_id is not None:
            self.requests.put(self.take_over)

    def take_over(self) -> None:
        """Let the sliders say the command."""
        self.fixed, self.places = np.zeros(0), {}
        if self.touring.value:
            self.touring.value = False

    def follow(self, description: Description, command: np.ndarray | None) -> None:
        """Set the sliders to a command (n,) of the tour, unless a page has moved one since."""
        moved = any(self.sliders[name].value != x for name, x in self.places.items())
        if command is None or moved or not self.touring.value:
            return
        for columns, parts in by_columns(description):
            values = [float(command[columns.start])]
            if len(parts) > 1:
                center = np.array(description["center"][columns], float)
                values = list(angles(center, command[columns]))
            for x, value in zip(parts, values, strict=True):
                if slider := self.sliders.get(x.name):
                    slider.value = self.places[x.name] = on_step(slider, value)

    def follow_sticks(self, sticks: np.ndarray) -> None:
        """Move the first sliders by a gamepad's sticks (3,), each -1 to 1, and end the tour."""
        for (name, slider), stick in zip(self.sliders.items(), sticks, strict=False):
            value = between(slider.min, self.rest[name], slider.max, float(stick))
            slider.value = on_step(slider, value)
        self.take_over()

    def command(self, description: Description, t: float) -> np.ndarray | None:
        """(n,) the command of a policy at a time [s]; None if it follows none."""
        if not description:
            return None
        if self.touring.value:
            return tour(description, self.seconds)(t % self.seconds)
        if len(self.fixed) == len(description["names"]):
            return self.fixed
        command = np.zeros(len(description["names"]))
        for columns, parts in by_columns(description):
            values = [self.value(x) for x in parts]
            if len(parts) > 1:
                center = np.array(description["center"][columns], float)
                values = leaning(center, *values).tolist()
            command[columns] = values
        return command

    def value(self, x: Number) -> float:
        """A number in its range: that of its slider, if it has one."""
        slider = self.sliders.get(x.name)
        return float(np.clip(slider.value if slider else x.first, x.low, x.high))


def on_step(slider: viser.GuiSliderHandle, value: float) -> float:
    """The value of a slider's steps that is next to a number."""
    number = slider.min + round((value - slider.min) / slider.step) * slider.step
    return float(f"{min(max(number, slider.min), slider.max):.6g}")


def numbers(description: Description) -> list[Number]:
    """The numbers of a command that have a slider, in the order of its columns."""
    return [x for _, parts in by_columns(description) for x in parts] if description else []


def by_columns(description: Description) -> list[tuple[slice, list[Number]]]:
    """Columns of a command with their numbers: one of a column, or the TURNS of a rotation."""
    low, high = description["trained"]["low"], description["trained"]["high"]
    center = description.get("center") or [0.0] * len(low)
    units = [*description.get("units", ()), *[""] * len(low)]
    parts: list[tuple[slice, list[Number]]] = []
    for i in plain_columns(description):
        first = float(np.clip(center[i], low[i], high[i]))
        name, unit = str(description["names"][i]), str(units[i])
        parts.append((slice(i, i + 1), [Number(name, unit, float(low[i]), float(high[i]), first)]))
    for count, (columns, lean, spin) in enumerate(rotations(description), 1):
        lows, highs = (-spin, 0.0, -math.pi), (spin, lean, math.pi)
        names = [f"{name} {count}" if count > 1 else name for name in TURNS]
        parts.append((columns, [*map(Number, names, ["rad"] * 3, lows, highs, [0.0] * 3)]))
    return sorted(parts, key=lambda part: part[0].start)


class Plot:
    """Curves of named numbers over the last seconds, one plot of the page; height in pixels."""

    def __init__(self, gui: Any, title: str, height: int = 200):
        self.gui, self.title, self.height, self.chart = gui, short(title), height, None
        self.names: list[str] = []
        self.rows: deque[list[float]] = deque(maxlen=PLOTTED)

    def add(self, t: float, values: Mapping[str, float]) -> None:
        """Add what was read at a time [s]."""
        if [*values] != self.names or (self.rows and t <= self.rows[-1][0]):
            self.names = [*values]
            self.rows.clear()
        self.rows.append([t, *(x if math.isfinite(x) else 0.0 for x in values.values())])

    def draw(self) -> None:
        """Show what was added."""
        if len(self.rows) < 2 or not self.names:
            return
        data = tuple(np.array(column) for column in zip(*self.rows, strict=True))
        labels = [short(name).replace("<", "‹") for name in self.names]
        if self.chart and [x["label"] for x in self.chart.series[1:]] == labels:
            self.chart.data = data
            return
        if self.chart:
            self.chart.remove()
        style = {"width": 1.5, "points": {"show": False}}
        curves = tuple(
            style | {"label": label, "stroke": COLORS[i % len(COLORS)]}
            for i, label in enumerate(labels)
        )
        # Without `scales` a plot would take the time for a date.
        options = {"scales": {"x": {"time": False}}, "height": self.height}
        options |= {"title": self.title.replace("<", "‹"), "legend": {"live": False}}
        self.chart = self.gui.add_uplot(data, ({"label": "t [s]"}, *curves), **options)

    def clear(self) -> None:
        """Forget what was added, and take the plot off the page."""
        self.rows.clear()
        if self.chart:
            self.chart.remove()
        self.chart = None
