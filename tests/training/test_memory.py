"""The memory plan counts what is there, extrapolates, and is one line where it does not fit."""

from functools import partial

import numpy as np
import pytest
import torch
import warp as wp

from gpusim_rl.algorithms.ppo import ppo
from gpusim_rl.assembly import environment, joining
from gpusim_rl.assembly.iteration import make_iteration
from gpusim_rl.training.memory import PARTS, held_bytes, measure_parts, measure_plan
from tests.command_lines import refused, succeed
from tests.worlds import make_config, make_env, make_ppo

CPU = torch.device("cpu")


def build(worlds: int, sim: str = "native"):
    """A small PPO."""
    return make_ppo(make_env(num_envs=worlds, sim=sim), num_minibatches=4)


def test_held_counts_each_byte_once():
    """Tensors and arrays at any depth; no view and nothing seen before counts again."""
    x, y = torch.zeros(10), wp.zeros(6, dtype=wp.float32, device="cpu")
    thing = {"a": [x, x[2:5], (x.view(2, 5),)], "b": {"c": y, "d": np.zeros(4)}, "e": build}
    seen: set[int] = set()
    assert held_bytes(thing, seen) == 40 + y.capacity + 32
    assert held_bytes(x[1:], set()) == 40  # all that it keeps alive
    assert held_bytes([wp.from_torch(x[:4]), wp.from_torch(x[4:])], set()) == 40  # views of x
    assert held_bytes([y, x], seen) == 0 and held_bytes(thing, set(), skip=(y,)) == 72


@pytest.mark.slow
def test_the_plan_is_what_is_there():
    """At a third number of worlds every part is the plan's to 2 %; networks do not grow."""
    plan = measure_plan(build)
    measured, said = measure_parts(build, 192, CPU), plan.bytes(192)
    assert set(measured) == set(said) == set(PARTS)
    for part in PARTS:
        assert said[part] == pytest.approx(measured[part], rel=0.02), part
    assert plan.slope["networks"] == plan.slope["optimizer"] == 0 < plan.constant["networks"]
    r = build(192).source.record
    floats = sum(x.shape[-1] for x in (r.obs, r.critic, r.mean, r.action, r.std, r.end))
    floats += 5  # logp, reward, terminated, truncated, fault
    assert measured["rollout"] == 192 * 8 * floats * 4 + 8
    assert sum(plan.bytes(plan.largest).values()) <= 0.9 * plan.free
    assert sum(plan.bytes(plan.largest + 1).values()) > 0.9 * plan.free


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["task=cartpole"],
        ["task=quadruped"],
        ["task=cartpole", "algo.memory=gru"],
        ["task=cartpole", "algo.memory=attention"],
    ],
)
def test_what_is_refused_at_once(monkeypatch, words):
    """The first checks expect at least half of the bytes, and not more than all of them."""
    cfg, sizes = make_config(*words, "sim=native", "device=cpu"), []
    for place in (environment, joining, ppo):
        monkeypatch.setattr(place, "check_free", lambda what, size, device: sizes.append(size))
    measured = sum(measure_parts(partial(make_iteration, cfg), 1024, CPU).values())
    worlds, _, rollout = sizes[:3]
    assert 0.5 * measured < max(worlds, rollout) <= measured


def test_warp_holds_its_capacities():
    """With MuJoCo Warp physics holds the contact pool too."""
    few = measure_parts(
        lambda n: make_ppo(make_env(num_envs=n, sim="warp"), num_steps=2, num_minibatches=2), 4, CPU
    )["physics"]
    sim = make_env(num_envs=4, sim="warp").sim
    assert few >= held_bytes(sim.d.contact, set()) > 0


@pytest.mark.slow
@pytest.mark.parametrize("more", [[], ["algo.memory=gru", "algo.num_minibatches=12"]])
def test_it_is_printed(tmp_path, more):
    """plan=true prints parts and the largest num_envs, and makes no run."""
    said = succeed("train.py", "plan=true", "num_envs=96", "sim=native", *more, cwd=tmp_path)
    parts = (*PARTS, "total", "96 worlds", "largest num_envs that fits")
    assert all(part in said for part in parts)
    assert list(tmp_path.iterdir()) == []
    if more:  # what is wrong is wrong for every network
        return
    words = ("plan=true", "num_envs=1000000000", "sim=native")
    line = refused("train.py", *words, cwd=tmp_path)
    assert line.startswith("error: num_envs=1000000000 takes ")
    assert "expected true or false" in refused("train.py", "plan=maybe", cwd=tmp_path)
