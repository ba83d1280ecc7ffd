"""Curiosity: its bonus and its loss against NumPy, what a ring is paid, and what a training asks of
a reward model."""

import re
import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from gpusim_rl.algorithms.learner import Spec
from gpusim_rl.algorithms.rewards.rnd.rnd import RND
from gpusim_rl.algorithms.rewards.rnd.settings import Settings
from gpusim_rl.algorithms.rewards.rnd.spec import SPEC
from gpusim_rl.assembly.iteration import make_iteration
from gpusim_rl.commands.train import configure
from gpusim_rl.config import numbers
from gpusim_rl.core.distributed import SINGLE, ProcessGroup
from gpusim_rl.core.metrics import described, public_name
from gpusim_rl.core.record import Record, vector
from gpusim_rl.core.states import copy_state
from gpusim_rl.training.loop import ABOVE
from gpusim_rl.training.trainer import Trainer
from tests.algorithms.test_iteration import HOW, Bonus, reader, settings
from tests.command_lines import TINY
from tests.guard import reads_nothing
from tests.worlds import TASKS, check_words, goes_on, join, make_config, make_env

T, B, NC, DT = 4, 6, 5, 0.05
NUMBERS: dict[str, Any] = dict(weight=0.5, gamma=0.9, learning_rate=1e-3, hidden=[8], features=3)
TINY_RND = ("task=cartpole", *TINY, "reward=rnd", "log=none")


def make(worlds: slice = slice(0, B), group: ProcessGroup = SINGLE, **numbers: Any) -> RND:
    """A small model of some of the worlds."""
    ids = torch.arange(B)[worlds]
    about = dict(
        views=dict(critic=vector(NC)),
        action_width=1,
        num_rows=len(ids),
        num_steps=T,
        horizon=10,
        dt=DT,
        clip=1.0,
        worlds=ids,
    )
    spec = Spec(**about, iteration=torch.zeros(()), seed=1, threads=1, group=group)  # type: ignore
    return RND(spec, Settings(**NUMBERS | numbers))


def rollout(seed: int, worlds: slice = slice(0, B)) -> Record:
    """Random steps of all worlds, of which this process has some; a faulty one holds NaN."""
    g = torch.Generator().manual_seed(seed)
    record = Record.zeros(make().columns, T, B, device=torch.device("cpu"))
    record.end.copy_(2 + 3 * torch.randn(T, B, NC, generator=g))
    record.column("fault")[1, 2] = 1.0
    record.end[1, 2] = torch.nan
    return Record(record.columns, {k: x[:, worlds].clone() for k, x in record.parts.items()})


def layers(net: Any, x: np.ndarray) -> np.ndarray:
    """A perceptron of two layers with elu."""
    first, second = ((x.weight.detach().numpy(), x.bias.detach().numpy()) for x in (net[0], net[2]))
    x = x @ first[0].T + first[1]
    return np.where(x > 0, x, np.expm1(x)) @ second[0].T + second[1]


def test_bonus_and_loss_against_numpy():
    """Two iterations: errors, discounted sums, their deviation, the bonus, and the loss's step."""
    model, views, sums, last = make(), np.zeros((0, NC)), np.zeros(0), np.zeros(B)
    target, predictor = model.target, model.predictor
    for k in range(2):
        record = rollout(k)
        valid = ~record.fault.numpy()
        end = record.end.double().numpy()
        views = np.concatenate([views, end[valid]])
        x = (np.nan_to_num(end) - views.mean(0)) / np.sqrt(views.var(0) + 1e-4)
        x = x.clip(-5, 5)
        errors = ((layers(target, x) - layers(predictor, x)) ** 2).mean(-1) * valid
        running = []
        for error in errors:
            last = error + 0.9 * last
            running.append(last)
        sums = np.concatenate([sums, np.stack(running)[valid]])
        bonus = 0.5 * errors / sums.std()
        model.add_reward(record)
        assert record.reward.numpy() == pytest.approx(DT * bonus, rel=1e-3) and not bonus[1, 2]
        error, paid = model.measures().tolist()
        assert error == pytest.approx(errors.sum() / valid.sum(), rel=1e-4)
        assert paid == pytest.approx(bonus.sum() / valid.sum(), rel=1e-3)
        before, old = copy_state(model.tensors()), layers(predictor, x)
        model.update(record)
        after = copy_state(model.tensors())
        # Adam's first step is the rate, against the sign of the gradient
        gradient = (old - layers(target, x))[valid].mean(0)
        moved = after["rnd/predictor.2.bias"] - before["rnd/predictor.2.bias"]
        assert k or moved.numpy() == pytest.approx(-1e-3 * np.sign(gradient), rel=0.05)
        same = {name for name in after if torch.equal(before[name], after[name])}
        assert {name for name in after if "target" in name} <= same
        new = ((layers(target, x) - layers(predictor, x)) ** 2).mean(-1)[valid].mean()
        assert new < errors.sum() / valid.sum()


