"""The protocols: what learners, sources and reward models may rely on."""

from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from gpusim_rl.algorithms.learner import LearnerSpec, RewardModel, Spec
from gpusim_rl.algorithms.ppo import spec
from gpusim_rl.algorithms.ppo.ppo import PPO
from gpusim_rl.assembly.iteration import make_iteration
from gpusim_rl.commands.train import configure
from gpusim_rl.core.metrics import Metric
from gpusim_rl.core.record import Columns, Record, vector
from gpusim_rl.core.ring import Ring, RingSpec
from gpusim_rl.core.states import shared
from gpusim_rl.runs.run import Run
from gpusim_rl.training.trainer import Trainer
from tests.command_lines import TINY
from tests.worlds import algo, join, make_env

HOW = {"num_steps": 4}


def settings() -> dict:
    """The settings of a small PPO."""
    return algo(hidden=(16,), num_minibatches=2, update_epochs=1)


class Reader(PPO):
    """It reads a ring, and looks at the actor's end."""

    def __init__(self, spec: Spec, settings: Any):
        super().__init__(spec, settings)
        self.columns: Columns = self.columns | {"end_obs": spec.views["actor"]}
        self.seen = torch.zeros(())

    def update(self, ring: Ring) -> None:
        self.seen.copy_(ring.record.end_obs.sum() + ring.record.reward.sum())


def reader(rows: int) -> LearnerSpec:
    """The algorithm, with a ring of so many rows."""
    return replace(spec.SPEC, make=Reader, ring=lambda settings: RingSpec(rows))


class Bonus(RewardModel):
    """A reward model: a constant that grows by 1 with each update."""

    columns: ClassVar[Columns] = {}
    metrics = (Metric("bonus", "reward_model/bonus", "bonus"),)

    def __init__(self) -> None:
        self.value = torch.zeros(1)

    def add_reward(self, record: Record) -> None:
        record.reward.add_(self.value)

    def update(self, record: Record) -> None:
        self.value += 1

    def measures(self) -> torch.Tensor:
        return self.value.clone()

    def tensors(self):
        return shared("bonus/", {"value": self.value})


def test_the_actors_view_of_the_end():
    """Where no episode ends, and without noise, `end_obs` is the actor's next observation."""
    env = make_env("cartpole", 8, episode=0.1)
    env.shows_end = True
    for _ in range(3):
        env.apply_action(torch.zeros(8, 1))
        env.step_physics()
        end = env.finish_step()
        assert end.end_obs is not None and end.end_obs.shape == env.observation["actor"].shape
        stays = ~(end.terminated | end.truncated)
        noise = (end.end_obs - env.observation["actor"])[stays].abs()
        assert noise.max() < 0.2 if stays.any() else True
    assert not hasattr(make_env("cartpole", 2).step(torch.zeros(2, 1)), "end_obs")


def test_a_reward_model_pays_before_the_update():
    """Its reward is in what is learned from, its metrics and tensors are in their places."""
    plain, paid = (
        join(make_env("cartpole", 8), replace(spec.SPEC, make_rewards=make), settings(), **HOW)
        for make in (None, lambda spec, learner: (Bonus(),))
    )
    for _ in range(2):
        plain.iteration()
        paid.iteration()
    added = paid.source.record.reward - plain.source.record.reward
    assert paid.report()()["bonus"] == 2 and "bonus/value" in paid.learned()
    assert added.mean() == pytest.approx(1.0, abs=0.5)
    assert not torch.equal(*(x.state()["policy/log_std"] for x in (plain, paid)))


@pytest.mark.parametrize("graph", ["off", "whole"])
def test_a_reward_model_works_between_iterations(graph, monkeypatch):
    """On the host, once before each iteration; one that lacks a part is refused in one line."""
    seen = []
    monkeypatch.setattr(Bonus, "between", lambda self, done: seen.append(self.value.item()))
    algorithm = replace(spec.SPEC, make_rewards=lambda spec, learner: (Bonus(),))
    made = join(make_env("cartpole", 8), algorithm, settings(), **HOW, graph=graph)
    for _ in range(3):
        made.iteration()
    assert seen == [0, 1, 2]
    monkeypatch.delattr(RewardModel, "between")
    monkeypatch.delattr(Bonus, "between")
    with pytest.raises(ValueError, match="the reward model Bonus lacks between"):
        join(make_env("cartpole", 8), algorithm, settings(), **HOW)


