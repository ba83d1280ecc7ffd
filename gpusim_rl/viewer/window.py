"""A window that shows a policy, and the commands that it follows: of the keyboard or of a tour."""

import os
import time
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from gpusim_rl.envs.command_columns import (
    Description,
    command_arrow,
    leaning,
    plain_columns,
    rotations,
)
from gpusim_rl.robots.free_bodies import robot_joint
from gpusim_rl.viewer.film import Frames
from gpusim_rl.viewer.gamepad import REST, Gamepad, between
from gpusim_rl.viewer.ghost import add_ghost
from gpusim_rl.viewer.offscreen import framing, load_triton, make_stage, whole
from gpusim_rl.viewer.picture import add_arrow
from gpusim_rl.viewer.pose import set_pose

if TYPE_CHECKING:
    from mujoco import MjData, MjModel, MjvScene

STOP_SECONDS = 2.0  # of a tour, at least
PUSHES = ((0.0, 1.0), (1.0, 0.0), (0.0, -1.0), (-1.0, 0.0))  # m/s along x and y
Numbers = Sequence[float]
Command = Callable[[float], np.ndarray]  # time [s] → command


class Keys:
    """The command as keyboard and gamepad change it, from `low` to `high`: a callable of time.

    center: the first value, to which the space bar returns; 0 unless given.
    """

    # GLFW key → (number of the command, direction)
    STEP: ClassVar = {265: (0, 1), 264: (0, -1), 44: (1, 1), 46: (1, -1), 263: (2, 1), 262: (2, -1)}

    def __init__(
        self, low: Numbers, high: Numbers, center: Numbers = (), names: Sequence[str] = ()
    ) -> None:
        self.names = names
        self.low, self.high = np.array(low), np.array(high)
        self.center = np.array(center or np.zeros(len(low)))
        self.value = self.center.copy()
        self.paused, self.pushes, self.resets = False, 0, 0
        self.pad = Gamepad()

    @property
    def help(self) -> str:
        """A line that says which key does what."""
        keys = ("arrows up and down", "comma and full stop", "arrows left and right")
        moved = [f"{pair}: {name}" for pair, name in zip(keys, self.names, strict=False)]
        moved += ["space: back"] if moved else []
        moved += ["Enter: pause", "slash: push", "Backspace: reset"]
        return "; ".join([*moved, "gamepad: sticks, two buttons to pause and reset"])

    def press(self, key: int) -> None:
        """Change the command by a tenth of its range, or set it to the center; pause, push, reset.

        key: GLFW's code of an arrow, comma, full stop, space, Enter, slash, Backspace.
        """
        self.paused ^= key == 257
        self.pushes += key == 47
        self.resets += key == 259
        axis, step = self.STEP.get(key, (0, 0))
        if axis < len(self.value):
            changed = self.value[axis] + step * (self.high - self.low)[axis] / 10
            self.value[axis] = np.clip(changed, self.low[axis], self.high[axis])
        if key == 32:
            self.value[:] = self.center

    def follow(self, axes: Sequence[float], buttons: Sequence[bool]) -> None:
        """Set the first three numbers by a gamepad's sticks; pause, reset. See `Gamepad.read`."""
        change = self.pad.read(axes, buttons)
        self.paused ^= change.pause
        self.resets += change.restart
        if change.sticks is not None:
            ends = zip(self.low, self.center, self.high, change.sticks, strict=False)
            for i, numbers in enumerate(ends):
                self.value[i] = between(*numbers)

    def __call__(self, t: float) -> np.ndarray:
        return self.value


