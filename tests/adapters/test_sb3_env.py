"""Stable-Baselines3 trains on our tasks through its own VecEnv."""

import numpy as np
import pytest

pytest.importorskip(
    "stable_baselines3", reason="stable-baselines3 is missing: pip install 'gpusim_rl[sb3]'"
)

from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import VecMonitor

from benchmarks.adapters import CARTPOLE, judge
from gpusim_rl.adapters import gymnasium_env, sb3_env
from tests.adapters.conftest import KEYS, upset


def test_ends_are_told_as_stable_baselines3_has_them():
    """A time-out is bootstrapped with its last observation, no fall or fault."""
    env = sb3_env.make("quadruped", 4, **KEYS)
    twin = gymnasium_env.make("quadruped", 4, **KEYS)
    env.seed(1)
    assert np.array_equal(env.reset(), twin.reset(seed=1)[0])
    for worlds in (env.worlds, twin):
        upset(worlds.env)
        worlds.env.time[3] = worlds.env.task.horizon - 1
    rest = np.zeros((4, 12), np.float32)
    obs, reward, done, infos = env.step(rest)
    others = twin.step(rest)
    assert np.array_equal(obs, others[0]) and np.array_equal(reward, others[1])
    assert done.tolist() == [True, False, True, True]
    assert [info.get("TimeLimit.truncated") for info in infos] == [False, None, False, True]
    assert infos[1] == {} and [i for i in range(4) if infos[i].get("fault")] == [2]
    for i in (0, 2, 3):
        assert np.array_equal(infos[i]["terminal_observation"], others[4]["final_obs"][i])


def test_seeds_are_used_once():
    """`seed` gives the next reset its seed, and the one after it goes on."""
    env = sb3_env.make("cartpole", 2, **KEYS)
    env.seed(3)
    first, second = env.reset(), env.reset()
    env.seed(3)
    assert np.array_equal(env.reset(), first) and np.array_equal(env.reset(), second)
    assert not np.array_equal(first, second)


def test_asked_of_all_or_refused():
    """Attributes are those of the worlds; what would be done to some worlds is refused."""
    env = sb3_env.make("cartpole", 3, **KEYS)
    assert env.get_attr("num_envs", [0, 2]) == [3, 3]
    assert env.env_is_wrapped(VecMonitor) == [False] * 3
    with pytest.raises(ValueError, match="indices=1: all worlds are one object"):
        env.env_method("render", indices=1)


@pytest.mark.slow
def test_stable_baselines3_learns_cartpole():
    """Its PPO has six times the return after 51,200 steps."""
    env = sb3_env.make("cartpole", 256, seed=1, **KEYS)
    net = dict(net_arch=[64, 64])
    model = PPO("MlpPolicy", VecMonitor(env), policy_kwargs=net, seed=1, device="cpu", **CARTPOLE)
    before = judge(model, env.worlds)["return"]
    model.learn(50_000)
    after = judge(model, env.worlds)["return"]
    assert before < 0.5 and after > 3
    assert len(model.ep_info_buffer) == 100
    assert model.ep_info_buffer[0]["l"] == env.worlds.env.task.horizon
