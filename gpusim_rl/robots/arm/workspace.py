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
from gpusim_rl.robots.bodies import RobotError

# Of conf/task/reach.yaml and tasks/assets/arm.xml [m]
LARGEST_BOX, REACH = (0.15, 0.3, 0.15), 0.947
SIZES = (1.0, 0.75, 0.5, 0.35)  # of the scaled box that are tried
LEANS = (1.0, 0.5)  # shares of the lean that is asked for
SPINS = (3.1416, 2.0, 1.2, 0.6)  # rad
TILTS = (0.0, 0.4, 0.8, 1.2)  # rad, of the tool's middle axis from straight down to forward
# Centers of boxes, from the shoulder, in reaches
PLACES = ((0.5, 0.0), (0.4, 0.0), (0.6, 0.0), (0.5, 0.2), (0.4, 0.2), (0.6, 0.2))
CORNERS = torch.tensor([*product((-1.0, 1.0), repeat=3)]).double()
CORNER_TURNS = (CORNERS + 1) / 2 * 0.9 + 0.05  # for rotations there: far from the central ones
MISSED = 2  # corners at most of a box that is looked at closer
GOALS = 64
ENOUGH = 0.97  # share of goals that must be reached
FLOOR = 0.05  # m, least height of a goal above the ground


class Box(NamedTuple):
    """Goals that an arm can reach."""

    center: tuple[float, ...]  # (3,) m
    largest: tuple[float, ...]  # (3,) m, half-widths
    tilt: float  # rad, of the tool's middle axis from straight down to forward
    lean: float  # rad, from that axis
    spin: float  # rad, about it


def find_box(arm: Kinematics, ground: float, lean: float | None, fixed: dict[str, Any]) -> Box:
    """The first of some boxes in front of an arm that it can reach, the large ones first.

    ground: its height [m]. lean: the largest of the tool's axis from its center [rad]; None if any
    rotation will do. fixed: values of a `Box` that stay as they are. RobotError if it reaches none.
    """
    best, turning = 0.0, lean is not None
    for boxes in candidates(arm, ground, lean, fixed):
        goals = [goals_of(box, CORNERS, CORNER_TURNS) for box in boxes]
        places, turns = (torch.cat(x) for x in zip(*goals, strict=True))
        _, there = arm.solve(places, turns if turning else None)
        missed = (~there.any(1)).view(-1, len(CORNERS)).sum(1)
        for box in (box for box, n in zip(boxes, missed.tolist(), strict=True) if n <= MISSED):
            places, turns = goals_of(box, *drawn())
            share = float(arm.reached(places, turns if turning else None).double().mean())
            if share >= ENOUGH:
                return box
            best = max(best, share)
    what = "poses" if turning else "points"
    raise RobotError(
        f"the arm reaches no box of goals before it, at most {100 * best:.0f} % of the {what} of "
        "one: set task.center and task.largest"
    )


def candidates(
    arm: Kinematics, ground: float, lean: float | None, fixed: dict[str, Any]
) -> Iterator[list[Box]]:
    """Boxes to try, the best first: large ones, near where that of our own arm is."""
    leans = [0.0] if lean is None else [lean * share for share in LEANS]
    choices = dict(lean=leans, spin=SPINS, tilt=TILTS) if lean is not None else {}
    choices |= {key: [fixed[key]] for key in choices if key in fixed}
    turns = [choices.get(key, [0.0]) for key in ("lean", "spin")]
    for share, largest_lean, spin in product(SIZES, *turns):
        half = share * arm.reach / REACH * np.array(LARGEST_BOX)
        half = np.array(fixed.get("largest") or half)
        boxes = []
        for tilt, (x, z) in product(choices.get("tilt", [0.0]), PLACES):
            default = arm.shoulder + arm.reach * np.array([x, 0, z])
            default[2] = max(default[2], ground + FLOOR + half[2])
            center, largest = (
                tuple(round(float(v), 3) + 0.0 for v in values)
                for values in (fixed.get("center") or default, half)
            )
            boxes.append(Box(center, largest, tilt, round(largest_lean, 3), spin))
        yield list(dict.fromkeys(boxes))


def drawn() -> tuple[Tensor, Tensor]:
    """(B, 3) places in a box, in half-widths from its center, and (B, 3) numbers for rotations."""
    generator = torch.Generator().manual_seed(0)
    unit = torch.rand(GOALS, 6, generator=generator, dtype=torch.float64)
    return 2 * unit[:, :3] - 1, unit[:, 3:]


def goals_of(box: Box, places: Tensor, unit: Tensor) -> tuple[Tensor, Tensor]:
    """(B, 3) places [m] and (B, 3, 3) axes of the tool as columns, of a box.

    places: (B, 3) in half-widths from its center. unit: (B, 3) numbers in [0, 1).
    """
    center, half = (torch.tensor(x).double() for x in (box.center, box.largest))
    straight = torch.tensor(pointing(box.tilt)).double().expand(len(unit), 4)
    turns = compose(straight, leaning_rotation(unit, box.lean, box.spin))
    return center + half * places, to_matrix(turns)


def pointing(tilt: float) -> tuple[float, float, float, float]:
    """The rotation of a tool whose z is tilted from straight down to forward [rad].

    It is a unit quaternion. The tool's x points forward, and up by the same angle.
    """
    return (0.0, float(np.cos(tilt / 2)), 0.0, float(np.sin(tilt / 2)))
