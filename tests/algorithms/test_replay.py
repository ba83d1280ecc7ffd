"""SAC as a user changes it: windows by priority, and an actor that remembers."""

import math
from typing import Any

import pytest
import torch

from tests.algorithms.own import recurrent
from tests.algorithms.test_sac import make_sac
from tests.guard import reads_nothing
from tests.worlds import goes_on, make_env

PRIORITY: dict[str, Any] = dict(draw="prioritized")
RECURRENT: dict[str, Any] = dict(spec=recurrent.SPEC, memory_size=8, burn=4, train=2)


@pytest.mark.parametrize("numbers", [PRIORITY, RECURRENT], ids=["priority", "recurrent"])
def test_a_changed_sac_learns(numbers):
    """It reads nothing on the host, learns from the second iteration on, and goes on to the bit."""
    sac, other = (make_sac(make_env("cartpole", 8, episode=0.4), **numbers) for _ in range(2))
    sac.iteration()
    assert {x for x in reads_nothing(sac) if x.startswith("actor.net.")} == set()
    row = sac.report()()
    assert row["skipped"] == 0 and math.isfinite(row["critic_loss"])
    assert 0 < row["draw_share"] <= 1 and 3 < row["draw_age"] < 16
    goes_on(sac, other)


def test_memory_is_that_of_the_steps():
    """The renewed memory is what the same actor had there, over the ends of episodes, too."""
    sac = make_sac(make_env("cartpole", 8, episode=0.3), **RECURRENT)
    for _ in range(3):
        sac.collect()
        sac.append()
    batch = sac.learner.choose_batch(sac.ring, torch.rand(8, 2))
    rows, worlds = batch.draw.places.T
    assert batch.then.begins.shape == (2, 8) and sac.ring.record.truncated.any()
    for steps, later in ((batch.first, 0), (batch.then, 3)):
        stored, ends = (
            sac.ring.record.column(x)[(rows[::2] + i) % 24, worlds[::2]]
            for x, i in (("h", later), ("truncated", later - 1))
        )
        h = steps.h.masked_fill(ends[:, None] > 0, 0.0)
        assert stored.abs().max() > 1e-3
        torch.testing.assert_close(h, stored, rtol=1e-4, atol=1e-6)
