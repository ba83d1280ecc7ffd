"""The operators of a function of B worlds, followed scalar by scalar for one world.

The function runs once, on rows of an example. Beside each tensor (B, …) that an operator makes
stand the names of the scalars of one world. So a view, a slice or a concatenation costs nothing,
and what is left are assignments, in an order that does not depend on B.
"""

# torch and Warp have no types for some of their members:
# pyright: reportUnknownMemberType=false

import math
import re
from collections.abc import Callable, Iterable
from operator import mul
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from gpusim_rl.core.dependencies import source_line

ROWS = 1009  # of the example: a prime, so that no other axis has this length
LARGEST_TABLE = 4096  # numbers of a constant that have names; more are only looked up
HERE = str(Path(__file__).parent)
NAME = re.compile(r"\bv\d+\b")
ENTRY = re.compile(r"[rc]\d+_\[\w+\]")  # of a row or a constant
KINDS = {
    torch.float32: "float32",
    torch.float64: "float64",
    torch.bool: "bool",
    torch.int64: "int64",
    torch.int32: "int32",
    torch.uint8: "uint8",
}
WHOLE = {"int64", "int32", "uint8"}
# operators of a tensor (B n, …) whose first axis holds n places of each world
OF_FLAT = {"view", "_unsafe_view", "reshape", "alias", "detach", "index", "index_select"}


class UnknownOperator(NotImplementedError):
    """An operator, or a use of one, that has no translation."""


class Unnamed:
    """Stands for each number of a constant that is only looked up."""

    def __format__(self, form: str) -> str:
        raise UnknownOperator(f"arithmetic with a constant of more than {LARGEST_TABLE} numbers")

    __str__ = __repr__ = lambda self: format(self)


class Cells(NamedTuple):
    """The scalars of a tensor, as names in the code of one world."""

    names: np.ndarray  # of str: the shape of the tensor, without the axis of the worlds
    worlds: bool  # whether the tensor has that axis
    kind: str  # of `KINDS`
    table: str = ""  # of a constant: the argument that holds it

    @property
    def ndim(self) -> int:
        """Axes of the tensor."""
        return self.names.ndim + self.worlds

    def axis(self, dim: int) -> int:
        """The axis of `names` for one of the tensor. It is never that of the worlds."""
        axis = dim % self.ndim - self.worlds
        if axis < 0:
            raise UnknownOperator("an operation along the worlds")
        return axis

    def like(self, names: np.ndarray) -> "Cells":
        """Others of the same kind."""
        return Cells(names, self.worlds, self.kind)


class Step(NamedTuple):
    """An operator that ran, with what `SecondRun` compares."""

    name: str
    arguments: list[Any]  # numbers and the like; None for a tensor that rows or operators made


class Flat(Cells):
    """Cells of a tensor (B n, …): `names` has the axis n. Only operators of `OF_FLAT` take it."""

    @property
    def ndim(self) -> int:
        """Axes of the tensor."""
        return self.names.ndim


class FunctionRun(TorchDispatchMode):
    """A run of a function whose operators are followed."""

    # whether any such run goes on: kernels of Warp are no operators, so none is used then
    running: ClassVar[bool] = False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch imports its compiler, which takes two seconds

    def __enter__(self) -> Self:
        FunctionRun.running = True
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        FunctionRun.running = False
        super().__exit__(*error)


