"""Readings: terms, controls and filters of the actor are computed of what a robot measures."""

from dataclasses import dataclass

import mujoco
import pytest
import torch

from gpusim_rl.envs.curriculum import Curriculum
from gpusim_rl.envs.measurement import Measurement
from gpusim_rl.envs.state import State, joint_columns, sensor_columns
from gpusim_rl.tasks.classic.cartpole import Cartpole
from gpusim_rl.tasks.locomotion.quadruped import Quadruped
from tests.envs.test_env import PAST
from tests.guard import reads_nothing
from tests.worlds import (
    SIMS,
    copies,
    everything,
    goes_on,
    make_env,
    make_ppo,
    make_task,
    refusal,
)

ARM = """<mujoco><worldbody><body><joint name="a" axis="0 1 0"/><geom size="0.1"/>
<body pos="0 0 1"><joint name="b" axis="0 1 0"/><geom size="0.1"/>
<body pos="0 0 1"><joint name="c" axis="0 1 0"/><geom size="0.1"/></body></body></body></worldbody>
<tendon><fixed name="t"><joint joint="a" coef="1"/></fixed></tendon>
<actuator>{}</actuator><sensor><jointpos name="free" joint="b"/></sensor></mujoco>"""
JOINTS = '<motor joint="c"/><motor joint="a"/>'


def state(actuators: str) -> State:
    """A state of three joints whose positions are 1, 2, 3 and whose speeds are 4, 5, 6."""
    m = mujoco.MjModel.from_xml_string(ARM.format(actuators))
    tensors = {"qpos": torch.tensor([[1.0, 2.0, 3.0]]), "qvel": torch.tensor([[4.0, 5.0, 6.0]])}
    tensors |= {"sensordata": torch.tensor([[7.0]])}
    return State(tensors, sensor_columns(m), joint_columns(m, "cpu"))


def test_joints_are_in_the_order_of_ctrl():
    """`joint_pos` and `joint_vel` follow the actuators, and a state may be given others."""
    s = state(JOINTS)
    assert s.joint_pos.tolist() == [[3.0, 1.0]] and s.joint_vel.tolist() == [[6.0, 4.0]]
    assert s.free.tolist() == [[7.0]]
    assert s.with_(joint_pos=s.free).joint_pos.tolist() == [[7.0]]
    columns = s._joints
    assert columns and columns.put(s.qpos, torch.tensor([[8.0, 9.0]])).tolist() == [[9.0, 2.0, 8.0]]


def test_an_actuator_without_a_joint():
    """It is an error only where joint positions are read, and the error names the actuator."""
    s = state(f'{JOINTS}<motor name="pull" tendon="t"/>')
    assert s.free.shape == (1, 1)
    with pytest.raises(ValueError, match="actuator 'pull' moves no hinge or slide: read a"):
        _ = s.joint_vel


@dataclass(kw_only=True)
class Walker(Quadruped):
    """A quadruped whose targets are near its joints, with a filtered gyroscope, and a true one."""

    def start(self, n, rng):
        return super().start(n, rng) | {x: torch.zeros(n, 3) for x in ("filtered", "true")}

    def control(self, s):
        return s.joint_pos + 0.1 * s.action

    def update(self, s, rng):
        return super().update(s, rng) | dict(filtered=0.5 * (s.filtered + s.gyro), true=s.gyro)

    def observe(self, s):
        return dict(up=s.up, joints=s.joint_pos, speeds=s.joint_vel, filtered=s.filtered)

    def privileged(self, s):
        return dict(true=s.true)


@pytest.mark.parametrize(
    "errors",
    [
        {},
        {"observation_delay": (1, 2)},
        {"observation_delay": (1, 2), "dropout": {"gyro": 0.4, "joint_pos": 0.3}},
    ],
)
def test_controls_and_filters_follow_the_readings(errors):
    """Controls and filters are what a robot would compute of `env.readings`."""
    env = make_env(num_envs=8, kind=Walker, history={}, episode=0.2, **errors)
    g, restarts = torch.Generator().manual_seed(0), 0
    for _ in range(25):
        action, seen = 0.3 * torch.randn(8, 12, generator=g), env.readings["joint_pos"].clone()
        before = env.memory["filtered"].clone()
        step = env.step(action)
        on = ~(step.terminated | step.truncated)  # a restart clears the controls
        want = seen + 0.1 * action
        torch.testing.assert_close(env.sim.ctrl.float()[on], want[on], rtol=0, atol=1e-6)
        want = 0.5 * (before + env.readings["gyro"])
        assert torch.equal(env.memory["filtered"][on], want[on])
        assert torch.equal(env.memory["true"][on], env.current_state().gyro[on])
        assert torch.equal(env.observation["actor"][:, 3:15], env.readings["joint_pos"])
        restarts += (~on).sum().item()
    assert restarts > 8
    assert not torch.equal(env.readings["gyro"], env.current_state().gyro)


