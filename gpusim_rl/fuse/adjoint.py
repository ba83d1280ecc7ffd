"""The gradient of a function of rows: a kernel forward, and one back.

The code of a kernel is a list of assignments, each of an expression of few kinds. A walk from the
last to the first makes of the gradients of results those of the rows (reverse accumulation:
Griewank and Walther, "Evaluating derivatives", 2008, chapter 3).
"""

# torch and Warp have no types for some of their members:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

import re
import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from gpusim_rl.core.states import Rows
from gpusim_rl.fuse import kernel as kernels
from gpusim_rl.fuse.kernel import Function, Kernel, Place, example_rows, trial_rows
from gpusim_rl.fuse.trace import NAME, Cells, Tracer, UnknownOperator, as_names, literal

FLOATING = ("float32", "float64")
OPERAND = r"v\d+|(?:float32|float64|int64|int32|uint8)\([^()]*\)|true|false"
NONE = ""  # of an operand that has no gradient
# expression of operands → its derivative by each of them times the gradient {g}; {y} is its value
# and {k} its kind. At kinks and ties it is that of torch's autograd.
DERIVATIVES: dict[str, tuple[str, ...]] = {
    "{0} + {1}": ("{g}", "{g}"),
    "{0} - {1}": ("{g}", "-{g}"),
    "{0} + {1} * {2}": ("{g}", "{g} * {2}", "{g} * {1}"),
    "{0} - {1} * {2}": ("{g}", "-{g} * {2}", "-{g} * {1}"),
    "{0} * {1} - {2}": ("{g} * {1}", "{g} * {0}", "-{g}"),
    "{0} + {1} * {2} * {3}": ("{g}", "{g} * {2} * {3}", "{g} * {1} * {3}", "{g} * {1} * {2}"),
    "{0} * {1} - {2} * {3}": ("{g} * {1}", "{g} * {0}", "-{g} * {3}", "-{g} * {2}"),
    "{0} * {1}": ("{g} * {1}", "{g} * {0}"),
    "{0} * {0} * {0}": ("{k}(3.0) * {g} * {0} * {0}",),
    "{0} / {1}": ("{g} / {1}", "-{g} * {y} / {1}"),
    "-{0}": ("-{g}",),
    "{k}(1.0) / ({0} * {0})": ("{k}(-2.0) * {g} * {y} / {0}",),
    "{k}(1.0) / wp::sqrt({0})": ("{k}(-0.5) * {g} * {y} * {y} * {y}",),
    "{k}(1.0) / ({k}(1.0) + wp::exp(-{0}))": ("{g} * {y} * ({k}(1.0) - {y})",),
    "{0} - wp::trunc({0})": ("{g}",),
    "maximum({0}, {1})": (
        "{0} == {1} ? {g} * {k}(0.5) : {0} < {1} ? {k}(0.0) : {g}",
        "{0} == {1} ? {g} * {k}(0.5) : {0} > {1} ? {k}(0.0) : {g}",
    ),
    "minimum({0}, {1})": (
        "{0} == {1} ? {g} * {k}(0.5) : {0} > {1} ? {k}(0.0) : {g}",
        "{0} == {1} ? {g} * {k}(0.5) : {0} < {1} ? {k}(0.0) : {g}",
    ),
    "relu({0})": ("{0} <= {k}(0.0) ? {k}(0.0) : {g}",),
    "at_least({0}, {1})": ("{0} >= {1} ? {g} : {k}(0.0)", "{0} < {1} ? {g} : {k}(0.0)"),
    "at_most({0}, {1})": ("{0} <= {1} ? {g} : {k}(0.0)", "{0} > {1} ? {g} : {k}(0.0)"),
    "at_most(at_least({0}, {1}), {2})": (
        "{0} >= {1} && {0} <= {2} ? {g} : {k}(0.0)",
        "{0} < {1} && {1} < {2} ? {g} : {k}(0.0)",
        "{0} > {2} || {2} < {1} ? {g} : {k}(0.0)",
    ),
    "between({0}, {1}, {2})": (
        "{g} * ({k}(1.0) - {2})",
        "{g} * {2}",
        "{g} * ({1} - {0})",
    ),
    "wp::sqrt({0})": ("{g} / ({k}(2.0) * {y})",),
    "root({0})": ("{y} == {k}(0.0) ? {k}(0.0) : {g} / ({k}(2.0) * {y})",),
    "wp::abs({0})": ("{g} * sign({0})",),
    "wp::sin({0})": ("{g} * wp::cos({0})",),
    "wp::cos({0})": ("-{g} * wp::sin({0})",),
    "wp::tan({0})": ("{g} * ({k}(1.0) + {y} * {y})",),
    "wp::atan({0})": ("{g} / ({k}(1.0) + {0} * {0})",),
    "wp::cosh({0})": ("{g} * wp::sinh({0})",),
    "wp::tanh({0})": ("{g} * ({k}(1.0) - {y} * {y})",),
    "wp::exp({0})": ("{g} * {y}",),
    "wp::log({0})": ("{g} / {0}",),
    "wp::log2({0})": ("{g} / ({0} * {k}(0.6931471805599453))",),
    "wp::erf({0})": ("{g} * {k}(1.1283791670955126) * wp::exp(-{0} * {0})",),
    "wp::atan2({0}, {1})": (
        "{g} * {1} / ({0} * {0} + {1} * {1})",
        "-{g} * {0} / ({0} * {0} + {1} * {1})",
    ),
    "wp::pow({0}, {1})": (
        "{1} == {k}(0.0) ? {k}(0.0) : {g} * {1} * wp::pow({0}, {1} - {k}(1.0))",
        "{0} == {k}(0.0) && {1} >= {k}(0.0) ? {k}(0.0) : {g} * {y} * wp::log({0})",
    ),
    "asin_or_nan({0})": ("{g} / wp::sqrt({k}(1.0) - {0} * {0})",),
    "acos_or_nan({0})": ("-{g} / wp::sqrt({k}(1.0) - {0} * {0})",),
    "expm1({0})": ("{g} * ({y} + {k}(1.0))",),
    "log1p({0})": ("{g} / ({0} + {k}(1.0))",),
    "normal_quantile({0})": (
        "{g} * {k}(2.5066282746310002) * wp::exp({y} * {y} / {k}(2.0))",
    ),
    "remainder({0}, {1})": ("{g}", "-{g} * wp::floor({0} / {1})"),
    "finite({0}, {1}, {2}, {3})": ("wp::isfinite({0}) ? {g} : {k}(0.0)", NONE, NONE, NONE),
    "{0} ? {1} : {2}": (NONE, "{0} ? {g} : {k}(0.0)", "{0} ? {k}(0.0) : {g}"),
    "{0} <= {1} ? {2} : {3}": (
        *(NONE, NONE),
        "{0} <= {1} ? {g} : {k}(0.0)",
        "{0} <= {1} ? {k}(0.0) : {g}",
    ),
    "{k}({0})": ("{k}({g})",),
} | dict.fromkeys(
    "sign({0})|wp::rint({0})|wp::floor({0})|wp::ceil({0})|wp::trunc({0})".split("|"), (NONE,)
) | dict.fromkeys(("quotient({0}, {1})", "wp::trunc({0} / {1})"), (NONE, NONE))  # fmt: skip


