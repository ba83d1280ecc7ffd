"""The source of a kernel: assignments in the order in which their values are written."""

import re
from typing import NamedTuple

from gpusim_rl.fuse.trace import NAME

LOAD = re.compile(r"r\d+_\[\d+\]")  # of an entry of a row
CAST = re.compile(r"\w+\((v\d+)\)")


class Store(NamedTuple):
    """A statement that writes a scalar."""

    target: str  # an entry of an array
    value: str
    mask_name: str  # the truth value under which it is written; "": always
    overwrites: str  # the entry of a row that it replaces; "": none
    late: bool  # other rows may lie there, too: after all others

    @property
    def array(self) -> str:
        """The name of the array."""
        return self.target.partition("[")[0]

    @property
    def statement(self) -> str:
        return f"{self.target} = {self.value};"


def write_body(lines: list[tuple[str, str]], stores: list[Store]) -> list[str]:
    """The statements of one world, each value shortly before it is written.

    So few values wait in registers: what is made of most others comes first, and takes them along.
    An entry of a row is read before it is overwritten.
    """
    body = Body(lines, stores)
    # what nobody reads may be overwritten at once
    stores = [x if x.overwrites in body.loads else x._replace(overwrites="") for x in stores]
    guards = dict.fromkeys(store.mask_name for store in stores if store.mask_name)
    for mask_name in guards:
        body.write_guarded(mask_name, [store for store in stores if store.mask_name == mask_name])
    others = [store for store in stores if not store.mask_name]
    places = {name: k for k, (name, _) in enumerate(lines)}
    last: dict[str, int] = {}  # array → the place of its last value
    for store in others:
        last[store.array] = max(last.get(store.array, 0), places.get(store.value, 0))
    free = [store for store in others if not store.late and not store.overwrites]
    for store in free:
        body.pending.setdefault(store.value, []).append(store)
    for store in sorted(free, key=lambda store: -last[store.array]):
        body.write(store)
    for store in others:
        if store.overwrites and not store.late:
            body.write(store)
    late = [store for store in others if store.late]
    for store in late:
        body.assign(store.value)
    for store in late:
        body.write(store)
    return body.statements


class Body:
    """Statements, and which names they have assigned.

    lines: (name, expression) in an order in which they can be computed; stores: all that there are.
    """

    def __init__(self, lines: list[tuple[str, str]], stores: list[Store]):
        self.expressions = dict(lines)
        self.statements: list[str] = []
        self.pending: dict[str, list[Store]] = {}  # value → what may be written once it is there
        self._assigned: set[str] = set()
        needed = {name for x in stores for name in NAME.findall(f"{x.value} {x.mask_name}")}
        for name, text in reversed(lines):
            if name in needed:
                needed.update(NAME.findall(text))
        # expression → its name, of those that are needed
        self.loads = {text: name for name, text in lines if name in needed}

    def assign(self, text: str) -> None:
        """Assign the names of an expression, after those that they are made of."""
        waiting = NAME.findall(text)
        while waiting:
            name = waiting[-1]
            needs = NAME.findall(self.expressions[name]) if name not in self._assigned else ()
            needs = [x for x in needs if x not in self._assigned]
            if needs:
                waiting += needs
                continue
            waiting.pop()
            if name not in self._assigned:
                self._assigned.add(name)
                self.statements.append(f"const auto {name} = {self.expressions[name]};")
                self.statements += [x.statement for x in self.pending.pop(name, ())]

    def write(self, store: Store) -> None:
        """Write a value, after what it is made of and after the entry was read."""
        self.assign(store.value)
        if store.overwrites:
            self.assign(self.loads[store.overwrites])
            self.statements.append(store.statement)
        elif store.late:
            self.statements.append(store.statement)
        else:  # of a number that stands in the code, or of a name that a guard needed
            self.statements += [x.statement for x in self.pending.pop(store.value, ())]

    def write_guarded(self, mask_name: str, stores: list[Store]) -> None:
        """Write values under a guard. What is only read and copied, is read under it."""
        self.assign(mask_name)
        values = [self._copied(store.value) for store in stores]
        for value in values:
            self.assign(value)
        pairs = zip(stores, values, strict=True)
        copies = [f"    {store.target} = {value};" for store, value in pairs]
        self.statements += [f"if ({mask_name}) {{", *copies, "}"]

    def _copied(self, value: str) -> str:
        """The expression of a value that is an entry of a row, or the value itself."""
        text = self.expressions.get(value, "")
        cast = CAST.fullmatch(text)
        inner = self.expressions[cast[1]] if cast else text
        if value in self._assigned or not LOAD.fullmatch(inner):
            return value
        return text.replace(cast[1], inner) if cast else text


