"""A film of a policy, rendered off screen."""

import contextlib
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from gpusim_rl.core.files import part_of
from gpusim_rl.viewer.offscreen import Camera

FPS = 25  # frames per second
HEIGHT, WIDTH = 480, 720  # pixels
WALL = 1280  # pixels of each side of a film of several worlds

# time [s], qpos (nq,) of one world or (n, nq) of n worlds
Frames = Iterator[tuple[float, np.ndarray]]
ShowWorld = Callable[[int], None]  # gives the model what a world has of its own


def film(
    model: Any, frames: Frames, path: Path, seconds: float, show_world: ShowWorld | None = None
) -> None:
    """Write a video of the frames, rendered off screen, with 25 frames per second.

    Several worlds are shown side by side in a square, each from above. A .gif is half as large, and
    has half as many frames.

    Args:
        model: a mujoco.MjModel.
        frames: each state is shown until the next one's time.
        path: of the video, which appears only when it is whole.
        seconds: length of the video [s].
        show_world: called with its number before a picture of one world of several.

    Raises ValueError where there is no off-screen OpenGL.
    """
    from rich.progress import track

    t, qpos = next(frames)
    part = part_of(path).with_suffix(f".part{path.suffix}")  # the suffix says the format
    side = math.ceil(math.sqrt(len(qpos))) if qpos.ndim > 1 else 1
    small = 2 if path.suffix.lower() == ".gif" else 1
    size = (HEIGHT, WIDTH) if qpos.ndim == 1 else [WALL // side // 8 * 8] * 2
    (height, width), rate = (x // small for x in size), FPS / small
    try:
        with (
            contextlib.closing(Camera(model, height, width, above=qpos.ndim > 1)) as camera,
            open_video(part, rate) as video,
        ):
            said = dict(description=f"filming {path}", disable=not sys.stdout.isatty())
            for i in track(range(round(seconds * rate)), **said):  # pyright: ignore
                while t < (i + 1) / rate - 1e-9:
                    t, qpos = next(frames)
                one = camera(qpos) if qpos.ndim == 1 else wall(camera, qpos, side, show_world)
                video.append_data(one)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def open_video(path: Path, rate: float) -> Any:
    """A writer of pictures to a video with `rate` frames per second; a .gif plays for ever."""
    import imageio

    if path.suffix.lower() == ".gif":
        return imageio.get_writer(path, mode="I", loop=0, duration=1000 / rate)  # ms
    return imageio.get_writer(path, fps=rate, macro_block_size=8)


def wall(camera: Camera, qpos: np.ndarray, side: int, show_world: ShowWorld | None) -> np.ndarray:
    """Pictures of worlds qpos (n, nq), `side` of them in a row; black where there is none."""
    pictures = []
    for world, state in enumerate(qpos):
        if show_world:
            show_world(world)
        pictures.append(camera(state))
    pictures += [np.zeros_like(pictures[0])] * (side * side - len(qpos))
    rows = [np.hstack(pictures[i : i + side]) for i in range(0, side * side, side)]
    return np.vstack(rows)
