"""What operators of torch compute, as expressions of C++ for the scalars of one world."""

from functools import partial

import numpy as np
import torch

from gpusim_rl.fuse.layout import OPERATORS, operator
from gpusim_rl.fuse.trace import KINDS, WHOLE, Call, Cells, Tracer, UnknownOperator, each, literal

OF_WARP = "abs sin cos tan atan cosh tanh exp log log2 sqrt floor ceil trunc erf".split()
ARITHMETIC = {name: f"wp::{name}({{0}})" for name in OF_WARP} | {  # of the result's kind
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "rsub": "{1} - {0}",
    "mul": "{0} * {1}",
    "maximum": "maximum({0}, {1})",
    "minimum": "minimum({0}, {1})",
    "clamp_min": "at_least({0}, {1})",
    "clamp_max": "at_most({0}, {1})",
    "lerp": "between({0}, {1}, {2})",
    "atan2": "wp::atan2({0}, {1})",
    "bitwise_and": "{0} & {1}",
    "bitwise_or": "{0} | {1}",
    "bitwise_xor": "{0} ^ {1}",
    "bitwise_left_shift": "shift_left({0}, {1})",
    "bitwise_right_shift": "shift_right({0}, {1})",
    "bitwise_not": "~{0}",
    "floor_divide": "quotient({0}, {1})",
    "remainder": "remainder({0}, {1})",
    "square": "{0} * {0}",
    "neg": "-{0}",
    "sign": "sign({0})",
    "asin": "asin_or_nan({0})",
    "acos": "acos_or_nan({0})",
    "expm1": "expm1({0})",
    "log1p": "log1p({0})",
    "round": "wp::rint({0})",
    "special_ndtri": "normal_quantile({0})",
    "rsqrt": "{k}(1.0) / wp::sqrt({0})",
    "reciprocal": "{k}(1.0) / {0}",
    "relu": "relu({0})",
    "sigmoid": "{k}(1.0) / ({k}(1.0) + wp::exp(-{0}))",
    "frac": "{0} - wp::trunc({0})",
    "deg2rad": "{0} * {k}(0.017453292519943295)",
    "rad2deg": "{0} * {k}(57.29577951308232)",
}
OF_WHOLE = {  # of whole numbers, where those have another text
    "floor_divide": "whole_quotient({0}, {1})",
    "remainder": "whole_remainder({0}, {1})",
}
# kind → operators that have no translation for it
FLOATS = dict.fromkeys(
    WHOLE,
    "atan2 sin cos tan asin acos atan cosh tanh exp expm1 log log1p log2 sqrt floor ceil trunc"
    " round erf special_ndtri".split(),
) | {"float64": ["log1p", "expm1", "special_ndtri"]}
TRUTH = {  # of truth values
    "add": "{0} || {1}",
    "mul": "{0} && {1}",
    "bitwise_and": "{0} && {1}",
    "bitwise_or": "{0} || {1}",
    "bitwise_xor": "{0} != {1}",
    "bitwise_not": "!{0}",
}
PREDICATES = {  # whose result holds truth values
    "logical_and": "{0} && {1}",
    "logical_or": "{0} || {1}",
    "logical_xor": "{0} != {1}",
    "logical_not": "!{0}",
    "eq": "{0} == {1}",
    "ne": "{0} != {1}",
    "lt": "{0} < {1}",
    "le": "{0} <= {1}",
    "gt": "{0} > {1}",
    "ge": "{0} >= {1}",
    "isfinite": "wp::isfinite({0})",
    "isnan": "wp::isnan({0})",
    "isinf": "wp::isinf({0})",
}
NO_FLOATS = {"isfinite": "true", "isnan": "false", "isinf": "false"}  # of all other numbers
REDUCTIONS = {  # a step of the chain
    "sum": "{} + {}",
    "prod": "{} * {}",
    "any": "{} || {}",
    "all": "{} && {}",
    "amax": "maximum({}, {})",
    "amin": "minimum({}, {})",
}
SHIFTS = {"rshift": "right_shift", "lshift": "left_shift"}
SAME = {"and": "and", "iand": "and", "or": "or", "ior": "or", "xor": "xor"} | SHIFTS


# -- element by element ----------------------------------------------------------------------------


