"""Several trainings in one process, and one that goes on from what another has learned."""

from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest
import torch

from gpusim_rl.assembly.iteration import make_iteration
from gpusim_rl.runs.run import Run
from gpusim_rl.training.open_run import join_networks, policy_of
from gpusim_rl.training.trainer import Trainer
from tests.command_lines import TINY
from tests.worlds import check_words, differing, goes_on, make_config

SAC = ("algo=sac", "algo.warmup=16", "algo.batch_size=32", "algo.replay=32")
KEYS = ("algo.learning_rate", "algo.lr_max")
# PPO, and a reward model that knows the policy of start= and what its columns mean
TASTE = """
from dataclasses import replace

import torch

from gpusim_rl.algorithms.learner import RewardModel
from gpusim_rl.algorithms.ppo import ppo, spec
from gpusim_rl.core.metrics import Metric
from gpusim_rl.core.states import shared


class Taste(ppo.PPO): ...


class Slow(RewardModel):
    metrics = Metric("far"), Metric("cos"), Metric("done")

    def __init__(self, spec, learner):
        self.spec, self.policy, self.columns = spec, learner.policy, learner.columns
        self.reference = SPEC.make_policy(spec, learner.cfg).requires_grad_(False)
        self.told = torch.zeros(3)

    def between(self, iteration):
        if iteration == 0:
            self.reference.load_state_dict(self.policy.state_dict())

    def add_reward(self, record):
        widths = self.spec.term_widths["critic"]
        at = [*widths].index
        terms = record.end.split([*widths.values()], -1)
        mean = self.reference.mean(self.reference.actor.normalizer(record.obs))
        self.told[0] = (mean - record.mean).abs().max()
        self.told[1] = terms[at("pole")].norm(dim=-1).mean()
        self.told[2] += self.spec.iteration > 0
        record.reward.sub_(terms[at("speeds")].square().sum(-1))

    def measures(self):
        return self.told.clone()

    def tensors(self):
        return shared("slow/", self.reference.state_dict() | {"told": self.told})


SPEC = replace(spec.SPEC, make=Taste, make_rewards=lambda *x: [Slow(*x)])
"""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch) -> None:
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)


def member(name: str, *words: str, **options) -> Trainer:
    """A small training of a population, which nobody watches."""
    words = ("task=cartpole", *TINY, "iterations=4", *words, f"run_dir={name}")
    return Trainer(make_config(*words), observed=False, **options)


def test_two_trainings_in_turn(capfd):
    """Taken row by row in turn they end as each alone, to the bit, and print nothing."""
    alone, turns = (
        [member(f"{how}1"), member(f"{how}2", "seed=2", *SAC)] for how in ("alone", "turn")
    )
    for trainer in alone:
        assert len(list(trainer.steps())) == 4
    for _ in zip_longest(*(trainer.steps() for trainer in turns)):
        pass
    for one, other in zip(alone, turns, strict=True):
        states = (x.loop.iteration.state() for x in (one, other))
        assert differing(*states) == []
        one.close()
        other.close()
    assert capfd.readouterr().out == ""
    assert len(Run(Path("turn2")).rows()) == 4


@pytest.mark.parametrize("words", [(), SAC])
def test_what_another_has_learned(words):
    """It is taken with numbers that nobody schedules; the learner draws anew."""
    keys = KEYS[: 1 if words else 2]
    make = partial(make_iteration, changeable=keys)
    teacher, pupil, again = (member(x, *words, make=make) for x in ("one", "two", "three"))
    for trainer, factor in ((teacher, 1.0), (pupil, 0.5)):
        for row in trainer.steps():
            iteration = trainer.loop.iteration
            if row["iteration"] == 2:
                break
            for key in keys:
                iteration.numbers[key].mul_(factor)
    theirs, before = (x.loop.iteration.state() for x in (teacher, pupil))
    theirs |= {"env/success": torch.tensor(0.5), "iteration": torch.tensor(9)}
    pupil.load_learned(theirs)
    made, live = pupil.loop.iteration, pupil.loop.iteration.tensors()
    taken = [x for x in made.learned() if not live[x].worlds and x not in ("iteration", "life")]
    after = made.state()
    assert differing(*({x: y[x] for x in (*taken, "env/success")} for y in (after, theirs))) == []
    assert {f"numbers/{key}" for key in keys} <= {*taken} and made.life == 1
    rest = before.keys() - {*taken, "env/success"}
    assert differing(*({x: y[x] for x in rest} for y in (after, before))) == []
    learners: list[Any] = [x.loop.iteration.learner for x in (teacher, again, pupil)]
    orders = [x.rng.permutations("a", torch.tensor(1), 1, 8) for x in learners]
    assert torch.equal(*orders[:2]) and not torch.equal(*orders[1:])
    assert int(goes_on(made, again.loop.iteration, 1)["life"]) == 1
    missing = next(x for x in theirs if x.startswith("policy/"))
    with pytest.raises(ValueError, match=f"the other run does not fit this run: '{missing}'"):
        pupil.load_learned({x: y for x, y in theirs.items() if x != missing})
    for trainer in (teacher, pupil, again):
        trainer.close()


def test_a_subclass_begins_with_a_run_of_ppo(no_own_tasks, capfd):
    """What fits is taken, the rest is one line; its reward model keeps that policy."""
    for folder in ("conf/algo", "algorithms"):
        Path(folder).mkdir(parents=True)
    Path("conf/algo/taste.yaml").write_text("defaults: [ppo, _self_]\nname: taste\n")
    Path("algorithms/taste.py").write_text(TASTE)
    list(member("run").steps())
    state, _, _ = Run(Path("run")).checkpoints.restore(print)
    words = ("task=cartpole", *TINY, "algo=taste", "start=run")
    own, again = (
        Trainer(check_words(*words, f"run_dir={x}"), observed=False) for x in ("own", "again")
    )
    iteration = own.loop.iteration
    policy = policy_of(iteration.state())
    assert differing(policy, policy_of(state)) == [] and type(iteration.learner).__name__ == "Taste"
    assert "start=run: it gives actor, critic, critic_normalizer, log_std" in capfd.readouterr().err
    with pytest.raises(ValueError, match="does not fit this run: 'actor"):
        Trainer(check_words(*words, "algo.hidden=[8]", "run_dir=other"), observed=False)
    blind = {name: x for name, x in policy.items() if not name.startswith("policy/actor.")}
    with pytest.raises(ValueError, match="start=run: its policy has no actor"):
        join_networks(blind, iteration, Path("run"))
    first, second = own.steps()
    assert (first["done"], second["done"]) == (0.0, 1.0)
    assert abs(first["far"]) < 1e-6 < second["far"]  # 0, but for rounding
    assert first["cos"] == pytest.approx(1.0)
    goes_on(iteration, again.loop.iteration)
