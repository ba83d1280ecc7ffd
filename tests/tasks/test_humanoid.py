"""The humanoid's reward by hand, its mirror, its clock, and what doing nothing earns."""

import math

import pytest
import torch

from gpusim_rl.envs.state import State
from gpusim_rl.tasks.common.scores import walking_scores
from tests.worlds import make_env, make_task

# One state, from which each term is computed by hand below.
VELOCITY, GYRO, UP = [0.5, 0.1, -0.2], [0.3, -0.4, 0.6], [0.3, -0.1, 0.95]  # m/s, rad/s, 1
COMMAND = [0.8, -0.3, 0.2]  # m/s, m/s, rad/s
PHASE = 0.25  # turns: sin 2π·0.25 = 1 lifts the left foot, and sin 2π·0.75 = -1 leaves the right
FEET = [[0.0, 0.1, 0.06], [0.0, -0.1, 0.03]]  # m
SLIDES = [[1.0, 2.0, 3.0], [0.6, -0.8, 5.0]]  # m/s
NORMALS = [[0.3, 0.4, 0.87], [0.1, 0.0, 0.99]]  # 1
GOLDEN = {
    # exp(-((0.5 - 0.8)² + (0.1 + 0.3)²) / 0.5²) = exp(-0.25 / 0.25)
    "velocity": math.exp(-1),
    # exp(-(0.6 - 0.2)² / 0.5²) = exp(-0.16 / 0.25)
    "yaw": math.exp(-0.64),
    # exp(-((0.06 - 0.1)² + (0.03 - 0)²) / 0.1²) = exp(-0.0025 / 0.01)
    "feet": math.exp(-0.25),
    "vertical": -0.04,  # -(-0.2)²
    "tumble": -0.25,  # -(0.3² + 0.4²)
    "tilt": -0.1,  # -(0.3² + 0.1²)
    "height": -0.0016,  # -(0.70 - 0.74)²
    "jerk": -12 * 0.25,  # twelve joints, each 0.5 from the action before
    "power": -12 * 2.0 * 0.5,  # twelve joints of 2 N m at 0.5 rad/s
    "alive": 1.0,
    # 0.1 rad from the stance, of the six joints that do not bend a leg forward: -6 · 0.1²
    "pose": -0.06,
    "level": -(0.25 + 0.01),  # -(0.3² + 0.4² + 0.1²)
    "offset": -0.5 - 0.3,  # |(0.3, -0.4)|, and the yaw rate's
    "slip": -1.0,  # of the right foot, which stands: -(0.6² + 0.8²)
}


@pytest.fixture(scope="module")
def task():
    return make_task("humanoid")


@pytest.fixture
def state(task) -> State:
    """A state with the numbers above, in one world."""
    env = make_env("humanoid", 1)

    def row(*values: object) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float32).reshape(1, -1)

    qpos = env.sim.qpos.clone().float()
    qpos[:, 2], qpos[:, 7:] = 0.70, task.stance + 0.1
    feet = {f"{side}_position": row(*FEET[i]) for i, side in enumerate(("left", "right"))}
    feet |= {f"{side}_velocity": row(*SLIDES[i]) for i, side in enumerate(("left", "right"))}
    feet |= {f"{side}_up": row(*NORMALS[i]) for i, side in enumerate(("left", "right"))}
    torques = [x for x in task.sensor_columns if x.endswith("_torque")]
    return env.current_state().with_(
        qpos=qpos,
        qvel=torch.full((1, task.mjm.nv), 0.5),
        velocity=row(*VELOCITY),
        gyro=row(*GYRO),
        up=row(*UP),
        command=row(*COMMAND),
        mean_error=row(0.3, -0.4, 0.3),
        phase=torch.tensor([PHASE]),
        action=torch.ones(1, 12),
        previous=torch.full((1, 12), 0.5),
        **feet,
        **{name: row(-2.0) for name in torques},
    )


def test_each_term_by_hand(task, state):
    """Each reward term has the number that is computed by hand from its formula."""
    terms = task.reward(state)
    assert terms.keys() == GOLDEN.keys()
    for name, value in terms.items():
        assert value.item() == pytest.approx(GOLDEN[name], rel=1e-4), name


def test_the_clock_lifts_one_foot_after_the_other(task, state):
    """Half a turn lifts the left leg, the other half the right one; a robot told to stand lifts
    none."""
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
    """One unit moves the target by action_scale · τ_max / kp: of the hips 0.25 · 88 / 40.3."""
    assert task.joint_scales[0].item() == pytest.approx(0.25 * 88 / 40.3, rel=1e-5)
    assert task.joint_scales[3].item() == pytest.approx(0.25 * 139 / 99.1, rel=1e-5)


def test_gains_follow_the_rotors(task):
    """kp is armature · (2π · 10 Hz)² and kd 4 · armature · 2π · 10 Hz, to the digits of the
    file."""
    m, turn = task.mjm, 2 * math.pi * 10
    armature = m.dof_armature[6:]
    assert m.actuator_gainprm[:, 0] == pytest.approx(armature * turn**2, rel=3e-3)
    assert -m.actuator_biasprm[:, 2] == pytest.approx(4 * armature * turn, rel=3e-3)


@pytest.mark.slow
@pytest.mark.parametrize("size", [0.0, 1.0])
def test_nothing_and_anything_fall(size):
    """No actions and random ones fall in every episode, so they have no success at all."""
    env = make_env("humanoid", 64, stagger=False)
    fell, g = torch.zeros(64, dtype=torch.bool), torch.Generator().manual_seed(0)
    for _ in range(250):
        step = env.step(size * torch.randn(64, 12, generator=g))
        fell |= step.terminated
    assert fell.all()


def test_errors_up_to_the_tolerance_succeed(task):
    """An error of 0.29 m/s is a success and one of 0.31 m/s none; the quadruped's bound is 0.25."""
    record = {
        name: torch.ones(100, 2) for name in task.measure(make_env("humanoid", 2).current_state())
    }
    record |= {"terminated": torch.zeros(100, 2), "yaw_error": torch.zeros(100, 2)}
    record["velocity_error"] = torch.tensor([[0.29**2, 0.31**2]]).expand(100, 2)
    assert task.score(record)["success"] == 0.5
    assert walking_scores(record, task.dt, task.gait)["success"] == 0.0
