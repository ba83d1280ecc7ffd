"""Numbers of `task.randomise` as columns of one draw, and the places of a model that they change.

Each number lies between `low` and `high`. The kind says how it is distributed: "uniform",
"log_uniform" (its logarithm is uniform) or "normal". A normal draw has mean (low + high)/2 and
standard deviation (high - low)/6, and is cut at both ends. The bounds are tensors, so that a
curriculum may change them.
"""

from typing import NamedTuple

import mujoco
import torch
from torch import Tensor

from gpusim_rl.core.rng import Rng
from gpusim_rl.envs.randomization.entries import KINDS, Entry
from gpusim_rl.envs.randomization.fields import field
from gpusim_rl.envs.randomization.joints import BALL, FREE
from gpusim_rl.robots.free_bodies import free_base

TAIL = 0.0013498980316300946  # Φ(-3)
Part = tuple[str, str, float, float, int]  # name, kind, low, high, columns


class Block:
    """Columns of numbers that one call draws, sorted by kind.

    Args:
        stream: name of the random stream.
        parts: the numbers that are drawn, in groups.

    `place` tells the columns of each group; `low` and `high` are (columns,).
    """

    def __init__(self, stream: str, parts: list[Part], device: str):
        parts = sorted(parts, key=lambda part: KINDS.index(part[1]))
        widths = [part[4] for part in parts]
        self.stream = stream
        self.ends = [sum(p[4] for p in parts if KINDS.index(p[1]) <= kind) for kind in (1, 2, 3)]
        self.place = {
            p[0]: slice(sum(widths[:i]), sum(widths[: i + 1])) for i, p in enumerate(parts)
        }
        ends = [[p[end] for p in parts for _ in range(p[4])] for end in (2, 3)]
        self.low, self.high = torch.tensor(ends, dtype=torch.float32, device=device)
        self.unit = torch.zeros_like(self.low), torch.ones_like(self.low)

    def __call__(self, rng: Rng) -> Tensor:
        """(B, columns) numbers."""
        low, high, (a, b, end) = self.low, self.high, self.ends
        if a == end:
            return rng.uniform(self.stream, low, high)
        unit = rng.uniform(self.stream, *self.unit)
        # the inverse of Φ, as a rejected draw would need a loop
        bell = torch.special.ndtri(TAIL + (1 - 2 * TAIL) * unit[:, b:]) / 6  # within ± 1/2
        numbers = [
            low[:a] + (high - low)[:a] * unit[:, :a],
            low[a:b] * (high[a:b] / low[a:b]) ** unit[:, a:b],
            (low + high)[b:] / 2 + (high - low)[b:] * bell,
        ]
        return torch.minimum(torch.maximum(torch.cat(numbers, dim=1), low), high)


class ElementColumns(NamedTuple):
    """Which column of an entry belongs to which of the E elements of a model field."""

    index: Tensor  # (E,) int64: the column of each element
    mask: Tensor  # (E,) bool: the elements that are randomized
    width: int  # number of columns
    all: bool  # whether mask is true everywhere
    one: bool  # whether all elements have one number

    def __call__(self, x: Tensor) -> Tensor:
        """(B, width) → (B, E), or (B, 1) if all elements have one number."""
        return x if self.one else x.index_select(1, self.index)

    def only(self, x: Tensor) -> Tensor:
        """(B, width) → (B, E): the number of each element, 0 if it is not randomized."""
        return x.index_select(1, self.index) * self.mask


def element_columns(
    m: mujoco.MjModel, name: str, entry: Entry, readings: dict[str, int], device: str
) -> ElementColumns:
    """The columns of an entry, and the elements of a model that they belong to.

    readings: what a robot of this model can measure → width. ValueError if the model lacks what the
    entry names.
    """
    properties = field(name)
    if not properties.of:
        nothing = torch.zeros(1, dtype=torch.int64, device=device)
        return ElementColumns(nothing, nothing == 0, width(m, name, readings), True, True)
    chosen = chosen_of(m, name, entry)
    check_actuators(m, name, chosen)
    one, size, place = entry.get("each") is False, *elements(m, name, properties.of)
    index, mask = torch.zeros(size, dtype=torch.int64), torch.zeros(size, dtype=torch.bool)
    for column, thing in enumerate(chosen):
        index[place[thing]], mask[place[thing]] = 0 if one else column, True
    columns = (1 if one else len(chosen)) * properties.columns
    return ElementColumns(index.to(device), mask.to(device), columns, bool(mask.all()), one)


def width(m: mujoco.MjModel, name: str, readings: dict[str, int]) -> int:
    """Columns of an entry of the world, of the base or of a reading."""
    if name.startswith("bias."):
        if name[5:] not in readings:
            raise ValueError(
                f"task.randomise.{name}: no such reading, choose one of {', '.join(readings)}"
            )
        return readings[name[5:]]
    if field(name).base and free_base(m) is None:
        raise ValueError(f"task.randomise.{name}: this model has no free base")
    return field(name).columns


def chosen_of(m: mujoco.MjModel, name: str, entry: Entry) -> list[int]:
    """Indices of the bodies, geoms, joints or actuators that an entry changes."""
    of = field(name).of
    count = {"body": m.nbody, "geom": m.ngeom, "actuator": m.nu, "joint": m.njnt}[of]
    places = [
        i for i in range(of == "body", count) if of != "joint" or m.jnt_type[i] not in (FREE, BALL)
    ]
    if entry["only"] is None:
        if not field(name).base:
            return places
        base = free_base(m)
        if base is None:
            raise ValueError(
                f"task.randomise.{name}: this model has no free base, "
                f"name the {of} with only=[NAME]"
            )
        return [base.body]
    names = {getattr(m, of)(i).name: i for i in places}
    missing = [x for x in entry["only"] if x not in names]
    if missing:
        raise ValueError(
            f"task.randomise.{name}.only: no {of} {missing[0]!r}, "
            f"choose of {', '.join(filter(None, names))}"
        )
    return [names[x] for x in entry["only"]]


def elements(m: mujoco.MjModel, name: str, of: str) -> tuple[int, list[int]]:
    """The number of elements of the model field, and the element of each thing in it."""
    if of == "joint":
        angles = name in ("encoder", "start_angle")  # they change qpos, not qvel
        return (m.nq, m.jnt_qposadr.tolist()) if angles else (m.nv, m.jnt_dofadr.tolist())
    size = {"body": m.nbody, "geom": m.ngeom, "actuator": m.nu}[of]
    return size, list(range(size))


def check_actuators(m: mujoco.MjModel, name: str, chosen: list[int]) -> None:
    """ValueError if one of the actuators has no gain, or no force limit, to randomize."""
    for i in chosen if field(name).of == "actuator" else ():
        if name == "strength" and not m.actuator_forcelimited[i]:
            raise ValueError(
                f"task.randomise.strength: actuator {m.actuator(i).name!r} has no force limit"
            )
        bias = m.actuator_biastype[i]
        motor = bias == mujoco.mjtBias.mjBIAS_NONE
        motor &= m.actuator_gaintype[i] == mujoco.mjtGain.mjGAIN_FIXED
        wrong = name in ("kp", "kd") and bias != mujoco.mjtBias.mjBIAS_AFFINE
        if wrong or (name == "gain" and not motor):
            what = "position servo" if wrong else "motor"
            raise ValueError(f"task.randomise.{name}: actuator {m.actuator(i).name!r} is no {what}")


def zero_padded(x: Tensor, first: int, size: int) -> Tensor:
    """(B, size) zeros, with x (B, n) as the columns from `first`."""
    return torch.nn.functional.pad(x, (first, size - first - x.shape[1]))
