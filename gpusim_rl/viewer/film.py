"""A film of a policy, rendered off screen."""

import contextlib
import io
import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gpusim_rl.core.files import part_of, write_whole
from gpusim_rl.core.waiting import counted
from gpusim_rl.viewer.caption import Caption
from gpusim_rl.viewer.offscreen import Camera

if TYPE_CHECKING:
    from mujoco import MjModel

FPS = 25  # frames per second
HEIGHT, WIDTH = 480, 720  # pixels
ROOM = 1 << 16  # bytes that a disk still has, or it counts as full
COLORS = 256  # of a .gif
WALL = 1280  # pixels of each side of a film of several worlds

# time [s], pose (nq + 7 m,) of one world or (n, nq + 7 m) of n worlds: `pose.set_pose`
Frames = Iterator[tuple[float, np.ndarray]]
ShowWorld = Callable[[int], None]  # gives the model what a world has of its own
Ghost = Callable[[], np.ndarray | None]  # qpos (nq,) of a translucent robot now, if there is one


def film(
    model: "MjModel",
    frames: Frames,
    path: Path,
    seconds: float,
    show_world: ShowWorld | None = None,
    *,
    size: Sequence[int] | None = None,
    view: str | None = None,
    caption: Caption | None = None,
    ghost: Ghost = lambda: None,
) -> None:
    """Write a video of the frames, rendered off screen, with 25 frames per second; a .gif has half
    the size, and half as many frames. Several worlds are shown side by side.

    Args:
        frames: each state is shown until the next one's time.
        path: of the video, which appears only when it is whole.
        seconds: its length [s].
        show_world: called with its number before a picture of one world of several.
        size: width and height in pixels, even numbers; of several worlds, of all together.
        view: as of `Camera`; of several worlds, it is `above` unless given.
        caption: writes into each picture.
        ghost: called before each picture of one world.

    Raises ValueError where there is no off-screen OpenGL, or no such view.
    """
    first = next(frames)
    worlds = len(first[1]) if first[1].ndim > 1 else 1
    small = 2 if path.suffix.lower() == ".gif" else 1
    usual = (WALL, WALL) if worlds > 1 else (WIDTH, HEIGHT)
    side, rate = math.ceil(math.sqrt(worlds)), FPS / small
    width, height = (x // side // 2 * 2 for x in size or [x // small for x in usual])
    view = view or ("above" if worlds > 1 else None)
    with (
        contextlib.closing(Camera(model, height, width, view)) as camera,
        open_video(path, rate) as video,
    ):
        images = pictures(camera, sampled(chain([first], frames), rate), show_world, caption, ghost)
        for _ in counted(round(seconds * rate), f"filming {path}"):
            video.append_data(next(images))


def sampled(frames: Frames, rate: float) -> Frames:
    """The frame that each picture shows, of `rate` pictures per second."""
    t, pose = next(frames)
    for i in count(1):
        while t < i / rate - 1e-9:
            t, pose = next(frames)
        yield t, pose


def pictures(
    camera: Camera,
    frames: Frames,
    show_world: ShowWorld | None,
    caption: Caption | None,
    ghost: Ghost,
) -> Iterator[np.ndarray]:
    """The picture of each frame, with its caption."""
    for t, pose in frames:
        one = wall(camera, pose, show_world) if pose.ndim > 1 else camera(pose, ghost())
        yield caption.write(one, t, camera.data if pose.ndim == 1 else None) if caption else one


@contextlib.contextmanager
def open_video(path: Path, rate: float) -> Iterator[Any]:
    """A writer to a video of `rate` frames per second, which appears when it is whole; OSError."""
    if path.suffix.lower() == ".gif":
        yield (video := Gif())
        return write_whole(path, video.encode(1000 / rate))
    part = part_of(path).with_suffix(f".part{path.suffix}")  # the suffix says the format
    # else ffmpeg would print some lines to the terminal
    import imageio

    options: dict[str, Any] = dict(fps=rate, macro_block_size=2, ffmpeg_log_level="quiet")
    try:
        with imageio.get_writer(part, **options) as video:
            yield video
        check_room(path)  # ffmpeg does not tell of a full disk, and may leave half a film
        part.replace(path)
    except OSError as error:
        check_room(path)
        reason = error.strerror or "its encoder has ended"
        raise OSError(f"{path} cannot be written: {reason}") from None
    finally:
        part.unlink(missing_ok=True)


class Gif:
    """Pictures of a .gif, which have one palette and no dither: both make it small."""

    def __init__(self) -> None:
        self.pictures: list[np.ndarray] = []

    def append_data(self, picture: np.ndarray) -> None:
        """Add a picture (height, width, 3) uint8."""
        self.pictures.append(picture)

    def encode(self, duration: float) -> bytes:
        """The file, which plays for ever and shows each picture for a duration [ms]."""
        from PIL import Image

        few = self.pictures[:: max(1, len(self.pictures) // 8)]
        options: dict[str, Any] = dict(dither=Image.Dither.NONE)
        palette = Image.fromarray(np.vstack(few)).quantize(COLORS, kmeans=1, **options)
        frames = [Image.fromarray(x).quantize(palette=palette, **options) for x in self.pictures]
        data = io.BytesIO()
        options = dict(save_all=True, append_images=frames[1:], loop=0, duration=duration)
        frames[0].save(data, "GIF", **options)
        return data.getvalue()


def check_room(path: Path) -> None:
    """OSError, which names a file, if its disk is full."""
    try:
        with tempfile.TemporaryFile(dir=path.parent) as file:
            file.write(bytes(ROOM))
            file.flush()
    except OSError as error:
        raise OSError(f"{path} cannot be written: {error.strerror}") from None


def wall(camera: Camera, poses: np.ndarray, show_world: ShowWorld | None) -> np.ndarray:
    """Pictures of the poses of n worlds, in rows; black where there is none."""
    side, pictures = math.ceil(math.sqrt(len(poses))), []
    for world, pose in enumerate(poses):
        if show_world:
            show_world(world)
        pictures.append(camera(pose))
    pictures += [np.zeros_like(pictures[0])] * (side * side - len(poses))
    rows = [np.hstack(pictures[i : i + side]) for i in range(0, side * side, side)]
    return np.vstack(rows)