class Pair(ProcessGroup):
    """Two processes as two threads, whose sums are those of both."""

    barrier_of_both, parts = threading.Barrier(2), [torch.zeros(()), torch.zeros(())]

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        self.parts[self.rank] = x.clone()
        self.barrier_of_both.wait()
        total = self.parts[0] + self.parts[1]
        self.barrier_of_both.wait()
        return x.copy_(total)


def halves_are_one(make: Any, rollout: Any, worlds: int) -> None:
    """Two processes share the worlds: rewards and networks are those of one with all of them."""
    mine = slice(0, worlds), slice(0, 2), slice(2, worlds)
    models = [make(), *(make(x, Pair(i, 2)) for i, x in enumerate(mine[1:]))]
    paid: list[list[torch.Tensor]] = [[], [], []]

    def iterate(number: int) -> None:
        for k in range(3):
            record, model = rollout(k, mine[number]), models[number]
            model.add_reward(record)
            model.update(record)
            model.spec.iteration.add_(1)
            paid[number].append(record.reward)

    threads = [threading.Thread(target=iterate, args=(number,)) for number in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    iterate(0)
    for whole, *parts in zip(*paid, strict=True):
        torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=1e-4, atol=1e-6)
    for name, (x, of_worlds) in models[0].tensors().items():
        for half in () if of_worlds else models[1:]:
            torch.testing.assert_close(half.tensors()[name].tensor, x, rtol=1e-4, atol=1e-5)


def test_two_processes_are_one():
    """Each has some of the worlds: rewards and networks are those of one with all of them."""
    halves_are_one(make, rollout, B)


class One(Bonus):
    """A reward model that pays 1 for each step, always."""

    def __init__(self) -> None:
        self.value = torch.ones(1)

    def update(self, record: Record) -> None:
        assert len(record) == HOW["num_steps"]


def test_a_ring_is_paid_once():
    """Each step of a ring is paid once, whatever its length, and before the learner reads it."""
    plain, paid = (
        join(make_env("cartpole", 8), replace(reader(10), make_rewards=make), settings(), **HOW)
        for make in (None, lambda spec, learner: (One(),))
    )
    for k in range(1, 6):
        plain.iteration()
        paid.iteration()
        added = paid.ring.record.reward - plain.ring.record.reward
        full = torch.zeros(10)
        full[: min(4 * k, 10)] = 1.0
        assert added.numpy() == pytest.approx(full[:, None].expand(10, 8).numpy(), abs=1e-6)
    end = paid.ring.record.end_obs.sum() + paid.ring.record.reward.sum()
    assert paid.learner.seen == end


def test_a_short_ring_is_refused():
    """A ring of fewer steps than an iteration cannot take them."""
    with pytest.raises(ValueError, match="a ring of 3 rows is too short for num_steps=4"):
        join(make_env("cartpole", 8), reader(3), settings(), **HOW)


EACH = [pytest.param(x, marks=[pytest.mark.matrix] * (x != "cartpole")) for x in TASKS]


@pytest.mark.parametrize("kind", ["ring", *EACH])
def test_an_iteration_reads_nothing_and_resumes_to_the_bit(kind):
    """With PPO and with a ring: no host read, a finite bonus, an exact continuation."""
    if kind == "ring":
        reward = SPEC, Settings(**NUMBERS)
        env = (make_env("cartpole", 8, episode=0.3) for _ in range(2))
        first, second = (join(x, reader(10), settings(), **HOW, reward=reward) for x in env)
    else:
        words = (f"task={kind}", *TINY_RND[1:])
        first, second = (make_iteration(make_config(*words)) for _ in range(2))
    for _ in range(2):
        first.iteration()
    state = goes_on(first, second, 2)
    assert {"rnd/return", "rnd/normalizer.mean", "rnd/predictor/step"} <= state.keys()
    reads_nothing(first, calls=500)
    row = first.report()()
    assert 0 < row["bonus"] < 100 and 0 < row["novelty"] < 100


