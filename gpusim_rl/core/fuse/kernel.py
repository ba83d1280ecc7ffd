"""`fuse`: a pure function of B worlds as one Warp kernel, or as it is where it has none."""

import hashlib
import importlib.util
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
import warp as wp
from torch import Tensor

from gpusim_rl.core.files import write_whole
from gpusim_rl.core.fuse.operators import OPERATORS
from gpusim_rl.core.fuse.trace import KINDS, NAME, ROWS, Cells, Tracer, UnknownOperator
from gpusim_rl.core.states import Rows
from gpusim_rl.core.streams import start_warp, warp_stream

Function = Callable[[Rows], Rows]


class Place(NamedTuple):
    """Where a result (B, …) is written."""

    tensor: Tensor  # (B, …); with `row` (R, B, …)
    row: Tensor | None = None  # (1,) int64: the index along the first axis
    guard: str = ""  # the result (B,) bool that says which worlds are written; "": all

    def view(self, worlds: int) -> Tensor:
        """((R,) B, n): the tensor with the numbers of a world along one axis."""
        lead = self.tensor.shape[: 1 if self.row is None else 2]
        assert lead[-1] == worlds
        return self.tensor.view(*lead, -1)

    def now(self) -> Tensor:
        """(B, …) what is there now."""
        return self.tensor if self.row is None else self.tensor.index_select(0, self.row)[0]

    def blank(self, worlds: int) -> "Place":
        """Another place like it, of zeros."""
        if self.row is None:
            return Place(self.tensor.new_zeros(worlds, *self.tensor.shape[1:]), None, self.guard)
        tensor = self.tensor.new_zeros(1, worlds, *self.tensor.shape[2:])
        return Place(tensor, torch.zeros_like(self.row), self.guard)

    def write(self, value: Tensor, results: Rows) -> None:
        """Write a result with torch. In place."""
        place = self.now()
        value = value.reshape(place.shape).to(place.dtype)
        if self.guard:
            value = torch.where(results[self.guard].view(-1, *[1] * (place.ndim - 1)), value, place)
        if self.row is None:
            place.copy_(value)
        else:
            self.tensor.index_copy_(0, self.row, value[None])


class Eager:
    """A function that runs as torch does it: what `fuse` returns where there is no kernel.

    Calling it computes the results of the live rows, and then writes them to their places.
    """

    def __init__(self, name: str, function: Function, rows: Rows, places: dict[str, Place]):
        self.name, self.function, self.rows, self.places = name, function, rows, places

    @property
    def about(self) -> str:
        """A line on what runs."""
        return f"{self.name}: as torch runs it"

    @torch.no_grad()
    def __call__(self) -> None:
        results = self.function(self.rows)
        # what a result shares with a row is read before the row is written
        taken = {x.untyped_storage().data_ptr() for x in self.rows.values()}
        shared = {k for k in self.places if results[k].untyped_storage().data_ptr() in taken}
        results |= {key: results[key].clone() for key in shared}
        for name, place in self.places.items():
            place.write(results[name], results)


