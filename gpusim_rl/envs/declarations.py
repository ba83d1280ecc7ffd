"""Declarations of a task: its command, its mirror, and the numbers that a curriculum may change."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Annotated, Any, ClassVar, TypeVar, get_type_hints

import mujoco
import torch
from torch import Tensor

from gpusim_rl.core.maths import leaning_rotation, product
from gpusim_rl.core.symmetry import Flip
from gpusim_rl.envs.state import State

SCHEDULED = "a curriculum may change it"
Number = TypeVar("Number")
# The type of a task's number that a curriculum may change: `sigma: Scheduled[float]`.
Scheduled = Annotated[Number, SCHEDULED]
Constant = Callable[[Any], Tensor]  # numbers as a tensor of the task


def scheduled_fields(kind: type) -> list[str]:
    """The fields of a class whose type is `Scheduled`, in order."""
    hints: dict[str, Any] = get_type_hints(kind, include_extras=True)
    return [name for name, hint in hints.items() if SCHEDULED in getattr(hint, "__metadata__", ())]


@dataclass(kw_only=True)
class Vector:
    """Numbers of a command, each uniform in a range of its own.

    Args:
        names: (n,) of its numbers.
        units: (n,) of its numbers, or one for all.
        largest: (n,) half-widths of the ranges about `center`; those that a curriculum changes are
            tensors.
        center: (n,) middles of the ranges; 0 unless given.
        mirrored: the names of the numbers that change sign in a mirror.
    """

    names: tuple[str, ...]
    units: tuple[str, ...] | str
    largest: Any
    center: tuple[float, ...] = ()
    mirrored: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """ValueError unless all have as many numbers."""
        if isinstance(self.units, str):
            self.units = (self.units,) * len(self.names)
        for key in ("units", "largest", "center"):
            if len(values := getattr(self, key)) != len(self.names) and (values or key != "center"):
                count = len(self.names)
                raise ValueError(f"the command has {count} names, but not as many of `{key}`")

    def ends(self, sign: int) -> tuple[float, ...]:
        """(n,) the least numbers with a sign of -1, the largest with 1."""
        center = self.center or (0.0,) * len(self.names)
        return tuple(x + sign * half for x, half in zip(center, self.largest, strict=True))

    def draw(self, x: Tensor, constant: Constant) -> Tensor:
        """(B, n) numbers of x (B, n), which is uniform in ± `largest`."""
        return x + constant(self.center) if self.center else x

    def signs(self, axis: int) -> list[float]:
        """(n,) how its numbers change in a mirror."""
        return [-1.0 if name in self.mirrored else 1.0 for name in self.names]


@dataclass(kw_only=True)
class Rotation:
    """A rotation of a command: a unit quaternion (w, x, y, z) in the world.

    It is uniform over all rotations whose z axis leans at most so far from the center's.

    Args:
        lean: the largest angle between these axes [rad].
        spin: how far it turns about its z axis, at most [rad]; from pi on all of it.
        center: a unit quaternion.
        names: (4,) of its numbers.
    """

    units: ClassVar = ("1",) * 4
    largest: ClassVar = (1.0,) * 4
    lean: float
    spin: float = math.pi
    center: tuple[float, ...] = (1.0, 0.0, 0.0, 0.0)
    names: tuple[str, ...] = ("qw", "qx", "qy", "qz")

    def __post_init__(self) -> None:
        """ValueError unless center and angles are those of a rotation."""
        if len(self.center) != 4 or abs(sum(x * x for x in self.center) - 1) > 1e-6:
            raise ValueError(f"the command's center {self.center} is no unit quaternion")
        for key in ("lean", "spin"):
            if not 0 <= getattr(self, key) <= 3.1416:
                raise ValueError(f"the command's {key}={getattr(self, key)}: expected 0 to pi rad")

    def ends(self, sign: int) -> tuple[float, ...]:
        """(4,) the least numbers of a quaternion with a sign of -1, the largest with 1."""
        return (float(sign),) * 4

    def draw(self, x: Tensor, constant: Constant) -> Tensor:
        """(B, 4) quaternions of x (B, 4), which is uniform in ±1; its last column is not used."""
        turn = leaning_rotation((x[:, :3] + 1) / 2, self.lean, self.spin)
        return product(constant(self.center).expand_as(turn), turn)

    def signs(self, axis: int) -> list[float]:
        """(4,) how its numbers change in a mirror whose normal is this axis: as an axial vector."""
        return [1.0, *(1.0 if i == axis else -1.0 for i in range(3))]


Part = Vector | Rotation


class Command:
    """A command that a user gives the robot: the memory entry `command` (B, n), part after part.

    Args:
        parts: a `Vector` or a `Rotation` each.
        redraw: time between two draws [s]; 0 for one in an episode.
        shown_by: body of the model that viewer and films move to the command: to the first three
            numbers of its vectors, and turned by its first rotation. It has no joint, and touches
            nothing.
        vector: the arguments of a `Vector`, which is the only part then.

    Attributes:
        names: (n,) of its numbers.
        units: (n,) of its numbers; 1 of those of a rotation.
    """

    def __init__(
        self,
        parts: tuple[Part, ...] = (),
        *,
        redraw: float = 0.0,
        shown_by: str = "",
        **vector: Any,
    ):
        if parts and vector:
            raise ValueError(
                f"Command({next(iter(vector))}=…): with a rotation a command has parts: "
                "Command(parts=(Vector(names=…, units=…, largest=…), Rotation(lean=…)), redraw=…)"
            )
        self.parts: tuple[Part, ...] = parts or (Vector(**vector),)
        self.redraw, self.shown_by = redraw, shown_by
        self.names = tuple(x for part in self.parts for x in part.names)
        self.units = tuple(x for part in self.parts for x in part.units)

    @property
    def largest(self) -> tuple[Any, ...]:
        """(n,) half-widths of the ranges that `draw` takes numbers from."""
        return tuple(x for part in self.parts for x in part.largest)

    @property
    def center(self) -> tuple[float, ...]:
        """(n,) middles of the ranges; empty if no part has one."""
        if not any(part.center for part in self.parts):
            return ()
        return tuple(x for part in self.parts for x in part.center or (0.0,) * len(part.names))

    @property
    def columns(self) -> list[slice]:
        """Where the numbers of each part are."""
        ends = list(accumulate(len(part.names) for part in self.parts))
        return [slice(a, b) for a, b in pairwise([0, *ends])]

    def ends(self, sign: int) -> tuple[float, ...]:
        """(n,) the least numbers with a sign of -1, the largest with 1."""
        return tuple(x for part in self.parts for x in part.ends(sign))

    def draw(self, x: Tensor, constant: Constant) -> Tensor:
        """(B, n) commands of x (B, n), which is uniform in ± `largest`."""
        drawn = [
            part.draw(x[:, columns], constant)
            for part, columns in zip(self.parts, self.columns, strict=True)
        ]
        return torch.cat(drawn, 1) if len(drawn) > 1 else drawn[0]

    def signs(self, axis: int) -> list[float]:
        """(n,) how its numbers change in a mirror whose normal is this axis."""
        return [x for part in self.parts for x in part.signs(axis)]


def check_shown_by(command: Command | None, mjm: mujoco.MjModel) -> None:
    """ValueError unless the body that shows a command is in the model."""
    bodies = [mjm.body(i).name for i in range(1, mjm.nbody)]
    if command and command.shown_by and command.shown_by not in bodies:
        names = ", ".join(filter(None, bodies))
        raise ValueError(f"the command is shown by the body {command.shown_by!r}: {names}")


def check_scheduled(kind: type, name: str) -> None:
    """ValueError unless a task of this class has a scheduled number of this name."""
    fields = scheduled_fields(kind)
    if name not in fields:
        names = ", ".join(fields) or "none"
        raise ValueError(
            f"curriculum: task.{name} cannot be scheduled: choose of this task's numbers "
            f"({names}), or a term's"
        )


@dataclass(kw_only=True)
class Reflection:
    """How a task is mirrored: what its sensors' types and joints' axes do not tell.

    Args:
        axis: of the mirror's normal in the world: 1 swaps left and right, 0 front and back.
        joints: how the positions of the actuated joints look, about those of the keyframe; from
            the joints' places and axes unless given.
        action: how the action looks; as the controls of the actuators unless given. A task gives it
            whose actions have another width.
        images: `State` → images (B, …) by name, of entries of the memory that a term reads, and of
            sensors whose type does not tell.
    """

    axis: int
    joints: Flip | None = None
    action: Flip | None = None
    images: Callable[[State], dict[str, Tensor]] = lambda s: {}
