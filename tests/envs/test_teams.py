"""Worlds with several agents, in rows of agents: `Task.agents`. The task is in `tests/spread`."""

import dataclasses
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gpusim_rl.adapters import gymnasium_env
from gpusim_rl.assembly.iteration import make_iteration
from gpusim_rl.config.sections import Config
from gpusim_rl.deploy.export_policy import export_policy
from gpusim_rl.deploy.runtime import Policy
from gpusim_rl.envs.env import Env
from gpusim_rl.fuse.kernel import Kernel
from tests.command_lines import command
from tests.worlds import composed, goes_on, make_sim_of

FOLDER = Path(__file__).parents[1] / "spread"
WORDS = ("task=spread", "num_envs=4", "num_steps=8", "task.episode=0.6", "algo.hidden=[16]")
WORDS += ("sim=native", "sim.threads=1", "device=cpu", "threads=1", "export=none")
A = 3
VIEWS = """
    def views(self, s):
        place = s.joint_pos.view(-1, AGENTS, 2)
        return dict(image=place[..., None, None].expand(-1, -1, -1, 8, 8).half())
"""


@pytest.fixture
def here(monkeypatch, no_own_tasks):
    """A working directory with the task."""
    monkeypatch.chdir(FOLDER)


def config(*words: str) -> Config:
    return Config.of(composed(*WORDS, *words) | {"task_code": "here"})


def numbers(env: Env) -> dict[str, Any]:
    """The arguments with which its task was made."""
    return {x.name: getattr(env.task, x.name) for x in dataclasses.fields(env.task) if x.init}


@pytest.mark.parametrize("central", [False, True])
def test_rows_are_those_folded_by_hand(here, central):
    """The same worlds as one body of six motors: views, ends, rewards and statistics agree."""
    about = config(f"task.central={central}")
    history = dict(speed=3, point=2)
    made = make_iteration(about).env

    class Body(type(made.task)):
        agents = 1

        def observe(self, s):
            seen = super().observe(s.with_(action=s.action.view(-1, A, 2)))
            return {k: x.flatten(1) for k, x in seen.items()}

        def privileged(self, s):
            return {}

        def reward(self, s):
            terms = super().reward(s.with_(action=s.action.view(-1, A, 2)))
            return {k: x if x.ndim == 1 else x.mean(1) for k, x in terms.items()}

    options = dict(seed=1, weights=about.task.weights, noise=about.task.noise)
    team, body = (
        Env(task := kind(**numbers(made) | dict(history=history)), make_sim_of(task, 2), **options)
        for kind in (type(made.task), Body)
    )
    team.shows_end = body.shows_end = True
    assert team.num_rows == 6 and team.num_envs == body.num_rows == 2
    ends = 0
    for t in range(20):
        check_views(team, body, central)
        action = torch.randn(6, 2, generator=torch.Generator().manual_seed(t))
        for env, x in ((team, action), (body, action.view(2, 6))):
            env.apply_action(x)
            env.step_physics()
        mine, whole = team.finish_step(), body.finish_step()
        assert len(mine.end) == len(mine.end_obs) == len(mine.reward) == 6
        effort = action.clamp(-1, 1).square().sum(1).view(2, A) * A * 0.01 * team.task.dt
        reward = whole.reward[:, None] + effort.mean(1, keepdim=True) - effort
        torch.testing.assert_close(mine.reward.view(2, A), reward, atol=1e-6, rtol=1e-5)
        for flags, right in zip(mine[2:5], whole[2:5], strict=True):
            assert torch.equal(flags.view(2, A), right[:, None].expand(-1, A))
        ends += int(whole.truncated.sum())
    assert ends >= 6
    (names, sums), (_, right) = team.report(), body.report()
    torch.testing.assert_close(sums, right, atol=1e-5, rtol=1e-5)
    assert sums[names.index("steps")] == 40


