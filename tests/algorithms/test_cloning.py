"""Cloning: returns of demonstrations, the clone, the anchor, and what a training asks of them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from gpusim_rl.algorithms.cloning.cloning import Cloning
from gpusim_rl.algorithms.ppo.ppo import PPO
from gpusim_rl.algorithms.ppo.spec import SPEC
from gpusim_rl.assembly.iteration import make_iteration, read_all_files
from gpusim_rl.assembly.joining import RunSpec, assemble
from gpusim_rl.core.record import Record, vector
from gpusim_rl.core.states import copy_state
from gpusim_rl.evaluation.demonstrate import describe_env
from gpusim_rl.runs.demonstrations import Demonstrations, demonstration_columns
from gpusim_rl.training.trainer import Trainer
from tests.command_lines import TINY
from tests.guard import reads_nothing
from tests.worlds import check_words, differing, goes_on, make_config, widths

WORDS = ("task=cartpole", *TINY, "log=none", "algo.num_minibatches=2", "algo.symmetry=none")
WORDS += tuple(f"cloning.{x}" for x in ("batch=8", "anchor_steps=2", "critic_iterations=1"))
WORDS += ("cloning.epochs=3",)


@pytest.fixture(scope="module")
def shown(tmp_path_factory) -> Path:
    """Two episodes of 10 and 20 steps on cartpole; the action is a function of the observation."""
    env = make_iteration(make_config(*WORDS)).env
    columns = demonstration_columns(env.views, env.task.action_width)
    record = Record.zeros(columns, 30, device=torch.device("cpu"))
    generator = torch.Generator().manual_seed(1)
    for name in ("obs", "critic", "end"):
        x = record.column(name)
        x.copy_(torch.randn(x.shape, generator=generator))
    record.action.copy_(0.5 * torch.tanh(record.obs[:, :1]))
    record.reward.copy_(torch.rand(30, generator=generator))
    record.column("terminated")[9] = record.column("truncated")[29] = 1.0
    file = tmp_path_factory.mktemp("shown") / "shown.safetensors"
    Demonstrations(record, describe_env("cartpole", env)).write(file)
    return file


def make(shown: Path, *words: str) -> Any:
    """An iteration with demonstrations, not cloned yet."""
    return make_iteration(make_config(*WORDS, f"demos={shown}", *words))


def cloned(shown: Path, *words: str) -> Any:
    """The same, cloned."""
    iteration = make(shown, *words)
    iteration.begin()
    return iteration


def test_returns_of_demonstrations(shown):
    """Discounted sums: nothing follows a termination, and the mean reward a time-out."""
    learner: Cloning = make(shown, "algo.gamma=0.9").learner
    r, g, expected = learner.demos.record, 0.0, []
    for t in reversed(range(30)):
        if t in (9, 29):
            g = r.reward.mean().item() / 0.1 if t == 29 else 0.0
        g = r.reward[t].item() + 0.9 * g
        expected.append(g)
    assert learner.returns().tolist() == pytest.approx(expected[::-1], rel=1e-5)


def test_the_clone_acts_as_was_shown(shown):
    """Its actions and values are those of the demonstrations; statistics and moments are set."""
    iteration = cloned(shown, "cloning.epochs=400", "cloning.std=0.2")
    policy, learner = iteration.policy, iteration.learner
    r = learner.demos.record
    obs, critic = policy.normalize(r.obs, r.critic)
    assert (policy.mean(obs) - r.action).square().mean().sqrt() < 0.05
    targets = learner.returns()
    left = (policy.value(critic).squeeze(-1) - targets).square().mean()
    assert left < 0.9 * targets.var()  # of views that tell nothing of them
    assert policy.std.tolist() == pytest.approx([0.2])
    torch.testing.assert_close(policy.actor.normalizer.mean, r.obs.mean(0), rtol=1e-4, atol=1e-5)
    assert policy.actor.normalizer.count == 1e6
    assert not any(x.any() for x in learner.optimizer.tensors().values())
    assert learner.optimizer.rates["actor"].item() == pytest.approx(3e-4)


def test_at_first_the_critic_alone_learns(shown):
    """In the first iterations no weight, deviation, moment or rate of the actor changes."""
    iteration = cloned(shown, "cloning.critic_iterations=2")
    before = [x.detach().clone() for x in iteration.learner.actor.live]
    for k in range(3):
        critic = iteration.learner.optimizer.weights["critic"].detach().clone()
        iteration.iteration()
        assert not torch.equal(critic, iteration.learner.optimizer.weights["critic"])
        assert all(map(torch.equal, before, iteration.learner.actor.live)) == (k < 2)


def test_the_anchor_fades(shown):
    """It draws the actor back, less and less, and leaves critic and the moments of PPO alone."""
    iteration = cloned(shown, "cloning.anchor_iterations=4", "cloning.rate=1e-2")
    learner, r = iteration.learner, iteration.learner.demos.record

    def distance() -> float:
        obs = iteration.policy.actor.normalizer(r.obs)
        return (iteration.policy.mean(obs) - r.action).square().mean().item()

    with torch.no_grad():
        learner.optimizer.weights["actor"].add_(0.1)
    for k, share in enumerate([1, 1, 0.75, 0.5, 0.25, 0, 0]):
        iteration.spec.iteration.fill_(k)
        assert learner.fade() == share  # of the anchor's rate
    iteration.spec.iteration.fill_(1)
    others = copy_state(learner.learner.tensors())
    before = distance()
    for _ in range(20):
        learner.anchor()
    assert distance() < 0.5 * before
    differ = differing(others, copy_state(learner.learner.tensors()))
    assert {name.partition("/")[0] for name in differ} == {"policy"}
    assert all("actor" in name for name in differ)
    iteration.spec.iteration.fill_(5)
    actor = learner.optimizer.weights["actor"].detach().clone()
    learner.anchor()
    assert torch.equal(actor, learner.optimizer.weights["actor"])


def test_an_iteration_reads_nothing(shown):
    """With its anchor; and it goes on to the bit from a state."""
    first, second = cloned(shown), make(shown)
    first.iteration()
    reads_nothing(first)
    assert first.report()()["clone_error"] > 0
    goes_on(first, second, 2)


def test_a_training_begins_as_a_clone(shown, tmp_path, capsys):
    """The run has a copy of the demonstrations, with which it is continued, moved, and verified."""
    words = [*WORDS, f"demos={shown}", f"run_dir={tmp_path / 'run'}", "iterations=2"]
    trainer = Trainer(check_words(*words))
    assert "cloned 30 steps of 2 episodes" in capsys.readouterr().err
    trainer.train()
    trainer.close()
    del trainer  # which holds the lock of the run
    (tmp_path / "run").rename(tmp_path / "moved")
    more = Trainer(check_words(*TINY[-1:], f"resume={tmp_path / 'moved'}", "iterations=3"))
    assert more.cfg.demos == str(tmp_path / "moved" / "demos.safetensors")
    more.train()
    more.close()
    with pytest.raises(ValueError, match="cannot change: demos"):
        check_words(f"resume={tmp_path / 'moved'}", f"demos={shown}")


def test_steps_that_the_metadata_do_not_describe(shown, tmp_path):
    """Wider observations than the file says, and actions beyond `task.clip`, are one line."""
    demos, env = Demonstrations.read(shown), make(shown).env
    no, _, nu = widths(env)
    columns = demonstration_columns(env.views | dict(actor=vector(no + 1)), nu)
    wide = Record.zeros(columns, 30, device=torch.device("cpu"))
    wide.column("truncated")[29] = 1.0
    demos.record.action[3] = -1e30
    for record, says in (
        (wide, rf"its schema is obs:float32\[{no + 1}\]"),
        (demos.record, f"an action is 1e\\+30, and task.clip is {env.task.clip:g}"),
    ):
        Demonstrations(record, demos.description).write(tmp_path / "x.safetensors")
        with pytest.raises(ValueError, match=says) as error:
            make(tmp_path / "x.safetensors")
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "words, message",
    [
        (["demos=none"], "demos=none: there is no such file, and no such run"),
        (["demos={shown}", "start=x"], "demos= and start= both give the first weights"),
        (["demos={shown}", "algo.memory=gru"], "demos= is for a policy without memory"),
        (["demos={shown}", "cloning.episodes=3"], "3 episodes are asked for, and 2 are there"),
        (["demos={shown}", "cloning.std=0.01"], "cloning.std=0.01 must be above algo.min_std"),
        (["demos={shown}", "task=reach"], "its task is cartpole, here it is reach"),
        (["demos={shown}", "task.dt=0.03"], "its dt is 0.05, here it is 0.03"),
    ],
)
def test_what_does_not_fit_is_refused(shown, tmp_path, words, message):
    """In one line."""
    words = [word.format(shown=shown) for word in words]
    with pytest.raises((ValueError, OSError)) as error:
        make_iteration(check_words(*WORDS, f"run_dir={tmp_path / 'run'}", *words))
    assert message in str(error.value) and "\n" not in str(error.value)


def test_an_algorithm_like_ppo(shown):
    """What it does before the first step, and its reward models, take PPO itself; one that neither
    clones nor names `demos` among its files is refused."""
    cfg, taken = make_config(*WORDS, f"demos={shown}"), []
    env = make_iteration(cfg).env
    run = RunSpec(num_steps=4, graph="off", threads=1, given=read_all_files(cfg, env))

    def make_rewards(spec, learner):
        taken.append(learner)
        return []

    own = replace(SPEC, begin=lambda learner, *_: taken.append(learner), make_rewards=make_rewards)
    iteration = assemble(env, own, cfg.algo.settings, run)
    iteration.begin()
    assert type(iteration.learner) is Cloning and iteration.learner.error > 0
    assert [type(x) for x in taken] == [PPO, PPO]
    with pytest.raises(ValueError, match="demos= is for algo=ppo and algo=sac, not for PPO: "):
        assemble(env, replace(own, clone=None), cfg.algo.settings, run)
    wrong = replace(own, clone=lambda learner, spec: learner)
    with pytest.raises(ValueError, match="the clone PPO lacks begin"):
        assemble(env, wrong, cfg.algo.settings, run)
