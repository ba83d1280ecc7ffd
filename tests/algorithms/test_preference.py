"""A reward from answers: its formula, its ensemble, what is held, and an exact continuation."""

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gpusim_rl.algorithms.rewards.preference import pairs
from gpusim_rl.algorithms.rewards.preference.preference import Preference
from gpusim_rl.algorithms.rewards.preference.settings import Settings
from gpusim_rl.assembly.iteration import make_iteration
from gpusim_rl.commands.train import configure
from gpusim_rl.core.record import ENDS, Record
from gpusim_rl.core.states import copy_state
from gpusim_rl.runs.checkpoints import load
from gpusim_rl.runs.labels import Labels
from gpusim_rl.runs.run import Run
from gpusim_rl.training.loop import TrainingFailed
from gpusim_rl.training.trainer import Trainer
from tests.command_lines import TINY, command
from tests.core.test_distributed import torchrun_train
from tests.guard import reads_nothing
from tests.worlds import check_words, differing, make_config

SMALL = tuple(x for x in TINY if not x.startswith(("task.episode", "num_")))
WORLDS = ("task=cartpole", *SMALL, "log=none", "num_envs=32", "num_steps=8", "threads=1")
TASTE = (
    *("reward=preference", "start=base", "reward.alike=[]", "reward.seconds=0.7"),
    *("reward.first=8", "reward.round=4", "reward.every=2", "reward.answers=16"),
    *("reward.epochs=2", "reward.warm=1", "reward.ramp=3", "reward.budget=1000"),
)
JUDGES = """
def slow(left, right):
    a, b = (abs(x["pose"]).mean() for x in (left, right))
    return "left" if a < b else "right"

def lost(left, right):
    return "up"
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A directory with a run to begin with, and judges."""
    folder = tmp_path_factory.mktemp("taste")
    with contextlib.chdir(folder):
        trainer = Trainer(configure(*WORLDS, "iterations=1", "run_dir=base"))
        list(trainer.steps())
        trainer.close()
    (folder / "judges").mkdir()
    (folder / "judges" / "tastes.py").write_text(JUDGES)
    return folder


@pytest.fixture
def here(place, monkeypatch) -> Path:
    monkeypatch.chdir(place)
    return place


def trained(*words: str) -> list[dict[str, float]]:
    """The rows of a training that goes on to its end."""
    trainer = Trainer(configure(*words))
    rows = list(trainer.steps())
    trainer.close()
    return rows


def make(*words: str) -> Preference:
    """The reward model of an iteration that was not begun."""
    (model,) = make_iteration(make_config(*WORLDS, *TASTE, *words)).rewards
    assert isinstance(model, Preference)
    return model


def rollout(model: Preference, seed: int) -> Record:
    """Random steps of the model's columns, with a fall and a fault."""
    record = Record.zeros(model.columns, 8, 32, device=torch.device("cpu"))
    record.rows.copy_(torch.randn(record.rows.shape, generator=torch.Generator().manual_seed(seed)))
    for name in ENDS:
        record.column(name).zero_()
    record.column("terminated")[2, 5] = record.column("fault")[3, 7] = 1.0
    record.end[3, 7] = torch.nan
    return record


def test_the_reward_against_numpy():
    """z in units of its deviation, less the squared distance in units of the budget, and falls."""
    model = make("reward.task=0.5", "reward.weight=2", "reward.budget=0.1", "reward.warm=0")
    cfg, dt = model.cfg, model.spec.dt
    model.value("answers").fill_(1.0)
    for k in range(2):
        record = rollout(model, k)
        valid = ~record.fault.numpy()
        with torch.no_grad():
            z = model.rewards(model.normalizer(record.end.nan_to_num()))
            mean = model.actor(record.obs)
        z, clip = z.mean(0).double().numpy(), model.spec.clip
        z = (z - z[valid].mean()) / z[valid].std()
        moved = (record.mean.clamp(-clip, clip) - mean.clamp(-clip, clip)) @ model.targets
        apart = moved.square().mean(-1).numpy()
        distance = np.sqrt(apart[valid].mean())
        allowed = 0.1 * min((k + 1) / cfg.ramp, 1)
        beta = float(model.value("coefficient")) * np.exp(cfg.gain * min(distance / allowed - 1, 1))
        wanted = 0.5 * record.reward.numpy() + dt * (2 * z - beta * apart / 0.01)
        wanted = (wanted - cfg.fall * record.terminated.numpy()) * valid
        model.add_reward(record)
        assert record.reward.numpy() == pytest.approx(wanted, rel=1e-3, abs=1e-4)
        told = dict(zip([x.key for x in model.metrics], model.measures().tolist(), strict=True))
        assert told["distance"] == pytest.approx(distance, rel=1e-4)
        assert told["coefficient"] == pytest.approx(beta, rel=1e-4) and told["done"] == 1


