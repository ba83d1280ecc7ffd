"""Tasks of Gymnasium: the package's model, observation, reward and ends, and what they earn."""

from collections.abc import Callable
from typing import Any

import mujoco
import numpy as np
import pytest
import torch

from gpusim_rl.envs.env import Env
from gpusim_rl.envs.state import State
from gpusim_rl.tasks.common.goal_scores import return_scores
from tests.worlds import make_env, make_task

gymnasium = pytest.importorskip(
    "gymnasium", reason="gymnasium is missing: pip install 'gpusim_rl[gym]'"
)

PACKAGE = {"hopper": "Hopper-v5", "ant": "Ant-v5"}  # task → its name in the package
TRANSITIONS = 1000
LONGEST = 250  # transitions between two restarts
# Fields of a model that may differ: what is only seen, and sensors.
SEEN = ("tex", "mat_", "light_", "cam_", "geom_rgba", "geom_matid", "site_", "sensor", "key_")
SEEN += ("name", "nname", "ntex", "nmat", "nlight", "ncam", "nbuffer", "nsensor", "nsite", "nkey")
SEEN += ("signature", "narena", "nnumeric", "numeric_")  # and room in memory, own numbers
# options of which the ant's are stricter, or that are compared alone
OTHERWISE = ("disableflags", "iterations", "ls_iterations", "tolerance")
GREATER = 1e-5  # largest difference of an observation and of a reward

# task → where the package's data have the place that the next reward counts from [m]
PLACE: dict[str, Callable[[Any], float]] = {
    "hopper": lambda data: data.qpos[0],
    "ant": lambda data: data.body("torso").xpos[0],
}

named = pytest.mark.parametrize("name", PACKAGE)


def begin_as(env: Env, name: str, data: Any) -> None:
    """Begin an episode of env's only world in the state of the package's data."""
    task = env.task
    qpos, qvel = (torch.as_tensor(x.copy())[None] for x in (data.qpos, data.qvel))  # float64
    task.start = lambda n, rng: task.begin_at(qpos, qvel)  # type: ignore[method-assign]
    env.restart()
    env.memory["x"].fill_(PLACE[name](data))


def observed(env: Env, s: State) -> np.ndarray:
    """All that the actor may observe in a state, as one row."""
    return torch.cat(list(env.task.observe(s).values()), 1)[0].numpy()


@pytest.mark.slow
@named
@pytest.mark.parametrize("scale", [1.0, 0.0])
def test_transitions_are_the_package_s(name, scale):
    """1,000 transitions of random actions in ±scale, each from the package's state, are equal."""
    package, env = gymnasium.make(PACKAGE[name]), make_env(name, 1, stagger=False)
    data, random = package.unwrapped.data, np.random.default_rng(0)
    close = dict(rtol=0, atol=GREATER)
    first, _ = package.reset(seed=0)
    begin_as(env, name, data)
    np.testing.assert_allclose(observed(env, env.current_state()), first, **close)
    for t in range(TRANSITIONS):
        begin_as(env, name, data)
        action = (scale * random.uniform(-1, 1, env.task.mjm.nu)).astype(np.float32)
        observation, reward, terminated, truncated, _ = package.step(action)
        states: list[State] = []
        step = env.step(torch.as_tensor(action)[None], on_step=states.append)
        assert not step.fault.any()
        assert states[0].x.item() == pytest.approx(PLACE[name](data), rel=1e-6, abs=1e-6)
        np.testing.assert_allclose(observed(env, states[0]), observation, **close)
        assert step.reward.item() == pytest.approx(float(reward), rel=0, abs=GREATER)
        assert bool(step.terminated) == terminated
        if terminated or truncated or t % LONGEST == LONGEST - 1:
            package.reset()


@named
def test_model_is_the_package_s(name):
    """Every field that is not only seen equals the package's, but for the size of the ground."""
    theirs, ours = gymnasium.make(PACKAGE[name]).unwrapped.model, make_task(name).mjm
    solid = theirs.geom_type != mujoco.mjtGeom.mjGEOM_PLANE
    compared = 0
    for field in dir(theirs):
        value = getattr(theirs, field)
        if field.startswith(("_", *SEEN)) or not isinstance(value, np.ndarray | int | float):
            continue
        which = solid if field == "geom_size" else ...
        own = np.asarray(getattr(ours, field))
        np.testing.assert_array_equal(own[which], np.asarray(value)[which], err_msg=field)
        compared += 1
    assert compared > 150
    for field in dir(theirs.opt):
        value = getattr(theirs.opt, field)
        if field not in OTHERWISE and not field.startswith("_") and not callable(value):
            np.testing.assert_array_equal(getattr(ours.opt, field), value, err_msg=field)
    autoreset = int(mujoco.mjtDisableBit.mjDSBL_AUTORESET)
    assert ours.opt.tolerance <= theirs.opt.tolerance
    assert ours.opt.disableflags == theirs.opt.disableflags | autoreset


