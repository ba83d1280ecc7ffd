"""Every task on both engines: five iterations, twice, and worlds that ignore their neighbors."""

import math

import pytest
import torch

from tests.worlds import SIMS, TASKS, differing, make_env, make_ppo

pytestmark = [
    pytest.mark.matrix,
    pytest.mark.parametrize("sim", SIMS),
    pytest.mark.parametrize("name", TASKS),
]


def test_five_iterations_twice(name, sim):
    """Five iterations give finite numbers without a fault, and the same bits when done again."""
    states = []
    for _ in range(2):
        ppo = make_ppo(make_env(name, 16, sim=sim), num_minibatches=2)
        for _ in range(5):
            ppo.iteration()
        metrics = ppo.report()()
        assert metrics["fault"] == metrics["overflow"] == 0
        assert all(math.isfinite(x) for x in metrics.values())
        states.append(ppo.state())
    assert differing(*states) == []


def test_worlds_do_not_see_their_neighbors(name, sim):
    """A world does the same among 8 and among 16, through several restarts."""
    few, many = (make_env(name, n, sim=sim, episode=0.4) for n in (8, 16))
    generator = torch.Generator().manual_seed(0)
    for _ in range(2 * few.task.horizon + 5):
        action = torch.randn(16, few.task.action_width, generator=generator)
        one, other = few.step(action[:8]), many.step(action)
        assert torch.equal(one.reward, other.reward[:8])
        assert torch.equal(one.observation["actor"], other.observation["actor"][:8])
    others = many.tensors()
    for key, (x, worlds) in few.tensors().items():
        assert not worlds or torch.equal(x, others[key].tensor[:8]), key
