"""`fuse`: a pure function of B worlds as one Warp kernel, or as it is where it has none."""

# torch and Warp have no types for some of their members:
# pyright: reportUnknownMemberType=false

import hashlib
import importlib.util
import math
import re
import sys
from collections.abc import Callable
from functools import cache
from operator import mul
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import warp as wp
from torch import Tensor

from gpusim_rl.core.files import write_whole
from gpusim_rl.core.states import Rows, beside, separate
from gpusim_rl.core.streams import launch, rebind, start_warp, warp_stream
from gpusim_rl.fuse.operators import OPERATORS
from gpusim_rl.fuse.second_run import SecondRun
from gpusim_rl.fuse.source import MODULE, Store, write_body
from gpusim_rl.fuse.trace import KINDS, ROWS, Cells, Tracer, UnknownOperator, entry

Function = Callable[[Rows], Rows]

LARGEST_DIFFERENCE = 1e-4  # of a result of a kernel from that of torch
LARGEST_KERNEL = 10_000  # statements: 17 s to compile; of 24,000 the compiler's stack overflows
LITERAL = re.compile(r"(?:float32|float64|int64|int32)\((-?\d[\d.e+-]*)\)")  # of a statement
STRICT = False  # whether what is no UnknownOperator raises: tests/conftest.py sets it
BLOCK = 32  # threads: so that few thousand worlds reach all multiprocessors of a GPU


class Place(NamedTuple):
    """Where a result (B, …) is written."""

    tensor: Tensor  # (B, …); with `row` (R, B, …)
    row: Tensor | None = None  # (1,) int64: the index along the first axis
    mask_name: str = ""  # the result (B,) bool that says which worlds are written; "": all

    @property
    def lead(self) -> int:
        """Axes up to that of the worlds."""
        return 1 if self.row is None else 2

    def view(self, worlds: int) -> Tensor:
        """((R,) B, 1): the first number of each world."""
        assert self.tensor.shape[self.lead - 1] == worlds
        return self.tensor[(..., *[0] * (self.tensor.ndim - self.lead), None)]

    def offsets(self) -> list[int]:
        """How far each number of a world lies behind the first, which may be side by side or not:
        those of the agents of a world are in rows of a record."""
        strides = self.tensor.stride()[self.lead :]
        return [sum(map(mul, at, strides)) for at in np.ndindex(*self.tensor.shape[self.lead :])]

    def now(self) -> Tensor:
        """(B, …) what is there now."""
        return self.tensor if self.row is None else self.tensor.index_select(0, self.row)[0]

    def blank(self, worlds: int) -> "Place":
        """Another place like it, of any numbers; of zeros where a mask leaves some as they are."""
        lead, row = ((), None) if self.row is None else ((1,), torch.zeros_like(self.row))
        own = zip(self.tensor.shape[self.lead :], self.tensor.stride()[self.lead :], strict=True)
        size = 1 + sum((n - 1) * stride for n, stride in own)
        make = self.tensor.new_zeros if self.mask_name else self.tensor.new_empty
        tensor = make((*lead, worlds, size)).as_strided(
            (*lead, worlds, *self.tensor.shape[self.lead :]),
            (*[worlds * size] * len(lead), size, *self.tensor.stride()[self.lead :]),
        )
        return Place(tensor, row, self.mask_name)

    def write(self, value: Tensor, results: Rows) -> None:
        """Write a result with torch. In place."""
        place = self.now()
        value = value.reshape(place.shape).to(place.dtype)
        if self.mask_name:
            value = torch.where(beside(results[self.mask_name], place), value, place)
        if self.row is None:
            place.copy_(value)
        else:
            self.tensor.index_copy_(0, self.row, value[None])