@cache
def patterns() -> list[tuple[re.Pattern[str], tuple[str, ...]]]:
    """What finds the operands of each expression, and its derivatives."""
    made: list[tuple[re.Pattern[str], tuple[str, ...]]] = []
    for template, derivatives in DERIVATIVES.items():
        text = re.escape(template).replace(r"\{k\}", "(?:float32|float64)")
        for i in range(len(derivatives)):
            text = text.replace(rf"\{{{i}\}}", f"(?P<a{i}>{OPERAND})", 1)
            text = text.replace(rf"\{{{i}\}}", f"(?P=a{i})")
        made.append((re.compile(text), derivatives))
    return made


def derivatives_of(text: str) -> tuple[list[str], tuple[str, ...]]:
    """The operands of an expression, and the derivative by each; else UnknownOperator."""
    for pattern, derivatives in patterns():
        if found := pattern.fullmatch(text):
            return [found[f"a{i}"] for i in range(len(derivatives))], derivatives
    raise UnknownOperator(f"no derivative of {text}")


def pull_back(t: Tracer, seeds: list[tuple[str, str]], wanted: set[str]) -> dict[str, str]:
    """Name → that of its gradient, of those wanted names that have one.

    seeds: pairs of a result's name and of the name of its gradient.
    """
    kinds, lines = {name: kind for (_, kind), name in t.names.items()}, [*t.lines]
    active = set(wanted)  # what depends on them
    for name, text in lines:
        if kinds[name] in FLOATING and active.intersection(NAME.findall(text)):
            active.add(name)
    gradients: dict[str, str] = {}

    def add(name: str, piece: str) -> None:
        before = gradients.get(name)
        gradients[name] = t.emit(f"{before} + {piece}", kinds[name]) if before else piece

    for name, seed in seeds:
        if name in active:
            add(name, t.cast(seed, "float32", kinds[name]))
    for name, text in reversed(lines):
        if name not in gradients or name in wanted:
            continue
        operands, derivatives = derivatives_of(text)
        named = {f"a{i}": x for i, x in enumerate(operands)}
        for operand, derivative in zip(operands, derivatives, strict=True):
            if operand not in active or not derivative:
                continue
            form = re.sub(r"\{(\d)\}", r"{a\1}", derivative)
            piece = form.format(g=gradients[name], y=name, k=kinds[operand], **named)
            add(operand, t.emit(piece, kinds[operand]))
    return {name: gradients[name] for name in wanted if name in gradients}


