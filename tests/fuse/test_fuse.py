"""Functions of B worlds as kernels: each operator against torch, and what a kernel promises."""

import math

import pytest
import torch

from gpusim_rl.fuse import kernel
from gpusim_rl.fuse.kernel import LARGEST_KERNEL, Eager, Kernel, Place, fuse, largest_difference
from gpusim_rl.fuse.operators import OPERATORS
from gpusim_rl.fuse.trace import UnknownOperator

WORLDS = 64
TABLE = torch.arange(30.0).view(10, 3)
LARGE = torch.arange(9000).view(3000, 3).to(torch.uint8)
COLUMNS = torch.tensor([2, 0, 1])


def rows(worlds: int = WORLDS) -> dict[str, torch.Tensor]:
    """Rows of each type, with zeros, infinities, NaN and negative whole numbers among them."""
    make = torch.Generator().manual_seed(3)
    x = torch.randn(worlds, 4, generator=make)
    x[0], x[1, 0], x[2, 1], x[3, 2] = 0.0, math.nan, math.inf, -math.inf
    y = torch.randn(worlds, 4, generator=make)
    return {
        "x": x,
        "y": y,
        "unit": torch.rand(worlds, 3, generator=make),
        "double": torch.randn(worlds, 2, generator=make).double(),
        "whole": torch.randint(-9, 9, (worlds,), generator=make),
        "truth": torch.rand(worlds, generator=make) < 0.5,
        "small": torch.randint(0, 256, (worlds,), generator=make).to(torch.uint8),
        "matrix": torch.randn(worlds, 2, 3, generator=make),
    }


def places(function, live) -> dict[str, Place]:
    """A place for each result, of zeros."""
    return {name: Place(torch.zeros_like(x)) for name, x in function(live).items()}


@pytest.fixture
def runs_as_torch(monkeypatch, capsys):
    """(function, live, says, where): the function has no kernel, and a line says why."""
    monkeypatch.setattr(kernel, "STRICT", False)

    def check(function, live, says="", where=None, says_where=False) -> Eager:
        made = fuse("Mine", function, live, where or places(function, live))
        said = capsys.readouterr().err
        assert type(made) is Eager and said.count("\n") == 1, said
        assert said.startswith("Mine runs as torch: ") and says in said, said
        assert not says_where or "test_fuse.py" in said, said
        return made

    return check


def elements(r):
    """What is computed element by element."""
    x, y, n, b, u = r["x"], r["y"], r["whole"], r["truth"], r["small"]
    near = y.clamp(-0.9, 0.9)
    return dict(
        add=x + y,
        alpha=torch.add(x, y, alpha=2),
        sub=2 - x,
        mul=x * r["double"][:, :1],
        div=x / y,
        quotient=x // 0.7,
        rest=x % 0.7,
        whole_quotient=n // 4,
        whole_rest=n % -4,
        powers=torch.cat([x**2, x**3, y.abs() ** 0.5, y.abs() ** 1.7, 2**y], 1),
        signs=torch.cat([x.sign(), -x, x.abs(), x.relu(), y.frac()], 1),
        bounds=torch.cat([x.clamp(-1, 1), x.clamp(min=0.1), x.clamp(max=0.2), x.maximum(y)], 1),
        lesser=torch.minimum(x, y),
        between=x.clamp(y - 1, y + 1),
        between_nan=y.clamp(x - 1, x + 1),
        least_nan=torch.cat([y.clamp_min(x), y.clamp_max(x)], 1),
        of_whole=torch.stack([1.0 / (n + 10), n.deg2rad(), n.sigmoid(), (n + 10).rsqrt()], 1),
        states_of_whole=torch.stack([n.isfinite(), n.isnan(), n.isinf()], 1),
        wraps=torch.stack([(u + 1).long(), (u - 1).long(), (~u).long(), (u * 3).long()], 1),
        far_growth=torch.log1p(x.abs()),
        reverse=torch.rsub(x, y, alpha=2),
        rounds=torch.cat([x.round(), x.floor(), x.ceil(), x.trunc()], 1),
        angles=torch.cat([y.sin(), y.cos(), near.tan(), x.asin(), x.acos(), y.atan()], 1),
        turn=torch.atan2(x, y),
        growth=torch.cat([y.exp(), y.abs().log(), near.log1p(), near.expm1(), y.tanh()], 1),
        roots=torch.cat([y.abs().sqrt(), y.abs().rsqrt(), y.reciprocal(), y.sigmoid()], 1),
        quantile=torch.special.ndtri(r["unit"].clamp(0.002, 0.998)),
        finite=torch.nan_to_num(x),
        within=torch.nan_to_num(x, nan=1.0, posinf=2.0, neginf=-3.0),
        states=torch.stack([x.isfinite(), x.isnan(), x.isinf()], 1),
        compared=torch.stack([x < y, x <= 0, x > y, x >= 1, x == 0, x != y], 1),
        truth=torch.stack([b & (n > 0), b | (n > 0), b ^ (n > 0), ~b, b * (n > 1), b + (n > 1)], 1),
        bits=torch.stack([n & 3, n | 4, n ^ 5, (n + 9) << 2, n >> 1, ~n], 1),
        chosen=torch.where(b[:, None], x, 0.5),
        filled=x.masked_fill(b[:, None], -1.0),
        types=torch.stack([b.float(), n.float(), (9 * y[:, 0]).long().float()], 1),
        mixed=torch.lerp(y, near, 0.3).addcmul(y, near, value=0.5),
    )