class Eager:
    """A function as torch runs it: computes results of the live rows, and writes them."""

    def __init__(self, name: str, function: Function, rows: Rows, places: dict[str, Place]):
        self.name, self.function, self.rows, self.places = name, function, rows, places

    @property
    def description(self) -> str:
        """A line on what runs."""
        return f"{self.name}: as torch runs it"

    @torch.no_grad()
    def __call__(self) -> None:
        # what a result shares with a row is read before the row is written
        results = separate(self.function(self.rows), self.rows)
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

    Raises:
        UnknownOperator: an operator has no translation.
    """

    def __init__(self, name: str, function: Function, rows: Rows, places: dict[str, Place]):
        super().__init__(name, function, rows, places)
        start_warp()
        self.device = next(iter(rows.values())).device
        self.arguments = {key: f"r{k}" for k, key in enumerate(rows)}
        self.outputs = {key: f"o{k}" for k, key in enumerate(places)}
        tracer = Tracer(OPERATORS, self.device)
        results = self._trace(tracer)
        self.steps, self.operators = tracer.steps, len(tracer.steps)
        self.literals = literals(tracer.lines)
        self.indices, loads = tracer.indices, tracer.loads(tracer.places)
        rows_looked_up = {text.partition("_[")[0] for text in loads}
        self.lookups = {k for k, x in self.arguments.items() if x in rows_looked_up}
        self.source = self._write_source(tracer, results)
        self.kernel = load(self.source)
        self._launch, self._alive = self._bind(rows, places)
        self._runs: dict[int, Any] = {}  # worlds → a launch for `results`

    @property
    def description(self) -> str:
        lines, path = self.source.count("\n"), source_path(self.source)
        return f"{self.name}: {self.operators} operators of torch in {lines} lines: {path}"

    @torch.no_grad()
    def _trace(self, tracer: Tracer) -> dict[str, Cells]:
        """Run the function on the example, and return the cells of its results."""
        rows = example_rows(self.rows)
        for key, x in rows.items():
            tracer.rows(self.arguments[key], x)
        with tracer:
            results = self.function(rows)
        guards = [place.mask_name for place in self.places.values() if place.mask_name]
        return {key: tracer.cells(results[key]) for key in (*self.places, *guards)}

    def _write_source(self, tracer: Tracer, results: dict[str, Cells]) -> str:
        """The source of the module: what the results need, and no more."""
        statements = write_body(tracer.lines, self._stores(tracer, results))
        if len(statements) > LARGEST_KERNEL:
            raise UnknownOperator(f"a kernel of {len(statements)} statements")
        body = "\n".join(statements)
        self.rows = {k: x for k, x in self.rows.items() if f"{self.arguments[k]}_[" in body}
        self.constants = {k: x for k, x in tracer.constants.items() if f"{k}_[" in body}
        indexed = [self.outputs[k] for k, p in self.places.items() if p.row is not None]
        arguments = {self.arguments[k]: array_type(x, 2) for k, x in self.rows.items()}
        arguments |= {k: array_type(x, max(x.ndim, 1)) for k, x in self.constants.items()}
        arguments |= {f"t{name}": "wp.array[wp.int64]" for name in indexed}
        for key, place in self.places.items():
            arguments[self.outputs[key]] = array_type(place.tensor, 2 + (place.row is not None))
        body = "\n".join(pointers(arguments, indexed)) + "\n" + body
        texts = ",\n".join(f"    {name}: {kind}" for name, kind in arguments.items())
        return MODULE.format(body=body, arguments=texts, names=", ".join(arguments))

    def _stores(self, tracer: Tracer, results: dict[str, Cells]) -> list[Store]:
        stores: list[Store] = []
        for key, place in self.places.items():
            cells, kind = results[key], KINDS[place.tensor.dtype]
            mask_name = str(results[place.mask_name].names[()]) if place.mask_name else ""
            if cells.names.size != place.now()[0].numel():
                raise UnknownOperator(
                    f"{key} has {cells.names.size} numbers where {place.now()[0].numel()} belong"
                )
            row, late = self._overlap(place)
            for j, (name, at) in enumerate(zip(cells.names.ravel(), place.offsets(), strict=True)):
                target = entry(self.outputs[key], at)
                over = entry(self.arguments[row], j) if row else ""
                value = tracer.cast(name, cells.kind, kind)
                stores.append(Store(target, value, mask_name, over, late))
        return stores

    def _overlap(self, place: Place) -> tuple[str, bool]:
        """The row that a place is, if it is one; whether it overlaps rows in another way."""
        same = [k for k, x in self.rows.items() if span(x) == span(place.tensor)]
        if same and place.row is None:
            return same[0], len(same) > 1
        return "", any(overlap(span(x), span(place.tensor)) for x in self.rows.values())

    def _bind(self, rows: Rows, places: dict[str, Place]) -> tuple[Any, Any]:
        """A recorded launch on live tensors, and what it needs to stay alive."""
        worlds, (flat, out) = len(next(iter(rows.values()))), self._tensors(rows, places)
        return launch(self.kernel, worlds, flat, out, block=BLOCK, record=True), (flat, out)

    def _tensors(self, rows: Rows, places: dict[str, Place]) -> tuple[list[Tensor], list[Tensor]]:
        """What the kernel reads and writes, in the order of its arguments."""
        worlds = len(next(iter(rows.values())))
        flat = [side_by_side(rows[key].view(worlds, -1)) for key in self.rows]
        flat += [x.view(1) if x.ndim == 0 else x for x in self.constants.values()]
        flat += [place.row for place in places.values() if place.row is not None]
        return flat, [place.view(worlds) for place in places.values()]

    def __call__(self) -> None:
        if any(x._version != version for x, version in self.indices):
            raise ValueError(f"{self.name}: an index tensor has changed, which its kernel holds")
        self._launch.launch(warp_stream(self.device))

    @torch.no_grad()
    def run_again(self, rows: Rows) -> tuple[Rows, list[str]]:
        """What torch computes of other rows, and the lines of comparisons that had one answer.

        UnknownOperator if Python had other numbers than when the kernel was written.
        """
        run = SecondRun(self.steps, len(next(iter(rows.values()))), [*rows.values()])
        with run:
            return self.function(rows), run.one_sided

    def results(self, rows: Rows) -> Rows:
        """The results of other rows, of any number of worlds; zero where a guard is false."""
        worlds = len(next(iter(rows.values())))
        places = {key: place.blank(worlds) for key, place in self.places.items()}
        if worlds not in self._runs:
            self._runs[worlds], _ = self._bind(rows, places)
        run, (flat, out) = self._runs[worlds], self._tensors(rows, places)
        for k, x in enumerate((*flat, *out)):
            rebind(run, k, x)
        run.launch(warp_stream(self.device))
        return {key: place.now() for key, place in places.items()}


def fuse(name: str, function: Function, rows: Rows, places: dict[str, Place]) -> Eager:
    """A function as one `Kernel`; where it has none, as torch runs it, with a line on stderr."""
    try:
        kernel = Kernel(name, function, rows, places)
        compare(kernel, rows)
        return kernel
    except torch.OutOfMemoryError:
        raise
    # Of any kind: a compiler may refuse the code, and a function may know one number of worlds. The
    # function itself has run before, so no mistake of a task is hidden here.
    except Exception as error:
        if STRICT and not isinstance(error, UnknownOperator):
            raise
        reason = " ".join(str(error).split()) or type(error).__name__
        print(f"{name} runs as torch: {reason}", file=sys.stderr, flush=True)
        return Eager(name, function, rows, places)


class Part(NamedTuple):
    """Some of the rows on which a kernel is compared with torch."""

    worlds: int
    noise: float  # its standard deviation
    share: float  # of the worlds, which have to agree: rounding decides a few comparisons
    edges: bool = False  # whether a fifth of the numbers are at an edge

    @property
    def anything(self) -> bool:
        """Whether whole numbers and truth values are drawn."""
        return self.noise > 1 or self.edges

    def draw(self, x: Tensor, literals: list[float], source: torch.Generator) -> Tensor:
        """Other numbers than those of a row. literals: that stand in the code."""
        random = torch.rand(x.shape, generator=source)
        if x.is_floating_point():
            noise = torch.randn(x.shape, generator=source, dtype=x.dtype)
            ends = [math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.0]
            pool = [*ends, *literals, *(2 * y for y in literals)]
            noisy = x + self.noise * noise.to(x.device)
            # all lie in [0, 1), and some in its upper half
            if (x >= 0).all() and (x < 1).all() and (x > 0.5).any():
                noisy, pool = x, [0.0, 1e-6, 1e-3, 0.5, 1 - 2**-24]
            pool = torch.tensor(pool, dtype=x.dtype)
            edge = pool[torch.randint(len(pool), x.shape, generator=source)].to(x.device)
            return torch.where((random < 0.2 * self.edges).to(x.device), edge, noisy)
        if not self.anything:
            return x
        if x.dtype == torch.bool:
            return (random < 0.5).to(x.device)
        low, high = int(x.min()), int(x.max())
        whole = [int(number) for number in literals if abs(number) < 1e6]
        near = (0, low, high, 10, 100, 1000, 10_000, *whole)
        pool = [n + k for n in near for k in (-1, 0, 1)]
        pool += range(low, 2 * high + 2, max((2 * high - low) // 100, 1))
        limits = torch.iinfo(x.dtype)
        pool = torch.tensor(pool).clamp(limits.min, limits.max).to(x.dtype)
        return pool[(random * len(pool)).long()].to(x.device)


# The rows as they are are often alike, and on a limit, where rounding decides. Noise leads to both
# sides of near thresholds, and of far ones. Not as many as the kernel was written of.
PARTS = (
    Part(100, 100.0, 0.98),
    Part(100, 3.0, 0.98),
    Part(500, 0.1, 0.998),
    Part(100, 0.1, 0.96, edges=True),
    Part(50, 0.0, 0.9),
)


def compare(kernel: Kernel, rows: Rows) -> None:
    """Raise UnknownOperator where a kernel differs from torch, on the rows of `PARTS`."""
    trial = trial_rows(kernel, rows)
    values, (right, _) = kernel.results(trial), kernel.run_again(trial)
    end = 0
    for part in PARTS:
        begin, end = end, end + part.worlds
        for key, place in kernel.places.items():
            mask = right[place.mask_name][begin:end] if place.mask_name else None
            wanted, got = right[key], values[key]
            wanted = wanted.expand(got.shape) if wanted.numel() < got.numel() else wanted
            apart = largest_difference(wanted[begin:end], got[begin:end], mask, part.share)
            if not apart <= LARGEST_DIFFERENCE:
                raise UnknownOperator(f"its kernel gives another {key} ({apart:.1e})")


def trial_rows(kernel: Kernel, rows: Rows) -> Rows:
    """The rows of all `PARTS`, one after the other.

    Rows that fill [0, 1) have no noise. They are uniform random numbers, and noise would lead out
    of what a function of them takes. Rows that look up entries of a table have little, since torch
    raises outside of one.
    """
    source, parts = torch.Generator().manual_seed(0), list[Rows]()
    for part in PARTS:
        some = {key: x[: part.worlds] for key, x in example_rows(rows).items()}
        for key, x in some.items():
            if part.noise and not (part.anything and key in kernel.lookups):
                some[key] = part.draw(x, kernel.literals, source)
        parts.append(some)
    return {key: torch.cat([part[key] for part in parts]) for key in rows}


def example_rows(rows: Rows) -> Rows:
    """The same rows, repeated or cut to ROWS of them, as copies."""
    times = -(-ROWS // len(next(iter(rows.values()))))
    return {k: x.repeat(times, *[1] * (x.ndim - 1))[:ROWS].contiguous() for k, x in rows.items()}


def largest_difference(
    right: Tensor, got: Tensor, mask: Tensor | None = None, share: float = 1.0
) -> float:
    """The largest difference of results (B, …), relative to their size.

    It is that of the right number, plus the root mean square of its column and a thousandth: where
    terms cancel, rounding is of their size.

    Args:
        mask: (B,) the worlds that count.
        share: of them, those that differ least.
    """
    right = right.reshape(got.shape).to(got.dtype)
    if mask is not None:
        got, right = got[mask], right[mask]
    if not got.numel():
        return 0.0
    # the host reads a number below: a kernel is compared when it is made, before any iteration
    same = (got == right) | (got.isnan() & right.isnan())
    whole = not got.is_floating_point()
    finite = torch.nan_to_num(right, posinf=0.0, neginf=0.0) if not whole else right
    size = 1e-3 if whole else 1e-3 + finite.abs() + finite.square().mean(0).sqrt()
    apart = torch.inf if whole else (got - right).abs() / size
    worlds = torch.where(same, 0.0, apart).flatten(1 if got.ndim > 1 else 0)
    worlds = worlds.amax(1) if worlds.ndim > 1 else worlds
    worlds = worlds.nan_to_num(torch.inf).sort().values
    return worlds[max(round(share * len(worlds)), 1) - 1].item()


def literals(lines: list[tuple[str, str]]) -> list[float]:
    """The numbers that stand in the code, and their opposites; 500 at most."""
    numbers = {float(x) for _, text in lines for x in LITERAL.findall(text)}
    return [sign * x for x in sorted(numbers)[:250] for sign in (1.0, -1.0)]


def side_by_side(x: Tensor) -> Tensor:
    """An array (…, n), if the numbers of a world lie side by side."""
    if x.shape[-1] > 1 and x.stride(-1) != 1:
        raise UnknownOperator("a row whose numbers are not side by side")
    return x


def span(x: Tensor) -> tuple[int, int, int, int]:
    """Where the columns of rows lie: storage, distance of rows, first column, width [byte]."""
    size = x.element_size()
    stride = max(x.stride(0), 1) * size
    return x.untyped_storage().data_ptr(), stride, x.data_ptr() % stride, x[0].numel() * size


def overlap(a: tuple[int, int, int, int], b: tuple[int, int, int, int]) -> bool:
    """Whether two spans may have a column in common."""
    if a[0] != b[0] or a[1] != b[1]:
        return a[0] == b[0]
    return a[2] < b[2] + b[3] and b[2] < a[2] + a[3]


def pointers(arguments: dict[str, str], indexed: list[str]) -> list[str]:
    """Where the numbers of this world begin in each array, and those of a constant."""
    lines: list[str] = []
    for name, kind in arguments.items():
        if name.startswith("t"):
            continue
        at = f"i * {name}.strides[{int(name in indexed)}]" if name[0] in "ro" else "0"
        if name in indexed:
            at = f"t{name}.data[0] * {name}.strides[0] + {at}"
        scalar = kind.rpartition("wp.")[2].rstrip("]")
        lines.append(f"auto {name}_ = ({scalar}*)((char*){name}.data + {at});")
    return lines


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
