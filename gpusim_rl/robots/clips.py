"""Motions of a robot, recorded or made: clips in `.npz` files, which a stranger may have made."""

import io
import math
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import mujoco
import numpy as np

from gpusim_rl.core.files import read_whole, write_whole

MAX_BYTES = 1 << 26  # of a clip, packed and unpacked
FASTEST = 1000.0  # Hz: of a clip's frames
LONGEST = 1800.0  # s
FURTHEST = 1e3  # m: of the base from the origin
BEYOND = 1e-3  # rad, m: that float32 and rounding may be beyond a joint's limit
UNIT = 1e-3  # that a quaternion's norm may be off 1
REQUIRED = ("fps", "joint_names", "base_pos", "base_quat", "joint_pos")
HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
# what zipfile and NumPy raise for files that are broken or made to harm
UNREADABLE = (zipfile.BadZipFile, zlib.error, EOFError, OSError, KeyError, SyntaxError, TypeError)
UNREADABLE += (RuntimeError, NotImplementedError, OverflowError, MemoryError)
Array = np.ndarray


class Clip(NamedTuple):
    """A motion of a robot with a free base, frame by frame."""

    fps: float  # frames in a second [Hz]
    joint_names: tuple[str, ...]
    base_pos: Array  # (T, 3) [m]; world
    base_quat: Array  # (T, 4) unit quaternions (w, x, y, z): base to world
    joint_pos: Array  # (T, n) [rad, m], in the order of joint_names
    licence: str = ""  # that of the motion, such as "CC0-1.0"; "": not said

    @property
    def seconds(self) -> float:
        """The time from the first frame to the last [s]."""
        return (len(self.joint_pos) - 1) / self.fps


def read_clip(path: Path) -> Clip:
    """The clip of a `.npz` file; ValueError or OSError in one line if it is none."""
    try:
        return clip_of(read_arrays(path))
    except ValueError as error:
        raise ValueError(f"{path}: {' '.join(str(error).split())}") from None


def clip_of(arrays: Mapping[str, Array]) -> Clip:
    """The clip of arrays by name; ValueError if they are none."""
    require(arrays, REQUIRED)
    fps = number_array("fps", arrays["fps"])
    if fps.size != 1:
        raise ValueError(f"fps has shape {fps.shape}, expected one number")
    names = tuple(text_array("joint_names", arrays["joint_names"]))
    licence = " ".join(text_array("licence", arrays.get("licence", np.array(""))))
    numbers = {name: number_array(name, arrays[name]) for name in REQUIRED[2:]}
    return checked(Clip(fps=float(fps.item()), joint_names=names, licence=licence, **numbers))


def require(arrays: Mapping[str, Array], names: Iterable[str]) -> None:
    """ValueError if arrays lack some of the names."""
    if missing := [name for name in names if name not in arrays]:
        raise ValueError(f"it lacks {', '.join(missing)}; it has {', '.join(arrays) or 'nothing'}")


def read_arrays(path: Path) -> dict[str, Array]:
    """The arrays of a `.npz` file by name, none of which is unpickled.

    ValueError if it is no such file, or is too large when it is unpacked.
    """
    data = io.BytesIO(read_whole(path, MAX_BYTES))
    try:
        with zipfile.ZipFile(data) as file:
            entries = file.infolist()
            if sum(entry.file_size for entry in entries) > MAX_BYTES:
                raise ValueError(f"its arrays are larger than {MAX_BYTES} bytes")
            return {x.filename.removesuffix(".npy"): read_array(file, x) for x in entries}
    except UNREADABLE as error:
        raise ValueError(f"no .npz file: {error}") from None


def read_array(file: zipfile.ZipFile, entry: zipfile.ZipInfo) -> Array:
    """An array of a `.npz` file; ValueError if its header asks for more than the file has."""
    with file.open(entry) as data:
        version = np.lib.format.read_magic(data)
        header = HEADERS.get(version)
        if not header:
            raise ValueError(f"{entry.filename} is of version {version} of NumPy's format")
        shape, _, dtype = header(data)
        if math.prod(shape) * dtype.itemsize > entry.file_size:
            raise ValueError(f"{entry.filename} has the shape {shape}, and fewer numbers")
    with file.open(entry) as data:
        return np.lib.format.read_array(data, allow_pickle=False)


