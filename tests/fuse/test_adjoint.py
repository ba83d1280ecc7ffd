"""Gradients of functions of B worlds as kernels: each operator against autograd, and the rest."""

import pytest
import torch

from gpusim_rl.fuse import adjoint, kernel
from gpusim_rl.fuse.adjoint import Adjoint, Differentiable, with_gradient
from gpusim_rl.fuse.kernel import largest_difference
from tests.fuse.test_fuse import elements, rows, shapes

FLOATS = ("x", "y", "unit", "matrix")
SMALL = ("x", "y")
# autograd has no gradient of //, and divides ties of more than two evenly
OTHER = ("quotient", "largest")


def alone(function, live):
    """A function each of whose results is made of rows of its own, and those rows."""
    results = function(live)
    floats = [key for key, x in results.items() if x.dtype == torch.float32]

    def of_own(r):
        own = {key: {name: r[f"{key}/{name}"] for name in live} for key in floats}
        return {key: function(own[key])[key] for key in floats}

    return of_own, {f"{key}/{name}": x for key in floats for name, x in live.items()}, floats


@pytest.mark.parametrize("function", [elements, shapes])
def test_each_derivative_is_autograds(function):
    """To 1e-4 of its size on 1,009 rows with edges; where autograd has a number, so has it."""
    of_own, live, floats = alone(function, rows(1009))
    by = [f"{key}/{name}" for key in floats for name in FLOATS]
    leaves = {name: live[name].clone().requires_grad_() for name in by}
    results = of_own(live | leaves)
    source = torch.Generator().manual_seed(1)
    given = {f"gradient/{x}": torch.randn(results[x].shape, generator=source) for x in floats}
    got = Adjoint("all", of_own, live | given, by).results(live | given)
    worst = {}
    for key in (x for x in floats if results[x].requires_grad and x not in OTHER):
        mine = [f"{key}/{name}" for name in FLOATS]
        right = torch.autograd.grad(
            results[key], [leaves[x] for x in mine], given[f"gradient/{key}"], allow_unused=True
        )
        for name, x in zip(mine, right, strict=True):
            x = torch.zeros_like(got[name]) if x is None else x
            worst[name] = largest_difference(x, torch.where(x.isnan(), x, got[name]))
    assert {name: x for name, x in worst.items() if not x <= 1e-4} == {}
    assert len(worst) > 50


def test_a_gradient_goes_through_both_kernels():
    """Results and gradients of a function of a function, and no gradient of truth values."""
    live = {name: rows()[name][8:] for name in SMALL}

    def once(r):
        a, b = r["x"], r["y"]
        return {"x": a.sin() * b.exp().clamp(max=3) - a.norm(dim=1, keepdim=True), "y": a * b,
                "up": a > b}  # fmt: skip

    pair = Differentiable("once", once, live, SMALL)
    gradients = []
    for function in (pair, once):
        leaves = {name: x.clone().requires_grad_() for name, x in live.items()}
        twice = function(function(leaves))
        assert not twice["up"].requires_grad
        gradients.append(torch.autograd.grad(twice["x"].sum(), [*leaves.values()]))
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "function, says",
    [
        (lambda r: {"x": r["x"].abs().digamma()}, "no translation"),
        (lambda r: {"x": r["x"].detach() * r["y"]}, "another gradient of x"),
        (lambda r: {"x": r["x"].tanh()}, "no derivative of wp::tanh"),
    ],
)
def test_what_has_no_gradient_kernel_is_autograds(monkeypatch, capsys, function, says):
    """One line says why, and the function is taken as it is."""
    monkeypatch.setattr(kernel, "STRICT", False)
    monkeypatch.delitem(adjoint.DERIVATIVES, "wp::tanh({0})")
    adjoint.patterns.cache_clear()
    live = {name: rows()[name] for name in SMALL}
    assert with_gradient("Mine", function, live, SMALL) is function
    said = capsys.readouterr().err
    assert said.startswith("Mine has autograd's gradient: ") and says in said
    assert said.count("\n") == 1
    adjoint.patterns.cache_clear()
