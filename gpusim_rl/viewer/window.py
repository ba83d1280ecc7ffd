"""A window that shows a policy, and the commands that it follows: of the keyboard or of a tour."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from gpusim_rl.viewer.film import Frames
from gpusim_rl.viewer.offscreen import load_triton, quiet_glfw

Numbers = Sequence[float]
Command = Callable[[float], np.ndarray]  # time [s] → command
# what a policy's description says of its command → the command
Choose = Callable[[Mapping[str, Any]], Command]


class Keys:
    """The command as the keyboard changes it: a callable of time.

    Args:
        low: the smallest value of each number of the command.
        high: the largest.
        center: the first value, to which the space bar returns; 0 unless given.
    """

    # GLFW key → (number of the command, direction)
    STEP: ClassVar = {265: (0, 1), 264: (0, -1), 44: (1, 1), 46: (1, -1), 263: (2, 1), 262: (2, -1)}

    def __init__(self, low: Numbers, high: Numbers, center: Numbers = ()) -> None:
        self.low, self.high = np.array(low), np.array(high)
        self.center = np.array(center or np.zeros(len(low)))
        self.value = self.center.copy()

    def press(self, key: int) -> None:
        """Change the command by a tenth of its range, or set it to the center.

        Args:
            key: GLFW's code of an arrow, comma, full stop or space.
        """
        axis, step = self.STEP.get(key, (0, 0))
        if axis < len(self.value):
            changed = self.value[axis] + step * (self.high - self.low)[axis] / 10
            self.value[axis] = np.clip(changed, self.low[axis], self.high[axis])
        if key == 32:
            self.value[:] = self.center

    def __call__(self, t: float) -> np.ndarray:
        return self.value


def view(model: Any, frames: Frames, press: Callable[[int], None] | None) -> None:
    """Show the frames in MuJoCo's viewer, in real time, until the window closes.

    Raises ValueError where no window can be opened.
    """
    import glfw
    import mujoco
    import mujoco.viewer

    load_triton()
    with quiet_glfw():
        if not glfw.init():  # MuJoCo would exit without saying what to do.
            display = os.environ.get("DISPLAY", "")
            raise ValueError(
                f"no window can be opened on the display {display}: use video=walk.mp4"
            )
    data = mujoco.MjData(model)
    with mujoco.viewer.launch_passive(
        model, data, key_callback=press, show_left_ui=False
    ) as window:
        if model.nbody > 1 and model.nq > model.nv:  # a robot that is free to leave
            window.cam.type, window.cam.trackbodyid = mujoco.mjtCamera.mjCAMERA_TRACKING, 1
            window.cam.distance, window.cam.elevation, window.cam.azimuth = (
                3 * model.stat.extent,
                -20,
                135,
            )
        begun = time.perf_counter()
        for t, qpos in frames:
            data.qpos[:] = qpos
            mujoco.mj_forward(model, data)
            window.sync()
            time.sleep(max(0.0, begun + t - time.perf_counter()))
            if not window.is_running():
                return


def tour(about: Mapping[str, Any], seconds: float) -> Command:
    """The center of the ranges, then 0.8 of the way to each number's ends, equally long each.

    A rotation, which are the last four numbers where there is a `lean`, turns from stop to stop:
    it leans 0.8 of what it may. The center is 0 unless it is given.
    """
    low, high = about["trained"]["low"], about["trained"]["high"]
    center = np.array(about.get("center") or np.zeros(len(low)))
    moved = np.eye(len(low))[: len(low) - 4 * ("lean" in about)]
    ends = [
        center + 0.8 * (end[i] - center[i]) * row
        for i, row in enumerate(moved)
        for end in (high, low)
    ]
    if "lean" in about:
        for i, end in enumerate(ends):
            spin = min(1.0, 0.8 * about.get("spin", 1.0))  # rad
            end[-4:] = turned(center[-4:], 0.8 * about["lean"], (-1) ** i * spin, i)
    stops = [center, *ends]
    return lambda t: stops[min(int(t / seconds * len(stops)), len(stops) - 1)]


def turned(rotation: np.ndarray, lean: float, angle: float, i: int) -> np.ndarray:
    """(4,) a rotation (4,) after a turn by an angle [rad] about its z, which then leans [rad].

    The direction of the lean differs from one i to the next.
    """
    import mujoco

    spin, tilt, turn, result = np.zeros((4, 4))
    mujoco.mju_axisAngle2Quat(spin, np.array([0.0, 0.0, 1.0]), angle)
    mujoco.mju_axisAngle2Quat(tilt, np.array([np.cos(2.0 * i), np.sin(2.0 * i), 0.0]), lean)
    mujoco.mju_mulQuat(turn, tilt, spin)
    mujoco.mju_mulQuat(result, rotation, turn)
    return result
