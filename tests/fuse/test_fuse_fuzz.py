"""Drawn tasks with kernels and without: see tests/fuse_fuzz.py."""

import pytest

from gpusim_rl.fuse.operators import OPERATORS
from tests import fuse_fuzz

NAMES = ["before", "after", "views"]


@pytest.mark.parametrize(
    "seed, steps",
    [
        *((seed, 20) for seed in range(4)),
        *(pytest.param(seed, 20, marks=pytest.mark.slow) for seed in range(4, 12)),
        *(pytest.param(seed, 200, marks=pytest.mark.matrix) for seed in range(12, 200)),
    ],
)
def test_a_drawn_task_is_that_of_torch(tmp_path, seed, steps):
    """Each part of each step, from the same rows, edges, NaN and restarts included."""
    result = fuse_fuzz.run(seed, steps, tmp_path)
    assert result.kernels == NAMES and result.apart <= 1, result
    assert result.restarts > steps


@pytest.mark.parametrize("name, like", [("gt", "ge"), ("floor_divide", "div")])
def test_a_wrong_kernel_is_found(tmp_path, monkeypatch, name, like):
    """The fuzz sees a translation that differs at a threshold alone, where nothing else looks."""
    monkeypatch.setattr("gpusim_rl.fuse.kernel.compare", lambda *_: None)
    monkeypatch.setitem(OPERATORS, name, OPERATORS[like])
    assert max(fuse_fuzz.run(seed, 20, tmp_path).apart for seed in range(3)) > 1
