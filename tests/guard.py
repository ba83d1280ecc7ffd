"""A guard under which any read of a tensor on the host, and any copy of host data to the device, is
an error.

On the CPU such a read costs nothing and would go unnoticed; on a GPU it stalls the device and
cannot be captured in a CUDA graph. A TorchDispatchMode sees what reaches an operator, inside
backward too; a TorchFunctionMode sees what never does on CPU tensors (`tolist`, `numpy`, `cpu`,
`torch.tensor(list)`); Warp's and two of torch's functions have to be replaced for the time.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import pytest
import torch
import warp as wp
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from gpusim_rl.core import graphs

aten = torch.ops.aten
# Operators whose value or shape the host has to know carry these tags; `index` has one too, for its
# masks alone.
TAGS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
READS = {aten.equal, aten.allclose, aten.is_nonzero, aten.randperm}  # and these have none
INDEXING = {aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_, aten._unsafe_index}
DUNDERS = "array dlpack repr format contains bool int float index complex".split()
METHODS = {Tensor.item, Tensor.tolist, Tensor.numpy, Tensor.cpu}
METHODS |= {getattr(Tensor, f"__{name}__") for name in DUNDERS}
# They copy host data, unless they are given a tensor.
COPIES = {torch.tensor, torch.as_tensor, torch.asarray, Tensor.new_tensor}
ITEMS = {Tensor.__getitem__, Tensor.__setitem__}
WARP = (
    *("synchronize", "synchronize_device", "synchronize_stream", "synchronize_event", "from_numpy"),
    # Outside a CUDA capture they read their condition, on the CPU straight from memory.
    *("capture_while", "capture_if"),
)


class HostRead(RuntimeError):
    """A tensor was read on the host, or host data copied to the device."""


class Switch:
    """Whether the guard looks, and how many calls it has looked at."""

    on, seen = True, 0

    @contextmanager
    def off(self) -> Iterator[None]:
        before, self.on = self.on, False
        try:
            yield
        finally:
            self.on = before

    def refuse(self, what: str) -> None:
        if self.on:
            raise HostRead(what)


class Operators(TorchDispatchMode):
    """Sees every operator, with Python's sugar already gone."""

    def __init__(self, switch: Switch):
        super().__init__()
        self.switch = switch

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.switch.seen += self.switch.on
        packet = func.overloadpacket
        if packet in INDEXING:
            if any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in args[1]):
                self.switch.refuse(f"{func} with a mask")
        elif packet in READS or TAGS & set(func.tags):
            self.switch.refuse(str(func))
        return func(*args, **(kwargs or {}))


class Functions(TorchFunctionMode):
    """Sees every function of torch that Python calls."""

    def __init__(self, switch: Switch):
        super().__init__()
        self.switch = switch

    def __torch_function__(self, func, types, args=(), kwargs=None):
        data = args[1 if func is Tensor.new_tensor else 0] if args else None
        if func in METHODS or (func in COPIES and not isinstance(data, Tensor)):
            self.switch.refuse(func.__name__)
        if func in ITEMS:
            places = args[1] if isinstance(args[1], tuple) else (args[1],)
            if any(isinstance(place, list | np.ndarray) for place in places):
                self.switch.refuse("indexing with a list")
        return func(*args, **(kwargs or {}))


@contextmanager
def guard(*exempt: tuple[object, str]) -> Iterator[Switch]:
    """Raise HostRead at any host read, except inside the methods `exempt`, (object, name) each."""
    switch = Switch()

    def suspended(method):
        def call(*args, **kwargs):
            with switch.off():
                return method(*args, **kwargs)

        return call

    def refused(name, function):
        def call(*args, **kwargs):
            switch.refuse(name)
            return function(*args, **kwargs)

        return call

    def building(self, data=None, *args, **kwargs):
        if data is not None:
            switch.refuse("wp.array of host data")
        build(self, data, *args, **kwargs)

    build = wp.array.__init__
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(graphs, "SKIPS", False)  # do what a GPU does
        arrays = (wp.array, ("numpy", "list"))
        for owner, names in ((torch, ("from_numpy", "frombuffer")), (wp, WARP), arrays):
            for name in names:
                refuse = refused(f"{owner.__name__}.{name}", getattr(owner, name))
                patch.setattr(owner, name, refuse)
        patch.setattr(wp.array, "__init__", building)
        for owner, name in exempt:
            patch.setattr(owner, name, suspended(getattr(owner, name)))
        stack.enter_context(Operators(switch))
        stack.enter_context(Functions(switch))
        yield switch


def exempt(made: Any) -> list[tuple[object, str]]:
    """Native's engine is on the host by nature: its own step and reset may read."""
    return [] if made.env.sim.capturable else [(made.env.sim, "step"), (made.env.sim, "reset")]


def reads_nothing(made: Any, iterations: int = 1, *, calls: int = 1000) -> set[str]:
    """Iterations under the guard, which looks at more than so many calls.

    Returns the tensors of the policy that they left as they were. What is made at the first call,
    such as graphs, is building: run an iteration before.
    """
    state = made.policy.state_dict()
    before = {name: x.clone() for name, x in state.items()}
    with guard(*exempt(made)) as switch:
        for _ in range(iterations):
            made.iteration()
    assert switch.seen > calls
    return {name for name, x in before.items() if torch.equal(x, state[name])}
