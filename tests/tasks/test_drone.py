"""The drone: golden numbers of its reward, its scores, its physics, and what its memory does."""

import math

import mujoco
import pytest
import torch

from gpusim_rl.envs.state import State
from gpusim_rl.envs.task import reward_terms
from gpusim_rl.tasks.common.goal_scores import hover_scores
from tests.tasks.test_golden import terms_of
from tests.worlds import make_env, make_task


def state(task, **values) -> State:
    """One world that hovers at rest at (0, 0, 1) m, but for these values."""
    n = task.mjm.nsensordata
    rest = dict(qpos=[0.0, 0, 1, 1, 0, 0, 0], qvel=[0.0] * 6, sensordata=[0.0] * n)
    rest |= dict(action=[0.0] * 4, previous=[0.0] * 4, command=[0.0, 0, 1], drift=[0.0] * 3)
    tensors = {name: task.tensor(values.get(name, x))[None] for name, x in rest.items()}
    return State(tensors, task.sensor_columns, task.joint_columns, task.derived)


def test_golden_rewards():
    """Each term at one state, worked out by hand."""
    task = make_task("drone")
    s = state(
        task,
        command=[0.06, 0.08, 1.0],  # d² = 0.0036 + 0.0064, so d = 0.1 m
        qvel=[1.0, 2.0, 2.0, 0.1, 0.2, 0.2],
        action=[0.1, 0.2, 0.3, 0.4],
    )
    assert terms_of(task, s) == {
        "near": pytest.approx(0.875647, abs=1e-6),  # 1 - tanh(0.1/0.8) = 1 - tanh 0.125
        "fine": pytest.approx(0.209611, abs=1e-6),  # exp(-0.01/0.0064) = exp(-1.5625)
        "slow": pytest.approx(-9.0),  # -(1 + 4 + 4)
        "spin": pytest.approx(-0.09),  # -(0.01 + 0.04 + 0.04)
        "tilt": 0.0,  # upright
        "action_rate": pytest.approx(-0.3),  # -(0.01 + 0.04 + 0.09 + 0.16)
        "crash": 0.0,
    }


@pytest.mark.parametrize(
    "qpos, command",
    [
        ([0.0, 0, 0.05, 1, 0, 0, 0], [0.0, 0, 1]),  # near the floor
        ([5.0, 0, 1, 1, 0, 0, 0], [0.5, 0, 1]),  # 4.5 m from its point
        ([0.0, 0, 1, math.cos(1.1), math.sin(1.1), 0, 0], [0.0, 0, 1]),  # tilted by 2.2 rad
    ],
)
def test_a_crash_ends_the_episode_and_costs_once(qpos, command):
    """Each kind of crash terminates, and is -1/dt as a rate, so -1 in the step."""
    task = make_task("drone")
    s = state(task, qpos=qpos, command=command)
    assert task.terminated(s).item()
    assert task.dt * reward_terms(task, s)["crash"].item() == pytest.approx(-1.0)


def test_scores():
    """Two points of 4 s: 0 holds both, 1 only the second, 2 crashes on the way, 3 drifts off."""
    steps, redraw = 400, 200
    record = {
        name: torch.zeros(steps, 4)
        for name in ("distance", "speed", "spin", "action_rate", "saturated", "power", "terminated")
    }
    record["distance"][:149] = 1.0  # on the way
    record["distance"][199] = 1.0  # the first state with the second point
    record["distance"][160, 1] = 0.11
    record["terminated"][20, 2] = 1.0
    record["distance"][349, 3] = 0.11  # 1 s before the end
    scores = hover_scores(record, 0.02, redraw)
    assert scores["success"] == 0.5  # episodes 0 and 1
    assert scores["points"] == pytest.approx(4 / 8)  # both of 0, the second of 1, the first of 3
    assert scores["crashes_per_episode"] == 0.25


def test_hovering_thrust_carries_it():
    """With no action the drone keeps its height in still air: 4 s of MuJoCo C move it by 1 mm."""
    task = make_task("drone")
    data = mujoco.MjData(task.mjm)
    mujoco.mj_resetDataKeyframe(task.mjm, data, 0)
    data.ctrl[:] = task.control(state(task))[0]
    mujoco.mj_step(task.mjm, data, 400)
    assert data.qpos[:3] == pytest.approx([0, 0, 1], abs=1e-3)


def test_each_rotor_turns_it_as_a_quadrotor_turns():
    """More thrust in front pitches it back, more at the left rolls it right; a diagonal yaws it."""
    task = make_task("drone")

    def turned(*thrusts: float) -> list[float]:
        data = mujoco.MjData(task.mjm)
        mujoco.mj_resetDataKeyframe(task.mjm, data, 0)
        data.act[:] = data.ctrl[:] = task.hover * (1 + 0.01 * torch.tensor(thrusts)).numpy()
        mujoco.mj_step(task.mjm, data)
        return [round(x, 6) for x in data.qvel[3:]]

    roll, pitch, yaw = turned(1, 1, -1, -1)  # FL, FR, RL, RR
    assert pitch < 0 and not roll and not yaw
    roll, pitch, yaw = turned(1, -1, 1, -1)
    assert roll > 0 and not pitch and not yaw
    roll, pitch, yaw = turned(1, -1, -1, 1)
    assert yaw > 0 and not roll and not pitch


def test_the_drift_is_a_leaky_integral():
    """A constant error e within 0.2 m ends at e · leak; a larger one counts as 0.2 m."""
    task = make_task("drone", leak=0.5)
    env = make_env("drone", 2)
    drift = torch.zeros(1, 3)
    for _ in range(500):
        s = state(task, command=[0.1, -5.0, 1.0], sensordata=[0.0] * task.mjm.nsensordata)
        s = s.with_(drift=drift, position=torch.tensor([[0.0, 0.0, 1.0]]), time=torch.ones(1))
        drift = task.update(s, env.rng)["drift"]
    torch.testing.assert_close(drift, torch.tensor([[0.05, -0.1, 0.0]]), atol=1e-4, rtol=0)
