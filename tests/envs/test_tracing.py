"""What tasks read, and what of it a robot can measure."""

from dataclasses import dataclass

import pytest
import torch

from gpusim_rl.envs.readings import measured
from gpusim_rl.envs.tracing import RobotInputs, needs, reads, sample_inputs
from gpusim_rl.tasks.locomotion.quadruped import Quadruped
from tests.worlds import make_env, make_task


@dataclass(kw_only=True)
class Walker(Quadruped):
    """A quadruped that reads its joints by `joint_pos` and `joint_vel`, and a filtered gyro."""

    def start(self, n, rng):
        drawn = rng.uniform("more", -torch.ones(3), 3 * torch.ones(3))
        return super().start(n, rng) | dict(filtered=0 * drawn, mass=drawn, bias=torch.ones(n, 1))

    def update(self, s, rng):
        return super().update(s, rng) | dict(filtered=0.9 * s.filtered + 0.1 * s.gyro)

    def observe(self, s):
        return dict(
            up=s.up, joints=s.joint_pos, speeds=s.joint_vel, filtered=s.filtered, bias=s.bias
        )


def make(kind, **methods):
    """A task of a class with other methods."""
    return make_task(kind=dataclass(kw_only=True)(type("Walker", (kind,), methods)))


def with_term(read):
    """A Walker with one more term."""
    return make(Walker, observe=lambda self, s: Walker.observe(self, s) | {"extra": read(s)})


def test_what_the_quadruped_reads():
    """Terms, controls and memory of the quadruped depend on what its source says."""
    task = make_task("quadruped")
    inputs = sample_inputs(task)
    terms = reads(task, "observe", inputs)
    assert {"gyro": {"gyro"}, "clock": {"command", "phase"}}.items() <= terms.items()
    assert reads(task, "control", inputs) == {"": {"action", "command", "phase"}}
    memory = reads(task, "update", inputs)
    assert memory["phase"] == {"phase"} and "random numbers" in memory["command"]
    feet = {f"{foot}_position" for foot in ("FL", "FR", "RL", "RR")}
    assert reads(task, "privileged", inputs)["feet"] == feet


@pytest.mark.parametrize("name", ["time", "gyro", "joint_pos", "ctrl", "encoder", "kick"])
def test_names_that_memory_must_not_have(name):
    """Memory with the name of what each state has would hide it, and is refused."""
    start = {name: torch.zeros(2)}
    task = make(Walker, start=lambda self, n, rng: Walker.start(self, n, rng) | start)
    on = {"randomise": {"encoder": {"kind": "uniform", "low": -0.1, "high": 0.1}}}
    with pytest.raises(ValueError, match=f"start: memory must not be called '{name}'"):
        make_env(num_envs=2, kind=type(task), history={}, **on)


def test_needs():
    """What a robot needs is what the terms and the controls read, and the memory behind both."""
    task = make(Walker)
    assert needs(task) == RobotInputs(
        readings=("gyro", "up", "joint_pos", "joint_vel"),
        memory=("phase", "filtered", "bias"),
        command=True,
        filters=("filtered",),
    )
    assert measured(task.mjm)["up"] == 3 and "velocity" not in measured(task.mjm)


def test_actions_and_time_are_remembered():
    """The actions before and the time are memory, where something reads them."""
    assert needs(with_term(lambda s: s.action)).memory[0] == "action"
    assert needs(with_term(lambda s: s.previous)).memory[:2] == ("action", "previous")
    assert "time" in needs(with_term(lambda s: s.time[:, None].float())).memory
    late = make(Walker, control=lambda self, s: s.previous)
    assert "action" in needs(late).memory and "phase" not in needs(late).memory


@pytest.mark.parametrize(
    "read, says",
    [
        (lambda s: s.qpos[:, :3], "the term 'extra' reads 'qpos', which no robot measures"),
        (lambda s: s.qvel[:, :3], "the term 'extra' reads 'qvel', which no robot measures"),
        (lambda s: s.velocity > 1, "the term 'extra' reads 'velocity', which no robot measures"),
        (lambda s: s.mass, "the term 'extra' reads 'mass', which is drawn at random"),
        (lambda s: s.quantile[:, None], "the term 'extra' reads 'quantile', which is drawn at "),
        (lambda s: s.up if s.up[0, 2] > 0 else -s.up, r"Walker\.observe branches on a tensor: t"),
    ],
)
def test_what_no_robot_knows_is_refused(read, says):
    """A term that needs the simulator or a random number is refused in one line with its name."""
    with pytest.raises(ValueError, match=says) as error:
        needs(with_term(read))
    assert "\n" not in str(error.value) and str(error.value).startswith("Walker")


def test_controls_of_what_no_robot_measures_are_refused():
    """So are controls."""
    task = make(Walker, control=lambda self, s: s.joint_pos - s.qpos[:, 2:3])
    with pytest.raises(ValueError, match="control reads 'qpos'"):
        needs(task)


@pytest.mark.parametrize(
    "update, says",
    [
        (lambda s, rng: s.velocity, "the memory 'filtered' reads 'velocity', which no robot"),
        (lambda s, rng: rng.normal("x", 3), "the term 'filtered' reads 'filtered', which is drawn"),
        (lambda s, rng: s.mass, "the memory 'filtered' reads 'mass', which is drawn at random"),
    ],
)
def test_memory_that_no_robot_has_is_refused(update, says):
    """Memory of the simulator is refused wherever an observation depends on it."""
    values = {"update": lambda self, s, rng: {"phase": s.phase, "filtered": update(s, rng)}}
    with pytest.raises(ValueError, match=says):
        needs(make(Walker, **values))
