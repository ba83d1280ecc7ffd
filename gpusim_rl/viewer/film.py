"""A film of a policy, rendered off screen."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from gpusim_rl.core.files import part_of
from gpusim_rl.viewer.offscreen import Camera

FPS = 25  # frames per second
HEIGHT, WIDTH = 480, 720  # pixels

Frames = Iterator[tuple[float, np.ndarray]]  # time [s], qpos (nq,)


def film(model: Any, frames: Frames, path: Path, seconds: float) -> None:
    """Write a video of the frames, rendered off screen, with 25 frames per second.

    Args:
        model: a mujoco.MjModel.
        frames: pairs of time [s] and qpos (nq,); each state is shown until the next one's time.
        path: of the video, which appears only when it is whole.
        seconds: length of the video [s].

    Raises ValueError where there is no off-screen OpenGL.
    """
    import imageio
    from rich.progress import track

    t, qpos = 0.0, model.qpos0
    part = part_of(path).with_suffix(f".part{path.suffix}")  # the suffix says the format
    try:
        with (
            contextlib.closing(Camera(model, HEIGHT, WIDTH)) as camera,
            imageio.get_writer(part, fps=FPS, macro_block_size=8) as video,
        ):
            for i in track(
                range(round(seconds * FPS)),
                description=f"filming {path}",
                disable=not sys.stdout.isatty(),
            ):
                while t < (i + 1) / FPS - 1e-9:
                    t, qpos = next(frames)
                video.append_data(camera(qpos))
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
