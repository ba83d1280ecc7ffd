"""What a task declares: its command, its mirror, and the numbers that a curriculum may change."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar, get_type_hints

from torch import Tensor

from gpusim_rl.core.symmetry import Flip

SCHEDULED = "a curriculum may change it"
Number = TypeVar("Number")
# The type of a task's number that a curriculum may change: `sigma: Scheduled[float]`.
Scheduled = Annotated[Number, SCHEDULED]


def scheduled_fields(kind: type) -> list[str]:
    """The fields of a class whose type is `Scheduled`, in order."""
    hints: dict[str, Any] = get_type_hints(kind, include_extras=True)
    return [name for name, hint in hints.items() if SCHEDULED in getattr(hint, "__metadata__", ())]


@dataclass(kw_only=True)
class Command:
    """What a user may ask of the robot: the memory entry `command` (B, n).

    Args:
        names, units: (n,) of its numbers.
        largest: (n,) half-widths of the ranges about `center` that it is drawn from.
        center: (n,) middles of the ranges; 0 unless given.
        redraw: time between two draws [s]; 0 for one in an episode.
        mirrored: the names of the numbers that change sign in a mirror.
        lean: if given, the last four numbers are a rotation: a unit quaternion (w, x, y, z). It is
            uniform over all rotations whose z axis is within this angle [rad] of the center's.
            These four numbers have a unit of 1 and a `largest` of 1.
        spin: how far this rotation turns about its z axis, at most [rad]; from pi on all of it.
        shown_by: body of the model that viewer and films move to the command: to its first three
            numbers, and turned by its rotation. It has no joint, and touches nothing.
    """

    names: tuple[str, ...]
    units: tuple[str, ...]
    largest: tuple[float, ...]
    center: tuple[float, ...] = ()
    redraw: float = 0.0
    mirrored: tuple[str, ...] = ()
    lean: float | None = None
    spin: float = math.pi
    shown_by: str = ""

    def __post_init__(self) -> None:
        """ValueError unless all have as many numbers, and a rotation is one."""
        count = len(self.names)
        for key in ("units", "largest", "middle"):
            if len(getattr(self, key)) != count:
                of = {"middle": "center"}.get(key, key)
                raise ValueError(f"the command has {count} names, but not as many of `{of}`")
        if self.lean is None:
            return
        turn = sum(x * x for x in self.middle[-4:])
        if count <= 4 or any(x != 1 for x in self.largest[-4:]) or abs(turn - 1) > 1e-6:
            raise ValueError(
                "the last four of more than four numbers of the command are a rotation: "
                "`largest` is 1 there, and `center` a unit quaternion"
            )
        for key in ("lean", "spin"):
            if not 0 <= getattr(self, key) <= 3.1416:
                raise ValueError(f"the command's {key}={getattr(self, key)}: expected 0 to pi rad")

    @property
    def middle(self) -> tuple[float, ...]:
        """(n,) `center`, with its default value."""
        return self.center or (0.0,) * len(self.names)

    @property
    def low(self) -> tuple[float, ...]:
        """(n,) the least numbers."""
        return self._ends(-1)

    @property
    def high(self) -> tuple[float, ...]:
        """(n,) the largest numbers."""
        return self._ends(1)

    def _ends(self, sign: int) -> tuple[float, ...]:
        middle = self.middle if self.lean is None else (*self.middle[:-4], 0.0, 0.0, 0.0, 0.0)
        return tuple(x + sign * half for x, half in zip(middle, self.largest, strict=True))


def check_shown_by(command: Command | None, mjm: Any) -> None:
    """ValueError unless the body that shows a command is in the model."""
    bodies = [mjm.body(i).name for i in range(1, mjm.nbody)]
    if command and command.shown_by and command.shown_by not in bodies:
        known = ", ".join(filter(None, bodies))
        raise ValueError(f"the command is shown by the body {command.shown_by!r}: {known}")


def check_scheduled(kind: type, name: str) -> None:
    """ValueError unless a task of this class has a scheduled number of this name."""
    fields = scheduled_fields(kind)
    if name not in fields:
        known = ", ".join(fields) or "none"
        raise ValueError(
            f"curriculum: task.{name} cannot be scheduled: choose of this task's numbers "
            f"({known}), or a term's"
        )


def no_images(s: Any) -> dict[str, Tensor]:
    """No further images."""
    return {}


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
    images: Callable[[Any], dict[str, Tensor]] = no_images
