"""Gymnasium's view of our tasks: its checker, exact seeds, final observations, mistakes."""

import importlib
import re
import sys
import warnings

import numpy as np
import pytest

from tests.command_lines import one_line
from tests.worlds import SIMS, TASKS, make_env, widths

pytest.importorskip("gymnasium", reason="gymnasium is missing: pip install 'gpusim_rl[gym]'")

import gymnasium
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers.vector import DictInfoToList, RecordEpisodeStatistics

from gpusim_rl.adapters import gymnasium_env
from tests.adapters.conftest import KEYS, upset

HONEST = (
    "minimum value is -infinity",
    "maximum value is infinity",
    "symmetric and normalized space",
)


def make(task: str = "quadruped", num_envs: int = 4, **keys) -> gymnasium_env.Worlds:
    return gymnasium_env.make(task, num_envs, **(KEYS | keys))


def begun(**keys) -> gymnasium_env.Worlds:
    """Worlds in which the episodes of seed 1 begin."""
    worlds = make(**keys)
    worlds.reset(seed=1)
    return worlds


def play(
    worlds: gymnasium_env.Worlds, steps: int = 12, seed: int | None = None
) -> list[np.ndarray]:
    """Observations, rewards and critic's views of four worlds from a reset on."""
    obs, info = worlds.reset(seed=seed)
    shape, seen = (steps, 16, *worlds.action_space.shape[1:]), [obs, info["critic"]]
    plan = np.random.default_rng(0).uniform(-1, 1, shape)
    for action in plan[:, : worlds.num_envs]:
        obs, reward, _, _, info = worlds.step(action)
        seen += [obs, reward, info["critic"]]
    return [x[:4] for x in seen]


