"""Numbers of `task.randomise` as columns of one draw, and where on a model they go.

A number lies between `low` and `high`: uniform; log_uniform, whose logarithm is uniform; normal, of mean (low + high)/2 and
standard deviation (high - low)/6, cut at both ends. The bounds are tensors, so that a curriculum may move them.
"""

from typing import NamedTuple

import mujoco
import torch
from torch import Tensor

from gpusim_rl.noise import Noise
from gpusim_rl.variety import Entry, field

TAIL = 0.0013498980316300946  # Φ(-3)
FREE, BALL = int(mujoco.mjtJoint.mjJNT_FREE), int(mujoco.mjtJoint.mjJNT_BALL)
KINDS = ("uniform", "log_uniform", "normal")
Part = tuple[str, str, float, float, int]  # name, kind, low, high, width


class Block:
    """Columns of numbers that one call draws, sorted by kind."""

    def __init__(self, stream: str, parts: list[Part], device: str):
        parts = sorted(parts, key=lambda part: KINDS.index(part[1]))
        widths = [part[4] for part in parts]
        self.stream, self.ends = stream, [sum(p[4] for p in parts if KINDS.index(p[1]) <= kind) for kind in range(3)]
        self.place = {p[0]: slice(sum(widths[:i]), sum(widths[: i + 1])) for i, p in enumerate(parts)}
        self.low, self.high = (
            torch.tensor([p[end] for p in parts for _ in range(p[4])], dtype=torch.float32, device=device) for end in (2, 3)
        )
        self.unit = torch.zeros_like(self.low), torch.ones_like(self.low)

    def __call__(self, noise: Noise) -> Tensor:
        """(B, columns)"""
        low, high, (a, b, end) = self.low, self.high, self.ends
        if a == end:
            return noise.uniform(self.stream, low, high)
        unit = noise.uniform(self.stream, *self.unit)
        bell = torch.special.ndtri(TAIL + (1 - 2 * TAIL) * unit[:, b:]) / 6  # within ± 1/2
        numbers = [
            low[:a] + (high - low)[:a] * unit[:, :a],
            low[a:b] * (high[a:b] / low[a:b]) ** unit[:, a:b],
            (low + high)[b:] / 2 + (high - low)[b:] * bell,
        ]
        return torch.minimum(torch.maximum(torch.cat(numbers, dim=1), low), high)


class Spread(NamedTuple):
    """How the columns of an entry lie on the things that a model has of its kind."""

    index: Tensor  # (E,) int64: whose column is whose
    mask: Tensor  # (E,) bool: which are randomised
    width: int  # columns
    all: bool  # whether mask is true everywhere
    one: bool  # whether all have one number

    def __call__(self, x: Tensor) -> Tensor:
        """(B, width) → (B, E), or (B, 1) where all have one number."""
        return x if self.one else x.index_select(1, self.index)

    def only(self, x: Tensor) -> Tensor:
        """(B, width) → (B, E): the number of each, 0 where none is randomised."""
        return x.index_select(1, self.index) * self.mask


def free_joint(m: mujoco.MjModel) -> int | None:
    """The first free joint, that of the base."""
    return next((j for j in range(m.njnt) if m.jnt_type[j] == FREE), None)


def spread(m: mujoco.MjModel, name: str, entry: Entry, terms: dict[str, int], device: str) -> Spread:
    """Which columns an entry has, and where they go; ValueError in one line for what the model lacks.

    `terms` are the widths of the observation terms.
    """
    known = field(name)
    if not known.of:
        nothing = torch.zeros(1, dtype=torch.int64, device=device)
        return Spread(nothing, nothing == 0, width(m, name, terms), True, True)
    chosen = chosen_of(m, name, entry)
    servos(m, name, chosen)
    one, size, place = entry.get("each") is False, *elements(m, name, known.of)
    index, mask = torch.zeros(size, dtype=torch.int64), torch.zeros(size, dtype=torch.bool)
    for column, thing in enumerate(chosen):
        index[place[thing]], mask[place[thing]] = 0 if one else column, True
    columns = (1 if one else len(chosen)) * (3 if name == "centre" else 1)
    return Spread(index.to(device), mask.to(device), columns, bool(mask.all()), one)


def width(m: mujoco.MjModel, name: str, terms: dict[str, int]) -> int:
    """Columns of an entry that is of the world, of the base or of an observation term."""
    if name.startswith("bias."):
        if name[5:] not in terms:
            raise ValueError(f"task.randomise.{name}: no such term, choose one of {', '.join(terms)}")
        return terms[name[5:]]
    if name in ("gravity", "tilt"):
        return 1
    if free_joint(m) is None:
        raise ValueError(f"task.randomise.{name}: this model has no free base")
    return {"push": 2, "force": 2, "start_height": 1}.get(name, 3)


def chosen_of(m: mujoco.MjModel, name: str, entry: Entry) -> list[int]:
    """The bodies, geoms, joints or actuators that an entry is of."""
    of = field(name).of
    count = {"body": m.nbody, "geom": m.ngeom, "actuator": m.nu, "joint": m.njnt}[of]
    places = [i for i in range(of == "body", count) if of != "joint" or m.jnt_type[i] not in (FREE, BALL)]
    if entry["only"] is None:
        if not field(name).base:
            return places
        base = free_joint(m)
        if base is None:
            raise ValueError(f"task.randomise.{name}: this model has no free base, say which {of} with only=[NAME]")
        return [int(m.jnt_bodyid[base])]
    names = {getattr(m, of)(i).name: i for i in places}
    missing = [x for x in entry["only"] if x not in names]
    if missing:
        raise ValueError(f"task.randomise.{name}.only: no {of} {missing[0]!r}, choose of {', '.join(filter(None, names))}")
    return [names[x] for x in entry["only"]]


def elements(m: mujoco.MjModel, name: str, of: str) -> tuple[int, list[int]]:
    """How many entries the rows have that an entry is laid on, and the place of each thing in them."""
    if of == "joint":
        angles = name in ("encoder", "start_angle")  # of a MuJoCo model, while it is built
        return (m.nq, m.jnt_qposadr.tolist()) if angles else (m.nv, m.jnt_dofadr.tolist())
    size = {"body": m.nbody, "geom": m.ngeom, "actuator": m.nu}[of]
    return size, list(range(size))


def servos(m: mujoco.MjModel, name: str, chosen: list[int]) -> None:
    """ValueError where an actuator has no gain, or no limit, to randomise."""
    for i in chosen:
        if name == "strength" and not m.actuator_forcelimited[i]:
            raise ValueError(f"task.randomise.strength: actuator {m.actuator(i).name!r} has no force limit")
        if name in ("kp", "kd") and m.actuator_biastype[i] != mujoco.mjtBias.mjBIAS_AFFINE:
            raise ValueError(f"task.randomise.{name}: actuator {m.actuator(i).name!r} is no position servo")
