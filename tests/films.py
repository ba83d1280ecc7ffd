"""What is in a video file."""

import subprocess
from pathlib import Path

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