# Written so that NaN goes through, as it does in torch.
MODULE = '''"""Written by gpusim_rl: do not edit."""

import warp as wp

# a fused product and sum would round one of two mirrored terms, and not the other
wp.set_module_options({{"enable_backward": False, "fast_math": False, "fuse_fp": False}})
WORLD = """
using namespace wp;
auto maximum = [](auto a, auto b) {{ return a != a || a > b ? a : b; }};
auto minimum = [](auto a, auto b) {{ return a != a || a < b ? a : b; }};
auto at_least = [](auto a, auto low) {{ return low != low || a < low ? low : a; }};
auto at_most = [](auto a, auto high) {{ return high != high || a > high ? high : a; }};
// from the end if negative, as in torch; never outside of the table, where torch would raise
auto entry_of = [](int64 i, int64 size) {{
    i = i < 0 ? i + size : i;
    return i < 0 ? int64(0) : i < size ? i : size - 1;
}};
// of torch's relu and norm, whose gradients at zero are zero
auto relu = [](auto a) {{ return a < 0 ? decltype(a)(0) : a; }};
auto root = [](auto a) {{ return wp::sqrt(a); }};
auto finite = [](auto a, auto nan, auto high, auto low) {{
    return a != a ? nan : a == INFINITY ? high : a == -INFINITY ? low : a;
}};
// Kahan: what rounding takes from u, the quotient gives back
auto log1p = [](float x) {{
    float u = 1.0f + x;
    return u == 1.0f || u == INFINITY ? x : wp::log(u) * x / (u - 1.0f);
}};
auto expm1 = [](float x) {{
    float u = wp::exp(x);
    return u == 1.0f ? x : wp::abs(x) < 0.5f ? (u - 1.0f) * x / wp::log(u) : u - 1.0f;
}};
// Warp's own cut the argument to [-1, 1], and so hide NaN
auto asin_or_nan = [](auto a) {{ return wp::abs(a) <= 1 ? wp::asin(a) : decltype(a)(NAN); }};
auto acos_or_nan = [](auto a) {{ return wp::abs(a) <= 1 ? wp::acos(a) : decltype(a)(NAN); }};
// 2 p - 1 has few digits of a small p
auto normal_quantile = [](float p) {{
    return 1.4142135623730951f * (p < 2e-3f ? -wp::erfcinv(2.0f * p) : wp::erfinv(2.0f * p - 1.0f));
}};
auto between = [](auto a, auto b, auto weight) {{
    return wp::abs(weight) < 0.5f ? a + weight * (b - a) : b - (b - a) * (1 - weight);
}};
auto sign = [](auto a) {{ return decltype(a)((a > 0) - (a < 0)); }};
// where torch would raise, 0: the processor would end the program
auto whole_quotient = [](auto a, auto b) {{
    if (b == 0) return decltype(a)(0);
    auto q = a / b;
    return decltype(a)(q * b != a && (a < 0) != (b < 0) ? q - 1 : q);
}};
auto whole_remainder = [](auto a, auto b) {{
    if (b == 0) return decltype(a)(0);
    auto rest = wp::mod(a, b);
    return decltype(a)(rest != 0 && (b < 0) != (rest < 0) ? rest + b : rest);
}};
auto remainder = [](auto a, auto b) {{
    auto rest = wp::mod(a, b);
    return rest != 0 && (b < 0) != (rest < 0) ? rest + b : rest;
}};
auto quotient = [](auto a, auto b) {{
    if (b == 0) return a / b;
    auto rest = wp::mod(a, b);
    auto q = (a - rest) / b;
    if (rest != 0 && (b < 0) != (rest < 0)) q -= 1;
    if (q == 0) return a / b * 0;  // of its sign
    auto low = wp::floor(q);
    return q - low > 0.5f ? low + 1 : low;
}};
auto shift_left = [](auto a, auto b) {{
    return b < 0 || b >= 8 * int(sizeof(a)) ? decltype(a)(0) : decltype(a)(a << b);
}};
auto shift_right = [](auto a, auto b) {{
    const int most = 8 * int(sizeof(a)) - (decltype(a)(-1) < 0);
    return decltype(a)(a >> (b < 0 || b >= most ? most : int(b)));
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