class Tracer(FunctionRun):
    """Runs operators on a device, and writes down what they compute for one world.

    operators: name → its translation (tracer, call) → cells.
    """

    def __init__(self, operators: dict[str, Callable[..., Any]], device: torch.device):
        super().__init__()
        self.operators, self.device = operators, device
        self.lines: list[tuple[str, str]] = []  # name and expression, in the order of computation
        # argument → tensor that the function reads beside its rows; it stays live
        self.constants: dict[str, Tensor] = {}
        self.steps: list[Step] = []  # the operators so far
        self.places: set[str] = set()  # names of numbers that look up entries of a table
        # tensors that pick columns, with their versions: what they hold stands in the code
        self.indices: list[tuple[Tensor, int]] = []
        self._given: dict[int, Tensor] = {}  # id → what a tensor held that no operator made
        self.names: dict[tuple[str, str], str] = {}  # expression and kind → its name
        self._cells: dict[int, Cells] = {}
        self._alive: list[Tensor] = []  # so that no id is used again

    # -- names -------------------------------------------------------------------------------------

    def emit(self, text: str, kind: str) -> str:
        """The name of an expression. The same expression has one name."""
        key = text, kind
        if key not in self.names:
            self.names[key] = f"v{len(self.lines)}"
            self.lines.append((self.names[key], text))
        return self.names[key]

    def cast(self, name: str, have: str, kind: str) -> str:
        """A scalar as another kind."""
        if have == kind:
            return name
        if kind == "bool":
            return self.emit(f"{name} != {literal(0, have)}", kind)
        return self.emit(f"{kind}({name})", kind)

    def rows(self, argument: str, x: Tensor) -> None:
        """Follow a tensor (ROWS, …) that the kernel reads from an argument (B, n)."""
        if x.dtype not in KINDS:
            raise UnknownOperator(f"rows of {x.dtype}")
        names = [self.emit(entry(argument, j), KINDS[x.dtype]) for j in range(x[0].numel())]
        cells = Cells(as_names(names, x.shape[1:]), True, KINDS[x.dtype])
        self._follow(x, cells)

    def _follow(self, x: Tensor, cells: Cells) -> None:
        self._cells[id(x)] = cells
        self._alive.append(x)

    def cells(self, x: Any) -> Any:
        """The cells of a tensor; anything else as it is."""
        if not isinstance(x, Tensor):
            return x
        if id(x) not in self._cells:
            self._given[id(x)] = x.clone()
            self._follow(x, self._constant(x))
        return self._cells[id(x)]

    def _constant(self, x: Tensor) -> Cells:
        """The cells of a tensor that the function did not make: an argument of the kernel."""
        if x.dtype not in KINDS:
            raise UnknownOperator(f"a constant of {x.dtype}")
        if x.shape[:1] == (ROWS,):
            raise UnknownOperator("numbers of each world that no operator made")
        kind = KINDS[x.dtype]
        if x.device != self.device:  # a number that Python made a tensor of
            return Cells(as_names([literal(x.item(), kind)], ()), False, kind)
        argument = f"c{len(self.constants)}"
        self.constants[argument] = x
        if x.numel() > LARGEST_TABLE:
            names = np.broadcast_to(np.array(Unnamed(), dtype=object), x.shape)
            return Cells(names, False, kind, argument)
        places = (sum(map(mul, at, x.stride())) for at in np.ndindex(*x.shape))
        names = [self.emit(entry(argument, place), kind) for place in places]
        return Cells(as_names(names, x.shape), False, kind, argument)

    def view_of_constant(self, x: Tensor) -> str:
        """The argument of a view of a constant, which is as live as that."""
        if not self._is_constant(x):
            raise UnknownOperator("a look-up in what is computed")
        return self._constant(x).table

    def fixed_index(self, cells: Cells, x: Tensor) -> Any:
        """The numbers of an index, which stand in the code."""
        expressions = dict(self.lines)
        for name in cells.names.ravel():
            whole = ENTRY.fullmatch(expressions.get(str(name), ""))
            if not whole and any(load.startswith("c") for load in self.loads([name])):
                raise UnknownOperator("an index made of numbers that may change")
        self.indices.append((x, x._version))
        # on the host, while the code is written
        return x.tolist()  # pyright: ignore[reportUnknownVariableType]

    def converted(self, x: Cells, kind: str) -> Cells:
        """Cells of another kind."""
        if x.kind == kind:
            return x
        return Cells(each(lambda name: self.cast(name, x.kind, kind), x.names), x.worlds, kind)

    def loads(self, names: Iterable[str]) -> set[str]:
        """The entries of rows and constants that names are made of."""
        expressions, waiting = dict(self.lines), [*names]
        seen = set(waiting)
        while waiting:
            new = {*NAME.findall(expressions.get(waiting.pop(), ""))} - seen
            seen |= new
            waiting += new
        texts = (expressions.get(name, "") for name in seen)
        return {text for text in texts if ENTRY.fullmatch(text)}

    def _is_constant(self, x: Tensor) -> bool:
        place = x.untyped_storage().data_ptr()
        return any(c.untyped_storage().data_ptr() == place for c in self.constants.values())

    # -- operators ---------------------------------------------------------------------------------

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator, and write down what it computes."""
        kwargs = kwargs or {}
        inputs, options = tree_map(self.cells, (args, kwargs))
        leaves = tree_leaves((args, kwargs))
        given = [self._given.get(id(x)) if isinstance(x, Tensor) else x for x in leaves]
        self.steps.append(Step(func._schema.name, given))
        result = func(*args, **kwargs)
        name = func._schema.name.removeprefix("aten::")
        in_place = name.endswith("_") and not name.endswith("__")
        name = name.removesuffix("_") if in_place else name
        out = options.pop("out", None)
        # an index is a value that stands in the code, so the translation gets the tensors as well
        call = Call(result, inputs, options, args)
        if in_place or out is not None:
            target = (kwargs["out"], out) if out is not None else (args[0], inputs[0])
            write = lambda: self._write(*target, self.operators[name](self, call))  # noqa: E731
            self._attempt(name, inputs, write)
            return result
        cells = self._attempt(name, inputs, lambda: self.operators[name](self, call))
        for x, made in zip(tree_leaves(result), cells_of(cells), strict=True):
            self._follow(x, made)
        return result

    def _attempt(self, name: str, inputs: Any, translate: Callable[[], Any]) -> Any:
        """What a translation gives. An UnknownOperator names the line that asks for it."""
        try:
            if name not in self.operators:
                raise UnknownOperator("no translation")
            if name not in OF_FLAT and any(isinstance(x, Flat) for x in cells_of(inputs)):
                raise UnknownOperator("worlds and another axis as one")
            return translate()
        except (AttributeError, LookupError, TypeError, ValueError, UnknownOperator) as error:
            raise UnknownOperator(f"{name} ({error}): {source_line(HERE)}") from error

    def _write(self, x: Tensor, target: Cells, value: Cells) -> None:
        """An operator in place: the names of the target, and of what it is a view of, change."""
        if self._is_constant(x):
            raise UnknownOperator("an operation that writes to a constant")
        names = self.converted(value, target.kind).names
        if value.worlds and not target.worlds:
            raise UnknownOperator("an operation that writes a world's number to a constant")
        target.names[...] = names

    def pointwise(self, call: "Call", text: str, operands: Any, kind: str = "") -> Cells:
        """An expression of each element, whose operands broadcast.

        kind: of the operands, that of the result unless given.
        """
        made, (inner, worlds) = KINDS[call.result.dtype], call.over(operands)
        arrays = [self.aligned(x, inner, worlds, kind or made) for x in operands]
        names = np.empty(inner, dtype=object)
        for place in np.ndindex(*inner):
            value = text.format(*(x[place] for x in arrays))
            # C++ computes small whole numbers as int, and so would not wrap them
            names[place] = self.emit(f"uint8({value})" if made == "uint8" else value, made)
        return Cells(names, worlds, made)

    def aligned(self, x: Any, shape: tuple[int, ...], worlds: bool, kind: str) -> np.ndarray:
        """The names of an operand of this kind, for each element of the result."""
        if not isinstance(x, Cells):
            return np.broadcast_to(np.array(literal(x, kind), dtype=object), shape)
        if x.worlds and x.ndim != len(shape) + 1:
            raise UnknownOperator("an operation between worlds")
        names = self.converted(x, kind).names
        if worlds and not x.worlds:
            names = one_for_all(names, len(shape))
        return np.broadcast_to(names, shape)

    def reduce(self, x: Cells, dims: Any, keep: bool, text: str) -> Cells:
        """A chain along axes, in their order."""
        dims = range(x.ndim) if dims in (None, []) else [dims] if isinstance(dims, int) else dims
        axes = tuple(sorted(x.axis(d) for d in dims))
        names = np.moveaxis(x.names, axes, range(len(axes)))
        names = names.reshape(-1, *names.shape[len(axes) :])
        out = np.empty(names.shape[1:], dtype=object)
        for place in np.ndindex(*out.shape):
            first, *others = names[(slice(None), *place)]
            for name in others:
                first = self.emit(text.format(first, name), x.kind)
            out[place] = first
        return x.like(np.expand_dims(out, axes) if keep else out)


class Call(NamedTuple):
    """An operator that ran."""

    result: Any
    args: tuple[Any, ...]  # cells where a tensor was given
    options: dict[str, Any]
    tensors: tuple[Any, ...]  # the same arguments as they were given

    def get(self, place: int, name: str, default: Any = None) -> Any:
        """An argument by its place or its name."""
        if len(self.args) > place:
            return self.args[place]
        return self.options.get(name, default)

    def over(self, operands: Iterable[Any]) -> tuple[tuple[int, ...], bool]:
        """`inner`, of a result that has the worlds' axis if one of its operands has it."""
        worlds = any(isinstance(x, Cells) and x.worlds for x in operands)
        return tuple(self.result.shape[int(worlds) :]), worlds

    def inner(self) -> tuple[tuple[int, ...], bool]:
        """The shape of the result without the worlds' axis, and whether it has one."""
        shape = tuple(self.result.shape)
        worlds = bool(shape) and shape[0] == ROWS
        return (shape[1:] if worlds else shape), worlds