@named
def test_starts_are_the_package_s(name):
    """Mean and spread of 4,096 start states are the package's, with the ant's unit quaternions."""
    task, package = make_task(name), gymnasium.make(PACKAGE[name])
    env = make_env(name, 4096)
    start = task.start(4096, env.rng)
    ours = torch.cat([start["qpos"], start["qvel"]], 1).numpy()
    rows = []
    for _ in range(4096):
        package.unwrapped.reset_model()
        rows.append(package.unwrapped.state_vector())
    theirs = np.array(rows)
    if name == "ant":
        theirs[:, 3:7] /= np.linalg.norm(theirs[:, 3:7], axis=1, keepdims=True)
    spread = theirs.std(0)
    np.testing.assert_allclose(ours.mean(0), theirs.mean(0), atol=0.1 * spread.max())
    np.testing.assert_allclose(ours.std(0), spread, rtol=0.1)


@named
def test_episodes_last_as_long(name):
    """The time limit is the package's, and a return counts as a success from `solved` on."""
    package, task = gymnasium.make(PACKAGE[name]), make_task(name)
    assert task.horizon == package.spec.max_episode_steps
    assert task.dt == pytest.approx(package.unwrapped.dt)
    assert task.clip == package.action_space.high.max() == -package.action_space.low.min()


def test_return_scores():
    """One earns 1 + 2 and ends, and what follows does not count; the other earns 4 · 3 steps."""
    terminated = torch.tensor([[False, False], [True, False], [False, False]])
    speed = torch.tensor([[1.0, 2.0], [3.0, 2.0], [100.0, 2.0]])
    record = dict(terminated=terminated, reward=torch.tensor([[1.0, 4], [2, 4], [99, 4]]))
    record |= dict(speed=speed, power=10 * speed, action_rate=speed, limit=(speed > 2).float())
    scores = return_scores(record, 0.5, 12.0)
    # returns 3 and 12; five steps count, with speeds of 1 + 3 + 2 + 2 + 2
    want = dict(success=0.5, return_std=4.5, steps=2.5, falls=0.5, energy_per_metre=10.0)
    assert scores == pytest.approx(want | dict(speed=2.0, action_rate=2.0, limit=0.2))
    still = return_scores(record | dict(speed=0 * speed), 0.5, 12.0)
    assert still["energy_per_metre"] is None


def terms_by_hand(env: Env, s: State, reward: float) -> dict[str, torch.Tensor]:
    """The terms of the reward after a step to a state at 2 m/s; `reward` is the first world's."""
    terms = env.task.reward(s.with_(**env.task.update(s, env.rng)))
    torch.testing.assert_close(terms["forward"], 0 * terms["forward"] + 2, rtol=0, atol=1e-4)
    paid = env.task.dt * (torch.stack(list(terms.values()), 1) * env.weights).sum(1)
    torch.testing.assert_close(paid[0].item(), reward, rtol=0, atol=1e-4)
    return terms


def test_hopper_rewards_by_hand():
    """Each term of one step: 0.016 m in 8 ms are 2 m/s; actions of 1, -0.5 and 0.5 cost
    1 + 0.25 + 0.25; at a height of 0.7 m or less the hopper is not healthy."""
    env = make_env("hopper", 2)
    qpos = torch.tensor([[1.0, 1.2, 0.1, 0, 0, 0], [1.0, 0.7, 0.1, 0, 0, 0]])
    action = torch.tensor([[1.0, -0.5, 0.5]]).repeat(2, 1)
    s = env.current_state().with_(qpos=qpos, qvel=0 * qpos, action=action)
    s = s.with_(x=torch.tensor([0.984, 0.984]))
    # in a step: 2 m/s · 1 + 1 - 0.001 · 1.5
    terms = terms_by_hand(env, s, 2.9985)
    assert terms["healthy"].tolist() == [1.0, 0.0]
    assert terms["control"].tolist() == [-1.5, -1.5]


def test_ant_rewards_by_hand():
    """Each term of one step: 0.1 m in 0.05 s are 2 m/s; actions of 1, -0.5 and 0.5 cost
    1 + 0.25 + 0.25; forces of 3, -0.5 and 0.5 count as 1 + 0.25 + 0.25; at a height of 1.1 m or
    0.1 m the ant is not healthy."""
    env = make_env("ant", 3)
    now = env.current_state()
    action, forces, place = torch.zeros(3, 8), torch.zeros(3, 84), torch.zeros(3, 3)
    action[:, :3] = torch.tensor([1.0, -0.5, 0.5])
    forces[:, 20:23] = torch.tensor([3.0, -0.5, 0.5])
    place[:, 0] = 1.1
    qpos = now.qpos.clone()
    qpos[:, 2] = torch.tensor([0.5, 1.1, 0.1])
    s = now.with_(qpos=qpos, action=action, cfrc_ext=forces, xpos=place, x=torch.ones(3))
    # in a step: 2 m/s · 1 + 1 - 0.5 · 1.5 - 0.0005 · 1.5
    terms = terms_by_hand(env, s, 2.24925)
    assert terms["healthy"].tolist() == [1.0, 0.0, 0.0]
    assert terms["control"].tolist() == [-1.5] * 3 and terms["contact"].tolist() == [-1.5] * 3