LOSS = {"gyro": 0.5, "joint_pos": 0.2}


@pytest.mark.parametrize("sim, delay", [("native", (0, 0)), ("native", (1, 2)), ("warp", (1, 2))])
def test_a_lost_reading_is_the_last_one(sim, delay):
    """A reading is the delivered one or, as often as its chance says, the one before as a whole."""
    past = dict(num_envs=32, sim=sim, episode=0.2, observation_delay=delay)
    env, plain = (make_env(**past, dropout=chances) for chances in (LOSS, {}))
    lost, news = (dict.fromkeys(plain.readings, 0) for _ in range(2))
    for _ in range(40):
        before = copies(env.readings)
        step, _ = (x.step(torch.ones(32, 12)) for x in (env, plain))
        ended = step.terminated | step.truncated
        for name, now in plain.readings.items():
            same, held = ((env.readings[name] == x).all(1) for x in (now, before[name]))
            assert (same | held).all() and same[ended].all()
            lost[name] += int((~same).sum())
            # where a delay brings the first reading again, nobody can tell
            news[name] += int(((now != before[name]).any(1) & ~ended).sum())
    for name, count in lost.items():
        assert abs(count / news[name] - LOSS.get(name, 0)) < 0.06 * (name in LOSS) + 1e-9, name


@pytest.mark.parametrize("sim", SIMS)
def test_errors_are_captured_and_resumed(sim):
    """With all errors and a curriculum nothing is read on the host; a state goes on to the bit."""
    short = dict(num_envs=8, sim=sim, episode=0.1, dropout=LOSS, **PAST)
    short |= dict(randomise=everything("normal"))
    by = {"from": 0.0, "to": 0.04, "start": 0, "stop": 4}
    plan = {
        "task.randomise.push.low": by | {"by": "iteration"},
        "task.weights.action_rate": by | {"by": "success"},
    }
    first, second = (make_ppo(make_env(**short), schedule=Curriculum(plan)) for _ in range(2))
    first.iteration()
    reads_nothing(first)
    assert first.source.record.truncated.any() and first.report()()["fault"] == 0
    assert "env/dropout/given" in goes_on(first, second)


def test_drop_out_that_is_off_costs_nothing():
    """Chances of 0 keep no tensor and draw no random number."""
    env = make_env(num_envs=2, dropout={"gyro": 0.0})
    assert env.measurement.dropout is None and "env/dropout/given" not in env.tensors()
    assert "observe/dropout" not in env.rng._place


@pytest.mark.parametrize("key", ["noise", "dropout"])
@pytest.mark.parametrize(
    "name, says",
    [
        ("sonar", "the actor uses no such reading, choose one of gyro, up, joint_"),
        ("joints", r"it belongs to readings, not to terms: say task\.\w+\.joint_pos$"),
    ],
)
def test_errors_must_name_readings(name, says, key):
    """What the actor does not read is refused with the readings; a term, with what it reads."""
    given = {"noise": {}, "dropout": {}} | {key: {name: 0.1}}
    task = make_task(dropout=given["dropout"])
    with pytest.raises(ValueError, match=rf"task\.{key}\.{name}: {says}"):
        Measurement(task, 2, given["noise"], torch.device("cpu"))


class Seer(Cartpole):
    """A cartpole with a term that only a simulator knows."""

    def observe(self, s):
        return super().observe(s) | {"far": s.qpos}


def test_training_refuses_it_in_one_line(monkeypatch):
    """train.py answers a term that reads the simulator's state with one line, before training."""
    monkeypatch.setattr("gpusim_rl.assembly.environment.load_task", lambda *_: Seer)
    says = "the term 'far' reads 'qpos', which no robot measures: only `privileged` may read it"
    assert refusal("task=cartpole", "device=cpu") == f"Seer: {says}"


@pytest.mark.parametrize(
    "word, says",
    [
        ("task.noise.sonar=1", "unknown key 'task.noise.sonar'"),
        ("task.dropout.sonar=0.1", "unknown key 'task.dropout.sonar'"),
        ("task.dropout.gyro=1", "task.dropout.gyro=1: expected a number from 0 to below 1"),
        ("task.dropout.gyro=-0.1", "task.dropout.gyro=-0.1: expected a number from 0"),
    ],
)
def test_wrong_keys_are_answered_in_one_line(word, says):
    """Noise and drop-out of an unknown reading, and a chance that is none, are refused."""
    assert says in refusal(word)
