"""Live tensors by name: what `tensors()` returns, and what a checkpoint holds of it."""

from typing import NamedTuple

import torch
from torch import Tensor

from gpusim_rl.core.distributed import SINGLE, ProcessGroup

Rows = dict[str, Tensor]  # name → (B, …)
Layout = dict[str, tuple[tuple[int, ...], torch.dtype]]  # shape and type of each tensor, by name


class Live(NamedTuple):
    """A tensor that changes while a training runs, at a fixed address."""

    tensor: Tensor
    worlds: bool  # it has a row for each world of this process, else all processes share it


def per_world(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Live]:
    """Tensors with a row for each world, under names that begin with `prefix`."""
    return {prefix + name: Live(x, True) for name, x in tensors.items()}


def shared(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Live]:
    """Tensors that all processes have in common, under names that begin with `prefix`."""
    return {prefix + name: Live(x, False) for name, x in tensors.items()}


def beside(mask: Tensor, x: Tensor) -> Tensor:
    """mask (B,) as (B, 1, …), with as many axes as x (B, …)."""
    return mask.view(-1, *[1] * (x.ndim - 1))


def store(live: Rows, changed: Rows) -> None:
    """Write new rows to the live ones; others are left out. In place."""
    # a new row may be a live one: what a step reads, it reads before anything is written
    new = separate({name: x for name, x in changed.items() if name in live}, live)
    for name, x in new.items():
        live[name].copy_(x)


def separate(changed: Rows, live: Rows) -> Rows:
    """Rows of which none is a live one, nor a view: such are copied."""
    shared = {id(x) for x in live.values()}
    return {k: x.clone() if x._is_view() or id(x) in shared else x for k, x in changed.items()}


def copy_state(live: dict[str, Live], group: ProcessGroup = SINGLE) -> dict[str, Tensor]:
    """Copies of live tensors by name, with the worlds of all processes."""
    state: dict[str, Tensor] = {}
    for name, (x, worlds) in live.items():
        # what is gathered of several processes is a copy already
        rows = group.all_gather(x) if worlds else x
        state[name] = rows.detach().clone() if rows is x else rows
    return state


@torch.no_grad()
def load_state(
    live: dict[str, Live], state: dict[str, Tensor], group: ProcessGroup = SINGLE
) -> None:
    """Write what `copy_state` returned, each process the rows of its own worlds. In place."""
    for name, (x, worlds) in live.items():
        x.copy_(group.rows(state[name]) if worlds else state[name])


def state_layout(live: dict[str, Live], group: ProcessGroup = SINGLE) -> Layout:
    """Shapes and types of what `copy_state` returns. Runs no tensor operation."""
    return {
        name: ((group.size * x.shape[0], *x.shape[1:]) if worlds else tuple(x.shape), x.dtype)
        for name, (x, worlds) in live.items()
    }


def layout(state: dict[str, Tensor]) -> Layout:
    """Shape and type of each tensor of a state."""
    return {name: (tuple(x.shape), x.dtype) for name, x in state.items()}


def check_layout(state: dict[str, Tensor], expected: Layout, where: str) -> None:
    """ValueError that names the first tensor that is missing, too many, or of another kind.

    Runs no tensor operation.
    """
    actual = layout(state)
    for name in sorted(expected.keys() | actual.keys()):
        if actual.get(name) != expected.get(name):
            there, here = (
                f"{entry[0]} {entry[1]}" if entry else "nothing"
                for entry in (actual.get(name), expected.get(name))
            )
            what = f"{name!r} is {there} there and {here} here"
            raise ValueError(f"{where} does not fit this run: {what}")
