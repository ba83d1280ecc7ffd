"""The soles of a humanoid: four small spheres at the corners of what a foot stands on."""

from itertools import product
from typing import NamedTuple

import mujoco
import numpy as np

from gpusim_rl.robots.bodies import Array, RobotError, kinematics, outline, subtree

RADIUS = 0.01  # m of the spheres, at most
THICK = 0.015  # m above a foot's lowest point: what is lower belongs to its sole
SMALLEST_SOLE_M = 0.01  # m, least length and width of a sole


class Sole(NamedTuple):
    """The part of a foot that stands on the ground. Positions are in the frame of its body [m]."""

    body: str
    corners: Array  # (4, 3) centers of the spheres: heel and toe, right and left
    radius: float
    center: Array  # (3,) of the sole, on the ground
    quat: Array  # (4,) its frame: x forward, z its normal


def fit_sole(m: mujoco.MjModel, base: str, foot: str) -> Sole:
    """The sole of a foot, level while the joints are at 0, from the foot's geoms.

    The corners are the points of the sole that are farthest to the front and to the rear, left and
    right. x of the base is forward, z up. Geoms that collide count, else all. RobotError if the
    foot has no geoms, or its sole is smaller than 1 cm.
    """
    d = kinematics(m)
    geoms = [g for g in range(m.ngeom) if m.geom_bodyid[g] in subtree(m, m.body(foot).id)]
    solid = [g for g in geoms if m.geom_contype[g] or m.geom_conaffinity[g]]
    if not geoms:
        raise RobotError(f"robot.feet: the body {foot!r} has no geom")
    frame = d.xmat[m.body(base).id].reshape(3, 3)  # level
    points = np.concatenate([surface(m, d, g) for g in solid or geoms]) @ frame
    low = points[:, 2].min()
    flat = points[points[:, 2] < low + THICK]
    center = (flat.max(0) + flat.min(0))[:2] / 2
    half = (flat.max(0) - flat.min(0))[:2] / 2
    if 2 * half.min() < SMALLEST_SOLE_M:
        size = f"{2e3 * half[0]:.0f} by {2e3 * half[1]:.0f} mm"
        raise RobotError(f"robot.feet: the sole of {foot!r} is {size}: it cannot stand on it")
    radius = min(RADIUS, float(half.min()) / 2)
    corners = [[*place, low + radius] for place in corner_places(flat[:, :2], radius)]
    body = m.body(foot).id
    turn = d.xmat[body].reshape(3, 3).T
    quat = np.zeros(4)
    mujoco.mju_mat2Quat(quat, (turn @ frame).ravel())
    place = d.xpos[body] @ frame
    local = [turn @ frame @ (np.array(p) - place) for p in (*corners, [*center, low])]
    return Sole(foot, np.array(local[:4]), radius, local[4], quat)


def corner_places(flat: Array, radius: float) -> list[Array]:
    """Four places (2,) of spheres [m] that touch the corners of an area from inside.

    flat: (n, 2) points of the area.
    """
    low, high = flat.min(0), flat.max(0)
    relative = (2 * flat - high - low) / (high - low)
    places = []
    for side in product((-1, 1), repeat=2):
        corner = flat[(relative @ side).argmax()]
        inside = corner - radius * np.array(side) / np.sqrt(2)
        places.append(np.clip(inside, low + radius, high - radius))
    return places


def surface(m: mujoco.MjModel, d: mujoco.MjData, geom: int) -> Array:
    """(n, 3) points on the surface of a geom [m], or the corners of its bounding box."""
    local, radius = outline(m, geom)
    if radius:
        local = (local[:, None] + radius * BALL).reshape(-1, 3)
    return d.geom_xpos[geom] + local @ d.geom_xmat[geom].reshape(3, 3).T


def sphere_points() -> Array:
    """(n, 3) points on the unit sphere, the same on both sides of each axis plane."""
    polar, around = np.meshgrid(
        np.linspace(0, np.pi, 17), np.arange(32) * np.pi / 16, indexing="ij"
    )
    xyz = (np.sin(polar) * np.cos(around), np.sin(polar) * np.sin(around), np.cos(polar))
    return np.stack([x.ravel() for x in xyz], 1)


BALL = sphere_points()
