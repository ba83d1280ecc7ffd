"""The counter-based generator: published answers, purity, distributions, permutations."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch

from gpusim_rl.core.rng import Rng, stream_id

# Random123 (Salmon et al. 2011), kat_vectors, philox4x32 10: counter, key, answer
KNOWN = """
00000000 00000000 00000000 00000000, 00000000 00000000, 6627e8d5 e169c58d bc57ac4c 9b00dbd8
ffffffff ffffffff ffffffff ffffffff, ffffffff ffffffff, 408f276d 41c83b0e a20bc7c6 6d5451fd
243f6a88 85a308d3 13198a2e 03707344, a4093822 299f31d0, d16cfe09 94fdcceb 5001e420 24126ea1
"""
COUNT = 100_000
KOLMOGOROV = 1.95  # √n times the largest distance exceeds this once in a thousand samples


def words(text: str) -> tuple[int, ...]:
    return tuple(int(word, 16) for word in text.split())


def philox(counter: Any, key: Any) -> Any:
    """Philox4x32-10 (section 4.3) of Python's integers or arrays of uint64: four words."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        high0, low0 = divmod(0xD2511F53 * c0, 2**32)
        high1, low1 = divmod(0xCD9E8D57 * c2, 2**32)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + 0x9E3779B9) % 2**32, (k1 + 0xBB67AE85) % 2**32
    return c0, c1, c2, c3


def make(n: int, *, seed: int = 7, step: int = 0, first: int = 0, life: Any = 0) -> Rng:
    rng = Rng(seed, torch.arange(first, first + n), life)
    rng.draw(torch.tensor(step))
    return rng


def distance(sample: torch.Tensor, cdf) -> float:
    """√n sup |F_n - F|, Kolmogorov's statistic."""
    x, n = sample.double().sort().values, len(sample)
    rank = torch.arange(n + 1, dtype=torch.float64) / n
    f = cdf(x)
    return math.sqrt(n) * max((f - rank[:-1]).max().item(), (rank[1:] - f).max().item())


@pytest.mark.parametrize("line", KNOWN.strip().splitlines())
def test_known_answers(line):
    """Philox gives the published words for the published counters and keys."""
    counter, key, answer = map(words, line.split(", "))
    assert philox(counter, key) == answer


def test_world_does_not_know_its_neighbors():
    """World i draws the same numbers among 8 worlds, the first or others, and among 7,000."""
    many = make(7_000, step=3)
    for first in (0, 512):
        few, place = make(8, first=first, step=3), slice(first, first + 8)
        assert torch.equal(few.normal("a", 5), many.normal("a", 5)[place])
        assert torch.equal(few.uniform("b", 0.0, 1.0), many.uniform("b", 0.0, 1.0)[place])
        assert torch.equal(few.integers("c", 1000, 3), many.integers("c", 1000, 3)[place])


def test_streams_do_not_know_each_other():
    """No further stream, and no order of asking, changes a stream's numbers."""
    alone = make(16, step=4).uniform("a", 0.0, 1.0)
    rng = make(16)
    for name in ("z", "b", "y"):
        rng.normal(name, 7)
    late = rng.uniform("a", 0.0, 1.0)
    assert not torch.equal(late, alone)  # of step 0
    rng.draw(torch.tensor(4))
    assert torch.equal(rng.uniform("a", 0.0, 1.0), alone)
    assert torch.equal(make(16, step=4).normal("b", 7), rng.normal("b", 7))


def test_asking_twice_gives_the_same():
    """A stream is one block of numbers in a step, at the same address in each."""
    rng = make(16)
    rng.normal("a", 3)
    address = rng._words.data_ptr(), rng._units.data_ptr()
    for step in range(3):
        rng.draw(torch.tensor(step))
        assert torch.equal(rng.normal("a", 3), rng.normal("a", 3))
        assert (rng._words.data_ptr(), rng._units.data_ptr()) == address


def test_a_life_may_be_live():
    """What is written to its tensor acts at the next draw, as if the worlds had begun with it."""
    life, step = torch.zeros(1, dtype=torch.int64), torch.tensor(5)
    live, rngs = make(8, life=life), (make(8), make(8, life=3))
    for rng in rngs:
        life.copy_(rng.life)
        for each in (live, rng):
            each.draw(step)
        assert torch.equal(*(x.integers("a", 2**31, 8) for x in (live, rng)))
        assert torch.equal(*(x.permutations("a", step, 2, 9) for x in (live, rng)))
    assert not torch.equal(*(x.permutations("a", step, 2, 9) for x in rngs))
    assert not (rngs[0].integers("a", 2**31, 8) == rngs[1].integers("a", 2**31, 8)).any()


