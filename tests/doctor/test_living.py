"""What robots earn that fall, live, stand and follow; and planted tasks in which that is wrong."""

from typing import Any

import pytest
import torch

from gpusim_rl.doctor.living import FREE, HELD, LED, earned, living
from gpusim_rl.envs.env import Env
from tests.worlds import make_env, numbers

WALKERS = "quadruped", "humanoid", pytest.param("quadruped_rough", marks=pytest.mark.slow)


def worlds(name: str, weights: dict[str, float] | None = None, n: int = 96) -> Env:
    """Worlds of a task, with other weights of some terms."""
    env = make_env(name, n, stagger=False)
    changed = numbers(name)["weights"] | (weights or {})
    env.weights.copy_(torch.tensor([changed[term] for term in env.terms]))
    return env


@pytest.mark.parametrize("name", WALKERS)
def test_living_pays_in_our_walkers(name):
    """Neither falls nor standing pay, with the noise that PPO begins with."""
    assert not [*living(worlds(name, n=160), 0.5, 0.97)]


PLANTED: dict[str, tuple[dict[str, float], float]] = {
    "falling pays": (dict(alive=0.0, height=200.0), 1.2),
    "standing pays": (dict(velocity=0.0, yaw=0.0, mean_error=0.0, feet_slide=5.0), 0.5),
}


@pytest.mark.parametrize("what", PLANTED)
def test_what_pays_instead_is_named(what):
    """A task in which each second costs more than it earns, and one in which motion costs."""
    weights, std = PLANTED[what]
    assert [x for x in living(worlds("quadruped", weights), std, 0.97) if what in str(x)]


def test_groups_do_what_their_names_say():
    """Held robots stay where they were, led ones move as the command says."""
    env, seen = worlds("humanoid"), list[Any]()

    def act(_: Any) -> Any:
        seen.append((env.sim.qpos[:, :3].clone(), env.current_state().velocity.clone()))
        return 0 * env.action

    x = earned(env, act, 0.98)
    assert [(x.part == i).sum() for i in (FREE, HELD, LED)] == [32] * 3
    assert x.fell[x.part == FREE].any() and not x.fell[x.part >= HELD].any()
    moved = (seen[-1][0] - seen[0][0])[x.part >= HELD]
    assert moved.abs().max() < 0.05
    command = env.memory["command"][x.part == LED]
    error = seen[50][1][x.part == LED][:, :2] - command[:, :2]
    assert command.norm(dim=1).min() > 0.05 and error.abs().mean() < 0.1
    assert (x.time <= 0.02 / (1 - 0.98) + 1e-6).all() and (x.time[x.fell] < x.time.max()).all()
