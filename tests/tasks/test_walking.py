"""Commands of the tasks that walk: who stands still, and `task.acceleration`."""

import pytest
import torch

from gpusim_rl.core.maths import squared
from gpusim_rl.core.rng import Rng
from gpusim_rl.envs.mirror import derive_flips
from gpusim_rl.envs.state import State
from gpusim_rl.envs.task import Task
from tests.worlds import make_env, make_task

LIMITS = (3.0, 2.0, 4.0)  # m/s², m/s², rad/s²


@pytest.mark.parametrize("name", ["quadruped", "quadruped_rough", "humanoid"])
def test_the_goal_moves_to_the_command(name):
    """It starts at rest, changes by dt times the limits at most, arrives, and is what is seen."""
    env = make_env(name, 16, acceleration=LIMITS, redraw=100.0)
    task, s = env.task, env.current_state()
    command, before = s.command.clone(), s.goal.clone()
    assert torch.equal(before, torch.zeros(16, 3)) and command.abs().max() > 0.1
    limit = task.dt * torch.tensor(LIMITS)
    for _ in range(3):
        env.step(torch.zeros(16, task.action_width))
        s = env.current_state()
        running = s.time > 0  # other worlds have fallen, and begin anew
        change = (s.goal - before)[running]
        assert (change.abs() <= limit + 1e-6).all()
        rest = (s.command - s.goal).abs() < 1e-6
        assert (rest[running] | ((change.abs() - limit).abs() < 1e-6)).all()
        assert torch.equal(task.observe(s)["command"], s.goal)
        before = s.goal.clone()
    late = s.with_(goal=command - 0.5 * limit, command=command, time=s.time + 1)
    torch.testing.assert_close(task.update(late, Rng(0, torch.arange(16)))["goal"], command)


def test_the_goal_follows_commands_that_are_drawn_anew():
    """After a draw it moves to the new command at once, and never further than allowed."""
    env = make_env("quadruped", 64, acceleration=LIMITS, redraw=0.1, share_standing=0.0)
    s, limit, draws = env.current_state(), env.task.dt * torch.tensor(LIMITS), 0
    for _ in range(12):
        before, command = s.goal.clone(), s.command.clone()
        env.step(torch.zeros(64, 12))
        s = env.current_state()
        running = s.time > 0
        draws += int((s.command != command).any(1)[running].sum())
        expected = before + (s.command - before).clamp(-limit, limit)
        torch.testing.assert_close(s.goal[running], expected[running])
    assert draws > 64


def limited(worlds: int) -> tuple[Task, State]:
    """A quadruped whose commands change by LIMITS, and a state."""
    env = make_env("quadruped", worlds, acceleration=LIMITS)
    return env.task, env.current_state()


def test_a_fall_does_not_change_who_stands():
    """Who stands still is drawn once: a fall or a time limit draws another command, not that."""
    env = make_env("quadruped", 256, share_standing=0.5, redraw=0.06, episode=0.1, stagger=False)

    def standing() -> torch.Tensor:
        return (env.memory["command"] == 0).all(1)

    first, command = standing(), env.memory["command"].clone()
    assert 0.35 < first.float().mean() < 0.65
    env.sim.qpos[:128, 2] = 0.05
    assert env.step(torch.zeros(256, 12)).terminated.tolist() == [True] * 128 + [False] * 128
    again = (env.memory["command"] != command).any(1)
    assert torch.equal(again, ~first & (torch.arange(256) < 128)) and torch.equal(standing(), first)
    for _ in range(12):
        env.step(torch.zeros(256, 12))
        assert torch.equal(standing(), first)
    env.restart()  # as an evaluation does
    assert not torch.equal(standing(), first)


def test_a_robot_that_slows_down_still_walks():
    """The clock lifts feet until a command to stand is reached, and where a command reverses."""
    task, s = limited(3)
    zero, fast = torch.zeros(3), torch.tensor([0.5, 0.0, 0.0])
    s = s.with_(goal=torch.stack([fast, zero, zero]), command=torch.stack([zero, -fast, zero]))
    assert task.commanded(s).tolist() == [1.0, 1.0, 0.0]


def test_rewards_are_paid_for_the_goal():
    """Who moves as the goal does gets all of the tracking terms, whatever was asked."""
    task, s = limited(2)
    s = s.with_(goal=task.followed(s), command=task.followed(s) + 1.0)
    reward = task.reward(s)
    assert reward["velocity"].tolist() == [1.0, 1.0] and reward["yaw"].tolist() == [1.0, 1.0]
    mean_error = task.update(s, Rng(0, torch.arange(2)))["mean_error"]
    assert (squared(mean_error) < 1e-3).all()


def test_without_limits_there_is_no_goal():
    """A new command acts at once, nothing more is remembered, and the mirror is the same."""
    env = make_env("quadruped", 2)
    task, s = env.task, env.current_state()
    assert "goal" not in task.start(2, Rng(0, torch.arange(2)))
    assert torch.equal(task.goal(s), s.command)
    assert derive_flips(task) == derive_flips(limited(1)[0])


def test_a_small_command_makes_a_humanoid_walk():
    """It lifts its feet at 0.06 m/s, where the quadruped stands."""
    for name, moves in (("humanoid", 1.0), ("quadruped", 0.0)):
        s = make_env(name, 1).current_state().with_(command=torch.tensor([[0.06, 0.0, 0.0]]))
        assert make_task(name).commanded(s).item() == moves


def test_a_wrong_number_of_limits_is_one_line():
    """Three numbers, or none."""
    says = r"task\.acceleration=\[3\.0\]: expected 3 numbers or none"
    with pytest.raises(ValueError, match=says):
        make_task("quadruped", acceleration=(3.0,))