def arithmetic(name: str, t: Tracer, call: Call) -> Cells:
    """An operator of `ARITHMETIC`."""
    kind, text = KINDS[call.result.dtype], ARITHMETIC[name]
    if kind == "bool" and name not in TRUTH:
        raise UnknownOperator(f"{name} of truth values")
    if kind == "bool":
        text = TRUTH[name]
    elif kind in WHOLE:
        text = OF_WHOLE.get(name, text)
    if name in FLOATS.get(kind, ()):
        raise UnknownOperator(f"{name} of {kind}")
    if call.options.keys() - {"alpha"}:
        raise UnknownOperator(f"{name} with {', '.join(call.options)}")
    alpha, scaled = call.options.get("alpha", 1), "{0}" if name == "rsub" else "{1}"
    if alpha != 1:
        text = text.replace(scaled, f"{literal(alpha, kind)} * {scaled}")
    return t.pointwise(call, text.replace("{k}", kind), call.args[:3])


OPERATORS.update({name: partial(arithmetic, name) for name in ARITHMETIC})
OPERATORS.update({f"__{name}__": OPERATORS[f"bitwise_{x}"] for name, x in SAME.items()})


def predicate(name: str, t: Tracer, call: Call) -> Cells:
    """An operator of `PREDICATES`."""
    text, operands, kind = PREDICATES[name], call.args[:2], "bool"
    if not name.startswith("logical"):  # the kind in which torch computes with them
        kind = KINDS[torch.result_type(call.tensors[0], call.tensors[len(operands) - 1])]
    if name in NO_FLOATS and not kind.startswith("float"):
        text = NO_FLOATS[name]
    return t.pointwise(call, text, operands, kind)


OPERATORS.update({name: partial(predicate, name) for name in PREDICATES})


@operator("div")
def div(t: Tracer, call: Call) -> Cells:
    mode = call.options.get("rounding_mode")
    if mode == "floor":
        return OPERATORS["floor_divide"](t, call._replace(options={}))
    whole = KINDS[call.result.dtype] in WHOLE
    text = "wp::trunc({0} / {1})" if mode and not whole else "{0} / {1}"
    return t.pointwise(call, text, call.args[:2])


# torch has a formula of its own for these exponents, which differs at infinities and -0
ROOTS = {
    0.5: "wp::sqrt({0})",
    -0.5: "{k}(1.0) / wp::sqrt({0})",
    -1: "{k}(1.0) / {0}",
    -2: "{k}(1.0) / ({0} * {0})",
}


@operator("pow")
def power(t: Tracer, call: Call) -> Cells:
    base, exponent = call.args[:2]
    if KINDS[call.result.dtype] in WHOLE and (
        isinstance(exponent, Cells) or exponent not in (2, 3)
    ):
        raise UnknownOperator("powers of whole numbers other than 2 and 3")
    if isinstance(exponent, Cells):
        return t.pointwise(call, "wp::pow({0}, {1})", [base, exponent])
    if exponent in (2, 3):
        return t.pointwise(call, " * ".join(["{0}"] * int(exponent)), [base])
    if exponent in ROOTS:
        text = ROOTS[exponent].replace("{k}", KINDS[call.result.dtype])
        return t.pointwise(call, text, [base])
    return t.pointwise(call, "wp::pow({0}, {1})", [base, exponent])


@operator("clamp")
def clamp(t: Tracer, call: Call) -> Cells:
    """A tensor within bounds, either of which may be None. NaN stays."""
    operands, text = [call.args[0]], "{0}"
    for bound, name in ((call.get(1, "min"), "at_least"), (call.get(2, "max"), "at_most")):
        if bound is not None:
            text = f"{name}({text}, {{{len(operands)}}})"
            operands.append(bound)
    return t.pointwise(call, text, operands)


@operator("where")
def where(t: Tracer, call: Call) -> Cells:
    mask, a, b = call.args
    kind, (inner, worlds) = KINDS[call.result.dtype], call.over(call.args)
    masks = t.aligned(mask, inner, worlds, "bool")
    yes, no = (t.aligned(x, inner, worlds, kind) for x in (a, b))
    names = np.empty(inner, dtype=object)
    for place in np.ndindex(*inner):
        p, q = yes[place], no[place]
        names[place] = p if p == q else t.emit(f"{masks[place]} ? {p} : {q}", kind)
    return Cells(names, worlds, kind)


@operator("masked_fill")
def masked_fill(t: Tracer, call: Call) -> Cells:
    x, mask, value = call.args
    return where(t, call._replace(args=(mask, value, x)))


