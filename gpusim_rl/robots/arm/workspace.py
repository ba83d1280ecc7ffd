"""The box of goals that an arm can reach: that of our own arm, scaled, moved and shrunk."""

from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gpusim_rl.core.maths import leaning_rotation, to_matrix
from gpusim_rl.core.maths import product as compose
from gpusim_rl.robots.arm.kinematics import Kinematics
from gpusim_rl.robots.bodies import Array, RobotError

# Of conf/task/reach.yaml and tasks/assets/arm.xml [m]
CENTER, LARGEST, REACH = (0.5, 0.0, 0.3), (0.15, 0.3, 0.15), 0.947
DOWN = torch.tensor([0.0, 1.0, 0.0, 0.0]).double()  # z down, x forward
SIZES = (1.0, 0.75, 0.5, 0.35)  # of the scaled box that are tried
LEANS = (1.0, 0.5)  # of the lean that is asked for
SPINS = (3.1416, 2.0, 1.2, 0.6)  # rad, that are tried
FORWARD, UPWARD = (0.5, 0.4, 0.6), (0.0, 0.2)  # of the reach
GOALS = 64
ENOUGH = 0.97  # share of goals that must be reached
FLOOR = 0.05  # m, least height of a goal above the ground


class Box(NamedTuple):
    """Goals that an arm can reach."""

    center: tuple[float, ...]  # (3,) m
    largest: tuple[float, ...]  # (3,) m, half-widths
    lean: float  # rad
    spin: float  # rad
    share: float  # of goals drawn of it that are reached


def find_box(arm: Kinematics, ground: float, lean: float | None, given: dict[str, Any]) -> Box:
    """The first of some boxes in front of an arm that it can reach, the large ones first.

    Args:
        arm: the arm.
        ground: its height [m].
        lean: the largest of the tool's axis from straight down [rad]; None if any rotation will do.
        given: of center, largest, lean and spin those that are as they are.

    Raises:
        RobotError: it reaches none of them.
    """
    best = 0.0
    for box in candidates(arm, ground, lean, given):
        share = check(arm, box, lean is not None)
        if share >= ENOUGH:
            return box._replace(share=share)
        best = max(best, share)
    what = "points" if lean is None else "poses"
    raise RobotError(
        f"of none of the boxes of goals in front of it that were tried the arm reaches all {what}, "
        f"at most {100 * best:.0f} %: set task.center and task.largest"
    )


def candidates(
    arm: Kinematics, ground: float, lean: float | None, given: dict[str, Any]
) -> Iterator[Box]:
    """Boxes to try, the best first: large ones, near where that of our own arm is."""
    size = arm.reach / REACH
    turning = lean is not None
    leans = [lean * share for share in LEANS] if turning else [0.0]
    spins = SPINS if turning else [0.0]
    choices = dict(lean=leans, spin=spins) | {k: [given[k]] for k in ("lean", "spin") if k in given}
    for share, a, spin, z, x in product(SIZES, choices["lean"], choices["spin"], UPWARD, FORWARD):
        half = np.array(given.get("largest") or share * size * np.array(LARGEST))
        middle = arm.shoulder + arm.reach * np.array([x, 0, z])
        middle[2] = max(middle[2], ground + FLOOR + half[2])
        middle = np.array(given.get("center") or middle)
        yield Box(round_off(middle), round_off(half), round(a, 3), spin, 0.0)


def round_off(values: Array) -> tuple[float, ...]:
    """The values to millimeters."""
    return tuple(round(float(x), 3) + 0.0 for x in values)


def check(arm: Kinematics, box: Box, turning: bool) -> float:
    """The share of goals that the arm reaches; of the corners alone if it misses three of these."""
    center, half = (torch.tensor(x).double() for x in (box.center, box.largest))
    corners = torch.tensor([*product((-1.0, 1.0), repeat=3)]).double()
    generator = torch.Generator().manual_seed(0)
    unit = torch.rand(GOALS, 6, generator=generator, dtype=torch.float64)
    turns = rotations(unit[:, 3:], box) if turning else None
    at_corners = arm.reached(center + half * corners, None if turns is None else turns[:8])
    if (~at_corners).sum() > 2:
        return float(at_corners.double().mean()) / 2
    return float(arm.reached(center + half * (2 * unit[:, :3] - 1), turns).double().mean())


def rotations(unit: Tensor, box: Box) -> Tensor:
    """(B, 3, 3) axes of tools that lean and turn as a box allows, of numbers (B, 3) in [0, 1)."""
    return to_matrix(compose(DOWN.expand(len(unit), 4), leaning_rotation(unit, box.lean, box.spin)))
