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
from gpusim_rl.core.fuse.trace import KINDS, NAME, ROWS, Cells, Tracer, UnknownOperator, entry
from gpusim_rl.core.states import Rows, separate
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
        results = separate(results, self.rows)
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
                lines.append(f"const auto {name} = {text};")
        body = "\n".join([*reversed(lines), *stores])
        self.rows = {k: x for k, x in self.rows.items() if f"({self.arguments[k]}, " in body}
        self.constants = {k: x for k, x in tracer.constants.items() if f"({k}, " in body}
        indices = [place.row for place in self.places.values() if place.row is not None]
        arguments = {self.arguments[k]: array_type(x, 2) for k, x in self.rows.items()}
        arguments |= {k: array_type(x, max(x.ndim, 1)) for k, x in self.constants.items()}
        arguments |= {f"t{k}": array_type(x, 1) for k, x in enumerate(indices)}
        for key, place in self.places.items():
            arguments[self.outputs[key]] = array_type(place.tensor, 2 + (place.row is not None))
        texts = ",\n".join(f"    {name}: {kind}" for name, kind in arguments.items())
        return MODULE.format(body=body, arguments=texts, names=", ".join(arguments))

    def _stores(self, tracer: Tracer, results: dict[str, Cells]) -> list[str]:
        """The statements that write the results, those under a guard first."""
        stores: dict[str, list[str]] = {}
        rows = [key for key, place in self.places.items() if place.row is not None]
        for key, place in self.places.items():
            cells, kind = results[key], KINDS[place.tensor.dtype]
            first = [] if place.row is None else [f"int32({entry(f't{rows.index(key)}', 0)})"]
            for j, name in enumerate(cells.names.ravel()):
                target = entry(self.outputs[key], *first, "i", j)
                text = f"{target} = {tracer.cast(name, cells.kind, kind)};"
                stores.setdefault(place.guard, []).append(text)
        texts = []
        for guard in sorted(stores, reverse=True):
            if guard:
                body = [f"    {text}" for text in stores[guard]]
                texts += [f"if ({results[guard].names[()]}) {{", *body, "}"]
            else:
                texts += stores[guard]
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
        ours, right = self.results(rows), self.function(rows)
        return {
            key: largest_difference(right[key], ours[key], right.get(place.guard))
            for key, place in self.places.items()
        }

    def results(self, rows: Rows) -> Rows:
        """The results of other rows, of any number of worlds; zero where a guard is false."""
        worlds = len(next(iter(rows.values())))
        places = {key: place.blank(worlds) for key, place in self.places.items()}
        launch, _alive = self._bind(rows, places)
        launch.launch(warp_stream(self.device))
        return {key: place.now() for key, place in places.items()}


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


def array_type(x: Tensor, ndim: int) -> str:
    """The annotation of an argument."""
    return f"wp.array{'' if ndim == 1 else f'{ndim}d'}[wp.{KINDS[x.dtype]}]"


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


# Written so that NaN goes through, as it does in torch.
MODULE = '''"""Written by gpusim_rl: do not edit."""

import warp as wp

# a fused product and sum would round one of two mirrored terms, and not the other
wp.set_module_options({{"enable_backward": False, "fast_math": False, "fuse_fp": False}})
WORLD = """
using namespace wp;
auto maximum = [](auto a, auto b) {{ return a != a || a > b ? a : b; }};
auto minimum = [](auto a, auto b) {{ return a != a || a < b ? a : b; }};
auto at_least = [](auto a, auto low) {{ return a < low ? low : a; }};
auto at_most = [](auto a, auto high) {{ return a > high ? high : a; }};
auto finite = [](auto a, auto nan, auto high, auto low) {{
    return a != a ? nan : a == INFINITY ? high : a == -INFINITY ? low : a;
}};
// Kahan: what rounding takes from u, the quotient gives back
auto log1p = [](float x) {{
    float u = 1.0f + x;
    return u == 1.0f ? x : wp::log(u) * x / (u - 1.0f);
}};
auto expm1 = [](float x) {{
    float u = wp::exp(x);
    return u == 1.0f ? x : wp::abs(x) < 0.5f ? (u - 1.0f) * x / wp::log(u) : u - 1.0f;
}};
auto normal_quantile = [](float p) {{ return 1.4142135623730951f * wp::erfinv(2.0f * p - 1.0f); }};
auto sign = [](auto a) {{ return decltype(a)((a > 0) - (a < 0)); }};
auto whole_quotient = [](auto a, auto b) {{
    auto q = a / b;
    return decltype(a)(q * b != a && (a < 0) != (b < 0) ? q - 1 : q);
}};
auto remainder = [](auto a, auto b) {{
    auto rest = wp::mod(a, b);
    return rest != 0 && (b < 0) != (rest < 0) ? rest + b : rest;
}};
auto quotient = [remainder](auto a, auto b) {{
    return b == 0 ? a / b : wp::rint((a - remainder(a, b)) / b);
}};
{body}
"""


@wp.func_native(WORLD)
def world(
    i: int,
{arguments}
): ...


@wp.kernel(enable_backward=False)
def kernel(
{arguments}
):
    world(wp.tid(), {names})
'''
