"""The humanoid's reward by hand, its mirror, its clock, and what doing nothing earns."""

import math

import pytest
import torch

from gpusim_rl.envs.state import State
from gpusim_rl.tasks.common.scores import walking_scores
from tests.tasks.test_golden import FLAT, terms_of, walker
from tests.worlds import make_env, make_task

# Each term is computed by hand of the state in `walker`. These are those of quadrupeds, too.
SHARED = ("velocity", "yaw", "vertical_speed", "roll_pitch_rate", "tilt", "action_rate", "power")
GOLDEN = {key: FLAT[key] for key in SHARED} | {
    # exp(-((0.06 - 0.1)² + (0.03 - 0)²) / 0.1²) = exp(-0.0025 / 0.01)
    "feet": math.exp(-0.25),
    "height": -0.0016,  # -(0.70 - 0.74)²
    "alive": 1.0,
    # 0.1 rad from the stance, of the six joints that do not bend a leg forward: -6 · 0.1²
    "joint_deviation": -0.06,
    "level": -(0.25 + 0.01),  # -(0.3² + 0.4² + 0.1²)
    "mean_error": -0.5 - 0.3,  # |(0.3, -0.4)|, and the yaw rate's
    "feet_slide": -1.0,  # of the right foot, which stands: -(0.6² + 0.8²)
}


@pytest.fixture(scope="module")
def task():
    return make_task("humanoid")


@pytest.fixture(scope="module")
def state() -> State:
    """A state in which the clock lifts the left foot, and the right one stands."""
    values = dict(mean_error=[0.3, -0.4, 0.3])  # m/s, m/s, rad/s
    values |= dict(left_position=[0.0, 0.1, 0.06], right_position=[0.0, -0.1, 0.03])  # m
    values |= dict(left_velocity=[1.0, 2.0, 3.0], right_velocity=[0.6, -0.8, 5.0])  # m/s
    values |= dict(left_up=[0.3, 0.4, 0.87], right_up=[0.1, 0.0, 0.99])  # 1
    return walker("humanoid", 0.70, **values)


def test_each_term_by_hand(task, state):
    """Each reward term has the number that is computed by hand from its formula."""
    assert terms_of(task, state) == pytest.approx(GOLDEN, rel=1e-4)


def test_the_clock_lifts_one_foot_after_the_other(task, state):
    """Each half of a turn lifts one leg; a robot told to stand lifts none."""
    swings = [
        task.swing(state.with_(phase=torch.tensor([turn])))[0].tolist() for turn in (0.25, 0.75)
    ]
    assert swings == [pytest.approx([1, 0], abs=1e-6), pytest.approx([0, 1], abs=1e-6)]
    still = state.with_(command=torch.zeros(1, 3))
    assert not task.swing(still).any()
    bend = (task.control(state.with_(action=torch.zeros(1, 12))) - task.stance)[0]
    torch.testing.assert_close(bend[:6], task.bend[0])
    assert not bend[6:].any()


def test_a_unit_of_action_is_a_share_of_the_torque(task):
    """One unit of action moves the target by action_scale · τ_max / kp: 0.25 · 88 / 40.3."""
    assert task.joint_scales[0].item() == pytest.approx(0.25 * 88 / 40.3, rel=1e-5)
    assert task.joint_scales[3].item() == pytest.approx(0.25 * 139 / 99.1, rel=1e-5)


def test_gains_follow_the_rotors(task):
    """kp is armature · (2π · 10 Hz)² and kd 4 · armature · 2π · 10 Hz."""
    m, turn = task.mjm, 2 * math.pi * 10
    armature = m.dof_armature[6:]
    assert m.actuator_gainprm[:, 0] == pytest.approx(armature * turn**2, rel=3e-3)
    assert -m.actuator_biasprm[:, 2] == pytest.approx(4 * armature * turn, rel=3e-3)


def test_errors_up_to_the_tolerance_succeed(task):
    """An error of 0.29 m/s is a success and one of 0.31 m/s none; the quadruped's bound is 0.25."""
    record = {
        name: torch.ones(100, 2) for name in task.measure(make_env("humanoid", 2).current_state())
    }
    record |= {"terminated": torch.zeros(100, 2), "yaw_error": torch.zeros(100, 2)}
    record["velocity_error"] = torch.tensor([[0.29**2, 0.31**2]]).expand(100, 2)
    assert task.score(record)["success"] == 0.5
    assert walking_scores(record, task.dt, task.gait)["success"] == 0.0
