"""A file whose policy sees a view of its task: who gives it, and who refuses the file."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from gpusim_rl.config.compose import compose_plain
from gpusim_rl.core.record import Column
from gpusim_rl.deploy.controller import Controller
from gpusim_rl.deploy.export_policy import rest
from gpusim_rl.deploy.onboard.guard import Guard
from gpusim_rl.deploy.runtime import Policy, as_numbers
from gpusim_rl.gate.command import report_of
from gpusim_rl.play.record_episodes import file_action
from gpusim_rl.play.rollouts import FileRollout
from gpusim_rl.serve.pool import Pool, Version
from gpusim_rl.tasks.locomotion.quadruped import Quadruped
from tests.exported import export_env, fresh_env
from tests.shared import shared
from tests.simulated_robot import Simulated
from tests.worlds import make_task, refusal

VIEWS = {"picture": Column((2, 3), torch.float16)}
FORWARD = [0.5, 0.0, 0.0]


class Seen(Quadruped):
    """A quadruped with a picture of its command."""

    def views(self, s):
        return dict(picture=s.command[:, None].expand(-1, 2, -1).half())


class Looks(torch.nn.Module):
    """An actor whose targets are the picture's."""

    def forward(self, obs, memory, views):
        return 0.1 * views["picture"].float().flatten(1).repeat(1, 2) + 0 * obs[:, :12]


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> Path:
    """The file."""

    def make(folder: Path) -> None:
        actor = Looks()
        env = fresh_env(make_task("quadruped", Seen), "quadruped")
        controller = Controller(env.task, actor, views=VIEWS)
        about = rest(env.task, controller)
        act = lambda views, _: actor(views["actor"], {}, views)  # noqa: E731
        export_env(env, controller, folder / "policy.onnx", act, "quadruped", 40, about)

    return shared(tmp_path_factory, "seeing", make) / "policy.onnx"


def test_demonstrations_of_the_file_are_those_of_its_network(path):
    """mode=record gives it the picture of the worlds."""
    env = fresh_env(make_task("quadruped", Seen), "quadruped", 4)
    act = file_action(path, Policy(path), env)
    for _ in range(3):
        views = dict(env.observation)
        torch.testing.assert_close(act(env), Looks()(views["actor"], {}, views))
        env.step(torch.zeros(4, 12))


def test_a_guard_passes_it_on(path):
    """The targets are those of its picture; without one nothing moves."""
    sim = Simulated(Policy(path))
    guard = Guard(sim.policy, clock=sim.clock, checks="warn", say=lambda line: None)
    wrong = {"is missing": {}, "has shape": {"picture": np.ones(2)}}
    for says, picture in wrong.items():
        with pytest.raises(ValueError, match=f"view 'picture' {says}"):
            guard.act(sim.read() | picture, FORWARD)
    bright, alone = dict(picture=np.ones((2, 3))), Policy(path)
    while guard.phase == "rise":
        sim.send(guard.act(sim.read() | bright))
    for _ in range(10):
        expected = alone.act(sim.read() | bright, FORWARD)
        sim.send(guard.act(sim.read() | bright, FORWARD))
    np.testing.assert_allclose(guard.sent, expected, atol=1e-6)


@pytest.mark.parametrize("robots", [None, 3])
def test_a_server_takes_it(path, robots):
    """Its answers are the runtime's, for one robot and for several; a wrong shape is a line."""
    pool, policy = Pool(version := Version(path), 4), Policy(path)
    assert version.metadata()["views"] == {"picture": ((2, 3), "float16")}
    rng, rows = np.random.default_rng(0), pool.open(robots)
    shapes = {name: (width,) for name, width in policy.needs.items()} | {"picture": (2, 3)}
    one = () if robots is None else (robots,)
    values = {name: rng.normal(size=one + shape) for name, shape in shapes.items()}
    pool.write(rows, values | {"command": FORWARD})
    policy.reset(robots)
    targets, fault = pool.step(np.atleast_1d(rows))
    assert not fault.any()
    assert np.array_equal(targets.reshape(*one, 12), policy.act(values, FORWARD))
    with pytest.raises(ValueError, match=r"picture.* has shape"):
        pool.write(rows, values | {"picture": np.zeros(2), "command": FORWARD})


def test_what_drives_the_model_alone_refuses_it(path):
    """The gate and a player of files: one line with the view and what can be done."""
    says = "policy.onnx sees the view 'picture', which only its task computes: use run= with mode="
    with pytest.raises(ValueError, match=says):
        FileRollout(path)
    with pytest.raises(ValueError, match=says):
        report_of(path, compose_plain("play", ["mode=gate"])["gate"], 0)
    words = ("task=cartpole", "algo.encoders.picture=[8]", "gate=true")
    assert "gate=true drives the model alone, without views" in refusal(*words)


@pytest.mark.parametrize("value", [[0.5, 0.0], [256, 0], [-1, 0], [math.nan, 0]])
def test_bytes_are_no_fractions(value):
    """A picture in another unit is refused, instead of a black one; whole numbers are taken."""
    assert as_numbers([255, 0], "uint8").tolist() == [255, 0]
    with pytest.raises(ValueError, match="expected whole ones from 0 to 255"):
        as_numbers(value, "uint8")