def test_width_is_fixed():
    """Asking a stream for another width is an error that names it."""
    rng = make(4)
    rng.normal("kick", 2)
    with pytest.raises(ValueError, match="'kick' has width 2, asked for 4"):
        rng.normal("kick", 4)


def test_uniform_bounds():
    """Bounds are numbers or tensors that broadcast, and each column keeps to its own."""
    low, high = torch.tensor([[-1.0], [2.0]]), torch.tensor([0.0, 5.0, 9.0])
    u = make(COUNT // 10).uniform("u", low, high)
    assert u.shape == (COUNT // 10, 2, 3)
    span = (high - low).abs()
    first, last = torch.minimum(low, high), torch.maximum(low, high)
    assert ((u >= first) & (u <= last)).all()
    assert ((u.amin(0) - first < 0.01 * span) & (last - u.amax(0) < 0.01 * span)).all()
    rng = make(64)
    numbers = rng.uniform("n", 0.5, 1.25)
    assert numbers.shape == (64,)
    assert torch.equal(numbers, rng.uniform("n", torch.tensor(0.5), torch.tensor(1.25)))


def test_the_kernel_is_philox():
    """Words are `philox` at (seed, stream), (world, column / 4, step); numbers follow from them."""
    rng = make(64, seed=0xDEADBEEF, first=2**31 - 7, step=2**35 + 11)
    rng.integers("a", 2, 7)
    rng.integers("b", 2, 2)
    rng._words.fill_(-1)
    rng._units.fill_(torch.nan)
    rng.draw(torch.tensor(2**35 + 11))
    columns = [("a", 0), ("a", 1), ("b", 0)]
    for group, (name, column) in enumerate(columns):
        worlds = rng.worlds.numpy().astype(np.uint64)
        block = philox((worlds, column, 11, 2**3), (rng.seed, stream_id(name)))
        words = torch.from_numpy(np.stack(block, 1).astype(np.int64))
        where = slice(4 * group, 4 * group + 4)
        assert torch.equal(rng._words[:, where], words)
        assert torch.equal(rng._units[:, where], (words >> 8).float() * 2.0**-24)
    assert ((rng._units >= 0) & (rng._units < 1)).all()
    for n in (2, 2**31 - 1):
        assert torch.equal(rng.integers("a", n, 7), (rng._words[:, :7] * n) >> 32)


def test_normal_distribution():
    """Normals have the moments of N(0, 1), pass Kolmogorov's test, and do not correlate."""
    z = make(COUNT).normal("z", 3)
    assert z.shape == (COUNT, 3) and z.dtype == torch.float32
    deviation = 4 / math.sqrt(COUNT)  # four standard errors of a mean of unit variance
    for k, (moment, variance) in enumerate(((0, 1), (1, 2), (0, 15), (3, 96)), start=1):
        assert ((z.double() ** k).mean(0) - moment).abs().max() < deviation * math.sqrt(variance)
    for column in z.T:
        assert distance(column, lambda x: 0.5 * (1 + torch.erf(x / math.sqrt(2)))) < KOLMOGOROV
    off = torch.corrcoef(z.T) - torch.eye(3)
    squares = torch.corrcoef(z.T**2) - torch.eye(3)
    assert max(off.abs().max(), squares.abs().max()) < deviation


def test_permutations_sort_63_bit_keys():
    """Row r of world w is the stable argsort of Philox's first 63 bits at (n r + item, w, step)."""
    step = 2**33 + 5
    got = make(4, seed=3).permutations("order", torch.tensor(step), 3, 50)
    assert got.shape == (3, 4, 50)
    key = 3, stream_id("order")
    for row, world in itertools.product(range(3), range(4)):
        block = [philox((50 * row + i, world, 5, 2), key) for i in range(50)]
        keys = [((w[0] << 32) | w[1]) >> 1 for w in block]
        assert got[row, world].tolist() == sorted(range(50), key=keys.__getitem__)


def test_permutations_use_all_63_bits():
    """Items whose first 32 bits agree are ordered by the bits that follow."""
    n = 200_000
    block = philox((np.arange(n, dtype=np.uint64), 0, 0, 0), (3, stream_id("o")))
    words, low = (torch.from_numpy(x.astype(np.int64)) for x in block[:2])
    assert len(words.unique()) < n
    keys = (words << 31) | (low >> 1)
    order = make(1, seed=3).permutations("o", torch.tensor(0), 1, n)[0, 0]
    assert (keys[order].diff() > 0).all() and not torch.equal(order, words.argsort(stable=True))