def check_views(team: Env, body: Env, central: bool) -> None:
    """The views of each agent are its parts of those of one body."""
    seen = body.observation["critic"].split([x * A for x in team.term_widths.values()], 1)
    of_each, critic = torch.cat([x.view(2, A, -1) for x in seen], 2), team.observation["critic"]
    critic, width = critic.view(2, A, -1), of_each.shape[2]
    assert torch.equal(critic[..., :width], of_each)
    assert critic.shape[2] == (1 + A * central) * width
    if central:
        assert torch.equal(critic[:, 1, width:], of_each.flatten(1))
    pasts, at = body.observation["actor"].split(widths(body), 1), 0
    for (name, k), past in zip(team.term_widths.items(), pasts, strict=True):
        steps = team.task.history.get(name, 1)
        mine = team.observation["actor"][:, at : at + steps * k].view(2, A, steps, k)
        assert torch.equal(mine, past.view(2, steps, A, k).transpose(1, 2)), name
        at += steps * k


def widths(env: Env) -> list[int]:
    """Of the actor's terms, with their history."""
    return [n * env.task.history.get(name, 1) for name, n in env.term_widths.items()]


def test_the_numbers_of_an_agent_are_its_own(here):
    """Noise differs by agent, whatever the number of worlds; one agent has its world's."""
    few, many = (make_iteration(config(f"num_envs={n}")) for n in (4, 8))
    for iteration in (few, many):
        iteration.collect()
    assert few.spec.num_rows == 12 and few.size == 32 and few.spec.worlds.tolist() == [*range(12)]
    assert torch.equal(few.source.record.obs[0], many.source.record.obs[0, :12])
    # products of 12 and of 24 rows may round differently
    torch.testing.assert_close(few.source.record.rows, many.source.record.rows[:, :12])
    noise = few.source.record.action - few.source.record.mean
    assert len(noise[0].unique(dim=0)) == 12
    one = make_iteration(Config.of(composed("task=cartpole", "num_envs=4", *WORDS[2:]))).env
    assert one.rng_of_agents is one.rng and one.num_rows == 4


