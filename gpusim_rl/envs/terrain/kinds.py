"""Kinds of rough ground. Each is a function that returns boxes.

A kind has levels from 0 to 1, which say how hard it is, and variants, which its random numbers
make. The robot starts about the origin. Where no box lies there is the floor, an endless plane.

The levels follow Rudin et al. (2022, https://arxiv.org/abs/2109.11978) in spirit; what is how high
stands with each kind.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

FAR = 15.0  # m: half the length of boxes that end where no episode comes


class Box(NamedTuple):
    """A box by its upper face. World frame, lengths in meters."""

    center: tuple[float, float, float]  # of the upper face
    half: tuple[float, float]  # half sizes of the upper face, in the frame of the box
    quat: tuple[float, float, float, float] = (1.0, 0.0, 0.0, 0.0)  # (w, x, y, z)


@dataclass
class Patch:
    """The ground of one world."""

    boxes: list[Box] = field(default_factory=list)
    floor: float = 0.0  # m: height of the plane that lies below the boxes
    # m: a robot starts at most this far from the origin, along x and along y
    start: float = 2.0

    def add(self, x: float, y: float, z: float, half_x: float, half_y: float, quat=None) -> None:
        """Add a box by the center and the half sizes of its upper face [m]."""
        self.boxes.append(Box((x, y, z), (half_x, half_y), quat or (1.0, 0.0, 0.0, 0.0)))

    def surround(self, x: float, y: float, z: float) -> None:
        """Level ground at height z [m] outside of a rectangle of half sizes x and y [m]."""
        ring(self, (x, y), (x + FAR, y + FAR), z)


Kind = Callable[[float, np.random.Generator], Patch]


def tilt(axis: str, angle: float) -> tuple[float, float, float, float]:
    """The quaternion of a turn by an angle [rad] about x, y or z."""
    turned = [math.cos(angle / 2), 0.0, 0.0, 0.0]
    turned["xyz".index(axis) + 1] = math.sin(angle / 2)
    w, x, y, z = turned
    return w, x, y, z


def between(level: float, easiest: float, hardest: float) -> float:
    """The number of a level, which grows evenly from the easiest to the hardest."""
    return easiest + (hardest - easiest) * level


def ring(patch: Patch, inner: tuple[float, float], outer: tuple[float, float], z: float) -> None:
    """Four boxes at height z [m] between two rectangles of half sizes inner and outer [m]."""
    (x, y), (far_x, far_y) = inner, outer
    for side in (1, -1):
        patch.add(side * (x + far_x) / 2, 0, z, (far_x - x) / 2, far_y)
        patch.add(0, side * (y + far_y) / 2, z, x, (far_y - y) / 2)


def flat(level: float, rng: np.random.Generator) -> Patch:
    """The plane alone, on every level."""
    return Patch()


def slope(level: float, rng: np.random.Generator) -> Patch:
    """A ridge along y with a flat top: slopes of tan 0.05 to 0.5."""
    patch, top, length = Patch(), rng.uniform(0.4, 1.0), rng.uniform(2.6, 3.4)
    angle = math.atan(between(level, 0.05, 0.5))
    rise = length * math.tan(angle)
    for side in (1, -1):
        half = length / 2 / math.cos(angle)
        patch.add(side * (top + length / 2), 0, rise / 2, half, FAR, tilt("y", side * angle))
    patch.add(0, 0, rise, top, FAR)
    return patch


def valley(level: float, rng: np.random.Generator) -> Patch:
    """A valley along y with a flat bottom: slopes of tan 0.05 to 0.5."""
    bottom, length = rng.uniform(0.4, 1.0), rng.uniform(2.6, 3.4)
    angle = math.atan(between(level, 0.05, 0.5))
    depth = length * math.tan(angle)
    patch = Patch(floor=-depth)
    for side in (1, -1):
        half = length / 2 / math.cos(angle)
        patch.add(side * (bottom + length / 2), 0, -depth / 2, half, FAR, tilt("y", -side * angle))
        patch.add(side * (bottom + length + FAR), 0, 0, FAR, FAR)
    return patch


def stairs_up(level: float, rng: np.random.Generator) -> Patch:
    """A square pit with stairs on all sides: outward they go up, 2 to 20 cm each."""
    rise, depth, bottom = between(level, 0.02, 0.2), rng.uniform(0.28, 0.4), rng.uniform(0.7, 1.1)
    steps = 9
    patch = Patch(floor=-rise * steps)
    for i in range(steps):
        inner, outer = bottom + depth * i, bottom + (depth * (i + 1) if i < steps - 1 else FAR)
        ring(patch, (inner, inner), (outer, outer), rise * (i + 1 - steps))
    return patch


def stairs_down(level: float, rng: np.random.Generator) -> Patch:
    """A square pyramid of stairs on all sides: outward they go down, 2 to 20 cm each."""
    rise, depth, top = between(level, 0.02, 0.2), rng.uniform(0.28, 0.4), rng.uniform(0.7, 1.1)
    patch, steps = Patch(), 9
    for i in range(steps):
        half = top + depth * (steps - 1 - i)
        patch.add(0, 0, rise * (i + 1), half, half)
    return patch


def steps(level: float, rng: np.random.Generator) -> Patch:
    """Blocks that lie about, the highest 2 to 20 cm high."""
    patch, highest = Patch(), between(level, 0.02, 0.2)
    for _ in range(56):
        x, y, half_x, half_y = (*rng.uniform(-3.6, 3.6, 2), *rng.uniform(0.15, 0.5, 2))
        patch.add(x, y, highest * rng.uniform(0.2, 1.0), half_x, half_y)
    return patch


def stones(level: float, rng: np.random.Generator) -> Patch:
    """Stepping stones, 60 to 20 cm wide, 5 to 30 cm apart, about a platform in a pit."""
    width, apart, platform = between(level, 0.6, 0.2), between(level, 0.05, 0.3), 0.6
    pitch, patch = width + apart, Patch(floor=PIT, start=0.2)
    patch.add(0, 0, 0, platform, platform)
    for i in range(-3, 4):
        for j in range(-3, 4):
            x, y = pitch * i, pitch * j
            if max(abs(x), abs(y)) > platform:
                dx, dy = apart / 4 * rng.uniform(-1, 1, 2)
                patch.add(x + dx, y + dy, 0, width / 2, width / 2)
    edge = 3 * pitch + width / 2 + apart
    patch.surround(edge, edge, 0)
    return patch


def gaps(level: float, rng: np.random.Generator) -> Patch:
    """Square trenches about a platform, 5 to 60 cm wide, with 60 to 90 cm between them."""
    wide, platform = between(level, 0.05, 0.6), rng.uniform(0.6, 0.8)
    patch, inner = Patch(floor=PIT, start=0.2), platform + wide
    patch.add(0, 0, 0, platform, platform)
    for _ in range(4):
        outer = inner + rng.uniform(0.6, 0.9)
        ring(patch, (inner, inner), (outer, outer), 0)
        inner = outer + wide
    patch.surround(inner, inner, 0)
    return patch


def waves(level: float, rng: np.random.Generator) -> Patch:
    """Waves along x, 2 to 15 cm from trough to crest and 1.6 to 2.4 m long."""
    height, length, strips = between(level, 0.02, 0.15), rng.uniform(1.6, 2.4), 40
    x = length / 10 * (np.arange(strips + 1) - strips / 2)  # ten strips a wave
    z, patch = height * (1 - np.cos(2 * math.pi * x / length)) / 2, Patch()
    for i in range(strips):
        angle = math.atan2(z[i + 1] - z[i], x[i + 1] - x[i])
        half = (x[i + 1] - x[i]) / 2 / math.cos(angle)
        center = (x[i] + x[i + 1]) / 2, 0.0, (z[i] + z[i + 1]) / 2
        patch.add(*center, half, FAR, tilt("y", -angle))
    return patch


def rubble(level: float, rng: np.random.Generator) -> Patch:
    """Slabs that lie about, tilted by up to 0.12 rad, at heights of up to 1 to 10 cm."""
    patch, highest, angle = Patch(), between(level, 0.01, 0.1), between(level, 0.015, 0.12)
    for i in range(8):
        for j in range(8):
            x, y = 0.8 * (np.array([i, j]) - 3.5) + rng.uniform(-0.1, 0.1, 2)
            quat = np.array([1.0, *rng.uniform(-angle / 2, angle / 2, 2), rng.uniform(-0.4, 0.4)])
            quat /= np.linalg.norm(quat)
            half_x, half_y = rng.uniform(0.25, 0.45, 2)
            patch.add(x, y, highest * rng.uniform(), half_x, half_y, tuple(quat))
    return patch


def pallets(level: float, rng: np.random.Generator) -> Patch:
    """Pallets of three boards, 1.2 by 0.8 m, that lie about: 5 to 20 cm high."""
    patch, height = Patch(), between(level, 0.05, 0.2)
    for _ in range(21):
        x, y, yaw = *rng.uniform(-3.4, 3.4, 2), rng.uniform(-math.pi, math.pi)
        for board in (-0.29, 0.0, 0.29):  # 0.22 m wide, 7 cm apart
            along = -math.sin(yaw) * board, math.cos(yaw) * board
            patch.add(x + along[0], y + along[1], height, 0.6, 0.11, tilt("z", yaw))
    return patch


PIT = -0.6  # m: the floor of trenches, and of the pit with stepping stones
KINDS: dict[str, Kind] = {
    kind.__name__: kind
    for kind in (
        *(slope, valley, stairs_up, stairs_down, steps),
        *(stones, gaps, waves, rubble, pallets, flat),
    )
}
