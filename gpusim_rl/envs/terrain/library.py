"""A library of patches as arrays, with a raster to look heights up."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import mujoco
import numpy as np

from gpusim_rl.envs.terrain.kinds import Box, Kind, Patch

BOXES = 64  # of each patch, at most
THICK = 1.0  # m, of every box
HIDDEN = -60.0  # m: where boxes lie that a patch does not need
CELL = 0.04  # m, of the raster
HALF = 5.2  # m: the raster reaches this far from the origin; beyond it the ground goes on evenly
POINTS = 2 * round(HALF / CELL) + 1  # of the raster, along x and along y
FLOOR = BOXES  # in the raster, the index of the plane below the boxes


@dataclass(frozen=True)
class Library:
    """P patches: `kinds` × `levels` × `variants`, in this order, the last one changing fastest."""

    pos: np.ndarray  # (P, BOXES, 3) m, centers of the boxes
    quat: np.ndarray  # (P, BOXES, 4) (w, x, y, z)
    size: np.ndarray  # (P, BOXES, 3) m, half sizes
    floor: np.ndarray  # (P,) m, height of the plane below the boxes
    start: np.ndarray  # (P,) m, how far from the origin a robot starts
    top: np.ndarray  # (P, POINTS, POINTS) uint8: which box is on top; FLOOR where there is none
    # (P, BOXES + 1, 3): the upper face of each box is z = a + b x + c y, and that of the plane
    planes: np.ndarray


@cache  # for the other tasks of a process
def make_library(
    kinds: tuple[tuple[str, Kind], ...], levels: int, variants: int, seed: int
) -> Library:
    """The patches of these kinds. ValueError if a kind makes none, or one of too many boxes.

    Each patch is a function of seed, kind, level and variant: no other kind changes it.
    """
    patches = []
    for name, kind in kinds:
        for level in range(levels):
            for variant in range(variants):
                rng = np.random.default_rng([seed, level, variant, *name.encode()])
                patch = kind(level / max(levels - 1, 1), rng)
                check_patch(name, patch)
                patches.append(patch)
    return as_arrays(patches)


def check_patch(name: str, patch: Patch) -> None:
    """ValueError unless a patch has as many boxes as there is room for, all of them finite."""
    if not isinstance(patch, Patch):
        raise ValueError(f"terrain {name}: it returned {type(patch).__name__}, expected a Patch")
    if len(patch.boxes) > BOXES:
        raise ValueError(f"terrain {name}: {len(patch.boxes)} boxes, expected at most {BOXES}")
    numbers = [patch.floor, patch.start, *(x for box in patch.boxes for part in box for x in part)]
    if not np.isfinite(numbers).all():
        raise ValueError(f"terrain {name}: a number of a patch is not finite")


def as_arrays(patches: Sequence[Patch]) -> Library:
    """The library of these patches."""
    count = len(patches)
    pos, size = np.zeros((count, BOXES, 3)), np.full((count, BOXES, 3), 0.01)
    quat = np.tile([1.0, 0.0, 0.0, 0.0], (count, BOXES, 1))
    pos[..., 2] = HIDDEN
    planes = np.zeros((count, BOXES + 1, 3))
    top = np.full((count, POINTS, POINTS), FLOOR, np.uint8)
    for p, patch in enumerate(patches):
        planes[p, FLOOR, 0] = patch.floor
        heights = np.full((POINTS, POINTS), patch.floor)
        for i, box in enumerate(patch.boxes):
            frame = rotation(box)
            pos[p, i] = np.array(box.center) - THICK / 2 * frame[:, 2]
            quat[p, i], size[p, i] = box.quat, (*box.half, THICK / 2)
            planes[p, i] = face(box, frame)
            draw(box, frame, planes[p, i], heights, top[p], i)
    floor, start = (
        np.array([getattr(patch, name) for patch in patches]) for name in ("floor", "start")
    )
    return Library(pos, quat, size, floor, start, top, planes)


def rotation(box: Box) -> np.ndarray:
    """(3, 3) the axes of a box as columns, world frame."""
    frame = np.zeros(9)
    mujoco.mju_quat2Mat(frame, np.array(box.quat) / np.linalg.norm(box.quat))
    return frame.reshape(3, 3)


def face(box: Box, frame: np.ndarray) -> np.ndarray:
    """(a, b, c) of the upper face: z = a + b x + c y."""
    normal = frame[:, 2]
    b, c = -normal[:2] / normal[2]
    x, y, z = box.center
    return np.array([z - b * x - c * y, b, c])


def draw(
    box: Box, frame: np.ndarray, plane: np.ndarray, heights: np.ndarray, top: np.ndarray, index: int
) -> None:
    """Draw the upper face of a box into a raster where it is the highest, in place.

    plane (3,) is that of its face; heights [m] and top, uint8, are (POINTS, POINTS).
    """
    reach = np.abs(frame[:2, :2]) @ np.array(box.half)
    ends = [(np.array(box.center[:2]) + side * reach) / CELL + POINTS // 2 for side in (-1, 1)]
    low, high = np.clip(np.ceil(ends[0]), 0, POINTS), np.clip(np.floor(ends[1]) + 1, 0, POINTS)
    (i, j), (i_end, j_end) = low.astype(int), high.astype(int)
    if i >= i_end or j >= j_end:
        return
    x = CELL * (np.arange(i, i_end) - POINTS // 2)[:, None]
    y = CELL * (np.arange(j, j_end) - POINTS // 2)[None, :]
    z = plane[0] + plane[1] * x + plane[2] * y
    dx, dy, dz = x - box.center[0], y - box.center[1], z - box.center[2]
    along = [frame[0, k] * dx + frame[1, k] * dy + frame[2, k] * dz for k in (0, 1)]
    part = heights[i:i_end, j:j_end]
    higher = (z > part) & (np.abs(along[0]) <= box.half[0]) & (np.abs(along[1]) <= box.half[1])
    part[higher] = z[higher]
    top[i:i_end, j:j_end][higher] = index