def test_without_answers_nothing_is_paid():
    """The taste is 0 until somebody has answered, and only the distance costs."""
    model = make("reward.coefficient=1e-3", "reward.fall=0", "reward.gain=0", "reward.task=0")
    record = rollout(model, 0)
    model.add_reward(record)
    assert record.reward.abs().max() < 1e-3 and int(model.paid) == 0


def test_the_ensemble_learns_what_is_answered():
    """From 120 answers about a linear taste, 10 % of them wrong, it tells most new pairs."""
    model, g = make("reward.epochs=20"), torch.Generator().manual_seed(0)
    width = model.spec.views["critic"].shape[0]
    views = torch.randn(320, 2, 1, width, generator=g) + torch.zeros(320, 2, 12, width)
    better = (views[:, 0, 0, 0] > views[:, 1, 0, 0]).float()
    wrong = torch.rand(320, generator=g) < 0.1
    told, none = torch.where(wrong, 1 - better, better)[:120], torch.zeros(120, dtype=torch.bool)
    model.learn(views[:120], told, none)
    fresh = torch.arange(200) < 200
    model.learn(views[120:], better[120:], fresh)
    assert model.value("accuracy") > 0.85 and model.value("answers") == 200


def test_pairs_are_alike_and_worth_a_question(monkeypatch):
    """Both clips are whole and have nearly one command; half are those of the largest doubt."""
    monkeypatch.setattr(pairs, "NEIGHBORS", 2)
    g = torch.Generator().manual_seed(1)
    steps, worlds, width = 6, 40, 5
    clips = torch.randn(steps, worlds, width + 2 + 1, generator=g)
    clips[..., 0] = torch.arange(worlds) // 4  # the command: four worlds have the same
    clips[3, 7, 0] += 1  # which changes in one world
    clips[..., -1] = 0
    clips[2, 8, -1] = 1  # where an episode ended
    clips[:, 36:] = 0  # worlds that are not there
    alike, none = torch.tensor([0]), torch.zeros_like(clips)

    def choose(older=none, clips=clips, doubt=None, across=0.0):
        options: Any = dict(across=across, doubt=doubt, generator=torch.Generator().manual_seed(0))
        found: Any = pairs.choose_pairs(clips, older, alike, 20, **options)
        return found

    chosen, drawn = choose(doubt=lambda x: x[:, 0, 0, 1])
    assert chosen.shape == (20, 2, steps, width + 3) and drawn == 10
    assert (chosen[:, 0, :, 0] == chosen[:, 1, :, 0]).all() and (chosen[..., -1] == 0).all()
    assert not (chosen[:, 0] == chosen[:, 1]).all(2).all(1).any()
    asked = {tuple(sorted(x.flatten().tolist())) for x in chosen[:, :, 0, 1]}
    assert len(asked) == 20  # none twice
    assert chosen[10:, 0, 0, 1].min() > chosen[:10, 0, 0, 1].mean()
    assert choose()[1] == 20  # without doubt all are drawn
    across, _ = choose(older=clips + 100.0 * (torch.arange(width + 3) == 1), across=1.0)
    assert ((across[..., 0, 1] > 50).sum(1) == 1).all()
    assert choose(clips=none) is None


def test_an_iteration_reads_nothing(here):
    """Between two rounds no tensor is read; clips and reward are finite."""
    made = make_iteration(make_config(*WORLDS, *TASTE))
    made.iteration()
    reads_nothing(made, calls=300)
    assert made.report()()["distance"] < 1 and made.rewards[0].clips.isfinite().all()


