"""Golden numbers of the rewards of cartpole and quadrupeds, each worked out by hand.

The other tasks have theirs in files of their own.
"""

import math

import pytest
import torch

from gpusim_rl.envs.state import State
from gpusim_rl.envs.task import Task, reward_terms
from tests.worlds import make_env, make_task

# A quadruped whose clock stands at a quarter: sin 2π/4 = 1 lifts FL and RR; FR and RL stand.
PHASE = 0.25  # turns
BASE = dict(velocity=[0.5, 0.1, -0.2], gyro=[0.3, -0.4, 0.6], up=[0.3, -0.1, 0.95])
BASE |= dict(command=[0.8, -0.3, 0.2])  # m/s, m/s, rad/s
RADIUS = 0.022  # m, of a foot
HEIGHTS = [0.09, 0.03, 0.0, 0.08]  # m, of the feet's lowest points: FL, FR, RL, RR
SLIDES = [[1.0, 2.0], [0.6, -0.8], [0.0, 0.5], [0.3, 0.4]]  # m/s
FLAT = {
    "velocity": math.exp(-1),  # exp(-((0.5 - 0.8)² + (0.1 + 0.3)²)/0.5²) = exp(-0.25/0.25)
    "yaw": math.exp(-0.64),  # exp(-(0.6 - 0.2)²/0.5²) = exp(-0.16/0.25)
    # wanted are 0.08, 0, 0 and 0.08 m: exp(-(0.01² + 0.03²)/0.1²) = exp(-0.001/0.01)
    "feet": math.exp(-0.1),
    "vertical_speed": -0.04,  # -(-0.2)²
    "roll_pitch_rate": -0.25,  # -(0.3² + 0.4²)
    "tilt": -0.1,  # -(0.3² + 0.1²)
    "height": -0.0009,  # -(0.25 - 0.28)²
    "action_rate": -3.0,  # twelve joints, each 0.5 from the action before: -12 · 0.25
    "power": -12.0,  # twelve joints of 2 N m at 0.5 rad/s
    "joint_deviation": -0.12,  # twelve joints, each 0.1 rad from the stance: -12 · 0.01
    "alive": 1.0,
    "mean_error": -0.5 - 0.2,  # |(0.5, 0.4)| is beyond the bound of 0.5
    "feet_slide": -1.25,  # of FR and RL, which stand: -(0.6² + 0.8² + 0.5²)
}


def row(*values) -> torch.Tensor:
    """One world's numbers."""
    return torch.tensor(values, dtype=torch.float32).reshape(1, -1)


def walker(name: str, height: float, **values: list[float]) -> State:
    """The state above of a robot whose base is at a height [m], with these values too."""
    env = make_env(name, 1)
    task, qpos = env.scheduled_task, env.sim.qpos.clone().float()
    qpos[:, 2], qpos[:, 7:] = height, task.stance + 0.1
    rows = BASE | {x: [-2.0] for x in task.sensor_columns if x.endswith("_torque")} | values
    return env.current_state().with_(
        qpos=qpos,
        qvel=torch.full((1, task.mjm.nv), 0.5),
        phase=torch.tensor([PHASE]),
        action=torch.ones(1, 12),
        previous=torch.full((1, 12), 0.5),
        **{key: row(*x) for key, x in rows.items()},
    )


def terms_of(task: Task, s: State) -> dict[str, float]:
    """The terms of a task's reward in a state of one world."""
    return {key: x.item() for key, x in reward_terms(task, s).items()}


def quadruped(name: str, **others: list[float]) -> dict[str, float]:
    """The terms of a quadruped in the state above."""
    values = dict(mean_error=[0.5, 0.4, -0.2])
    for foot, height, slide in zip(("FL", "FR", "RL", "RR"), HEIGHTS, SLIDES, strict=True):
        values[f"{foot}_position"] = [0.0, 0.0, height + RADIUS]
        values[f"{foot}_velocity"] = [*slide, 3.0]
    return terms_of(make_task(name), walker(name, 0.25, **values | others))


def test_quadruped():
    """Each term on flat ground."""
    assert quadruped("quadruped") == {key: pytest.approx(x, rel=1e-4) for key, x in FLAT.items()}


@pytest.mark.parametrize("velocity, stuck", [(0.5, 0.0), (-0.1, -1.0)])
def test_rough_ground(velocity, stuck):
    """What rough ground adds: the ground below is flat, and higher beside two of the feet.

    FL swings 0.09 - 0.06 = 0.03 m above what is beside it, 0.01 m less than the margin of 0.04 m.
    RR is 0.08 - 0.10 = -0.02 m, so 0.06 m less. clearance = -(0.01² + 0.06²). RR stumbles at
    |(0.3, 0.4)| = 0.5 m/s. A tenth of |c|² = 0.8² + 0.3² is 0.073; v · c is 0.37 at 0.5 m/s
    forward, and below 0 backward, where the robot is stuck.
    """
    ground = dict(below=[0.0] * 4, beside=[0.06, 0.0, 0.0, 0.10])
    ground |= dict(velocity=[velocity, 0.1, -0.2])
    terms = quadruped("quadruped_rough", **ground)
    own = {"clearance": -0.0037, "stumble": -0.5, "stuck": stuck}
    assert {key: terms[key] for key in own} == {
        key: pytest.approx(x, rel=1e-3) for key, x in own.items()
    }
    same = [key for key in FLAT if key != "velocity"]
    assert [terms[key] for key in same] == [pytest.approx(FLAT[key], rel=1e-4) for key in same]


def cartpole(angle: float, **settings: bool) -> dict[str, float]:
    """A cart 0.3 m from the middle, its pole at an angle [rad] and 2.5 rad/s, pushed at 0.4."""
    env = make_env("cartpole", 1, **settings)
    s = env.current_state().with_(qpos=row(0.3, angle), qvel=row(1.0, 2.5), action=row(0.4))
    return terms_of(env.scheduled_task, s)


def test_cartpole():
    """Each term of the pole at 0.5 rad."""
    assert cartpole(0.5) == {
        "upright": pytest.approx(0.938791, abs=1e-5),  # (1 + cos 0.5)/2
        "centred": pytest.approx(0.654973, abs=1e-5),  # 0.938791 · exp(-0.09/0.25)
        "calm": pytest.approx(0.731132, abs=1e-5),  # 0.938791 · exp(-6.25/25)
        "control": pytest.approx(-0.16),  # -(0.4²)
    }


@pytest.mark.parametrize("angle, paid", [(0.31, 1.0), (-0.31, 1.0), (0.32, 0.0), (2.0, 0.0)])
def test_sparse_cartpole(angle, paid):
    """Within 18° = 0.314 rad of upright it is paid as if it stood, and else nothing but costs."""
    assert cartpole(angle, sparse=True) == {
        "upright": paid,
        "centred": pytest.approx(paid * 0.697676, abs=1e-5),  # exp(-0.09/0.25)
        "calm": pytest.approx(paid * 0.778801, abs=1e-5),  # exp(-6.25/25)
        "control": pytest.approx(-0.16),
    }