def shapes(r):
    """Sums, views, joins and look-ups."""
    x, y, m, n = r["x"], r["y"], r["matrix"], r["whole"]
    made = x.new_zeros(len(x), 5)
    made[:, 1:3] = y[:, :2]
    made[:, 4] += y[:, 3]
    at = n.abs().clamp(max=9)
    far = (at[:, None] * 100 + torch.arange(3)).view(len(x), 3)
    return dict(
        sums=torch.stack([y.sum(1), y.mean(1), y.prod(1), y.norm(dim=1), y.amax(1), y.amin(1)], 1),
        partial=torch.cat([m.sum(2), m.sum((1, 2))[:, None], m.mean(1)], 1),
        largest=torch.stack([x.amax(1), torch.linalg.vector_norm(x, torch.inf, dim=1)], 1),
        truths=torch.stack([(y > 0).any(1), (y > 0).all(1)], 1),
        steps=y.cumsum(1),
        crossed=torch.linalg.cross(m[:, 0], m[:, 1]),
        turned=m.transpose(1, 2).flatten(1),
        diagonals=torch.cat([m.diagonal(1, 1, 2), m.diagonal(dim1=-1, dim2=1)], 1),
        joined=torch.cat([x[:, 1:], y[:, ::2], m.flatten(1), made], 1),
        stacked=torch.stack(m.unbind(1), 2),
        parts=torch.cat([*reversed(m.flatten(1).split([1, 2, 3], 1))], 1),
        padded=torch.nn.functional.pad(m[:, 0], (2, 1), value=0.5),
        rolled=torch.cat([y.roll(1, 1), y.flip(1), y.repeat(1, 2)], 1),
        scattered=y.slice_scatter(y[:, :2] * 2, 1, 2, 4),
        copied=m[:, 0].index_copy(1, COLUMNS, m[:, 1]),
        columns=m[:, 0].index_select(1, COLUMNS) + m[:, 1][:, COLUMNS],
        table=TABLE[at] + TABLE[at, 1][:, None],
        from_the_end=TABLE[n],
        large=LARGE.index_select(0, far.flatten()).view(len(x), 3, 3).flatten(1).long(),
        gathered=y.gather(1, at[:, None].clamp(max=3)),
        spread=y[:, :1].expand(-1, 3) + torch.arange(3),
    )


@pytest.fixture(scope="module")
def kernels() -> dict[str, Kernel]:
    """The functions above as kernels."""
    live = rows()
    functions = {"elements": elements, "shapes": shapes}
    return {name: Kernel(name, f, live, places(f, live)) for name, f in functions.items()}


def difference(kernel: Kernel, live: dict[str, torch.Tensor]) -> dict[str, float]:
    """Result → its largest difference from torch's on these rows, relative to its size."""
    got, right = kernel.results(live), kernel.function(live)
    return {key: largest_difference(right[key], x) for key, x in got.items()}


@pytest.mark.parametrize("name", ["elements", "shapes"])
def test_each_operator_is_torchs(kernels, name):
    """Floats to 1e-6 of their size; whole numbers, truth values, NaN and infinities exactly."""
    apart = difference(kernels[name], rows())
    assert {key: x for key, x in apart.items() if not x <= 1e-6} == {}


def test_a_world_does_not_depend_on_its_neighbors(kernels):
    """The first worlds have the same bits among 3, 64 and 1009 of them."""
    live, results = rows(1009), []
    for worlds in (3, 64, 1009):
        part = {name: x[:worlds].clone() for name, x in live.items()}
        kernel = Kernel("elements", elements, part, places(elements, part))
        kernel()
        results.append({name: place.tensor[:3] for name, place in kernel.places.items()})
    for name, x in results[0].items():
        for other in results[1:]:
            assert x.numpy().tobytes() == other[name].numpy().tobytes(), name


