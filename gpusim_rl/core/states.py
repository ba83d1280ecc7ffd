"""Flat dictionaries of tensors: what `state()` returns, `load()` takes and a checkpoint holds."""

import torch
from torch import Tensor

Layout = dict[str, tuple[tuple[int, ...], torch.dtype]]  # shape and type of each tensor, by name


def copies(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copies of the tensors, which later writes to them do not change."""
    return {name: x.detach().clone() for name, x in tensors.items()}


def layout(tensors: dict[str, Tensor]) -> Layout:
    """Shape and type of each tensor."""
    return {name: (tuple(x.shape), x.dtype) for name, x in tensors.items()}


def check_layout(state: dict[str, Tensor], expected: Layout, where: str) -> None:
    """Compare a state with the layout of a run. Runs no tensor operation.

    Raises:
        ValueError: names the first tensor that is missing, too many, or of another shape or type.
    """
    given = layout(state)
    for name in sorted(expected.keys() | given.keys()):
        if given.get(name) != expected.get(name):
            there, here = (
                f"{entry[0]} {entry[1]}" if entry else "nothing"
                for entry in (given.get(name), expected.get(name))
            )
            raise ValueError(
                f"{where} does not fit this run: {name!r} is {there} there and {here} here"
            )