def literal(x: Any, kind: str) -> str:
    """A number of the code."""
    if kind == "bool":
        return "true" if x else "false"
    if kind in WHOLE:
        return f"{kind}({int(x)})"
    if not math.isfinite(x):
        return f"{kind}({'NAN' if math.isnan(x) else 'INFINITY' if x > 0 else '-INFINITY'})"
    return f"{kind}({float(x)!r})"


def entry(argument: str, place: Any) -> str:
    """An entry of an array: of a row of this world, or of a constant."""
    return f"{argument}_[{place}]"


def as_names(names: list[str], shape: Any) -> np.ndarray:
    """A list of names in a shape."""
    array = np.empty(len(names), dtype=object)
    array[:] = names
    return array.reshape(tuple(shape))


def one_for_all(names: np.ndarray, ndim: int) -> np.ndarray:
    """The names of a tensor without worlds, with the axes of those of one world."""
    if names.ndim <= ndim:
        return names
    if len(names) != 1:
        raise UnknownOperator("numbers of each world that no operator made")
    return names[0]


def each(function: Callable[[str], str], names: np.ndarray) -> np.ndarray:
    """A function of each name."""
    return as_names([function(name) for name in names.ravel()], names.shape)


def cells_of(inputs: Any) -> list[Any]:
    """The cells among arguments or results, those in lists too."""
    return tree_leaves(inputs, is_leaf=lambda x: isinstance(x, Cells))
