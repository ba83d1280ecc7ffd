"""`State`: what a task reads of B worlds at one moment."""

from typing import Self

import torch
from torch import Tensor


class State:
    """The values of B worlds at the moment at which it was made; a later step does not change them.

    Attributes, each a tensor of B rows, float32 unless it says otherwise:

    - `qpos`, `qvel`, `ctrl`: MuJoCo's, in its units;
    - `<sensor>`: each sensor of the model by its name, (B, width);
    - `action` (B, nu) of this control step, and `previous` of the one before;
    - `time` (B,) int64: control steps since the restart;
    - each entry of the task's memory, by its name.

    A name that is none of these raises ValueError, with the names that there are.

    Args:
        tensors: these by name, and `sensordata` (B, ns); they are kept, not copied. In place of
            `sensordata` there may be each sensor by its name.
        columns: sensor → its columns in `sensordata`.
    """

    def __init__(self, tensors: dict[str, Tensor], columns: dict[str, slice]):
        self._tensors, self._columns = tensors, columns

    @classmethod
    def copied(cls, tensors: dict[str, Tensor], columns: dict[str, slice]) -> Self:
        """A state of copies of these tensors; floating-point ones become float32."""
        copies = {
            name: x.to(torch.float32 if x.is_floating_point() else x.dtype, copy=True).contiguous()
            for name, x in tensors.items()
        }
        return cls(copies, columns)

    def __getattr__(self, name: str) -> Tensor:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in self._tensors:
            return self._tensors[name]
        columns = self._sensor(name)
        return self._tensors["sensordata"][:, columns]

    def span(self, first: str, last: str) -> Tensor:
        """(B, …) adjacent sensors as one tensor, from first to last in the model's order."""
        columns = slice(self._sensor(first).start, self._sensor(last).stop)
        if "sensordata" in self._tensors:
            return self._tensors["sensordata"][:, columns]
        between = (n for n, c in self._columns.items() if columns.start <= c.start < columns.stop)
        return torch.cat([self._tensors[name] for name in between], 1)

    def with_(self, **tensors: Tensor) -> Self:
        """The same state, with other tensors of these names."""
        return type(self)(self._tensors | tensors, self._columns)

    def clone(self) -> Self:
        """A state of its own with the same values."""
        return self.copied(self._tensors, self._columns)

    def copy_(self, tensors: dict[str, Tensor]) -> None:
        """Take the values of these tensors, by name. In place: a CUDA graph may replay it."""
        kinds: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
        for name, source in tensors.items():
            places, sources = kinds.setdefault(source.dtype, ([], []))
            places.append(self._tensors[name])
            sources.append(source)
        for places, sources in kinds.values():  # one kernel for all tensors of a type
            torch._foreach_copy_(places, sources)  # pyright: ignore[reportPrivateImportUsage]

    def _sensor(self, name: str) -> slice:
        """The columns of a sensor."""
        if name not in self._columns:
            known = ", ".join(sorted([*self._tensors, *self._columns]))
            raise ValueError(
                f"the task reads {name!r}, which no sensor or memory of this model has: {known}"
            )
        return self._columns[name]