def same(one: list[np.ndarray], other: list[np.ndarray]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


# -- the interface ---------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_gymnasiums_checker_passes(task):
    """But for what is so: observations without bounds, actions beyond ± 1."""
    few = {"terrain.variants": 1} if task == "quadruped_rough" else {}
    world = gymnasium.make(f"gpusim_rl/{task}-v0", **KEYS, **few)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        check_env(world.unwrapped)
    world.close()
    said = [str(w.message) for w in said]
    assert [line for line in said if not any(honest in line for honest in HONEST)] == []


def test_make_vec_is_make():
    """`gymnasium.make_vec` and `make` give the same worlds, with the task's widths and limits."""
    worlds = make(seed=5)
    other = gymnasium.make_vec("gpusim_rl/quadruped-v0", num_envs=4, seed=5, **KEYS)
    no, _, nu = widths(worlds.env)
    assert isinstance(other, gymnasium_env.Worlds)
    assert worlds.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    assert worlds.observation_space.shape == (4, no) and worlds.single_action_space.shape == (nu,)
    assert worlds.action_space.high.max() == worlds.env.task.clip == -worlds.action_space.low.min()
    one, two = play(worlds), play(other)
    assert same(one, two) and one[0] in worlds.observation_space and one[0].dtype == np.float32


def test_wrappers_agree():
    """Gymnasium's wrappers read the infos: an episode's return is the sum of its rewards."""
    worlds = DictInfoToList(RecordEpisodeStatistics(make("cartpole", **{"task.episode": 0.2})))
    worlds.reset(seed=1)
    total = 0.0
    for step in range(4):
        _, reward, _, truncated, infos = worlds.step(worlds.action_space.sample())
        total += reward
        assert truncated.all() == (step == 3) == ("final_obs" in infos[0])
    assert np.allclose([info["episode"]["r"] for info in infos], total)
    assert infos[2]["episode"]["l"] == 4
    assert infos[3]["final_obs"].shape == (5,) and infos[3]["final_info"]["fault"] == np.False_


def test_a_world_of_its_own_ends_where_it_was():
    """It returns the last observation, the vector one the next episode's first."""
    keys = KEYS | {"task.episode": 0.1}
    world, worlds = gymnasium_env.World("cartpole", **keys), make("cartpole", 1, **keys)
    assert np.array_equal(world.reset(seed=2)[0], worlds.reset(seed=2)[0][0])
    for _ in range(2):
        obs, _, terminated, truncated, info = world.step(np.ones(1))
        after, *_, last = worlds.step(np.ones((1, 1)))
    assert (terminated, truncated, info["fault"]) == (False, True, False)
    assert np.array_equal(obs, last["final_obs"][0]) and not np.array_equal(obs, after[0])


# -- seeds -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("sim", SIMS)
def test_a_seed_is_exact(sim):
    """It gives its episode bit by bit, whatever was before; another, or none, another."""
    keys = {"sim": sim} | ({"sim.threads": 1} if sim == "native" else {})
    worlds, fresh = (
        gymnasium_env.make("quadruped", 4, device="cpu", **keys, seed=seed) for seed in (3, 8)
    )
    first = play(worlds, seed=7)
    going_on = play(worlds)
    assert not same(first, going_on)
    assert same(play(worlds, seed=7), first) and same(play(worlds), going_on)
    assert same(play(fresh, seed=7), first)
    assert not same(play(worlds, seed=8), first)


def test_a_seed_is_that_of_train():
    """Its worlds are an Env's of this seed, the same among nine as among four."""
    seen = play(make(), seed=6)
    assert same(play(make(num_envs=9), seed=6), seen)
    env = make_env(num_envs=4, seed=6, stagger=False)
    assert same([view.numpy() for view in env.observation.values()], seen[:2])


# -- ends of episodes ------------------------------------------------------------------------------


def test_the_end_of_a_history():
    """`final_obs` goes on from what was seen; a reset fills it anew."""
    worlds = make(**{"task.episode": 0.1, "task.history": {"gyro": 3}})
    obs, _ = worlds.reset(seed=1)
    for _ in range(5):
        seen = obs
        obs, _, _, truncated, info = worlds.step(worlds.action_space.sample())
    assert truncated.all()
    final, gyro = np.stack(info["final_obs"]), info["final_info"]["critic"][:, :3]
    assert np.array_equal(final[:, :6], seen[:, 3:9]) and np.array_equal(final[:, 6:9], gyro)
    assert np.array_equal(final[:, 9:], info["final_info"]["critic"][:, 3 : final.shape[1] - 6])
    for new in (obs, worlds.reset()[0]):
        assert np.array_equal(new[:, :3], new[:, 3:6]) and np.array_equal(new[:, :3], new[:, 6:9])


def test_an_end_has_the_offsets_of_its_episode():
    """Encoders' offsets and biases; a quarantined world has zeros."""
    noise = {f"task.noise.{term}": 0.0 for term in ("gyro", "up", "joint_pos", "joint_vel")}
    errors = {"encoder": {"kind": "uniform"}, "bias": {"gyro": {"kind": "uniform"}}}
    keys = {"task.episode": 0.1, "task.history": {"up": 2}, "task.randomise": errors}
    worlds = make(**keys, **noise)
    obs, info = worlds.reset(seed=1)
    # gyro and joints: of the actor, beside two steps of `up`, and of the critic
    spots = (slice(0, 3), slice(0, 3)), (slice(9, 21), slice(6, 18))
    off = [obs[:, a] - info["critic"][:, b] for a, b in spots]
    assert all(np.abs(x).max() > 0.01 for x in off)
    for _ in range(5):
        obs, _, _, truncated, info = worlds.step(worlds.action_space.sample())
    final, critic = np.stack(info["final_obs"]), info["final_info"]["critic"]
    assert truncated.all()
    for (a, b), expected in zip(spots, off, strict=True):
        assert np.allclose(final[:, a] - critic[:, b], expected, atol=1e-5)
    action = worlds.action_space.sample()
    action[0] = np.nan
    info = worlds.step(action)[-1]
    assert info["fault"][0] and not info["final_obs"][0].any()


def test_a_time_out_is_truncated_and_shows_its_end():
    """`final_obs` is, without noise, what a twin with longer episodes sees."""
    worlds, twin = begun(**{"task.episode": 0.1}), begun()
    for step in range(5):
        action = worlds.action_space.sample()
        obs, reward, terminated, truncated, info = worlds.step(action)
        _, unbroken, _, _, going_on = twin.step(action)
        assert truncated.all() == (step == 4) == ("final_obs" in info) and not terminated.any()
    no = obs.shape[1]
    ends = [np.stack(info["final_obs"]), reward, info["final_info"]["critic"]]
    assert same(ends, [going_on["critic"][:, :no], unbroken, going_on["critic"]])
    assert info["_final_obs"].all()
    assert (np.stack(info["final_obs"]) != obs).any(1).all() and not info["fault"].any()


def test_a_fall_is_terminated_and_a_fault_truncated():
    """With `fault`; the other worlds see neither."""
    worlds, twin = begun(), begun()
    rest = np.zeros(worlds.action_space.shape)
    upset(worlds.env)
    obs, reward, terminated, truncated, info = worlds.step(rest)
    untouched, paid, *_ = twin.step(rest)
    fell, lost = np.eye(4, dtype=bool)[[0, 2]]
    final = info["final_obs"]
    assert same([terminated, truncated], [fell, lost])
    assert same([info["fault"], info["final_info"]["fault"]], [lost, lost])
    assert same([info["_final_obs"], info["_final_info"]], [fell | lost] * 2)
    assert final[1] is None and not final[2].any() and final[0].any()
    assert np.isfinite(obs).all() and reward[2] == 0
    assert np.array_equal(obs[1::2], untouched[1::2]) and np.array_equal(reward[1::2], paid[1::2])


# -- mistakes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call, says",
    [
        (dict(task="nope"), "unknown task 'nope': choose one of ant, cartpole, drone"),
        (dict(task="cartpole", sim="nope"), "unknown sim 'nope': choose one of"),
        (dict(task="cartpole", num_env=3), "unknown key 'num_env': did you mean num_envs"),
        (dict(task="cartpole", seed="3"), "seed='3': expected a whole number"),
        (dict(task="cartpole", overrides=["seed=1,2"]), "'seed=1,2' is a list of values"),
        (
            dict(task="cartpole", overrides="seed=1"),
            "expected a list of KEY=VALUE, such as ['seed=1']",
        ),
        (dict(task="cartpole", overrides=["algo.gamma=0.9"]), "algo.gamma belongs to the training"),
        (dict(task="cartpole", iterations=3), "iterations belongs to the training"),
        (dict(task="cartpole", sim="native", device="cuda:99"), "device=cuda:99"),
        (
            dict(task="cartpole", render_mode="human"),
            "render_mode='human': choose one of None, 'rgb_array'",
        ),
    ],
)
def test_a_mistake_is_one_line(call, says, capsys):
    """A ValueError with the line of train.py; nothing is printed."""
    with one_line(says):
        gymnasium_env.make(**call)
    assert capsys.readouterr() == ("", "")


