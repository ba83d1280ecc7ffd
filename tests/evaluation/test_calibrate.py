"""The calibration of a command: it is found from drives, and is the actor's alone."""

import json

import pytest
import torch

from gpusim_rl.build import make_iteration
from gpusim_rl.evaluation import calibrate
from gpusim_rl.evaluation.drives import Drive
from gpusim_rl.networks.normalizer import Normalizer
from gpusim_rl.networks.policy import Actor
from tests.worlds import make_config

WORDS = ("task=quadruped", "device=cpu", "sim.threads=1")


def make(*words):
    """An iteration of a few worlds."""
    return make_iteration(make_config(*WORDS, *words), num_envs=2)


def answering(response):
    """Instead of `drive`: robots that do `response` of what their actors observe."""

    def drive(policy, task, weights, seed):
        asked = task.drives
        columns = torch.zeros(len(asked), len(policy.actor.gain))
        columns[:, -5:-2] = asked  # the clock's two are the last
        got = response((policy.actor.gain * columns + policy.actor.offset)[:, -5:-2])
        return [Drive(*row) for row in zip(asked.tolist(), got.tolist(), strict=True)]

    return drive


def test_offset_and_gain_are_found(monkeypatch):
    """A robot that is 0.1 m/s too fast and turns by a tenth too much goes as it is told."""
    slope, offset = torch.tensor([1.0, 0.9, 1.1]), torch.tensor([0.1, 0.0, -0.02])
    monkeypatch.setattr(calibrate, "drive", answering(lambda c: slope * c + offset))
    iteration = make()
    rows = calibrate.calibrate(iteration.env, iteration.policy, weights={})
    assert all(row.got == pytest.approx(row.asked, abs=1e-5) for row in rows)
    actor = iteration.policy.actor
    assert actor.gain[-5:-2].tolist() == pytest.approx((1 / slope).tolist(), abs=1e-5)
    assert actor.gain[:-5].eq(1).all() and actor.offset[:-5].eq(0).all()
    again = calibrate.calibrate(iteration.env, iteration.policy, weights={})  # from the beginning
    assert [row.got for row in again] == [row.got for row in rows]


def test_what_does_not_help_is_taken_back(monkeypatch):
    """A robot that stands, one that falls, and one that answers a calibration by more errors."""
    iteration = make()
    actor, calls = iteration.policy.actor, []

    def worse(command):
        calls.append(command)
        return command + (0.1 if len(calls) == 1 else 0.5)

    for response in (lambda c: 0 * c, worse):
        monkeypatch.setattr(calibrate, "drive", answering(response))
        calibrate.calibrate(iteration.env, iteration.policy, weights={})
        assert actor.gain.eq(1).all() and actor.offset.eq(0).all()
    fell = [Drive([1.0, 0.0, 0.0], [0.2, 0.0, 0.0], ["fell"])] * 3
    assert calibrate.fit(fell, iteration.env.task) == [(0.0, 1.0)] * 3


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
        torch.testing.assert_close(env.observation.actor[:, moment], command)


def test_an_actor_observes_what_is_calibrated():
    """gain · obs + offset, before the normalizer; without them the bits stay."""
    normalizer, net = Normalizer(3), torch.nn.Linear(3, 2)
    actor, obs = Actor(normalizer, net), torch.randn(5, 3)
    assert torch.equal(actor(obs), net(normalizer(obs)))
    actor.gain[1], actor.offset[1] = 0.5, 2.0
    seen = obs.clone()
    seen[:, 1] = 0.5 * obs[:, 1] + 2.0
    torch.testing.assert_close(actor(obs), net(normalizer(seen)))


def test_a_file_holds_the_calibration_of_one_iteration(tmp_path):
    """An actor takes what is its own, and forgets what it had where a file says nothing of it."""
    path, actor = tmp_path / calibrate.FILE, Actor(Normalizer(3), torch.nn.Linear(3, 2))
    actor.gain[1], actor.offset[2] = 0.5, 2.0
    path.write_text(json.dumps(calibrate.record(actor, 7)))
    before = actor.gain.clone(), actor.offset.clone()
    actor.forget_calibration()
    calibrate.read(path, actor, 7)
    assert torch.equal(actor.gain, before[0]) and torch.equal(actor.offset, before[1])
    other = Actor(Normalizer(2), torch.nn.Linear(2, 2))
    for text, one, iteration in (
        (path.read_text(), actor, 8),
        (path.read_text(), other, 7),
        ('{"iteration": 7, "gain": [1, 1, NaN], "offset": [0, 0, 0]}', actor, 7),
        ("[]", actor, 7),
        ("{", actor, 7),
    ):
        path.write_text(text)
        calibrate.read(path, one, iteration)
        assert one.gain.eq(1).all() and one.offset.eq(0).all()
    path.unlink()
    calibrate.read(path, actor, 7)
    assert not {"gain", "offset"} & {*actor.state_dict()}  # a training is the same with and without
