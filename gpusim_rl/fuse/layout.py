"""Operators of torch that compute nothing: views, joins, new tensors and look-ups.

They rearrange the names of scalars, and only look-ups become code.
"""

from collections.abc import Callable
from functools import partial
from operator import mul
from typing import Any

import numpy as np

from gpusim_rl.fuse.trace import (
    KINDS,
    ROWS,
    Call,
    Cells,
    Flat,
    Tracer,
    UnknownOperator,
    as_names,
    entry,
    literal,
    one_for_all,
)

OPERATORS: dict[str, Callable[[Tracer, Call], Any]] = {}  # of operators.py, too


def operator(*names: str):
    """Take a function as the translation of these operators."""

    def add(function: Callable[[Tracer, Call], Any]):
        OPERATORS.update(dict.fromkeys(names, function))
        return function

    return add


@operator("alias", "detach", "lift_fresh")
def same(t: Tracer, call: Call) -> Cells:
    return call.args[0]


@operator("slice")
def slice_(t: Tracer, call: Call) -> Cells:
    x, dim = call.args[0], call.get(1, "dim", 0)
    if x.worlds and dim % x.ndim == 0:
        if call.result.shape[0] != ROWS:
            raise UnknownOperator("a slice of the worlds")
        return x
    place = slice(call.get(2, "start"), call.get(3, "end"), call.get(4, "step", 1))
    return x.like(x.names[(*[slice(None)] * x.axis(dim), place)])


@operator("select")
def select(t: Tracer, call: Call) -> Cells:
    x, dim, index = call.args[:3]
    # with `...` also one name is a view, which can be written to
    return x.like(np.moveaxis(x.names, x.axis(dim), 0)[index, ...])


@operator("unsqueeze")
def unsqueeze(t: Tracer, call: Call) -> Cells:
    x, dim = call.args[:2]
    axis = dim % (x.ndim + 1) - x.worlds
    if axis < 0:
        raise UnknownOperator("an axis before that of the worlds")
    return x.like(np.expand_dims(x.names, axis))


@operator("expand")
def expand(t: Tracer, call: Call) -> Cells:
    x, (shape, worlds) = call.args[0], call.inner()
    names = one_for_all(x.names, len(shape)) if worlds and not x.worlds else x.names
    return Cells(np.broadcast_to(names, shape), worlds, x.kind)


