"""History and observation delay: the actor sees exactly the observations of so many steps ago, in
training and deployed."""

import pytest
import torch
from torch import Tensor

from gpusim_rl.assembly.environment import make_task as make_configured_task
from gpusim_rl.config import command_line
from gpusim_rl.envs.env import Env
from gpusim_rl.evaluation.evaluate import evaluation_env
from tests.envs import test_env
from tests.envs.test_env import actions
from tests.worlds import make_config, make_env, make_task, numbers, refusal

# An episode of 0.3 s has 15 control steps.
PAST = test_env.PAST | {"episode": 0.3}


def parts(env: Env, obs: Tensor) -> dict[str, Tensor]:
    """(B, k, width) of each term of the actor's view."""
    steps = {name: env.task.history.get(name, 1) for name in env.term_widths}
    blocks = obs.split([steps[name] * width for name, width in env.term_widths.items()], 1)
    terms = zip(env.term_widths, blocks, strict=True)
    return {name: x.unflatten(1, (steps[name], -1)) for name, x in terms}


@pytest.mark.parametrize("delay", [(0, 0), (1, 3), (2, 2)])
def test_each_entry_is_the_observation_of_its_step(delay):
    """Over restarts: entry j of k is the noisy view of k-1-j steps and the delay ago."""
    past = {**PAST, "observation_delay": delay}
    env, plain = make_env(num_envs=16, **past), make_env(num_envs=16, episode=0.3)
    ends, lags = torch.zeros(16), torch.zeros(16, dtype=torch.long)
    # What was measured in each world's episode.
    record: list[list[dict[str, Tensor]]] = [[] for _ in range(16)]
    for t in range(41):
        if t:
            step = env.step(actions(40, 16)[t - 1])
            twin = plain.step(actions(40, 16)[t - 1])
            assert torch.equal(step.observation["critic"], twin.observation["critic"])
            ended = step.terminated | step.truncated
            ends += ended
        now, seen = parts(plain, plain.observation["actor"]), parts(env, env.observation["actor"])
        past = env.measurement.delay
        lags = past.age if past else lags
        for i in range(16):
            if t and ended[i]:
                record[i].clear()
            record[i].append({name: x[i, 0].clone() for name, x in now.items()})
            for name, block in seen.items():
                late = 0 if name in ("action", "command", "clock") else int(lags[i])
                for j, entry in enumerate(block[i].flip(0)):  # newest first
                    then = record[i][max(0, len(record[i]) - 1 - j - late)]
                    assert torch.equal(entry, then[name]), (t, i, name, j)
    assert (ends >= 2).all()
    assert not delay[1] or delay[0] <= lags.min() <= lags.max() <= delay[1]


def test_delays_are_drawn_for_each_episode():
    """Every delay comes as often as the others, and changes at restarts alone."""
    env = make_env(num_envs=1200, history={}, observation_delay=(1, 3), episode=0.06, stagger=False)
    past = env.measurement.delay
    assert past
    first = past.age.clone()
    for _ in range(3):
        assert torch.equal(past.age, first)
        env.step(torch.zeros(1200, 12))
    counts = torch.stack([(past.age == d).sum() for d in (1, 2, 3)])
    assert (past.age != first).float().mean() > 0.5 and (counts - 400).abs().max() < 70


def test_a_command_given_between_two_steps():
    """A command fills the history at an episode's start, and later replaces the newest entry."""
    env = make_env(num_envs=4, history={"command": 3}, stagger=False)
    one, two = torch.tensor([1.0, 0.0, 0.0]), torch.tensor([0.5, 0.25, -0.5])
    env.set_memory("command", one)
    assert torch.equal(parts(env, env.observation["actor"])["command"], one.expand(4, 3, 3))
    env.step(actions(1, 4)[0])
    env.set_memory("command", two)
    seen = parts(env, env.observation["actor"])["command"]
    assert torch.equal(seen, torch.stack([one, one, two]).expand(4, 3, 3))


def test_the_evaluation_keeps_both():
    """What is evaluated has the robot's delay and the history that the network needs."""
    task, yaml = make_task(**PAST), numbers("quadruped")
    env = evaluation_env(task, 4, weights=yaml["weights"], noise=yaml["noise"], seed=1)
    assert env.observer.history and env.views == make_env(num_envs=2, **PAST).views
    assert env.measurement.delay and env.measurement.delay.high == 3


# -- mistakes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "word, says",
    [
        ("task.history.gyro=0", "task.history.gyro=0: expected a whole number from 1 to 64"),
        ("task.history.gyro=65", "task.history.gyro=65: expected a whole number from 1 to 64"),
        ("task.history.gyro=1.5", "task.history.gyro=1.5: expected a whole number"),
        ("task.observation_delay=[2,1]", "=[2, 1]: expected the least and the most control steps"),
        ("task.observation_delay=[0,65]", "task.observation_delay=[0, 65]: expected whole numbers"),
        ("task.observation_delay=[-1,0]", "task.observation_delay=[-1, 0]: expected whole numbers"),
        ("task.observation_delay=[1]", "task.observation_delay=[1]: expected 2 numbers"),
        ("task.history.sonar=2", "task.history: 'sonar' is no term (terms: gyro, up, "),
    ],
)
def test_mistakes_are_one_line(word, says):
    """Wrong histories and delays are refused, and what the task does not observe."""
    assert says in refusal("num_envs=2", "sim=native", "device=cpu", word)


def test_the_command_line_names_terms(capsys):
    """A term that no file lists can be named, and `--cfg job` prints it."""
    config = make_config("task=quadruped", "task.history.gyro=3", "task.dropout.up=0.1")
    task = make_configured_task(config, "cpu")
    assert task.history == {"gyro": 3} and task.dropout == {"up": 0.1}
    with pytest.raises(SystemExit):
        command_line.check("config", ["task.history.gyro=3", "--cfg", "job"])
    assert "history:\n    gyro: 3\n" in capsys.readouterr().out
