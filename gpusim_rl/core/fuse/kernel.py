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
from gpusim_rl.core.fuse.source import MODULE, Store, write_body
from gpusim_rl.core.fuse.trace import KINDS, ROWS, Cells, Tracer, UnknownOperator, entry
from gpusim_rl.core.states import Rows, separate
from gpusim_rl.core.streams import start_warp, warp_device, warp_stream

Function = Callable[[Rows], Rows]

LARGEST_DIFFERENCE = 1e-4  # of a result of a kernel from that of torch
BLOCK = 32  # threads: so that few thousand worlds reach all multiprocessors of a GPU


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
        rows = example_rows(self.rows)
        for key, x in rows.items():
            tracer.rows(self.arguments[key], x)
        with tracer:
            results = self.function(rows)
        cells = {key: tracer.cells(results[key]) for key in self.places}
        guards = {place.guard for place in self.places.values() if place.guard}
        return cells | {key: tracer.cells(results[key]) for key in guards}

    def _write_source(self, tracer: Tracer, results: dict[str, Cells]) -> str:
        """The source of the module: what the results need, and no more."""
        body = "\n".join(write_body(tracer.lines, self._stores(tracer, results)))
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
        """The statements that write the results."""
        stores = []
        for key, place in self.places.items():
            cells, kind = results[key], KINDS[place.tensor.dtype]
            guard = str(results[place.guard].names[()]) if place.guard else ""
            row, late = self._overlap(place)
            for j, name in enumerate(cells.names.ravel()):
                target = entry(self.outputs[key], j)
                over = entry(self.arguments[row], j) if row else ""
                value = tracer.cast(name, cells.kind, kind)
                stores.append(Store(target, value, guard, over, late))
        return stores

    def _overlap(self, place: Place) -> tuple[str, bool]:
        """The row that a place is, if it is one; whether it overlaps rows in another way."""
        same = [k for k, x in self.rows.items() if span(x) == span(place.tensor)]
        if same and place.row is None:
            return same[0], len(same) > 1
        return "", any(overlap(span(x), span(place.tensor)) for x in self.rows.values())

    def _bind(self, rows: Rows, places: dict[str, Place]) -> tuple[Any, Any]:
        """A recorded launch on live tensors, and what it needs to stay alive."""
        worlds = len(next(iter(rows.values())))
        flat = [side_by_side(rows[key].view(worlds, -1)) for key in self.rows]
        flat += [x.view(1) if x.ndim == 0 else x for x in self.constants.values()]
        flat += [place.row for place in places.values() if place.row is not None]
        out = [side_by_side(place.view(worlds)) for place in places.values()]
        launch = wp.launch(
            self.kernel,
            dim=worlds,
            inputs=[wp.from_torch(x.detach()) for x in flat],
            outputs=[wp.from_torch(x) for x in out],
            device=warp_device(self.device),
            block_dim=BLOCK,
            record_cmd=True,
        )
        return launch, (flat, out)

    def __call__(self) -> None:
        self._launch.launch(warp_stream(self.device))

    @torch.no_grad()
    def difference(self, rows: Rows, share: float = 1.0) -> dict[str, float]:
        """Result → its largest difference from torch's on these rows, relative to its size.

        Whole numbers and truth values that differ give infinity. share: of the worlds, those that
        differ least.
        """
        rows = {key: x.clone() for key, x in rows.items()}
        ours, right = self.results(rows), self.function(rows)
        return {
            key: largest_difference(right[key], ours[key], right.get(place.guard), share)
            for key, place in self.places.items()
        }

    def results(self, rows: Rows) -> Rows:
        """The results of other rows, of any number of worlds; zero where a guard is false."""
        worlds = len(next(iter(rows.values())))
        places = {key: place.blank(worlds) for key, place in self.places.items()}
        launch, _alive = self._bind(rows, places)
        launch.launch(warp_stream(self.device))
        return {key: place.now() for key, place in places.items()}