@operator("view", "_unsafe_view", "reshape", "squeeze", "unflatten")
def view(t: Tracer, call: Call) -> Cells:
    x, (shape, worlds) = call.args[0], call.inner()
    if x.worlds and not worlds:  # (B n, …): the axis of the worlds and the next one as one
        whole, rest = call.result.shape[0], call.result.shape[1:]
        if whole % ROWS:
            raise UnknownOperator("a view that moves the worlds")
        return Flat(x.names.reshape(whole // ROWS, *rest), True, x.kind)
    if worlds and not x.worlds:
        raise UnknownOperator("a view that makes an axis of worlds")
    return Cells(x.names.reshape(shape), worlds, x.kind)


@operator("permute", "transpose", "t")
def permute(t: Tracer, call: Call) -> Cells:
    x = call.args[0]
    order = list(range(x.ndim))
    if len(call.args) == 2:
        order = [d % x.ndim for d in call.args[1]]
    else:
        a, b = (d % x.ndim for d in (call.args[1:] or (0, 1)))
        order[a], order[b] = b, a
    if x.worlds and order[0] != 0:
        raise UnknownOperator("a permutation that moves the worlds")
    return x.like(x.names.transpose([d - x.worlds for d in order if d - x.worlds >= 0]))


@operator("diagonal")
def diagonal(t: Tracer, call: Call) -> Cells:
    x, axes = call.args[0], [call.get(i, f"dim{i - 1}", i - 2) for i in (2, 3)]
    return x.like(np.diagonal(x.names, call.get(1, "offset", 0), *map(x.axis, axes)))


@operator("flip")
def flip(t: Tracer, call: Call) -> Cells:
    x = call.args[0]
    return x.like(np.flip(x.names, tuple(x.axis(d) for d in call.args[1])).copy())


@operator("roll")
def roll(t: Tracer, call: Call) -> Cells:
    x, dims = call.args[0], call.get(2, "dims", [])
    return x.like(np.roll(x.names, call.args[1], [x.axis(d) for d in dims]))


@operator("repeat")
def repeat(t: Tracer, call: Call) -> Cells:
    x, times = call.args[0], call.args[1]
    if x.worlds and times[0] != 1:
        raise UnknownOperator("a repetition of the worlds")
    return x.like(np.tile(x.names, times[1:] if x.worlds else times))


@operator("unbind")
def unbind(t: Tracer, call: Call) -> list[Cells]:
    x = call.args[0]
    names = np.moveaxis(x.names, x.axis(call.get(1, "dim", 0)), 0)
    return [x.like(names[i, ...]) for i in range(len(names))]


@operator("split", "split_with_sizes", "chunk")
def split(t: Tracer, call: Call) -> list[Cells]:
    x, axis = call.args[0], call.args[0].axis(call.get(2, "dim", 0))
    dim = axis + x.worlds
    ends = np.cumsum([part.shape[dim] for part in call.result])
    return [x.like(names) for names in np.split(x.names, ends[:-1], axis)]


def join(numpys: Callable[..., np.ndarray], t: Tracer, call: Call) -> Cells:
    """What NumPy does with names, such as `stack`. As in torch, an empty one (0,) is left out."""
    kind = KINDS[call.result.dtype]
    parts = [x for x in call.args[0] if x.names.size or x.names.ndim > 1 or x.worlds]
    worlds = any(x.worlds for x in parts)
    dim = call.get(1, "dim", 0) % call.result.ndim - worlds
    if dim < 0 or any(x.worlds != worlds for x in parts):
        raise UnknownOperator("worlds side by side")
    return Cells(numpys([t.converted(x, kind).names for x in parts], dim), worlds, kind)


OPERATORS.update({"cat": partial(join, np.concatenate), "stack": partial(join, np.stack)})


@operator("constant_pad_nd")
def pad(t: Tracer, call: Call) -> Cells:
    x, sizes, value = call.args[0], call.args[1], call.get(2, "value", 0)
    widths = [(0, 0)] * x.names.ndim
    for k in range(len(sizes) // 2):
        widths[-1 - k] = (sizes[2 * k], sizes[2 * k + 1])
    return x.like(np.pad(x.names, widths, constant_values=literal(value, x.kind)))


FILLED = "zeros zeros_like new_zeros ones ones_like new_ones full full_like new_full scalar_tensor"
EMPTY = "empty empty_like new_empty empty_strided new_empty_strided"


@operator("arange", "linspace")
def along(t: Tracer, call: Call) -> Cells:
    if call.inner()[1]:
        raise UnknownOperator("numbers along the worlds")
    return new(t, call)


@operator(*FILLED.split(), *EMPTY.split())
def new(t: Tracer, call: Call) -> Cells:
    """A new tensor of numbers that no tensor decides. Its values stand in the code."""
    (shape, worlds), kind = call.inner(), KINDS[call.result.dtype]
    row = call.result[0] if worlds else call.result
    # read on the host while the code is written, before any iteration
    names = [literal(x, kind) for x in row.flatten().tolist()]
    return Cells(as_names(names, shape), worlds, kind)


@operator("slice_scatter")
def slice_scatter(t: Tracer, call: Call) -> Cells:
    place = slice(call.get(3, "start"), call.get(4, "end"), call.get(5, "step", 1))
    return replaced(t, call.args[0], call.args[1], call.get(2, "dim", 0), place)


@operator("index_copy")
def index_copy(t: Tracer, call: Call) -> Cells:
    x, dim, index, part = call.args[:4]
    return replaced(t, x, part, dim, t.fixed_index(index, call.tensors[2]))


def replaced(t: Tracer, x: Cells, part: Cells, dim: int, place: Any) -> Cells:
    """x with a part at places of an axis."""
    out, axis = x.names.copy(), x.axis(dim)
    np.moveaxis(out, axis, 0)[place] = np.moveaxis(t.converted(part, x.kind).names, axis, 0)
    return x.like(out)


# -- look-ups --------------------------------------------------------------------------------------


@operator("index_select")
def index_select(t: Tracer, call: Call) -> Cells:
    x, dim, index = call.args[:3]
    if not index.worlds:  # known when the code is written
        return x.like(np.take(x.names, t.fixed_index(index, call.tensors[2]), x.axis(dim)))
    if x.worlds or dim % x.ndim != 0:
        raise UnknownOperator("a look-up in another axis than the first")
    return looked_up(t, call, x, [index])


@operator("index", "_unsafe_index")
def index(t: Tracer, call: Call) -> Cells:
    x, places = call.args[:2]
    if not any(isinstance(p, Cells) and p.worlds for p in places):
        if x.worlds and places[0] is not None:
            raise UnknownOperator("a choice of worlds")
        at = tuple(
            slice(None) if p is None else np.array(t.fixed_index(p, y))
            for p, y in zip(places, call.tensors[1], strict=True)
        )
        return x.like(x.names[at[x.worlds :]])
    if x.worlds or any(p is None for p in places):
        raise UnknownOperator("a look-up in another axis than the first")
    return looked_up(t, call, x, places)


def looked_up(t: Tracer, call: Call, x: Cells, places: list[Cells]) -> Cells:
    """Entries of a table at computed places of its first axes."""
    table = x.table or t.view_of_constant(call.tensors[0])
    axes = len(places)
    rest = x.names.shape[axes:]
    shape = np.broadcast_shapes(*(p.names.shape for p in places))
    arrays = [np.broadcast_to(p.names, shape) for p in places]
    t.places.update(name for array in arrays for name in array.ravel())
    out = np.empty((*shape, *rest), dtype=object)
    whole = t.constants[table]
    strides = whole.stride()
    inner = [sum(map(mul, at, strides[axes:])) for at in np.ndindex(*rest)]
    for place in np.ndindex(*shape):
        sizes = zip(arrays, whole.shape, strides, strict=False)
        terms = [f"entry_of({a[place]}, {size}) * {stride}" for a, size, stride in sizes]
        at = t.emit(" + ".join(terms), "int64")
        row = [t.emit(entry(table, f"{at} + {k}"), x.kind) for k in inner]
        out[place] = as_names(row, rest) if rest else row[0]
    flat = any(isinstance(p, Flat) for p in places)
    return (Flat if flat else Cells)(out, True, x.kind)


@operator("gather")
def gather(t: Tracer, call: Call) -> Cells:
    """Entries of a row at places that are computed: a chain of comparisons. Of a place that is
    not in the row, where torch would raise, the nearest."""
    x, dim, at = call.args[:3]
    t.places.update(at.names.ravel())
    axis, (shape, worlds) = x.axis(dim), call.inner()
    out = np.empty(shape, dtype=object)
    for place in np.ndindex(*shape):
        options = x.names[(*place[:axis], slice(None), *place[axis + 1 :])]
        name = options[-1]
        for k in reversed(range(len(options) - 1)):
            name = t.emit(f"{at.names[place]} <= int64({k}) ? {options[k]} : {name}", x.kind)
        out[place] = name
    return Cells(out, worlds, x.kind)
