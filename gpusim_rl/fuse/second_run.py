"""A second run of a function, on other rows: what Python made of the first ones shows there."""

# torch and Warp have no types for some of their members:
# pyright: reportUnknownMemberType=false

from pathlib import Path
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves

from gpusim_rl.core.dependencies import source_line
from gpusim_rl.fuse.trace import ROWS, FunctionRun, Step, UnknownOperator

HERE = str(Path(__file__).parent)
COMPARISONS = {"eq", "ne", "lt", "le", "gt", "ge"}


class SecondRun(FunctionRun):
    """Runs a function again, and raises UnknownOperator where it differs from the first run.

    The code of a kernel holds numbers, indices and tensors of Python as they were. If a run on
    other rows has others, they were made of rows, or of what the function itself changes, and no
    kernel computes them.

    Args:
        steps: the operators of the first run, which had ROWS worlds.
        rows: that the function is given, of so many `worlds`.
    """

    def __init__(self, steps: list[Step], worlds: int, rows: list[Tensor]):
        super().__init__()
        self.steps, self.worlds = iter(steps), worlds
        self.one_sided: list[str] = []  # lines of comparisons that had one answer in all worlds
        self._alive: list[Tensor] = list(rows)  # so that no id is used again
        self._made = {id(x) for x in rows}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Compare an operator and its arguments with those of the first run, and run it."""
        kwargs = kwargs or {}
        name, leaves = func._schema.name, tree_leaves((args, kwargs))
        step = next(self.steps, Step("", []))
        if step.name != name or len(step.arguments) != len(leaves):
            raise UnknownOperator(f"other operators on other rows: {source_line(HERE)}")
        for first, now in zip(step.arguments, leaves, strict=True):
            if not self._same(first, now):
                raise UnknownOperator(
                    f"a number that Python made of rows, or changes itself: {source_line(HERE)}"
                )
        result = func(*args, **kwargs)
        for x in tree_leaves(result):
            self._made.add(id(x))
            self._alive.append(x)
        if name.removeprefix("aten::") in COMPARISONS and result.shape[:1] == (self.worlds,):
            if (result.any(0) == result.all(0)).any():
                self.one_sided.append(source_line(HERE))
        return result

    def _same(self, first: Any, now: Any) -> bool:
        """Whether an argument is that of the first run; of as many worlds as there are now."""
        if isinstance(now, Tensor):
            if id(now) in self._made:
                return first is None
            return isinstance(first, Tensor) and same_numbers(first, now)
        if isinstance(now, int) and isinstance(first, int):
            return first == now or first * self.worlds == now * ROWS
        return first == now or (first != first and now != now)


def same_numbers(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors hold the same numbers. NaN is NaN."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return bool(((a == b) | ((a != a) & (b != b))).all())