def fuse(name: str, function: Function, rows: Rows, places: dict[str, Place]) -> Eager:
    """A function as one kernel; where it has none, as torch runs it, with a line on stderr.

    Args: as `Kernel` has them.
    """
    try:
        kernel = Kernel(name, function, rows, places)
    except torch.OutOfMemoryError:
        raise
    # Of any kind: a compiler may refuse the code, and a function may know one number of worlds. The
    # function itself has run before, so no mistake of a task is hidden here.
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        print(f"{name} runs as torch: {reason}", file=sys.stderr, flush=True)
        return Eager(name, function, rows, places)
    wrong = wrong_results(kernel, rows)
    if wrong:
        key = next(iter(wrong))
        text = f"its kernel gives another {key} ({wrong[key]:.1e})"
        print(f"{name} runs as torch: {text}", file=sys.stderr, flush=True)
        return Eager(name, function, rows, places)
    return kernel


def wrong_results(kernel: Kernel, rows: Rows) -> dict[str, float]:
    """Result → its largest difference from torch's, of those that differ.

    They are compared on the rows as they are, and on rows with noise. As they are, worlds are often
    alike and lie on a limit, where rounding decides a comparison.
    """
    noisy = kernel.difference(noisy_rows(rows), share=0.999)
    plain = kernel.difference(rows, share=0.9)
    apart = {key: max(x, plain[key]) for key, x in noisy.items()}
    return {key: x for key, x in apart.items() if not x <= LARGEST_DIFFERENCE}


def noisy_rows(rows: Rows) -> Rows:
    """A thousand rows with noise on floats: not as many as the kernel was written of.

    Rows that fill [0, 1) stay as they are. They are uniform random numbers, and noise would lead
    out of what a function of them takes.
    """
    source = torch.Generator().manual_seed(0)
    rows = {key: x[:1000] for key, x in example_rows(rows).items()}
    for x in rows.values():
        if x.is_floating_point() and not fills_unit(x):
            x += 0.1 * torch.randn(x.shape, generator=source, dtype=x.dtype).to(x.device)
    return rows


def fills_unit(x: Tensor) -> bool:
    """Whether all numbers lie in [0, 1), and some in its upper half."""
    return bool((x >= 0).all() and (x < 1).all() and (x > 0.5).any())


def example_rows(rows: Rows) -> Rows:
    """The same rows, repeated or cut to ROWS of them, as copies."""
    times = -(-ROWS // len(next(iter(rows.values()))))
    return {k: x.repeat(times, *[1] * (x.ndim - 1))[:ROWS].contiguous() for k, x in rows.items()}


def largest_difference(
    right: Tensor, ours: Tensor, mask: Tensor | None = None, share: float = 1.0
) -> float:
    """The largest difference of results (B, …), relative to their size.

    It is that of the right number, plus the root mean square of its column and a thousandth: where
    terms cancel, rounding is of their size.

    Args:
        mask: (B,) the worlds that count.
        share: of them, those that differ least.
    """
    right = right.reshape(ours.shape).to(ours.dtype)
    if mask is not None:
        ours, right = ours[mask], right[mask]
    if not ours.numel():
        return 0.0
    # the host reads a number below: a kernel is compared when it is made, before any iteration
    same = (ours == right) | (ours.isnan() & right.isnan())
    whole = not ours.is_floating_point()
    finite = torch.nan_to_num(right, posinf=0.0, neginf=0.0) if not whole else right
    size = 1e-3 if whole else 1e-3 + finite.abs() + finite.square().mean(0).sqrt()
    apart = torch.inf if whole else (ours - right).abs() / size
    worlds = torch.where(same, 0.0, apart).flatten(1 if ours.ndim > 1 else 0)
    worlds = worlds.amax(1) if worlds.ndim > 1 else worlds
    worlds = worlds.nan_to_num(torch.inf).sort().values
    return worlds[max(round(share * len(worlds)), 1) - 1].item()


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
    lines = []
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
