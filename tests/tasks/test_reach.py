"""The arm's tasks: reward terms by hand, the poses that are commanded."""

import math

import numpy as np
import pytest
import torch

from gpusim_rl.core.maths import from_axis_angle, product, rotate
from gpusim_rl.core.rng import Rng
from gpusim_rl.envs.state import State
from tests.arm_files import solving_error
from tests.worlds import make_env, make_task

DOWN = (0.0, 1.0, 0.0, 0.0)


def state(name: str, **values: list[float]) -> State:
    """The state of two worlds, with these rows in both."""
    s = make_env(name, 2).current_state()
    return s.with_(**{key: torch.tensor([row, row]) for key, row in values.items()})


def pose_state(away: float, turn: float) -> State:
    """The tool is so far [m] from a goal that points down, and turned [rad] about its own z."""
    turned = from_axis_angle(torch.tensor([0.0, 0.0, 1.0]), torch.tensor(turn))
    return state(
        "reach_pose",
        command=[0.5, 0.0, 0.3, *DOWN],
        tool_position=[0.5, away, 0.3],
        tool_rotation=product(torch.tensor(DOWN), turned).tolist(),
    )


def test_terms_by_hand():
    """Every term of the reward in a state whose numbers make it simple.

    The tool is (0.03, 0, 0.04) m from the goal: d = 0.05 m. With σ = 0.4 m and σ_f = 0.05 m,
    near = exp(-0.05/0.4) = exp(-1/8) = 0.882497, fine = exp(-1) = 0.367879.
    Joint 1 turns at 1.0875 rad/s, half of 2.175; joint 7 at 2.61, all of it:
    speed = -(0.25 + 1) = -1.25. The action changes by 0.3 and 0.4:
    action_rate = -(0.09 + 0.16) = -0.25.
    Joint 1 is half of the way from the middle to the end of ±2.8973, joint 4 in the middle of
    -3.0718 to -0.0698, joint 6 in that of -0.0175 to 3.7525, and joint 7 at its end:
    joint_centering = -(0.25 + 1) = -1.25.
    """
    s = state(
        "reach",
        command=[0.5, 0.0, 0.3],
        tool_position=[0.53, 0.0, 0.34],
        joint_pos=[1.44865, 0, 0, -1.5708, 0, 1.8675, 2.8973],
        joint_vel=[1.0875, 0, 0, 0, 0, 0, 2.61],
        action=[0.5, 0.4, 0, 0, 0, 0, 0],
        previous=[0.2, 0, 0, 0, 0, 0, 0],
    )
    terms = make_task("reach", sigma=0.4, sigma_fine=0.05).reward(s)
    want = dict(near=0.882497, fine=0.367879, speed=-1.25, action_rate=-0.25, joint_centering=-1.25)
    assert {k: v[0].item() for k, v in terms.items()} == pytest.approx(want, abs=1e-6)


def test_terms_of_a_pose_by_hand():
    """The distance of a pose is √(|p - c_p|² + ℓ² θ²).

    The tool is 0.03 m from the goal and turned by θ = 0.4 rad from it. With ℓ = 0.1 m/rad that is
    d = √(0.03² + 0.04²) = 0.05 m, and both terms are as above.
    """
    s = pose_state(0.03, 0.4)
    task = make_task("reach_pose", sigma=0.4, sigma_fine=0.05, lever=0.1)
    terms = task.reward(s)
    assert terms["near"][0].item() == pytest.approx(0.882497, abs=1e-5)
    assert terms["fine"][0].item() == pytest.approx(0.367879, abs=1e-5)
    assert task.measure(s)["angle"][0].item() == pytest.approx(0.4, abs=1e-5)


@pytest.mark.parametrize("away, turn, paid", [(0.01, 0.1, 1), (0.03, 0.1, 0), (0.01, 0.3, 0)])
def test_a_sparse_reward_is_paid_within_the_tolerance(away, turn, paid):
    """`near` and `fine` are as ever within 0.02 m, of a pose within 0.2 rad too, and else 0."""
    s = pose_state(away, turn)
    dense, sparse = (make_task("reach_pose", sparse=x).reward(s) for x in (False, True))
    for name, term in dense.items():
        factor = paid if name in ("near", "fine") else 1
        assert torch.equal(sparse[name], factor * term), name
    point = make_task("reach", sparse=True).reward(s.with_(command=s.command[:, :3]))
    assert point["near"][0] > 0.9  # a point has no angle, and a tolerance of 0.05 m


def test_observed_errors_are_true():
    """What the arm computes of its joints' angles is what the sensors of the tool say."""
    env = make_env("reach_pose", 16, spread=1.0)
    s = env.current_state()  # at a start: later the sensors are a timestep older than qpos
    seen = env.task.observe(s)
    torch.testing.assert_close(seen["error"], s.command[:, :3] - s.tool_position, atol=1e-5, rtol=0)
    # the turn from the tool's rotation brings the tool's x axis to the goal's
    first, second = seen["turn"][:, :3], seen["turn"][:, 3:]
    turn = torch.stack([first, second, torch.linalg.cross(first, second)], -1)
    x = torch.eye(3)[0].expand(16, 3)
    brought = (turn @ rotate(s.tool_rotation, x)[..., None])[..., 0]
    torch.testing.assert_close(brought, rotate(s.command[:, 3:], x), atol=1e-5, rtol=0)


def test_goals_can_be_reached():
    """Inverse kinematics of MuJoCo's Jacobian reaches commanded poses within the joints' limits."""
    task = make_task("reach_pose")
    drawn = task.draw_command(Rng(3, torch.arange(20)))
    z = rotate(drawn[:, 3:], torch.eye(3)[2].expand(20, 3))
    assert (z[:, 2] <= -math.cos(task.lean) + 1e-6).all()  # the tool points down
    command = drawn.double().numpy()
    home, limits = task.home.double().numpy(), tuple(task.limits.double().numpy())
    starts = (home + 0.6 * np.random.default_rng(0).normal(size=(30, 7))).clip(*limits)
    for goal in command:
        error = solving_error(task.mjm, "tool", limits, starts, goal[:3], goal[3:], lever=1.0)
        assert error < 1e-3, goal


@pytest.mark.parametrize("name", ["reach", "reach_pose"])
def test_success_is_of_the_last_second_of_each_goal(name):
    """One step outside the tolerance in a goal's last second fails the episode; before it, none.

    A fault fails it, too; and where nothing is scored, nothing is a success.
    """
    task = make_task(name)
    steps, again = task.horizon, round(task.redraw / task.dt)
    time = torch.arange(1, steps + 1) % again
    names = ("power", "torque", "joint_margin", "distance", "terminated", "angle")
    names += tuple(f"speed_{i + 1}" for i in range(7))
    record = {key: torch.zeros(steps, 3) for key in names}
    record |= dict(scored=(time >= again - 25).float()[:, None].expand(-1, 3))
    record["distance"][73, 0] = record["distance"][74, 1] = record["distance"][199, 2] = 1.0
    assert record["scored"][:, 0].sum() == 50  # 25 control steps of each of two goals
    assert task.score(record)["success"] == pytest.approx(2 / 3)
    record["terminated"][10, 0] = 1.0
    assert task.score(record)["success"] == pytest.approx(1 / 3)
    nothing = task.score(record | dict(scored=torch.zeros(steps, 3)))
    assert nothing["success"] == 0 and nothing["error"] is None
