"""Windows of a ring, against a reference in NumPy."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from gpusim_rl.core.priorities import Prioritized
from gpusim_rl.core.record import FLAG, NUMBER, Record, vector
from gpusim_rl.core.ring import Returns, Ring, RingSpec, Uniform

COLUMNS = dict(obs=vector(2), action=vector(1), reward=NUMBER)
COLUMNS |= dict(terminated=FLAG, truncated=FLAG, fault=FLAG)
ROWS, WORLDS, LENGTH, GAMMA = 12, 3, 3, 0.9


PRIORITIZED = partial(Prioritized, exponent=0.5, importance=1.0)


def make_ring(written: int, sampler: Any = Uniform) -> Ring:
    """A ring after so many steps, of which a tenth each end in every way; faults hold NaN."""
    ring = Ring(COLUMNS, RingSpec(ROWS, sampler=sampler), WORLDS, torch.device("cpu"))
    slab = Record.zeros(COLUMNS, 1, WORLDS, device=torch.device("cpu"))
    generator = torch.Generator().manual_seed(written)
    for step in range(written):
        ends = torch.rand(WORLDS, generator=generator)
        fault = ends > 0.9
        values = {
            "obs": torch.tensor([[step, world] for world in range(WORLDS)]).float(),
            "action": torch.full((WORLDS, 1), float(step)),
            "reward": torch.where(fault, torch.nan, torch.rand(WORLDS, generator=generator)),
            "terminated": ends < 0.1,
            "truncated": (ends > 0.1) & (ends < 0.2),
            "fault": fault,
        }
        slab.put(torch.tensor([0]), values)
        ring.write(slab)
    return ring


def draw(ring: Ring, unit: Tensor) -> tuple[Record, Record, Returns]:
    """The first rows of windows, those after them, and what they pay."""
    windows = ring.windows(ring.draw(unit, LENGTH).places, LENGTH)
    return windows.at(0), windows.at(LENGTH), windows.returns(GAMMA)


def reference(ring: Ring, step: int, world: int) -> tuple[float, float, float]:
    """Gain, discount and validity of the window that begins at a step of a world."""
    gain, discount = 0.0, 1.0
    for i in range(LENGTH):
        row = {
            name: ring.record.column(name)[(step + i) % ROWS, world].item()
            for name in COLUMNS
            if name not in ("obs", "action")
        }
        if row["fault"]:
            return np.nan, np.nan, 0.0
        gain += GAMMA**i * row["reward"]
        if row["terminated"]:
            return gain, 0.0, 1.0
        if row["truncated"]:
            return np.nan, np.nan, 0.0
        discount = GAMMA ** (i + 1)
    return gain, discount, 1.0


@pytest.mark.parametrize("written", [4, 9, ROWS, 40])
def test_windows_are_those_of_the_reference(written):
    """Targets of windows with a termination, a time limit, a fault and none of them."""
    ring = make_ring(written)
    unit = torch.rand(WORLDS, 400, generator=torch.Generator().manual_seed(1))
    first, then, paid = draw(ring, unit)
    seen, kinds = set(), set()
    for i in range(WORLDS * 400):
        step, world = (int(x) for x in first.obs[i])
        assert world == i // 400 and torch.equal(first.action[i], torch.tensor([1.0 * step]))
        gain, discount, valid = reference(ring, step, world)
        assert paid.valid[i] == valid
        kinds.add((valid, discount == 0))
        if valid:
            assert np.isclose(paid.gain[i], gain, atol=1e-6)
            assert np.isclose(paid.discount[i], discount)
        assert then.obs[i].tolist() == [step + LENGTH, world]
        seen.add(step)
    # each window that lies whole in the ring, up to the newest row, which has an observation
    assert seen == set(range(max(0, written - ROWS), written - LENGTH))
    assert torch.isfinite(paid.gain).all()
    assert written < 40 or kinds == {(1.0, False), (1.0, True), (0.0, False)}


def test_windows_are_drawn_alike():
    """Each start is as likely: the counts of 20 bins are those of chance."""
    unit = torch.rand(WORLDS, 9000, generator=torch.Generator().manual_seed(2))
    first, _, _ = draw(make_ring(40), unit)
    counts = first.obs[:, 0].long().bincount()[28:]
    expected = WORLDS * 9000 / len(counts)
    assert len(counts) == ROWS - LENGTH
    # chi-square of 8 degrees of freedom: above 26.1 in one of a thousand
    assert ((counts - expected) ** 2 / expected).sum() < 26.1


def test_a_ring_that_is_not_filled_gives_numbers():
    """Before there are enough steps, windows hold zeros and no NaN; nobody learns from them."""
    unit = torch.rand(WORLDS, 5, generator=torch.Generator().manual_seed(3))
    _, then, paid = draw(make_ring(1), unit)
    assert torch.isfinite(paid.gain).all() and torch.isfinite(then.obs).all()


@pytest.mark.parametrize("sampler", [Uniform, PRIORITIZED], ids=["uniform", "priority"])
@pytest.mark.parametrize("written", [6, ROWS, ROWS + 1, 40])
def test_what_is_drawn_lies_in_the_ring(sampler, written):
    """With two steps before it, each window that does and no other, as `may_begin` has it."""
    ring = make_ring(written, sampler)
    unit = torch.rand(WORLDS, 400, generator=torch.Generator().manual_seed(4))
    drawn = ring.draw(unit, LENGTH, 2)
    steps = ring.windows(drawn.places, LENGTH, 2).steps().obs[..., 0]
    assert steps.diff(dim=0).eq(1).all()
    assert {*steps[2].tolist()} == {*range(max(0, written - ROWS) + 2, written - LENGTH)}
    allowed = {tuple(x) for x in ring.may_begin(LENGTH, 2).nonzero().tolist()}
    assert {tuple(x) for x in drawn.places.tolist()} == allowed
    torch.testing.assert_close(drawn.weights, torch.ones_like(drawn.weights))
