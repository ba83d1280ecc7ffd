"""How a policy is shown: a viewer with the keyboard's commands, or a film made off screen."""

import ctypes.util
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from gpusim_rl import config

NO_GL = (
    "no display and no off-screen OpenGL: install EGL (apt install libegl1 libgl1-mesa-dri) or OSMesa (apt install libosmesa6)"
)
Numbers = Sequence[float]
Command = Callable[[float], np.ndarray]  # time [s] → command
Choose = Callable[[Sequence[str], Numbers, Numbers], Command]  # names, lowest, highest → what is asked for
Frames = Iterator[tuple[float, np.ndarray]]  # time [s], qpos (nq,)


# -- what is played: a trained run in its Env, or an exported file alone -------------------------------------------------


def has_display() -> bool:
    """Whether a window can open here."""
    return bool(sys.platform in ("darwin", "win32") or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def choose_gl() -> None:
    """Pick MuJoCo's off-screen backend, which it loads when it is imported; exits in one line if there is none."""
    if sys.platform == "linux" and "MUJOCO_GL" not in os.environ:
        found = [gl for gl, library in (("egl", "EGL"), ("osmesa", "OSMesa")) if ctypes.util.find_library(library)]
        if not found and not has_display():
            config.fail(NO_GL)
        os.environ["MUJOCO_GL"] = found[0] if found else "glfw"
    try:
        import mujoco  # noqa: F401
    except Exception as error:  # each backend raises a kind of its own
        config.fail(f"{NO_GL} ({error})")


@contextmanager
def quiet_glfw() -> Iterator[None]:
    """GLFW's own warnings go unsaid: one line of ours says what to do."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def film(model: Any, frames: Frames, path: Path, seconds: float) -> None:
    """Write a video, off screen, 25 frames a second."""
    import imageio
    import mujoco
    from rich.progress import track

    data = mujoco.MjData(model)
    screen = model.vis.global_
    screen.offwidth, screen.offheight = max(720, screen.offwidth), max(480, screen.offheight)
    try:
        with quiet_glfw():
            renderer = mujoco.Renderer(model, 480, 720)
    except Exception as error:  # each backend raises a kind of its own
        config.fail(f"{NO_GL} ({error})")
    camera = model.camera("track").id if "track" in [model.camera(i).name for i in range(model.ncam)] else -1
    fps, t, qpos = 25, 0.0, model.qpos0
    part = path.with_stem(f".{path.stem}.part")  # a film that breaks off leaves nothing
    try:
        with imageio.get_writer(part, fps=fps, macro_block_size=8) as video, renderer:
            for i in track(range(round(seconds * fps)), description=f"filming {path}", disable=not sys.stdout.isatty()):
                while t < (i + 1) / fps - 1e-9:
                    t, qpos = next(frames)
                data.qpos[:] = qpos
                mujoco.mj_forward(model, data)
                renderer.update_scene(data, camera)
                video.append_data(renderer.render())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


class Keys:
    """The command as the keyboard changes it: a callable of time."""

    STEP = {265: (0, 1), 264: (0, -1), 44: (1, 1), 46: (1, -1), 263: (2, 1), 262: (2, -1)}  # noqa: RUF012

    def __init__(self, low: Numbers, high: Numbers) -> None:
        self.low, self.high, self.value = np.array(low), np.array(high), np.zeros(len(low))

    def press(self, key: int) -> None:
        """GLFW key codes: arrows, comma, full stop, space. Ten steps lead from one end of a number's range to the other."""
        axis, step = self.STEP.get(key, (0, 0))
        if axis < len(self.value):
            changed = self.value[axis] + step * (self.high - self.low)[axis] / 10
            self.value[axis] = np.clip(changed, self.low[axis], self.high[axis])
        if key == 32:
            self.value[:] = 0

    def __call__(self, t: float) -> np.ndarray:
        return self.value


def view(model: Any, frames: Frames, press: Callable[[int], None] | None) -> None:
    """Show it in MuJoCo's viewer, in real time, until the window closes."""
    import glfw
    import mujoco
    import mujoco.viewer

    with quiet_glfw():
        if not glfw.init():  # MuJoCo would exit without a word on what to do
            config.fail(f"no window can be opened on the display {os.environ.get('DISPLAY', '')}: use video=walk.mp4")
    data = mujoco.MjData(model)
    with mujoco.viewer.launch_passive(model, data, key_callback=press, show_left_ui=False) as window:
        if model.nbody > 1 and model.nq > model.nv:  # a robot that is free to leave
            window.cam.type, window.cam.trackbodyid = mujoco.mjtCamera.mjCAMERA_TRACKING, 1
            window.cam.distance, window.cam.elevation, window.cam.azimuth = 3 * model.stat.extent, -20, 135
        begun = time.perf_counter()
        for t, qpos in frames:
            data.qpos[:] = qpos
            mujoco.mj_forward(model, data)
            window.sync()
            time.sleep(max(0.0, begun + t - time.perf_counter()))
            if not window.is_running():
                return


def tour(low: Numbers, high: Numbers, seconds: float) -> Command:
    """No command, then 0.8 of each number's ends in turn, for an equal time each."""
    ends = [0.8 * x * row for row, ab in zip(np.eye(len(low)), zip(high, low, strict=True), strict=True) for x in ab]
    stops = [np.zeros(len(low)), *ends]
    return lambda t: stops[min(int(t / seconds * len(stops)), len(stops) - 1)]
