"""rsl_rl trains on our tasks through its own VecEnv, without a copy on the host."""

import shutil

import pytest
import torch

from benchmarks.adapters import rsl_config
from tests.guard import guard
from tests.worlds import make_env

pytest.importorskip("rsl_rl", reason="rsl-rl-lib is missing: pip install 'gpusim_rl[rsl]'")
if not shutil.which("git"):
    pytest.skip("rsl_rl's logger needs git", allow_module_level=True)

from gpusim_rl.adapters import rsl_rl_env
from tests.adapters.conftest import KEYS, upset


def test_a_step_is_the_envs():
    """Views, rewards and ends; a time-out and a fault are `time_outs`, a fall is not."""
    worlds = rsl_rl_env.make("quadruped", 4, seed=3, **KEYS)
    env = make_env(num_envs=4, seed=3, stagger=False)
    assert (worlds.num_envs, worlds.num_actions, worlds.max_episode_length) == (4, 12, 1000)
    first = worlds.get_observations()
    upset(worlds.env)
    upset(env)
    env.time[3] = 999
    # As the runner's init_at_random_ep_len does.
    worlds.episode_length_buf = torch.tensor([0, 0, 0, 999])
    action = torch.full((4, 12), 0.1)
    step = env.step(action)
    obs, reward, done, extras = worlds.step(action)
    assert torch.equal(obs["policy"], step.observation["actor"])
    assert torch.equal(obs["critic"], step.observation["critic"])
    assert torch.equal(reward, step.reward) and done.tolist() == [1, 0, 1, 1]
    assert extras["time_outs"].tolist() == [0, 0, 1, 1] and extras["log"]["/fault"].item() == 0.25
    # The first observation is not written again.
    assert not torch.equal(first["policy"], worlds.get_observations()["policy"])
    assert worlds.episode_length_buf.tolist() == [0, 1, 0, 0]


def test_nothing_is_read_on_the_host():
    """A step reads no tensor on the host but for the native engine's own, which is there."""
    worlds = rsl_rl_env.make("quadruped", 4, **KEYS)
    sim, action = worlds.env.sim, torch.zeros(4, 12)
    worlds.step(action)
    with guard((sim, "step"), (sim, "reset")) as switch:
        worlds.step(action)
        worlds.get_observations()
    assert switch.seen > 100


def test_the_real_runner_trains():
    """Two iterations of OnPolicyRunner change the actor; its rewards are ours."""
    worlds = rsl_rl_env.make("quadruped", 8, **KEYS, **{"task.episode": 0.1})
    from rsl_rl.runners import OnPolicyRunner  # imports a compiler, which takes seconds

    runner = OnPolicyRunner(worlds, rsl_config(8), device="cpu")
    before = {name: value.clone() for name, value in runner.alg.actor.state_dict().items()}
    runner.learn(2, init_at_random_ep_len=True)
    after = runner.alg.actor.state_dict()
    assert not any(torch.equal(value, after[name]) for name, value in before.items())
    metrics = worlds.env.metrics()
    assert metrics["length"] == pytest.approx(0.1, abs=0.02) and metrics["fault"] == 0