@pytest.mark.parametrize("memory", ["none", "gru"])
def test_kernels_compute_what_torch_does(here, memory, capsys):
    """A control step has its three kernels, with what a policy does once for each agent."""
    about = (f"algo.memory={memory}", "task.history={speed: 2}", "task.central=true")
    fused, plain = (make_iteration(config(*about, f"fuse={x}")) for x in ("on", "off"))
    for iteration in (fused, plain):
        iteration.collect()
    assert "runs as torch" not in capsys.readouterr().err
    assert all(isinstance(x, Kernel) for x in fused.source.fused.kernels.values())
    record = plain.source.record
    torch.testing.assert_close(fused.source.record.rows, record.rows, atol=1e-4, rtol=1e-4)
    assert record.truncated.any() and (record.truncated.view(8, 4, A).float().std(2) == 0).all()
    for name, x in plain.source.memory.items():
        torch.testing.assert_close(fused.source.memory[name], x, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("words", [[], ["algo.memory=gru"], ["algo=sac", "algo.batch_size=24"]])
def test_a_training_goes_on(here, words):
    """A checkpoint holds the rows of all agents, and continues exactly."""
    first, second = (make_iteration(config(*words)) for _ in range(2))
    first.iteration()
    goes_on(first, second)


def test_a_wrong_shape_is_one_line(here):
    """A term of another number of agents is named with the shape that is expected."""
    env = make_iteration(config()).env
    wrong = type(env.task).reward

    class Wrong(type(env.task)):
        def reward(self, s):
            return wrong(self, s) | dict(touch=torch.zeros(len(s.time), 2))

    task = Wrong(**numbers(env))
    says = "the term 'touch' has shape (2, 2), expected (2, 3): of each agent of each world"
    with pytest.raises(ValueError, match=re.escape(says)):
        Env(task, make_sim_of(task, 2), seed=1, weights={}, noise={})
    with pytest.raises(ValueError, match=re.escape("expected a tensor of shape [12, 2]")):
        env.step(torch.zeros(4, 6))
    with pytest.raises(ValueError, match="num_minibatches=5 does not divide num_envs × agents=12"):
        make_iteration(config("algo.memory=gru", "algo.num_minibatches=5"))


def test_gymnasium_has_an_environment_for_each_agent(here):
    """Observations, actions and ends are those of rows; final observations, too."""
    keys = {"task.episode": 0.6, "sim": "native", "device": "cpu"}
    worlds = gymnasium_env.make("spread", 2, **keys)
    assert worlds.num_envs == 6 and worlds.single_action_space.shape == (2,)
    obs, _ = worlds.reset(seed=1)
    for _ in range(6):
        before, (obs, *_, truncated, info) = obs, worlds.step(np.zeros((6, 2), np.float32))
    assert truncated.all() and not np.array_equal(obs, before)
    final = np.stack(info["final_obs"])
    assert final.shape == obs.shape and np.abs(final[:, :2] - before[:, :2]).max() < 0.05
    with pytest.raises(ValueError, match="3 agents"):
        gymnasium_env.World("spread", **keys)


def test_each_agent_sees_its_own_view(tmp_path, monkeypatch, no_own_tasks):
    """A step of a training moves its encoder; the file has it of the whole team, as the Env does,
    and what one agent sees changes its own targets alone."""
    folder = shutil.copytree(FOLDER, tmp_path / "here")
    with (folder / "tasks" / "spread.py").open("a") as file:
        file.write(VIEWS)
    monkeypatch.chdir(folder)
    about = config("algo.encoders.image=[4]", "algo.num_minibatches=2")
    ppo = make_iteration(about)
    before = [x.clone() for x in ppo.policy.actor.encoders.parameters()]
    ppo.iteration()
    record = ppo.source.record
    place = record.obs[..., :2, None, None].expand(-1, -1, -1, 8, 8)
    assert record.image.shape == (8, 12, 2, 8, 8) and record.image[:, :4].std() > 0
    torch.testing.assert_close(record.image.float(), place, atol=6e-3, rtol=0)  # 5e-3 is noise
    after = ppo.policy.actor.encoders.parameters()
    assert all((x != y).any() for x, y in zip(before, after, strict=True))
    export_policy(ppo, about, folder)  # it is within 1e-5 of the Env
    policy = Policy(folder / "policy.onnx")
    assert policy.views == {"image": ((A, 2, 8, 8), "float16")}
    readings, image = {x: np.zeros(n) for x, n in policy.needs.items()}, np.zeros((A, 2, 8, 8))
    dark = policy.act(readings | dict(image=image), np.zeros(6)).reshape(A, 2)
    image[1], _ = 1.0, policy.reset()
    bright = policy.act(readings | dict(image=image), np.zeros(6)).reshape(A, 2)
    assert (bright != dark).any(1).tolist() == [False, True, False]


@pytest.mark.slow
@pytest.mark.parametrize("words", [[], ["algo.memory=gru", "task.history={speed: 3}"]])
def test_it_trains_and_exports(tmp_path, words):
    """In 14 iterations the discs come nearer; the file acts for the whole team, as the Env does."""
    shutil.copytree(FOLDER, tmp_path / "here")
    short = ("iterations=14", "episodes=64", "sim=native", "threads=1", "sim.threads=1")
    short = (*short, "report=false", "log=none", "run_dir=run", "fuse=off", *words)
    short = (*short, "algo.hidden=[64,64]")
    done = command("train.py", "task=spread", *short, cwd=tmp_path / "here")
    assert done.returncode == 0 and "policy.onnx" in done.stdout, done.stdout + done.stderr
    policy = Policy(tmp_path / "here" / "run" / "policy.onnx")
    readings = {key: np.zeros(n) for key, n in policy.needs.items()}
    assert policy.act(readings, np.zeros(6)).shape == (6,)
    assert float(re.findall(r"return (-?[\d.]+)", done.stdout)[-1]) > -15  # -26 untrained