def test_what_is_learned_and_what_worlds_hold():
    """Two parts make up a checkpoint, and no tensor is in both."""
    made = join(make_env("cartpole", 8), spec.SPEC, settings(), **HOW)
    learned, held = made.learned(), made.held()
    assert made.tensors().keys() == learned.keys() | held.keys() and not learned.keys() & held
    assert {"iteration", "policy/log_std"} <= learned.keys()
    assert {"sim/rows", "env/time"} <= held.keys()


def test_a_training_is_left_at_a_row(tmp_path, monkeypatch):
    """The last iteration is saved, and goes on; `start=` begins another with its weights."""
    monkeypatch.chdir(tmp_path)
    words = ("task=cartpole", *TINY, "log=none", "save_every=100", "iterations=5")
    trainer = Trainer(configure(*words, "run_dir=run"))
    for row in trainer.steps():
        if row["iteration"] == 3:
            break
    (left,) = Run(Path("run")).checkpoints.saved()[-1:]
    assert left.stem == "000003"
    assert [row["iteration"] for row in trainer.steps()] == [4, 5]  # and it goes on
    trainer.close()
    (saved,) = Run(Path("run")).checkpoints.saved()[-1:]
    assert saved.stem == "000005"
    del trainer
    begun = Trainer(configure(*words, "run_dir=next", "start=run", "seed=5")).loop.iteration
    state, _, _ = Run(Path("run")).checkpoints.restore(print)
    assert begun.iterations == 0
    assert torch.equal(begun.state()["policy/log_std"], state["policy/log_std"])


def test_numbers_that_somebody_else_writes():
    """A search finds the live tensors of keys in one registry, and a write acts at once."""
    keys = ("algo.ent_coef", "task.weights.upright", "task.noise.pole_angle", "task.sigma")
    made = make_iteration(configure("task=cartpole", *TINY), changeable=keys)
    assert made.numbers.keys() == {*keys}
    made.numbers["algo.ent_coef"].fill_(0.5)
    made.numbers["task.weights.upright"].fill_(0.0)
    made.numbers["task.sigma"].fill_(2.0)
    made.iteration()
    assert made.learner.cfg.ent_coef == 0.5 and made.env.scheduled_task.sigma == 2.0
    assert made.report()()["reward/upright"] == 0
    with pytest.raises(ValueError, match=r"algo.hidden cannot be scheduled: choose of algo.gamma"):
        make_iteration(configure("task=cartpole", *TINY), changeable=("algo.hidden",))


@pytest.mark.parametrize(
    "change, says",
    [
        ({"metrics": (Metric("return"),)}, "two metrics are named 'return'"),
        ({"metrics": (Metric("x", format=".3d"),)}, "metric 'x': '.3d' formats no number"),
        ({"rates": None}, "the learner Wrong lacks rates"),
        ({"metrics": []}, "the learner Wrong: metrics is list, expected tuple"),
        ({"columns": ["obs"]}, "the learner Wrong: columns is list, expected dict"),
        ({"metrics": ("loss",)}, r"the learner Wrong: metrics\[0\] is str, expected Metric"),
        ({"rates": {"learning_rate": 1.0}}, r"rates\['learning_rate'\] is float, .* Tensor"),
        ({"columns": {"x": 3}}, r"the learner Wrong: columns\['x'\] is int, .* Column"),
        ({"columns": {"depth": vector(7)}}, r"the column 'depth' .* choose of obs \(5,\), critic"),
        (
            {"columns": {"obs": vector(3)}},
            r"the column 'obs' \(3,\) of torch\.float32, which",
        ),
    ],
)
def test_a_learner_that_is_wrong(change, says):
    """A user's learner that lacks something or names it wrongly is refused when it is built."""

    class Wrong(PPO):
        def __init__(self, spec: Spec, settings: Any):
            super().__init__(spec, settings)
            for name, value in change.items():
                delattr(self, name) if value is None else setattr(self, name, value)

    with pytest.raises(ValueError, match=says):
        join(make_env("cartpole", 4), replace(spec.SPEC, make=Wrong), settings(), **HOW)


@pytest.mark.parametrize(
    "part, says",
    [
        ({"ring": lambda settings: 5}, "what SPEC.ring gives is int, expected RingSpec"),
        ({"make_rewards": lambda *_: None}, "what SPEC.make_rewards gives is NoneType, expected"),
        ({"make_source": lambda *_: None}, "the source NoneType lacks record, collect, tensors"),
    ],
)
def test_a_spec_that_gives_something_else(part, says):
    """What its functions give is of the type that is used, or it is one line."""
    with pytest.raises(ValueError, match=says):
        join(make_env("cartpole", 4), replace(spec.SPEC, **part), settings(), **HOW)
