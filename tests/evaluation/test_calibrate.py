"""The calibration of a command: it is found from drives, and is the actor's alone."""

import json

import pytest
import torch

from gpusim_rl.assembly.iteration import make_iteration
from gpusim_rl.evaluation import calibrate
from gpusim_rl.evaluation.drives import Drive
from gpusim_rl.networks.calibration import Calibration, features
from gpusim_rl.networks.normalizer import Normalizer
from gpusim_rl.networks.policy import Actor
from tests.worlds import make_config

WORDS = ("task=quadruped", "device=cpu", "sim.threads=1")


def make(*words):
    """An iteration of a few worlds."""
    return make_iteration(make_config(*WORDS, *words), num_envs=2)


def answering(response):
    """Instead of `drive`: robots that do `response` of what their actors observe."""

    def drive(policy, task, commands, **_):
        observed, actor = commands, policy.actor
        if actor.calibration:
            columns = torch.zeros(len(commands), len(actor.normalizer.mean))
            columns[:, -5:-2] = commands  # the clock's two are the last
            observed = actor.calibration(columns)[:, -5:-2]
        return rows_of(commands, response(observed))

    return drive


def rows_of(asked, got, tolerance=1e-5):
    """Drives, which fail where an error is larger."""
    failed = [["off"] if error > tolerance else [] for error in (got - asked).abs().amax(1)]
    return [Drive(*row) for row in zip(asked.tolist(), got.tolist(), failed, strict=True)]


def test_a_robot_does_what_it_is_told(monkeypatch):
    """Though it is too fast, turns too much, and turns where it goes sideways."""
    response = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.9, 0.0], [0.0, 0.2, 1.1]])

    def respond(command):
        got = command @ response.T + torch.tensor([0.1, 0.0, -0.02])
        got[:, 0] -= 0.1 * got[:, 1].abs()
        return got

    monkeypatch.setattr(calibrate, "drive", answering(respond))
    iteration = make()
    rows = calibrate.calibrate(iteration.env, iteration.policy, weights={})
    assert len(rows) == len(iteration.env.task.drives)
    assert all(row.got == pytest.approx(row.asked, abs=1e-4) for row in rows)
    obs = torch.randn(4, len(iteration.policy.actor.normalizer.mean))
    change = iteration.policy.actor.calibration(obs) - obs
    assert change[:, :-5].eq(0).all() and change[:, -2:].eq(0).all()
    again = calibrate.calibrate(iteration.env, iteration.policy, weights={})  # from the beginning
    assert [row.got for row in again] == [row.got for row in rows]


def test_what_does_not_help_is_taken_back(monkeypatch):
    """A robot that stands, one that answers a calibration by more errors, and one that falls."""
    iteration = make()
    actor, calls = iteration.policy.actor, []

    def worse(command):
        calls.append(command)
        return command + (0.1 if len(calls) == 1 else 0.5)

    def fall(policy, task, commands, **_):
        return [Drive(x, [0.0] * 3, ["fell"]) for x in commands.tolist()]

    for drive in (answering(lambda c: 0 * c), answering(worse), fall):
        monkeypatch.setattr(calibrate, "drive", drive)
        calibrate.calibrate(iteration.env, iteration.policy, weights={})
        assert actor.calibration is None


def test_a_change_is_bounded(monkeypatch):
    """A robot that is far too slow is told at most a quarter of its largest command more."""
    monkeypatch.setattr(calibrate, "drive", answering(lambda c: 0.5 * c))
    iteration = make()
    calibrate.calibrate(iteration.env, iteration.policy, weights={})
    calibration = iteration.policy.actor.calibration
    obs = torch.zeros(1, len(iteration.policy.actor.normalizer.mean))
    obs[0, -5:-2] = torch.tensor([1.0, 0.5, -1.0])
    assert calibration(obs)[0, -5:-2].tolist() == pytest.approx([1.25, 0.625, -1.25], abs=1e-4)


@pytest.mark.parametrize("words", [(), ("task.history={command:3,gyro:2}",)])
def test_the_columns_of_a_command(words):
    """They are where the command stands in the view of the actor, in its history too."""
    env = make(*words).env
    columns = env.observer.columns("command")
    command = torch.tensor([[0.4, -0.2, 0.7], [0.1, 0.3, -0.5]])
    env.set_memory("command", command)
    env.update_observations(torch.ones(2, dtype=torch.bool))
    assert columns.shape == (3 if words else 1, 3)
    for moment in columns:
        torch.testing.assert_close(env.observation["actor"][:, moment], command)


def test_an_actor_observes_what_is_calibrated():
    """The command alone is another one, at each of its moments; nothing else is."""
    normalizer, net = Normalizer(7), torch.nn.Linear(7, 2)
    actor, obs = Actor(normalizer, net), torch.randn(5, 7)
    assert torch.equal(actor(obs), net(normalizer(obs)))
    columns, weights = torch.tensor([[1, 2], [4, 5]]), torch.randn(10, 2)
    actor.calibration = Calibration(columns, weights, torch.tensor([0.5, 9.0]), 7)
    seen = obs.clone()
    for moment in columns:
        x = obs[:, moment]
        change = features(x) @ weights
        change[:, 0].clamp_(-0.5, 0.5)
        seen[:, moment] = x + change
    torch.testing.assert_close(actor(obs), net(normalizer(seen)))
    # a training is the same with and without
    assert not [name for name in actor.state_dict() if "calibration" in name]


def test_features():
    """1, x, |x|, x_i |x_j|, and products of different numbers."""
    assert features(torch.tensor([2.0, -3.0])).tolist() == [
        *(1.0, 2.0, -3.0, 2.0, 3.0),
        *(4.0, 6.0, -6.0, -9.0),
        -6.0,
    ]


def test_a_file_holds_the_calibration_of_one_iteration(tmp_path):
    """An actor takes what is its own, and forgets what it had where a file says nothing of it."""
    path, actor = tmp_path / calibrate.FILE, Actor(Normalizer(3), torch.nn.Linear(3, 2))
    obs, plain = torch.randn(4, 3), Actor(Normalizer(3), torch.nn.Linear(3, 2))
    actor.calibration = Calibration(torch.tensor([[1]]), torch.ones(4, 1), torch.ones(1), 3)
    before, about = actor(obs), calibrate.record(actor, 7)
    path.write_text(json.dumps(about))
    actor.calibration = None
    calibrate.read(path, actor, 7)
    assert torch.equal(actor(obs), before)
    nan = float("nan")
    for text, iteration in (
        (json.dumps(about), 8),
        (json.dumps(about | {"columns": [[3]]}), 7),
        (json.dumps(about | {"weights": [[nan]] * 4}), 7),
        (json.dumps(about | {"weights": [[1.0]] * 3}), 7),
        (json.dumps(calibrate.record(plain, 7)), 7),
        ("[]", 7),
        ("{", 7),
    ):
        path.write_text(text)
        calibrate.read(path, actor, iteration)
        assert actor.calibration is None, text
    path.unlink()
    calibrate.read(path, actor, 7)
    assert actor.calibration is None