class Adjoint(Kernel):
    """The kernel that makes the gradients of a function's results those of its rows.

    Args:
        rows: those of the function, and `gradient/<result>` of its results.
        by: rows whose gradients are made, by their names.
    """

    def __init__(self, name: str, function: Function, rows: Rows, by: Sequence[str]):
        self.by = by
        places = {key: Place(torch.zeros_like(rows[key], dtype=torch.float32)) for key in by}
        super().__init__(f"{name}, its gradient", function, rows, places)

    @torch.no_grad()
    def _trace(self, tracer: Tracer) -> dict[str, Cells]:
        rows = example_rows(self.rows)
        for key, x in rows.items():
            tracer.rows(self.arguments[key], x)
        given = {x: tracer.cells(rows[x]).names for x in rows}
        with tracer:
            results = self.function({key: x for key, x in rows.items()})
        seeds: list[tuple[str, str]] = []
        for key, result in results.items():
            if f"gradient/{key}" in given:
                cells = tracer.converted(tracer.cells(result), "float32")
                names = cells.names.ravel()
                seeds += zip(map(str, names), given[f"gradient/{key}"].ravel(), strict=True)
        wanted = {str(name) for key in self.by for name in given[key].ravel()}
        found, zero = pull_back(tracer, seeds, wanted), literal(0, "float32")
        gradients: dict[str, Cells] = {}
        for key in self.by:
            names = [found.get(str(name), zero) for name in given[key].ravel()]
            gradients[key] = Cells(as_names(names, given[key].shape), True, "float32")
        return gradients

    def compare(self, rows: Rows) -> None:
        """Raise UnknownOperator where it differs from autograd, on the rows of `PARTS`."""
        trial = trial_rows(self, rows)
        values = self.results(trial)
        leaves = {key: trial[key].clone().requires_grad_() for key in self.by}
        with torch.enable_grad():
            results = self.function(trial | leaves)
            made = {key: x for key, x in results.items() if x.requires_grad}
            given = [trial[f"gradient/{key}"] for key in made]
            right: Any = torch.autograd.grad(
                [*made.values()], [*leaves.values()], given, allow_unused=True
            )
        end = 0
        for part in kernels.PARTS:
            begin, end = end, end + part.worlds
            for key, gradient in zip(self.by, right, strict=True):
                got = values[key][begin:end]
                wanted = torch.zeros_like(got) if gradient is None else gradient[begin:end]
                # autograd multiplies by zeros where nothing was asked for: NaN of an infinity
                got = torch.where(wanted.isnan(), wanted, got)
                apart = kernels.largest_difference(wanted, got, None, part.share)
                if not apart <= kernels.LARGEST_DIFFERENCE:
                    raise UnknownOperator(f"another gradient of {key} ({apart:.1e})")


class Call(torch.autograd.Function):
    """A function's kernel forward, and its adjoint back."""

    @staticmethod
    def forward(ctx: Any, pair: "Differentiable", rows: Rows, *by: Tensor) -> tuple[Tensor, ...]:
        ctx.pair, ctx.rows = pair, rows | dict(zip(pair.by, by, strict=True))
        results = pair.forward.results(ctx.rows)
        ctx.mark_non_differentiable(*(x for x in results.values() if not x.is_floating_point()))
        return tuple(results.values())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        pair = ctx.pair
        named = dict(zip(pair.results, gradients, strict=True))
        given = {f"gradient/{key}": named[key].contiguous() for key in pair.floats}
        back = pair.backward.results(ctx.rows | given)
        return None, None, *(back[key] for key in pair.by)


class Differentiable:
    """A pure function of rows (B, …) as two kernels: it gives its results, with gradients.

    Args:
        rows: an example of any number of worlds.
        by: the rows by which there are gradients.

    Raises:
        UnknownOperator: an operator has no translation, or no derivative.
    """

    @torch.no_grad()
    def __init__(self, name: str, function: Function, rows: Rows, by: Sequence[str]):
        self.by, results = by, function(rows)
        self.results = list(results)
        self.floats = [key for key, x in results.items() if x.dtype == torch.float32]
        places = {key: Place(torch.zeros_like(x)) for key, x in results.items()}
        self.forward = Kernel(name, function, rows, places)
        kernels.compare(self.forward, rows)
        given = {f"gradient/{key}": torch.zeros_like(results[key]) for key in self.floats}
        self.backward = Adjoint(name, function, rows | given, by)
        self.backward.compare(rows | given)

    def __call__(self, rows: Rows) -> Rows:
        out: Any = Call.apply(self, rows, *(rows[key] for key in self.by))
        return dict(zip(self.results, out, strict=True))


def with_gradient(
    name: str, function: Function, rows: Rows, by: Sequence[str]
) -> Callable[[Rows], Rows]:
    """A function as `Differentiable`; where it has no kernels, as it is, with a line on stderr."""
    try:
        return Differentiable(name, function, rows, by)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        if kernels.STRICT and not isinstance(error, UnknownOperator):
            raise
        reason = " ".join(str(error).split()) or type(error).__name__
        print(f"{name} has autograd's gradient: {reason}", file=sys.stderr, flush=True)
        return function