def test_the_actor_is_held_while_the_critic_learns_and_at_the_end(here):
    """It moves only after `warm` iterations with answers, and not once the budget is spent."""
    model = make("reward.warm=1")
    weights = model.policy.log_std.data
    moves = []
    for answers, done in ((0, 0), (1, 0), (1, 0), (1, 0), (1, 1)):
        model.value("answers").fill_(answers)
        model.value("done").fill_(done)
        record = rollout(model, 0)
        record.mean.copy_(model.actor(record.obs))
        model.add_reward(record)
        before = weights.clone()
        weights += 1.0  # as a learner does
        model.update(record)
        moves.append(not torch.equal(before, weights))
    assert moves == [False, False, True, True, False]


def test_a_run_goes_on_to_the_bit(here, capsys):
    """Left in the middle, it asks, is answered and learns as one that went through."""
    words = (*WORLDS, *TASTE, "reward.judge=tastes:slow", "save_every=1")
    rows = trained(*words, "iterations=8", "run_dir=whole")
    assert [row["answers"] for row in rows] == [0, 0, 8, 8, 12, 12, 16, 16]
    trained(*words, "iterations=5", "run_dir=parts")
    with pytest.raises(ValueError, match="is imported only with task_code=here"):
        configure("resume=parts", "iterations=8")
    trained("resume=parts", "iterations=8", "task_code=here")
    states = [load(here / x / "checkpoints" / "000008.safetensors")[0] for x in ("whole", "parts")]
    assert differing(*states) == [] and "preference/clips" in states[0]
    answers = [Labels(here / x).answers() for x in ("whole", "parts")]
    for read in answers:
        assert read.lines == 16 and {row["who"] for row in read.rows} == {"tastes:slow"}
    assert [x["clips"] for x in answers[0].rows] == [x["clips"] for x in answers[1].rows]
    # answers that came later are not learned from before their time
    for name in ("000007", "000008"):
        (here / "parts" / "checkpoints" / f"{name}.safetensors").unlink()
    trained("resume=parts", "iterations=8", "task_code=here")
    again = load(here / "parts" / "checkpoints" / "000008.safetensors")[0]
    assert differing(states[0], again) == []


def test_training_waits_for_people(here):
    """It says for how many pairs, goes on when they are answered, and learns from what was said."""
    made = Trainer(configure(*WORLDS, *TASTE, "iterations=4", "run_dir=people"))
    iteration, labels = made.loop.iteration, Labels(Path("people"))
    for _ in range(2):
        assert iteration.waits() == ""
        iteration.iteration()
    assert iteration.waits() == "8 pairs wait for an answer: play.py run=people mode=label"
    for name, pair in labels.pairs().items():
        labels.answer(name, "left", "anna", pair.digest)
    labels.answer(name, "undo", "anna", pair.digest)
    assert iteration.waits().startswith("1 pairs wait")
    labels.answer(name, "unclear", "anna", pair.digest)
    assert iteration.waits() == ""
    iteration.iteration()
    assert iteration.report()()["answers"] == 7  # who cannot tell says nothing
    made.close()


def test_the_reference_is_the_policy_of_the_start(here):
    """It stays as the policy moves, and is in a checkpoint."""
    made = make_iteration(make_config(*WORLDS, *TASTE, "reward.warm=0"))
    first = copy_state(made.tensors())
    made.iteration()
    made.rewards[0].value("answers").fill_(1)  # as if somebody had answered
    made.iteration()
    after = copy_state(made.tensors())
    names = [x.removeprefix("preference/") for x in after if x.startswith("preference/actor.")]
    assert names and not differing(
        {x: after[f"preference/{x}"] for x in names}, {x: first[f"policy/{x}"] for x in names}
    )
    moved = [x for x in names if not torch.equal(after[f"policy/{x}"], first[f"policy/{x}"])]
    assert [x for x in moved if "net" in x]


@pytest.mark.parametrize(
    "falls, lost, said",
    [((0, 1), 0.0, 1), ((0, 0), 0.15, 1), ((1, 1), 0.0, 0), ((0, 0), 0.03, 0)],
)
def test_lost_success_is_said_once(here, tmp_path, capsys, falls, lost, said):
    """One line, if episodes end by falls as they did not before, or the task's reward is lost."""
    words = ("reward.judge=tastes:slow", f"run_dir={tmp_path}/lost")
    made = Trainer(configure(*WORLDS, *TASTE, *words))
    iteration = made.loop.iteration
    model: Any = iteration.rewards[0]
    for _ in range(2):
        iteration.iteration()
    for goes in (0, 1):  # first the actor is held
        for _ in range(30):
            record = rollout(model, 0)
            record.reward.fill_(1 - goes * lost)
            record.column("terminated")[2, 5] = falls[goes]
            model.paid.fill_(goes * 9)
            model.add_reward(record)
            model.between(2)
            model.spec.iteration.add_(1)
        told = capsys.readouterr().err
        assert told.count("the task's reward and whole episodes are 0.") == goes * said
    made.close()


