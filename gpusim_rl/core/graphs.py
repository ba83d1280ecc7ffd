"""`capture(fn)` replays fixed work, `PartTimer` times it, `fetch` reads a result of it later.

On CUDA a graph holds all that fn launched, torch's kernels and Warp's. On the CPU only Warp can
record. So a function of Warp launches alone (`kernels=True`) is captured there, and every other
one simply runs.
"""

# torch has no types for some of its members:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownLambdaType=false

import functools
import gc
import itertools
import sys
import time
import weakref
from collections.abc import Callable
from operator import add, sub
from typing import Any, NamedTuple

import torch
import warp as wp
from torch import Tensor

from gpusim_rl.core.streams import one_stream, warp_stream

# Calls that simply run before one is captured: meanwhile modules load and libraries choose.
# Why: docs/decisions/graphs.md
WARM_UP = 3
SKIPS = True  # whether work on no world is left out on the CPU, with the same results
_recording = False  # what is called now is being recorded, and not run
_warming_up = False  # what is called now belongs to a function that will be captured as a whole


class Graph:
    """A function that runs as it is at first, and is then captured once and replayed.

    `capture` returns it. Within another function that is or will be captured, fn is simply a part
    of that one. `reason` says why fn is not captured, or is empty. A graph holds addresses. So with
    other tensors or numbers as arguments, or a tensor of another shape, fn is captured anew.
    """

    def __init__(
        self,
        fn: Callable[..., None],
        device: torch.device | str,
        *,
        kernels: bool = False,
        on: bool = True,
    ):
        one_stream(device)
        self.fn, self.device = fn, torch.device(device)
        self.graph: Callable[[], Any] | None = None
        self.calls, self.key = 0, ()
        _ALL.add(self)
        self.reason = "" if on else "switched off"
        if not kernels and self.device.type == "cpu":
            self.reason = self.reason or "torch on the CPU has no graphs"

    def __call__(self, *args: Any) -> None:
        global _warming_up
        if self.reason or _recording or _warming_up:
            return self.fn(*args)
        key = tuple((x.data_ptr(), x.shape) if isinstance(x, Tensor) else x for x in args)
        if key != self.key:
            self.key, self.graph, self.calls = key, None, 0
        self.calls += 1
        if self.calls <= WARM_UP:
            _warming_up = True
            try:
                return self.fn(*args)
            finally:
                _warming_up = False
        if self.graph is None:
            try:
                self.graph = record(functools.partial(self.fn, *args), self.device)
            # Of any kind: where a driver, library or device cannot, go on without, and say so.
            except Exception as error:
                # Ending a capture that broke raises too: the first error is the cause.
                while error.__context__:
                    error = error.__context__
                name = getattr(self.fn, "__qualname__", repr(self.fn))
                self.reason = " ".join(str(error).split()) or type(error).__name__
                print(f"{name} runs without a graph: {self.reason}", file=sys.stderr, flush=True)
                return self.fn(*args)
        self.graph()


capture = Graph
_ALL: weakref.WeakSet[Graph] = weakref.WeakSet()


def release_graphs() -> None:
    """Drop all graphs of this process. What is called again is captured again."""
    for captured in _ALL:
        captured.graph, captured.calls = None, 0


def record(fn: Callable[[], None], device: torch.device) -> Callable[[], Any]:
    """A function that replays what fn launches. Now fn is only recorded, and does not run."""
    global _recording
    collects = gc.isenabled()
    gc.disable()  # an object that frees device memory meanwhile would invalidate the capture
    _recording = True
    try:
        if device.type == "cpu":
            with wp.ScopedCapture(device="cpu") as captured:
                fn()
            return functools.partial(wp.capture_launch, captured.graph)  # pyright: ignore
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream(device)
        # thread_local: the thread that writes checkpoints may call CUDA meanwhile
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            ours = warp_stream(device)
            wp.capture_begin(stream=ours, external=True, force_module_load=False)
            try:
                fn()
            finally:
                warp_graph = wp.capture_end(stream=ours)  # it holds the kernels' modules
        return lambda warp_graph=warp_graph: graph.replay()
    finally:
        _recording = False
        if collects:
            gc.enable()


class PartTime(NamedTuple):
    """Time [s] of a part, and the processor time of all threads in it; 0 on CUDA."""

    wall: float = 0.0
    processor: float = 0.0


class PartTimer:
    """Time spent in the named parts of repeated work, by CUDA events or the clock."""

    def __init__(self, device: torch.device):
        self.cuda = device.type == "cuda"
        self.stamps: list[tuple[str, Any]] = []

    def start(self, name: str) -> None:
        """Begin a part; without a name, what follows belongs to none."""
        if _recording:
            return
        if self.cuda:
            stamp = torch.cuda.Event(enable_timing=True)
            stamp.record()
        else:
            stamp = time.perf_counter(), time.process_time()
        self.stamps.append((name, stamp))

    def read(self) -> Callable[[], dict[str, PartTime]]:
        """Start anew. The function returned gives each part's time, once the device is so far."""
        stamps, self.stamps = self.stamps, []

        def spent() -> dict[str, PartTime]:
            parts: dict[str, PartTime] = {}
            for (name, a), (_, b) in itertools.pairwise(stamps):
                if name:
                    before = parts.get(name, PartTime())
                    more = (a.elapsed_time(b) / 1e3, 0.0) if self.cuda else map(sub, b, a)
                    parts[name] = PartTime(*map(add, before, more))
            return parts

        return spent


def fetch(values: Tensor) -> Callable[[], list[float]]:
    """Begin to copy values (n,) to the host; the function returned waits for that copy alone."""
    if values.device.type == "cpu":
        numbers = values.tolist()  # outside the iteration
        return lambda: numbers
    # only to pinned memory does a copy run while the host goes on
    host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    host.copy_(values, non_blocking=True)
    arrived = torch.cuda.Event()
    arrived.record()

    def read() -> list[float]:
        arrived.synchronize()
        return host.tolist()  # outside the iteration

    return read


# Why: docs/decisions/graphs.md
def rows_on_host(mask: Tensor) -> Tensor | None:
    """(n,) int64, the rows where a mask (B,) is true, if the host knows them: those to write.

    A GPU writes all of them, under the mask.
    """
    return mask.nonzero()[:, 0] if SKIPS and mask.device.type == "cpu" else None


def is_empty_on_host(mask: Tensor) -> bool:
    """Whether the host knows that a mask is false everywhere: then work can be left out."""
    return SKIPS and mask.device.type == "cpu" and not mask.numpy().any()