@pytest.mark.parametrize(
    "name, wrong",
    [("mul", "add"), ("amax", "amin"), ("atan2", "sub"), ("floor", "ceil"), ("lt", "ge")],
)
def test_a_wrong_translation_is_found(monkeypatch, runs_as_torch, name, wrong):
    """A planted mistake of the generator makes the function run as torch, with a line."""
    monkeypatch.setitem(OPERATORS, name, OPERATORS[wrong])
    live = {"x": rows()["x"][4:], "y": rows()["y"][4:]}

    def function(r):
        x, y = r["x"], r["y"]
        return {"z": (x * y).amax(1) + torch.atan2(x, y).floor().sum(1) + (x < y).sum(1)}

    runs_as_torch(function, live, "its kernel gives another z")


def test_numbers_beside_the_rows_stay_live():
    """A tensor that the function reads is read in each launch, whatever its shape."""
    weights, scale = torch.tensor([1.0, 2.0]), torch.tensor(3.0)
    live = {"x": torch.ones(4, 2)}

    def function(r):
        return {"y": r["x"] * weights * scale}

    kernel = Kernel("live", function, live, places(function, live))
    for factor in (1.0, 5.0):
        weights[1], scale[...] = factor, factor + 1
        live["x"][0] = factor
        kernel()
        assert torch.equal(kernel.places["y"].tensor, live["x"] * weights * scale)


def test_results_are_written_where_a_row_was_read():
    """Rows may change places; a guard and a row of a record choose what is written."""
    live = {"a": torch.zeros(4, 1), "b": torch.ones(4, 1), "on": torch.arange(4) % 2 == 0}
    record, t = torch.zeros(3, 4, 5)[..., 2:3], torch.tensor([1])
    kept = torch.full((4, 1), 9.0)
    pairs = torch.zeros(
        3, 8, 5
    )  # two rows for each world, of which the columns 1 and 2 are written

    def function(r):
        both = torch.stack([r["a"] + 1, r["a"] + 2], 1) * torch.tensor([1.0, 10.0])
        changed = {"a": r["b"], "b": r["a"], "row": r["a"] + 7, "kept": r["b"], "on": r["on"]}
        return changed | {"pairs": both}

    where = {"a": Place(live["a"]), "b": Place(live["b"]), "row": Place(record, t)}
    where["kept"] = Place(kept, mask_name="on")
    where["pairs"] = Place(pairs[..., 1:3].unflatten(1, (4, 2)), t)
    for make in (Kernel, Eager):
        live["a"].zero_(), live["b"].fill_(1), record.zero_(), kept.fill_(9.0), pairs.zero_()
        make("exchange", function, live, where)()
        assert (live["a"] == 1).all() and (live["b"] == 0).all()
        assert (record[1] == 7).all() and (record[[0, 2]] == 0).all()
        assert kept[:, 0].tolist() == [1.0, 9.0, 1.0, 9.0]
        assert pairs[1].tolist() == [[0.0, 1, 10, 0, 0], [0.0, 2, 20, 0, 0]] * 4
        assert (pairs[[0, 2]] == 0).all()


@pytest.mark.parametrize(
    "function, what",
    [
        (lambda r: {"y": torch.linalg.inv(r["m"])}, "linalg_inv"),
        (lambda r: {"y": r["m"].sum(0, keepdim=True) + r["m"]}, "along the worlds"),
        (lambda r: {"y": r["m"].cummax(1).values}, "cummax"),
        (lambda r: {"y": r["m"] @ r["m"]}, "bmm"),
        (lambda r: {"y": r["m"].view(-1, 3).sum(1).view(-1, 3)}, "another axis as one"),
        (lambda r: {"y": r["m"].view(-1, 3).flip(1).view(-1, 9)}, "another axis as one"),
        (lambda r: {"y": torch.round(r["m"], decimals=2)}, "round with decimals"),
        (lambda r: {"y": r["m"].long() ** 4}, "powers of whole numbers"),
        (lambda r: {"y": r["m"] * LARGE[0]}, "more than 4096"),
    ],
)
def test_an_unknown_operator_is_named(runs_as_torch, function, what):
    """The function runs as torch, and one line names the operator and where it stands."""
    live = {"m": torch.eye(3).repeat(5, 1, 1)}
    made = runs_as_torch(function, live, what, says_where=True)
    made()
    assert torch.equal(made.places["y"].tensor, function(live)["y"])


@pytest.mark.parametrize(
    "function",
    [
        lambda r: {"y": r["x"] / len(r["x"])},
        lambda r: {"y": 1e-4 * (r["x"] > 0.05)},
    ],
)
def test_what_no_kernel_computes_is_noticed(monkeypatch, runs_as_torch, function):
    """A function of the number of worlds, and a small result that is wrong in noisy rows alone."""
    monkeypatch.setitem(OPERATORS, "gt", OPERATORS["lt"])
    runs_as_torch(function, {"x": torch.zeros(8)}, "its kernel gives another y")