def test_a_curriculum_writes_the_weight():
    """`reward.weight` is a live number: the bonus is zero where a schedule has brought it to 0."""
    plan = "curriculum={reward.weight:{from:1,to:0,by:iteration,start:0,stop:2}}"
    made = make_iteration(check_words(*TINY_RND, "reward.weight=0", plan))
    rows = []
    for _ in range(3):
        made.iteration()
        rows.append(made.report()())
    assert [row["schedule/reward.weight"] for row in rows] == [1.0, 0.5, 0.0]
    assert rows[0]["bonus"] > 0 and rows[1]["bonus"] > 0 and rows[2]["bonus"] == 0
    for words, key, says in (
        (TINY_RND, "reward.gamma", r"reward.gamma cannot be scheduled: choose of reward.weig"),
        (TINY_RND[:-2], "reward.weight", r"reward.weight cannot be scheduled: choose of none"),
    ):
        with pytest.raises(ValueError, match=says):
            make_iteration(make_config(*words), changeable=(key,))


@pytest.mark.parametrize(
    "words, says",
    [
        (("reward=rdn",), "unknown reward 'rdn': choose one of amp, none, "),
        (("reward.weight=1",), "unknown key 'reward.weight': reward=none has no numbers"),
        (("reward=rnd", "reward.wait=1"), "unknown key 'reward.wait': did you mean reward.weight"),
        (("reward=rnd", "reward.weight=-1"), "reward.weight=-1: expected a number of at least 0"),
        (("reward=rnd", "reward.hidden=[0]"), "reward.hidden=[0]: expected whole numbers from 1"),
        (
            ("reward=rnd", "curriculum={reward.weight:{from:-1,to:1,by:iteration,start:0,stop:9}}"),
            "curriculum: reward.weight: from=-1: expected a number of at least 0",
        ),
    ],
)
def test_mistakes_are_one_line(words, says):
    """A wrong choice, key or number is named before anything is built."""
    with pytest.raises(ValueError) as error:
        check_words("task=cartpole", *words)
    assert f"{error.value}".startswith(says)


def test_numbers_of_the_working_directory(tmp_path, monkeypatch):
    """A file of the user's own has other numbers for a model of ours; a wrong one is one line."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conf" / "reward").mkdir(parents=True)
    file = tmp_path / "conf" / "reward" / "much.yaml"
    file.write_text("defaults: [rnd, _self_]\nweight: 3.0\n")
    reward = check_words("task=cartpole", "reward=much").reward
    assert (reward.name, reward.settings.weight, reward.settings.gamma) == ("rnd", 3.0, 0.99)
    for name, text, says in (
        ("few", "name: rnd\nweight: 3.0\n", "reward.gamma is missing in conf/reward/rnd.yaml"),
        ("mine", "name: mine\n", "unknown reward 'mine': choose one of amp, none, preference, rnd"),
        ("bare", "weight: 3.0\n", "bare.yaml lacks the key reward.name"),
        ("many", "defaults: [rnd, _self_]\nweight: many\n", "reward.weight='many': expected a num"),
    ):
        file.with_stem(name).write_text(text)
        with pytest.raises(ValueError, match=re.escape(says)):
            check_words("task=cartpole", f"reward={name}")


def test_a_run_keeps_its_reward_model(tmp_path, monkeypatch, capsys):
    """resume= cannot change the model, but the weight, with a warning."""
    monkeypatch.chdir(tmp_path)
    trainer = Trainer(configure(*TINY_RND, "iterations=2", "run_dir=run"))
    list(trainer.steps())
    trainer.close()
    for words, says in (
        (["reward=none"], "reward.name rnd → none"),
        (["reward=rnd", "reward.features=8"], "reward.features 16 → 8"),
    ):
        with pytest.raises(ValueError, match=says):
            check_words("resume=run", *words)
    changed = check_words("resume=run", "reward=rnd", "reward.weight=2")
    assert changed.reward.settings.weight == 2
    table = numbers.lines("config", changed.plain)
    assert any(line.startswith("reward.weight") for line in table)


def test_a_bonus_above_the_tasks_reward_is_said(tmp_path, monkeypatch, capsys):
    """After some rows one line names it; with a small weight none does. Metrics have names."""
    monkeypatch.chdir(tmp_path)
    for weight in ("1000", "1e-6"):
        words = (f"reward.weight={weight}", f"iterations={ABOVE + 3}", f"run_dir=w{weight}")
        trainer = Trainer(configure(*TINY_RND, *words))
        rows = list(trainer.steps())
        trainer.close()
        said = capsys.readouterr().out.count("lower reward.weight if this lasts")
        assert said == (weight == "1000") and {"novelty", "bonus"} <= rows[-1].keys()
    metrics = trainer.loop.iteration.metrics
    assert public_name("bonus", metrics) == "reward_model/bonus"
    assert described(metrics)["novelty"]["label"] == "error of the predictor"
