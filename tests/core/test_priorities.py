"""Windows that are drawn by priority, against the shares that their masses say."""

from functools import partial

import pytest
import torch
from scipy.special import chdtr
from torch import Tensor

from gpusim_rl.core.priorities import LEAST_ERROR, Prioritized
from gpusim_rl.core.record import FLAG, NUMBER, Record
from gpusim_rl.core.ring import Ring, RingSpec

COLUMNS = dict(reward=NUMBER, terminated=FLAG, truncated=FLAG, fault=FLAG)
LENGTH, DRAWS, CPU = 3, 200_000, torch.device("cpu")
SHARES = dict(exponent=1.0, importance=1.0)


def make_ring(rows: int, worlds: int, written: int, **exponents: float) -> Ring:
    """A ring of so many steps, whose windows are drawn by priority."""
    ring = Ring(COLUMNS, RingSpec(rows, sampler=partial(Prioritized, **exponents)), worlds, CPU)
    for begin in range(0, written, rows):
        ring.write(Record.zeros(COLUMNS, min(rows, written - begin), worlds, device=CPU))
    return ring


def numbers(*shape: int, seed: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def random_mass(ring: Ring) -> Tensor:
    """(B, R) any."""
    return numbers(*ring.sampler.mass.shape, seed=1)


def with_zeros(ring: Ring) -> Tensor:
    """Half of the windows are cut, the last ones among them."""
    mass = random_mass(ring)
    mass[numbers(*mass.shape, seed=2) < 0.5] = 0.0
    mass[:, -9:] = 0.0
    return mass


def with_a_giant(ring: Ring) -> Tensor:
    """One window of each world has as much as all others."""
    mass = random_mass(ring)
    mass[:, 100] = mass.sum(1) - mass[:, 100]
    return mass


def unequal_worlds(ring: Ring) -> Tensor:
    """The second world has a thousand times the mass of the first."""
    mass = random_mass(ring)
    mass[1] *= 1000.0
    return mass


def learned_twice(ring: Ring) -> Tensor:
    """Each window was in one update twice, with two errors, in both orders: the larger counts."""
    rows, worlds = len(ring), len(ring.count)
    at = torch.cartesian_prod(torch.arange(worlds), torch.arange(rows)).flip(1)
    small, large = (numbers(len(at), seed=x) for x in (3, 4))
    large = torch.maximum(small, large)
    places = torch.cat([at, at])
    even = at[:, 0] % 2 == 0
    first, second = torch.where(even, small, large), torch.where(even, large, small)
    ring.update(places, torch.cat([first, second])[None])
    torch.testing.assert_close(ring.sampler.mass, (large + LEAST_ERROR).view(worlds, rows))
    return ring.sampler.mass.clone()


MASSES = [random_mass, with_zeros, with_a_giant, unequal_worlds, learned_twice]


@pytest.mark.parametrize("rows, written", [(512, 700), (777, 400)])
@pytest.mark.parametrize("make_mass", MASSES)
def test_windows_are_drawn_as_their_masses_say(make_mass, rows, written):
    """Neither further from the shares than chance, nor closer: chi-square, 0.001 on both sides."""
    ring = make_ring(rows, 2, written, **SHARES)
    ring.sampler.mass.copy_(make_mass(ring))
    ring.sampler.mass[:, written:] = 0.0  # of steps that are not there
    drawn = ring.draw(numbers(2, DRAWS, seed=5), LENGTH)
    at = drawn.places[:, 1] * rows + drawn.places[:, 0]
    counts = at.bincount(minlength=2 * rows).view(2, rows).double()
    mass = (ring.sampler.mass * ring.may_begin(LENGTH).T).double()
    expected = DRAWS * mass / mass.sum(1, keepdim=True)
    assert not counts[mass == 0].any()
    for seen, wanted in zip(counts, expected, strict=True):
        often = wanted >= 5
        chi = ((seen - wanted)[often] ** 2 / wanted[often]).sum()
        likely = chdtr(int(often.sum()) - 1, float(chi))
        assert 0.0005 < likely < 0.9995, likely
    if make_mass is with_a_giant and ring.may_begin(LENGTH)[100].all():
        share = counts[:, 100] / DRAWS
        wanted = expected[:, 100] / DRAWS
        assert ((share - wanted).abs() < 4 * (wanted * (1 - wanted) / DRAWS).sqrt()).all()


def test_weights_make_up_for_the_draws():
    """With importance 1 a mean over draws is that over all windows, within four deviations."""
    ring = make_ring(1000, 8, 1003, **SHARES)
    ring.sampler.mass.copy_(numbers(8, 1000, seed=1) * torch.logspace(-3, 3, 8)[:, None])
    values = torch.randn(8, 1000, generator=torch.Generator().manual_seed(2))
    values += torch.arange(1000) / 500
    means = []
    for i in range(400):
        drawn = ring.draw(numbers(8, 32, seed=i), LENGTH)
        rows, worlds = drawn.places.T
        means.append((drawn.weights * values[worlds, rows]).mean())
    means = torch.stack(means)
    truth = values[ring.may_begin(LENGTH).T].mean()
    assert (means.mean() - truth).abs() < 4 * means.std() / len(means) ** 0.5


def test_a_new_step_counts_as_the_largest_error():
    """Of its world; a window that is cut is not drawn."""
    ring = make_ring(12, 2, 12, exponent=0.5, importance=1.0)
    places = torch.tensor([[2, 0], [3, 0], [2, 1]])
    ring.update(places, torch.tensor([[4.0, 0.0, 0.5], [2.0, 0.0, 0.5]]))
    assert float(ring.sampler.mass[0, 2]) == pytest.approx((3.0 + LEAST_ERROR) ** 0.5)
    assert ring.sampler.mass[0, 3] == 0.0
    largest = ring.sampler.largest.clone()
    assert largest[0] == ring.sampler.mass[0, 2] and largest[1] < 1.0
    ring.write(Record.zeros(COLUMNS, 2, 2, device=CPU))
    assert torch.equal(ring.sampler.mass[:, [0, 1]], largest[:, None].expand(2, 2))


def test_what_was_written_before_a_roll_back_is_not_drawn():
    """A ring that is filled anew has the old numbers behind its newest row."""
    ring = make_ring(32, 2, 64, **SHARES)
    ring.count.zero_()
    ring.write(Record.zeros(COLUMNS, 8, 2, device=CPU))
    rows = ring.draw(numbers(2, 200, seed=1), LENGTH).places[:, 0]
    assert rows.max() < 8 - LENGTH


def test_a_world_without_a_window_is_not_learned_from():
    """Where all are cut, whatever is drawn has no weight, and no number is lost."""
    ring = make_ring(12, 2, 12, **SHARES)
    ring.sampler.mass[0] = 0.0
    drawn = ring.draw(numbers(2, 50, seed=1), LENGTH)
    assert drawn.weights[:50].eq(0).all() and torch.isfinite(drawn.weights).all()
    assert drawn.weights[50:].gt(0).all()
    share, age = ring.measures().tolist()
    assert share == pytest.approx(0.5) and 3 <= age <= 11
