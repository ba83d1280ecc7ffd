"""Dependencies of a function's outputs on its inputs, followed through every operation.

The function runs once. Each tensor that an operation makes depends on all that the operation's
arguments depend on, also through comparisons and `where`. It costs milliseconds.
"""

# torch has no types for some of its members, and no public name of a storage:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportPrivateUsage=false

import linecache
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

Result = Tensor | dict[str, Tensor]
NOTHING: frozenset[str] = frozenset()
# Operators whose results take the shape of an argument, but not its values.
SHAPES = {
    *("zeros_like", "ones_like", "full_like", "empty_like", "rand_like", "randn_like"),
    *("new_zeros", "new_ones", "new_full", "new_empty", "new_empty_strided"),
}
# Operators and methods whose result only the host can use, and torch does not mark.
READS = {"equal", "allclose", "is_nonzero"}
METHODS = {Tensor.tolist, Tensor.numpy, Tensor.__array__}
MASKED = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"}
ON_HOST = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


def dependencies(
    where: str,
    function: Callable[[dict[str, Tensor]], Result],
    inputs: dict[str, Tensor],
    refused: str = "",
) -> dict[str, frozenset[str]]:
    """Names of the inputs that the values of each output of a function depend on.

    Args:
        where: what the function is, for messages: `Quadruped.observe`.
        function: given copies of `inputs`, it returns tensors by name, or one tensor, named "".
        refused: the name of an operator that must not be used.

    Raises:
        ValueError: the function branches on a tensor that depends on an input, or takes another
            value of it to the host, or makes a shape of it; or it uses the refused operator. The
            message is one line, which quotes the source.
    """
    # names hang on storages, and two inputs may share one
    copies = {name: x.clone() for name, x in inputs.items()}
    follow = DependencyMode(where, refused)
    for name, x in copies.items():
        follow.add([x], frozenset([name]))
    with torch.no_grad(), HostReadGuard(follow), follow:
        result = function(copies)
    outputs = {"": result} if isinstance(result, Tensor) else result
    return {name: follow.of([x]) for name, x in outputs.items()}


class DependencyMode(TorchDispatchMode):
    """Notes what every tensor depends on: storage → names. Views share a storage."""

    def __init__(self, where: str, refused: str):
        super().__init__()
        self.where, self.refused = where, refused
        self.names: dict[int, frozenset[str]] = {}
        self.tensors: list[Tensor] = []  # so that no storage's address is used again

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch imports its compiler, which takes two seconds

    def of(self, values: Iterable[Any]) -> frozenset[str]:
        """The inputs that any of these values depends on."""
        tensors = (x for x in values if isinstance(x, Tensor))
        sets = (self.names.get(x.untyped_storage()._cdata, NOTHING) for x in tensors)
        return NOTHING.union(*sets)

    def add(self, values: Iterable[Any], names: frozenset[str]) -> None:
        """These values depend on these inputs, too."""
        for x in values:
            if isinstance(x, Tensor):
                key = x.untyped_storage()._cdata
                self.names[key] = self.names.get(key, NOTHING) | names
                self.tensors.append(x)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator, and note what its results depend on."""
        kwargs = kwargs or {}
        name, operands = func.overloadpacket.__name__, tree_leaves((args, kwargs))
        names = self.of(operands)
        if name == self.refused:
            raise ValueError(f"{self.where} uses {name}: {source_line()}")
        if names and (name in READS or reads_values(func, name, operands)):
            raise ValueError(self.complaint())
        result = func(*args, **kwargs)
        self.add(tree_leaves(result), NOTHING if name in SHAPES else names)
        # an operator in place makes its target depend on its other arguments, too
        for argument, value in zip(func._schema.arguments, args, strict=False):
            if argument.alias_info and argument.alias_info.is_write:
                self.add(tree_leaves(value), names)
        if "out" in kwargs:
            self.add(tree_leaves(kwargs["out"]), names)
        return result

    def complaint(self) -> str:
        """The message of a value that is read on the host, with the line that reads it."""
        return (
            f"{self.where} branches on a tensor: {source_line()}: "
            f"neither a GPU nor a robot can follow: use torch.where"
        )


class HostReadGuard(TorchFunctionMode):
    """Refuses the reads of a tensor that reach no operator."""

    def __init__(self, follow: DependencyMode):
        super().__init__()
        self.follow = follow

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a function of torch, unless it takes the values of a tensor to the host."""
        copied = func in (torch.tensor, torch.as_tensor) and not isinstance(args[0], Tensor)
        if (func in METHODS or copied) and self.follow.of(tree_leaves(args)):
            raise ValueError(self.follow.complaint())
        return func(*args, **(kwargs or {}))


def source_line(*folders: str) -> str:
    """The line of Python that runs, and its place: outside of torch, of here and of folders."""
    outside = (str(Path(torch.__file__).parent), __file__, *folders)
    frame = [f for f in traceback.extract_stack() if not f.filename.startswith(outside)][-1]
    line = linecache.getline(frame.filename, frame.lineno or 0).strip()
    return f"{Path(frame.filename).name}:{frame.lineno}: {line}"


def reads_values(func: Any, name: str, operands: list[Any]) -> bool:
    """Whether the host has to know values to run an operator, or the shape of its result."""
    if name in MASKED:
        return any(
            isinstance(x, Tensor) and x.dtype in (torch.bool, torch.uint8) for x in operands[1:]
        )
    return bool(ON_HOST & set(func.tags))