def text_array(name: str, x: Array) -> list[str]:
    """The texts of an array; ValueError unless it holds texts."""
    if x.dtype.kind not in "US":
        raise ValueError(f"{name} has the type {x.dtype}, expected texts")
    return np.atleast_1d(x).ravel().astype(str).tolist()


def number_array(name: str, x: Array) -> Array:
    """The array in float64; ValueError unless it holds finite numbers."""
    if x.dtype.kind not in "fiu":
        raise ValueError(f"{name} has the type {x.dtype}, expected numbers")
    if not np.isfinite(x).all():
        where = "" if x.ndim == 0 else f" in frame {np.argwhere(~np.isfinite(x))[0][0]}"
        raise ValueError(f"{name} is not finite{where}")
    return x.astype(np.float64)


def checked(clip: Clip) -> Clip:
    """The clip; ValueError for the first thing that no clip may have."""
    frames, names = len(np.atleast_1d(clip.base_pos)), clip.joint_names
    shapes = dict(base_pos=(frames, 3), base_quat=(frames, 4), joint_pos=(frames, len(names)))
    for name, shape in shapes.items():
        if (x := getattr(clip, name)).shape != shape:
            raise ValueError(f"{name} has shape {x.shape}, expected {shape}")
    if not 0 < clip.fps <= FASTEST:
        raise ValueError(f"fps={clip.fps:g}: expected a number above 0, up to {FASTEST:g}")
    if frames < 2:
        raise ValueError(f"it has {frames} frames, expected 2 or more")
    if clip.seconds > LONGEST:
        raise ValueError(f"it lasts {clip.seconds:g} s, expected {LONGEST:g} s at most")
    if len({*names}) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"joint_names has {twice!r} twice")
    off = np.abs(np.linalg.norm(clip.base_quat, axis=1) - 1)
    if off.max() > UNIT:
        i = int(off.argmax())
        raise ValueError(f"base_quat of frame {i} has the norm {1 + off[i]:.3g}, expected 1")
    if (far := np.abs(clip.base_pos).max()) > FURTHEST:
        raise ValueError(f"base_pos is {far:.3g} m from the origin, expected {FURTHEST:g} at most")
    return clip


def joint_angles(clip: Clip, m: mujoco.MjModel) -> Array:
    """(T, nu) the clip's angles of a model's actuated joints, in the order of its actuators.

    ValueError unless the clip has these joints and no others, and stays within their limits.
    """
    joints = [int(joint) for joint in m.actuator_trnid[:, 0]]
    names = [m.joint(joint).name for joint in joints]
    for have, want, says in (
        (names, clip.joint_names, "no joint of the robot"),
        (clip.joint_names, names, "a joint of the robot, which the clip lacks"),
    ):
        if odd := [name for name in want if name not in have]:
            choices = ", ".join(names)
            raise ValueError(f"{odd[0]!r} is {says}: expected {choices}")
    angles = clip.joint_pos[:, [clip.joint_names.index(name) for name in names]]
    for i, joint in enumerate(joints):
        low, high = m.jnt_range[joint]
        if m.jnt_limited[joint] and not within(angles[:, i], low, high):
            least, most = angles[:, i].min(), angles[:, i].max()
            found = f"is from {least:.3f} to {most:.3f}"
            raise ValueError(f"joint {names[i]!r} {found}, its limits are {low:.3f} to {high:.3f}")
    return angles


def within(x: Array, low: float, high: float) -> bool:
    """Whether all numbers are within limits, apart from rounding."""
    return bool((x >= low - BEYOND).all() and (x <= high + BEYOND).all())


def write_clip(path: Path, clip: Clip) -> None:
    """Write a clip as a `.npz` file with float32 numbers, whole or not at all."""
    arrays = {name: getattr(clip, name).astype(np.float32) for name in REQUIRED[2:]}
    texts = dict(joint_names=np.array(clip.joint_names), licence=np.array(clip.licence))
    write_whole(path, packed(dict(fps=np.array(clip.fps)) | texts | arrays))


def packed(arrays: Mapping[str, Array]) -> bytes:
    """The bytes of a `.npz` file."""
    data = io.BytesIO()
    np.savez_compressed(data, **arrays)  # type: ignore[arg-type]
    return data.getvalue()