def view(model: "MjModel", frames: Frames, keys: Keys | None = None, rollout: Any = None) -> None:
    """Show the frames in MuJoCo's viewer, in real time, until the window closes; or ValueError.

    They are asked for as they are shown. The command of `rollout` is drawn as an arrow, and its
    robot is pushed by `keys`.
    """
    import mujoco
    import mujoco.viewer

    check_window()
    data = mujoco.MjData(model)
    options: dict[str, Any] = {"key_callback": keys.press} if keys else {}
    options |= dict(show_left_ui=False, show_right_ui=False)  # nothing that is set there would last
    with mujoco.viewer.launch_passive(model, data, **options) as window:
        mujoco.mj_forward(model, data)
        follow(window, model, data)
        stage, added = make_stage(model, data), window.user_scn
        assert added is not None
        stage.brighten()
        begun = time.perf_counter()
        for t, pose in frames:
            set_pose(data, pose)
            mujoco.mj_forward(model, data)
            added.ngeom = 0
            stage.add_tiles(added, data)
            draw_command(added, rollout, data)
            if rollout and (ghost := rollout.ghost()) is not None:
                add_ghost(added, model, ghost)
            sync(window, keys)
            time.sleep(max(0.0, begun + t - time.perf_counter()))
            while keys and keys.paused and not keys.resets and window.is_running():
                sync(window, keys)
                time.sleep(0.05)
                begun = time.perf_counter() - t
            if not window.is_running():
                return
            while keys and rollout and keys.pushes:
                keys.pushes -= 1
                rollout.push(np.array(PUSHES[keys.pushes % len(PUSHES)]))
            if keys and rollout and keys.resets:
                keys.resets = 0
                rollout.restart()


def check_window() -> None:
    """ValueError where no window can be opened: MuJoCo would exit without saying what to do."""
    import glfw

    load_triton()
    with warnings.catch_warnings(action="ignore"):
        if not glfw.init():
            what = f"no window can be opened on the display {os.environ.get('DISPLAY', '')}"
            raise ValueError(f"{what}: use video=walk.mp4")


def sync(window: Any, keys: Keys | None) -> None:
    """Show what was drawn, and let a gamepad change the command."""
    window.sync()
    if keys:
        keys.follow(*gamepad_state())


def gamepad_state() -> tuple[Sequence[float], Sequence[bool]]:
    """Axes and buttons of the first gamepad that GLFW knows; at rest if there is none."""
    import glfw

    for number in range(glfw.JOYSTICK_LAST + 1):
        if state := glfw.get_gamepad_state(number):
            return state.axes[:4], [bool(x) for x in state.buttons[:2]]
    return REST


def follow(window: Any, model: "MjModel", data: "MjData") -> None:
    """Let the camera of a window frame the robot by its size, and follow one that may leave."""
    import mujoco

    camera, (view, offset) = window.cam, framing(model, data, aspect=1.5)
    if isinstance(view, int):  # a camera of the model could not be turned by the mouse
        view = whole(model, data)
    camera.distance, camera.elevation, camera.azimuth = view.distance, view.elevation, view.azimuth
    camera.lookat[:] = view.lookat
    if offset is not None:
        camera.type = mujoco.mjtCamera.mjCAMERA_TRACKING
        camera.trackbodyid = model.jnt_bodyid[robot_joint(model)]


def draw_command(scene: "MjvScene", rollout: Any, data: "MjData") -> None:
    """Draw the last command as an arrow in a scene, if it is a velocity."""
    if rollout and rollout.command is not None and data.model.njnt:
        reach = whole(data.model, data).distance / 2.5
        arrow = command_arrow(rollout.description, rollout.command, data, reach)
        if arrow:
            add_arrow(scene, *arrow)


def tour(description: Description, seconds: float) -> Command:
    """Stops of at least 2 s: 0.8 of the way to the upper end of each number, then to each lower
    end, and the center of the ranges.

    All are as long. What does not fit is left out, the center last: a robot that has none of its
    commands stands. A rotation turns from stop to stop: it leans 0.8 of what it may. The center is
    0 unless it is given.
    """
    low, high = description["trained"]["low"], description["trained"]["high"]
    center = np.array(description.get("center") or np.zeros(len(low)))
    ends = [
        center + 0.8 * (end[i] - center[i]) * np.eye(len(low))[i]
        for end in (high, low)
        for i in plain_columns(description)
    ] or [center.copy(), center.copy()]
    for place, lean, largest_spin in rotations(description):
        spin = min(1.0, 0.8 * largest_spin)
        for i, end in enumerate(ends):
            # Both directions differ from one stop to the next.
            end[place] = leaning(center[place], (-1) ** i * spin, 0.8 * lean, 2.0 * i)
    stops = [*ends, center]
    stops = stops[: max(2, int(seconds / STOP_SECONDS))]
    return lambda t: stops[min(int(t / seconds * len(stops)), len(stops) - 1)]
