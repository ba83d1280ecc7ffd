"""What is in a video file."""

import subprocess
from pathlib import Path

import imageio
import imageio_ffmpeg
import numpy as np


def decoded(path: Path, height: int, width: int) -> np.ndarray:
    """(T, height, width, 3) uint8 pictures of a video of this size."""
    line = [
        imageio_ffmpeg.get_ffmpeg_exe(),
        *("-v", "error", "-i", str(path), "-f", "rawvideo", "-pix_fmt", "rgb24", "-"),
    ]
    raw = subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, check=True).stdout
    return np.frombuffer(raw, np.uint8).reshape(-1, height, width, 3)


def gray_film(path: Path, pictures: int = 30) -> Path:
    """A film of 64 × 48 gray pixels, 25 pictures per second, each lighter than the one before."""
    frames = [np.full((48, 64, 3), 8 * i, np.uint8) for i in range(pictures)]
    imageio.mimwrite(path, frames, fps=25, macro_block_size=8)  # pyright: ignore
    return path