class Kernel(Eager):
    """A function as a Warp kernel with a thread for each world.

    A thread reads its row before it writes anything, so that a place may be a row, too.

    Args:
        name: of the kernel in messages and files.
        function: rows (B, …) by name → results (B, …) by name; it writes to nothing. Every other
            tensor that it reads is an argument of the kernel, and stays live.
        rows: the live rows.
        places: result → where it is written. Guarded ones are written first.

    Attributes:
        source: the module of the kernel.
        operators: operators of torch that it replaces.

    Raises:
        UnknownOperator: an operator has no translation.
    """

    def __init__(self, name: str, function: Function, rows: Rows, places: dict[str, Place]):
        super().__init__(name, function, rows, places)
        start_warp()
        self.device = next(iter(rows.values())).device
        self.example = {key: example_rows(x) for key, x in rows.items()}
        self.arguments = {key: f"r{k}" for k, key in enumerate(rows)}
        self.outputs = {key: f"o{k}" for k, key in enumerate(places)}
        tracer = Tracer(OPERATORS, self.device)
        results = self._trace(tracer)
        self.operators, self.constants = tracer.count, tracer.constants
        self.source = self._write_source(tracer, results)
        self.kernel = load(self.source)
        self._launch, self._alive = self._bind(rows, places)

    @property
    def about(self) -> str:
        lines, path = self.source.count("\n"), source_path(self.source)
        return f"{self.name}: {self.operators} operators of torch in {lines} lines: {path}"

    @torch.no_grad()
    def _trace(self, tracer: Tracer) -> dict[str, Cells]:
        """Run the function on the example, and return the cells of its results."""
        rows = {key: x.clone() for key, x in self.example.items()}
        for key, x in rows.items():
            tracer.rows(self.arguments[key], x)
        with tracer:
            results = self.function(rows)
        cells = {key: tracer.cells(results[key]) for key in self.places}
        guards = {place.guard for place in self.places.values() if place.guard}
        return cells | {key: tracer.cells(results[key]) for key in guards}

    def _write_source(self, tracer: Tracer, results: dict[str, Cells]) -> str:
        """The source of the module: what the results need, and no more."""
        stores = self._stores(tracer, results)
        needed: set[str] = set()
        for text in stores:
            needed.update(NAME.findall(text))
        lines = []
        for name, text in reversed(tracer.lines):
            if name in needed:
                needed.update(NAME.findall(text))
                lines.append(f"    {name} = {text}")
        body = "\n".join([*reversed(lines), *stores])
        self.rows = {k: x for k, x in self.rows.items() if f" {self.arguments[k]}[" in body}
        self.constants = {k: x for k, x in tracer.constants.items() if f"{k}[" in body}
        indices = {key: place.row for key, place in self.places.items() if place.row is not None}
        arguments = [self._argument(self.arguments[k], x, 2) for k, x in self.rows.items()]
        arguments += [self._argument(k, x, max(x.ndim, 1)) for k, x in self.constants.items()]
        arguments += [f"    t{k}: wp.array[wp.int64]," for k, _ in enumerate(indices)]
        arguments += [
            self._argument(self.outputs[k], p.tensor, 2 if p.row is None else 3)
            for k, p in self.places.items()
        ]
        return HEAD + "\n".join(arguments) + "\n):\n    i = wp.tid()\n" + body + "\n"

    def _argument(self, name: str, x: Tensor, ndim: int) -> str:
        return f"    {name}: wp.array{f'{ndim}d' if ndim > 1 else ''}[wp.{KINDS[x.dtype]}],"

    def _stores(self, tracer: Tracer, results: dict[str, Cells]) -> list[str]:
        """The statements that write the results, those under a guard first."""
        stores: dict[str, list[str]] = {}
        rows = [key for key, place in self.places.items() if place.row is not None]
        for key, place in self.places.items():
            cells, kind = results[key], KINDS[place.tensor.dtype]
            first = "" if place.row is None else f"wp.int32(t{rows.index(key)}[0]), "
            for j, name in enumerate(cells.names.ravel()):
                value = tracer.cast(name, cells.kind, kind)
                text = f"{self.outputs[key]}[{first}i, {j}] = {value}"
                stores.setdefault(place.guard, []).append(text)
        texts = []
        for guard in sorted(stores, reverse=True):
            indent = "    "
            if guard:
                texts.append(f"    if {results[guard].names[()]}:")
                indent = "        "
            texts += [indent + text for text in stores[guard]]
        return texts

    def _bind(self, rows: Rows, places: dict[str, Place]) -> tuple[Any, Any]:
        """A recorded launch on live tensors, and what it needs to stay alive."""
        worlds = len(next(iter(rows.values())))
        flat = [rows[key].view(worlds, -1) for key in self.rows]
        flat += [x.view(1) if x.ndim == 0 else x for x in self.constants.values()]
        flat += [place.row for place in places.values() if place.row is not None]
        out = [place.view(worlds) for place in places.values()]
        launch = wp.launch(
            self.kernel,
            dim=worlds,
            inputs=[wp.from_torch(x.detach()) for x in flat],
            outputs=[wp.from_torch(x) for x in out],
            device=wp.device_from_torch(self.device),
            record_cmd=True,
        )
        return launch, (flat, out)

    def __call__(self) -> None:
        self._launch.launch(warp_stream(self.device))

    @torch.no_grad()
    def difference(self, example: Rows | None = None) -> dict[str, float]:
        """Result → its largest difference from torch's on an example, relative to 1 + its size.

        Whole numbers and truth values that differ give infinity.
        """
        rows = {k: x.clone() for k, x in (example or self.example).items()}
        count = len(next(iter(rows.values())))
        outs = {key: place.blank(count) for key, place in self.places.items()}
        launch, _alive = self._bind(rows, outs)
        launch.launch(warp_stream(self.device))
        results = self.function(rows)
        return {
            key: largest_difference(results[key], place.now(), results.get(place.guard))
            for key, place in outs.items()
        }