@pytest.mark.parametrize(
    "words, says",
    [
        (("reward=preference",), "reward=preference tunes a policy that is trained: name start=RU"),
        ((*TASTE, "reward.judge=os.system"), "reward.judge=os.system: expected FILE:FUNCTION"),
        ((*TASTE, "reward.judge=a.b:c"), "reward.judge=a.b:c: expected FILE:FUNCTION"),
        ((*TASTE, "reward.ask=never"), "reward.ask=never: choose one of disagreement, random"),
        ((*TASTE, "cluster=ray"), "reward=preference looks at its own worlds: set cluster=none"),
    ],
)
def test_mistakes_are_one_line(here, words, says):
    """Before anything is built."""
    with pytest.raises(ValueError) as error:
        check_words("task=cartpole", *words)
    assert f"{error.value}".startswith(says)


@pytest.mark.parametrize(
    "words, says",
    [
        (("reward.alike=[command]",), "reward.alike: no term 'command': choose of "),
        (("algo=sac", "num_steps=8"), "reward=preference tunes algo=ppo without memory"),
        (("algo.memory=gru",), "reward=preference tunes algo=ppo without memory"),
    ],
)
def test_what_it_cannot_tune(here, words, says):
    """One line names it as the training is built."""
    with pytest.raises(ValueError) as error:
        make(*words)
    assert f"{error.value}".startswith(says)


def test_a_judge_that_cannot_answer(here):
    """A file and a function that are none are named before anything is trained, an answer then."""
    for judge, says in (
        ("nobody:slow", "no file nobody.py in judges/"),
        ("tastes:none", "has no function none"),
        (f"tastes:{'x' * 40}", "expected at most 40 characters"),
    ):
        with pytest.raises(ValueError, match=says):
            Trainer(configure(*WORLDS, *TASTE, f"reward.judge={judge}"))
    made = Trainer(configure(*WORLDS, *TASTE, "reward.judge=tastes:lost"))
    with pytest.raises(TrainingFailed, match="answers 'up': expected one of left, right, same"):
        list(made.steps())
    made.close()


def test_clips_of_another_training(here):
    """Answers about clips of another length are refused before anything is trained."""
    words = (*WORLDS, *TASTE, "reward.judge=tastes:slow", "iterations=4")
    made = Trainer(configure(*words, "run_dir=other"))
    list(made.steps())
    made.close()
    line = "reward.labels=other: its clips have other terms or another length"
    with pytest.raises(ValueError, match=line):
        Trainer(configure(*words, "reward.labels=other", "run_dir=new", "reward.seconds=2"))


def test_how_many_questions_are_asked():
    """The first round, later ones, and no more than there may be."""
    plain = make_config(*WORLDS, *TASTE, "reward.answers=13").plain["reward"]
    settings = Settings(**{name: x for name, x in plain.items() if name != "name"})
    assert [settings.asked(n) for n in range(5)] == [0, 8, 12, 13, 13]


@pytest.mark.slow
def test_two_ranks_are_one(here):
    """Two processes ask the same pairs and learn the same reward as one with all worlds."""
    words = (*WORLDS, *TASTE, "reward.judge=tastes:slow", "iterations=5", "algo.learning_rate=1e-4")
    done = command("train.py", *words, "run_dir=one", cwd=here)
    assert done.returncode == 0, done.stderr
    torchrun_train(here, *words, "run_dir=two")
    one, two = (
        load(Run(here / x).checkpoints.path / "000005.safetensors")[0] for x in ("one", "two")
    )
    counts = [len(Labels(here / x).answers().rows) for x in ("one", "two")]
    assert counts == [12, 12] and one.keys() == two.keys()
    for name in (x for x in one if x.startswith(("preference/", "policy/"))):
        torch.testing.assert_close(one[name], two[name], rtol=1e-3, atol=1e-4, msg=name)