@operator("addcmul")
def addcmul(t: Tracer, call: Call) -> Cells:
    value = literal(call.options.get("value", 1), KINDS[call.result.dtype])
    return t.pointwise(call, f"{{0}} + {value} * {{1}} * {{2}}", call.args)


@operator("nan_to_num")
def nan_to_num(t: Tracer, call: Call) -> Cells:
    kind, limits = KINDS[call.result.dtype], torch.finfo(call.result.dtype)
    nan = call.get(1, "nan") or 0.0
    high, low = call.get(2, "posinf"), call.get(3, "neginf")
    high, low = limits.max if high is None else high, limits.min if low is None else low
    text = f"finite({{0}}, {literal(nan, kind)}, {literal(high, kind)}, {literal(low, kind)})"
    return t.pointwise(call, text, call.args[:1])


@operator("_to_copy", "copy", "clone", "fill")
def copy(t: Tracer, call: Call) -> Cells:
    """A copy, of another kind perhaps; what is written to the first argument, if there are two."""
    kind, x = KINDS[call.result.dtype], call.args[-1 if len(call.args) < 2 else 1]
    shape, worlds = call.over(call.args[:2])
    return Cells(t.aligned(x, shape, worlds, kind).copy(), worlds, kind)


# -- sums and other reductions ---------------------------------------------------------------------


def reduction(name: str, t: Tracer, call: Call) -> Cells:
    """An operator of `REDUCTIONS`."""
    kind = "bool" if name in ("any", "all") else KINDS[call.result.dtype]
    x, keep = t.converted(call.args[0], kind), call.get(2, "keepdim", False)
    return t.reduce(x, call.get(1, "dim"), keep, REDUCTIONS[name])


OPERATORS.update({name: partial(reduction, name) for name in REDUCTIONS})


def mapped(t: Tracer, x: Cells, text: str) -> Cells:
    """An expression of each scalar, of the same kind."""
    return x.like(each(lambda name: t.emit(text.format(name), x.kind), x.names))


@operator("mean")
def mean(t: Tracer, call: Call) -> Cells:
    added = OPERATORS["sum"](t, call)
    count = literal(call.args[0].names.size // max(added.names.size, 1), added.kind)
    return mapped(t, added, f"{{0}} / {count}")


@operator("linalg_vector_norm")
def vector_norm(t: Tracer, call: Call) -> Cells:
    x, order = call.args[0], call.get(1, "ord", 2)
    dims, keep = call.get(2, "dim"), call.get(3, "keepdim", False)
    if order == float("inf"):
        return t.reduce(mapped(t, x, "wp::abs({0})"), dims, keep, REDUCTIONS["amax"])
    if order != 2:
        raise UnknownOperator(f"a norm of order {order}")
    sums = t.reduce(mapped(t, x, "{0} * {0}"), dims, keep, REDUCTIONS["sum"])
    return mapped(t, sums, "root({0})")


@operator("linalg_cross")
def cross(t: Tracer, call: Call) -> Cells:
    kind, (inner, worlds) = KINDS[call.result.dtype], call.over(call.args[:2])
    if call.get(2, "dim", -1) not in (-1, call.result.ndim - 1):
        raise UnknownOperator("a cross product along another axis than the last")
    a, b = (t.aligned(x, inner, worlds, kind) for x in call.args[:2])
    names = np.empty(inner, dtype=object)
    for place in np.ndindex(*inner[:-1]):
        p, q = a[place], b[place]
        for k, (i, j) in enumerate(((1, 2), (2, 0), (0, 1))):
            names[(*place, k)] = t.emit(f"{p[i]} * {q[j]} - {p[j]} * {q[i]}", kind)
    return Cells(names, worlds, kind)


@operator("cumsum")
def cumsum(t: Tracer, call: Call) -> Cells:
    kind = KINDS[call.result.dtype]
    # torch adds float32 in double precision
    x = t.converted(call.args[0], "float64" if kind == "float32" else kind)
    names, axis = x.names.copy(), x.axis(call.args[1])
    line = np.moveaxis(names, axis, 0)
    for k in range(1, len(line)):
        for place in np.ndindex(*line.shape[1:]):
            now = (k, *place)
            line[now] = t.emit(f"{line[(k - 1, *place)]} + {line[now]}", x.kind)
    return t.converted(x.like(names), kind)