def fuse(
    name: str, function: Function, rows: Rows, places: dict[str, Place], *, on: bool = True
) -> Eager:
    """A function as one kernel; if an operator has none, as torch runs it, with a line on stderr.

    Args: as `Kernel` has them.
        on: whether a kernel is wanted.
    """
    if not on:
        return Eager(name, function, rows, places)
    try:
        kernel = Kernel(name, function, rows, places)
    except UnknownOperator as error:
        print(f"{name} runs as torch: {error}", file=sys.stderr, flush=True)
        return Eager(name, function, rows, places)
    wrong = {key: x for key, x in kernel.difference().items() if not x <= 1e-4}
    if wrong:
        key = next(iter(wrong))
        text = f"its kernel gives another {key} ({wrong[key]:.1e})"
        print(f"{name} runs as torch: {text}", file=sys.stderr, flush=True)
        return Eager(name, function, rows, places)
    return kernel


def example_rows(x: Tensor) -> Tensor:
    """The same rows, repeated or cut to ROWS of them."""
    times = -(-ROWS // len(x))
    return x.repeat(times, *[1] * (x.ndim - 1))[:ROWS].contiguous()


def largest_difference(right: Tensor, ours: Tensor, mask: Tensor | None) -> float:
    """The largest difference of results (B, …), relative to 1 + the size of the right one."""
    right = right.reshape(ours.shape).to(ours.dtype)
    if mask is not None:
        ours, right = ours[mask], right[mask]
    if not ours.numel():
        return 0.0
    if not ours.is_floating_point():
        return 0.0 if torch.equal(ours, right) else float("inf")
    same = (ours == right) | (ours.isnan() & right.isnan())
    apart = (ours - right).abs() / (1 + right.abs())
    return torch.where(same, 0.0, apart).max().item()


@cache
def load(source: str) -> Any:
    """The kernel of a source, from a module that is named by its content."""
    path = source_path(source)
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        write_whole(path, source.encode())
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.kernel


def source_path(source: str) -> Path:
    """Where the source of a kernel lies: beside what Warp compiles."""
    digest = hashlib.blake2s(source.encode(), digest_size=8).hexdigest()
    return Path(wp.config.kernel_cache_dir or "") / "gpusim_rl" / f"fused_{digest}.py"


HEAD = '''"""Written by gpusim_rl: do not edit."""

from typing import Any

import warp as wp

wp.set_module_options({"enable_backward": False, "fast_math": False})


@wp.func
def maximum(a: Any, b: Any):
    return wp.where(a != a or a > b, a, b)


@wp.func
def minimum(a: Any, b: Any):
    return wp.where(a != a or a < b, a, b)


@wp.func
def at_least(a: Any, low: Any):
    return wp.where(a < low, low, a)


@wp.func
def at_most(a: Any, high: Any):
    return wp.where(a > high, high, a)


@wp.func
def finite(a: Any, nan: Any, high: Any, low: Any):
    return wp.where(a != a, nan, at_most(at_least(a, low), high))


@wp.func
def log1p(x: float):
    u = 1.0 + x  # Kahan: what rounding takes from u, the quotient gives back
    return wp.where(u == 1.0, x, wp.log(u) * x / wp.where(u == 1.0, 1.0, u - 1.0))


@wp.func
def expm1(x: float):
    u = wp.exp(x)
    near = wp.abs(x) < 0.5 and u != 1.0
    return wp.where(near, (u - 1.0) * x / wp.log(wp.where(near, u, 2.0)), wp.where(u == 1.0, x, u - 1.0))


@wp.func
def normal_quantile(p: float):
    return 1.4142135623730951 * wp.erfinv(2.0 * p - 1.0)


@wp.func
def floor_quotient(a: wp.int64, b: wp.int64):
    q = a / b
    return wp.where(q * b != a and (a < wp.int64(0)) != (b < wp.int64(0)), q - wp.int64(1), q)


@wp.kernel(enable_backward=False)
def kernel(
'''