COUNT: list[int] = []  # calls of `counts`


def counts(r):
    """A function that changes what it reads."""
    COUNT.append(1)
    return {"y": r["x"] * len(COUNT)}


@pytest.mark.parametrize(
    "function",
    [
        lambda r: {"y": torch.from_numpy(r["x"].numpy() * 2)},
        lambda r: {"y": r["x"] * torch.from_numpy(r["x"].numpy() > 1.0)},
        lambda r: {"y": r["x"] * float(r["x"].numpy()[0, 0])},
        lambda r: {"y": r["x"] + torch.tensor(r["x"].numpy()[0])},
        lambda r: {"y": r["x"] * float(r["n"].numpy().max() > 900)},
        lambda r: {"y": r["x"] * r["x"][0]},
        lambda r: {"y": r["x"] * (torch.arange(len(r["x"])) == 5)[:, None]},
        lambda r: {"y": r["x"] * torch.arange(len(r["x"]) + 1)[:-1, None]},
        lambda r: {"y": r["x"] * torch.linspace(0, 1, len(r["x"]))[:, None]},
        lambda r: {"y": r["x"].expand(2, -1, -1).sum(0)},
        lambda r: {"y": r["x"] + torch.ones(8, 1)},
        counts,
    ],
)
def test_what_python_makes_of_rows_runs_as_torch(runs_as_torch, function):
    """What Python makes of rows has no kernel: a line says why, and it works."""
    live = {"x": torch.zeros(8, 3), "n": torch.zeros(8, dtype=torch.int64)}
    where = {"y": Place(torch.full((8, 3), torch.nan))}
    runs_as_torch(function, live, where=where)()
    assert torch.equal(where["y"].tensor, function(live)["y"])


def test_a_result_of_another_width_is_not_written(runs_as_torch):
    """Its numbers would be written into those of the next world."""
    where = {"y": Place(torch.zeros(8))}
    live = {"x": torch.zeros(8, 3)}
    runs_as_torch(lambda r: {"y": r["x"]}, live, "3 numbers where 1 belong", where)


def test_an_index_that_changes_is_told(runs_as_torch):
    """A kernel holds which columns an index picks; one that is computed has no kernel."""
    live, columns = {"x": torch.zeros(8, 3)}, torch.tensor([0, 2])
    limits = torch.tensor([1.0, 2, 3])
    picked = lambda r: {"y": r["x"][:, columns]}  # noqa: E731
    made = fuse("Mine", picked, live, places(picked, live))
    made()
    columns[0] = 1
    with pytest.raises(ValueError, match="an index tensor has changed"):
        made()
    masked = lambda r: {"y": r["x"][:, limits > 1.5]}  # noqa: E731
    runs_as_torch(masked, live, "an index made of numbers that may change")


def test_a_kernel_that_is_too_large_runs_as_torch(runs_as_torch):
    """The compiler would need minutes, or end the process."""

    def long(r):
        y = r["x"]
        for _ in range(LARGEST_KERNEL // 2 + 1):
            y = y.sin() + 1
        return {"y": y}

    runs_as_torch(long, {"x": torch.zeros(8)}, "a kernel of 10")


def test_far_thresholds_and_edges_are_compared(monkeypatch, runs_as_torch):
    """A translation that is wrong beyond a threshold in the tail, or of NaN alone, is noticed."""
    live = {"x": torch.zeros(8), "n": torch.zeros(8, dtype=torch.int64)}
    for name, wrong, function in (
        ("gt", "{0} < {1}", lambda r: {"y": r["x"] + (r["x"] > 80.0)}),
        ("gt", "{0} < {1}", lambda r: {"y": r["x"] + (r["n"] > 900)}),
        ("asin", "wp::asin({0})", lambda r: {"y": r["x"].asin()}),
    ):
        with monkeypatch.context() as patch:
            patch.setitem(
                OPERATORS, name, lambda t, call, text=wrong: t.pointwise(call, text, call.args)
            )
            runs_as_torch(function, live, "gives another y")
        assert type(fuse("Mine", function, live, places(function, live))) is Kernel


def test_a_function_that_writes_to_a_constant_has_no_kernel():
    """It would not be pure. A view of a constant is one, too."""
    count = torch.zeros(3)

    def whole(r):
        count.add_(1)
        return {"y": r["x"] + count}

    def part(r):
        count[0] += 1
        return {"y": r["x"] + count}

    for function in (whole, part):
        with pytest.raises(UnknownOperator, match="writes to a constant"):
            Kernel("count", function, {"x": torch.ones(4, 3)}, {"y": Place(torch.zeros(4, 3))})