def test_wrong_arguments_of_a_step():
    """Actions of another shape, seeds out of range and options are refused."""
    worlds = make("cartpole")
    mask = {"reset_mask": np.ones(4, bool)}
    for call, says in (
        (lambda: worlds.step(np.zeros((3, 1))), "actions of shape (3, 1): expected (4, 1)"),
        (lambda: worlds.reset(seed=-1), "seed=-1: expected"),
        (lambda: worlds.reset(options=mask), "reset takes no options, not reset_mask"),
    ):
        with pytest.raises(ValueError, match=re.escape(says)):
            call()


@pytest.mark.parametrize(
    "package, ours, extra",
    [
        ("gymnasium", "gymnasium_env", "gym"),
        ("stable_baselines3", "sb3_env", "sb3"),
        ("rsl_rl", "rsl_rl_env", "rsl"),
    ],
)
def test_a_missing_package_is_named(package, ours, extra, monkeypatch):
    """Without the package, importing the adapter says in one line what to install."""
    for name in [package, *(name for name in sys.modules if name.startswith(f"{package}."))]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, f"gpusim_rl.adapters.{ours}", raising=False)
    with pytest.raises(ImportError, match=rf"pip install -e '.*\[{extra}\]'"):
        importlib.import_module(f"gpusim_rl.adapters.{ours}")
