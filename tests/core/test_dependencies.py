"""What each output of a function depends on, and that no value of a tensor reaches the host."""

import numpy as np
import pytest
import torch

from gpusim_rl.core.dependencies import dependencies

X = {name: torch.rand(2, 3) for name in "abc"}


def in_place(x):
    """Writes to a view of a new tensor."""
    out = torch.zeros(2, 3)
    out[:, 0] = x["a"][:, 1]
    return out


CASES = {
    "arithmetic": (lambda x: 2 * x["a"] + x["b"].sin(), "ab"),
    "comparison": (lambda x: (x["a"] > 1).float(), "a"),
    "where": (lambda x: torch.where(x["a"] > 1, x["b"], 0.0), "ab"),
    "clamped": (lambda x: x["a"].clamp(0, 0), "a"),
    "integers": (lambda x: (x["c"] * 3).long() % 2, "c"),
    "a view": (lambda x: x["a"][:, 1:].T, "a"),
    "gathered": (lambda x: x["a"].gather(1, (3 * x["b"]).long().clamp(0, 2)), "ab"),
    "concatenated": (lambda x: torch.cat([x["a"], x["b"]], 1)[:, :3], "ab"),
    "in place": (in_place, "a"),
    "added in place": (lambda x: torch.zeros(2, 3).add_(x["b"]), "b"),
    "out": (lambda x: torch.add(x["a"], x["b"], out=torch.zeros(2, 3)), "ab"),
    "a shape alone": (lambda x: torch.zeros_like(x["a"]) + x["b"].new_ones(2, 3), ""),
    "constant": (lambda x: torch.ones(len(x["a"])), ""),
    "unused": (lambda x: (x["a"] * 2, x["b"])[1], "b"),
}


@pytest.mark.parametrize("function, expected", CASES.values(), ids=CASES)
def test_dependencies(function, expected):
    """Values are followed through comparisons, indices, views and writes; shapes do not count."""
    assert dependencies("f", function, X) == {"": frozenset(expected)}


def test_outputs_are_told_apart():
    """Each named output has the inputs of its own, and the inputs stay as they are."""
    before = {name: x.clone() for name, x in X.items()}
    result = dependencies("f", lambda x: {"p": x["a"].add_(1), "q": x["b"] * x["c"]}, X)
    assert result == {"p": frozenset("a"), "q": frozenset("bc")}
    assert all(torch.equal(X[name], before[name]) for name in X)


READERS = {
    "if": lambda x: x["a"] if x["b"].sum() > 1 else x["c"],
    "item": lambda x: x["a"] * x["b"][0, 0].item(),
    "float": lambda x: x["a"] * float(x["b"][0, 0]),
    "tolist": lambda x: torch.tensor(x["a"].tolist()),
    "numpy": lambda x: torch.from_numpy(np.sin(x["a"].numpy())),
    "asarray": lambda x: torch.from_numpy(np.asarray(x["a"]) + 1),
    "torch.tensor": lambda x: torch.tensor([x["a"][0, 0], 1.0]),
    "a mask": lambda x: x["a"][x["b"] > 0.5],
    "nonzero": lambda x: x["a"].nonzero(),
    "equal": lambda x: x["a"] * torch.equal(x["b"], x["c"]),
}


@pytest.mark.parametrize("function", READERS.values(), ids=READERS)
def test_reads_on_the_host_are_refused(function):
    """Each way to take a value to the host is refused in one line that quotes the source."""
    with pytest.raises(
        ValueError, match=r"^f branches on a tensor: test_dependencies\.py:\d+: "
    ) as e:
        dependencies("f", function, X)
    assert "lambda" in str(e.value) and "\n" not in str(e.value)


def test_constants_may_be_read():
    """A value that depends on no input may be read on the host."""
    constant = torch.tensor([2.0])
    result = dependencies("f", lambda x: x["a"] if constant.item() > 1 else x["b"], X)
    assert result == {"": frozenset("a")}
