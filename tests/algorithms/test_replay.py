"""What SAC may have beside its windows: priorities, and an actor that remembers."""

import math
from typing import Any

import pytest
import torch

from gpusim_rl.core.record import Record
from gpusim_rl.runs.demonstrations import Demonstrations, demonstration_columns
from tests.algorithms.test_sac import make_sac
from tests.guard import reads_nothing
from tests.worlds import goes_on, make_env

PRIORITY: dict[str, Any] = dict(draw="prioritized")
GRU: dict[str, Any] = dict(memory="gru", memory_size=8, burn_in=4, sequence=2)
NO_BURN_IN: dict[str, Any] = GRU | dict(burn_in=0)
ATTENTION: dict[str, Any] = dict(memory="attention", memory_size=8, memory_frames=5, sequence=2)
ALL: dict[str, Any] = {"priority": PRIORITY, "gru": GRU, "attention": ATTENTION}
ALL |= {"both": PRIORITY | GRU}
MEMORIES: dict[str, Any] = {"gru": GRU, "no burn-in": NO_BURN_IN, "attention": ATTENTION}


@pytest.mark.parametrize("numbers", [*ALL.values()], ids=[*ALL])
def test_it_learns(numbers):
    """It reads nothing on the host, learns from the second iteration on, and goes on to the bit."""
    sac, other = (make_sac(make_env("cartpole", 8, episode=0.4), **numbers) for _ in range(2))
    sac.iteration()
    assert {x for x in reads_nothing(sac, calls=300) if x.startswith("actor.net.")} == set()
    row = sac.report()()
    assert row["skipped"] == 0 and math.isfinite(row["critic_loss"])
    assert 0 < row["draw_share"] <= 1 and 3 < row["draw_age"] < 16
    goes_on(sac, other, 2)


@pytest.mark.parametrize("numbers", [*MEMORIES.values()], ids=[*MEMORIES])
def test_memory_is_that_of_the_steps(numbers):
    """The renewed memory is what the same actor had there, over the ends of episodes, too."""
    sac = make_sac(make_env("cartpole", 8, episode=0.3), **numbers)
    past = []
    for _ in range(3):
        for _ in range(8):
            past.append(sac.source.memory["actor"].clone())
            sac.source.collect(1)
        sac.append()
    batch = sac.learner.choose_batch(sac.ring, torch.rand(8, 2))
    past, ring = torch.stack(past), sac.ring.record
    rows, worlds = (x[::2] for x in batch.draw.places.T)
    assert batch.then.begins.shape == (2, 8) and ring.truncated.any()
    for steps, later in ((batch.first, 0), (batch.then, 3)):
        at = rows + later
        ended = ring.truncated[at - 1, worlds] & (at > 0)
        keep = ~ended.view(-1, *[1] * (steps.memory.ndim - 1))
        assert past[at, worlds].abs().max() > 1e-3
        # the ring has it in half precision
        wanted = past[at, worlds]
        torch.testing.assert_close(steps.memory * keep, wanted * keep, rtol=1e-3, atol=1e-3)
        assert not wanted[ended].any()


@pytest.mark.parametrize("numbers", [GRU, ATTENTION], ids=["gru", "attention"])
def test_no_gradient_enters_the_burn_in(numbers):
    """It is exactly zero, where that of the steps learned from is not."""
    sac = make_sac(make_env("cartpole", 8, episode=10.0), **numbers)
    for _ in range(2):
        sac.iteration()
    rows = sac.ring.record.parts[torch.float32].requires_grad_()
    batch = sac.learner.choose_batch(sac.ring, torch.rand(8, 2))
    assert not batch.first.memory.requires_grad
    (gradient,) = torch.autograd.grad(sac.learner.features(batch.first).square().sum(), rows)
    rows.requires_grad_(False)
    at = torch.zeros(gradient.shape[:2], dtype=torch.bool)
    row, world = batch.draw.places.T
    at[row, world] = True
    assert not gradient[~at].any() and gradient[at].any(1).all()


def test_critics_are_symmetric_and_the_actor_is_not():
    """A memory knows no mirror, and critics that have none commute with it as before."""
    env = make_env("quadruped", 2)
    numbers: list[dict[str, Any]] = [{}, GRU | {"sequence": 1}]
    plain, gru = (make_sac(env, batch_size=4, **x).policy for x in numbers)
    assert plain.critic.state_dict().keys() == gru.critic.state_dict().keys()
    assert type(gru.head.net).__name__ == "Ensemble"


def test_demonstrations_have_a_blank_memory():
    """A ring begins with them, although nobody knows what an actor remembered in them."""
    env = make_env("cartpole", 8)
    record = Record.zeros(demonstration_columns(env.views, 1), 60, device=torch.device("cpu"))
    record.column("obs").normal_(generator=torch.Generator().manual_seed(1))
    sac = make_sac(env, num_steps=4, given={"demos": Demonstrations(record, {})}, **GRU)
    sac.begin()
    assert sac.ring.count.tolist() == [8] * 8 and not sac.ring.record.column("memory/actor").any()
    sac.iteration()
    assert sac.report()()["skipped"] == 0


@pytest.mark.parametrize(
    "numbers, says",
    [
        (GRU | {"burn_in": 20}, "algo.replay=24: expected at least 25, for algo.burn_in=20"),
        (GRU | {"sequence": 4}, "algo.sequence=4: expected a divisor of batch_size"),
        (ATTENTION | {"burn_in": 4}, "algo.burn_in=4: attention sees algo.memory_frames"),
        ({"draw": "priority"}, "algo.draw=priority: choose one of uniform, prioritized"),
        (GRU | {"memory": "lstm"}, "algo.memory=lstm: choose one of none, gru, attention"),
    ],
)
def test_numbers_that_do_not_fit(numbers, says):
    """One line that names the key, before anything is built."""
    with pytest.raises(ValueError, match=says):
        make_sac(make_env("cartpole", 8), **numbers)
