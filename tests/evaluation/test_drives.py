"""Constant commands of an evaluation: what is asked, what is done, and how it is scored."""

import pytest
import torch

from gpusim_rl.evaluation import drives
from gpusim_rl.evaluation.drives import Drive
from gpusim_rl.tasks.common.walking import drives as commands
from tests.worlds import Stateless, make_config, make_task

NAMES = ("forward", "left", "turn")


def test_the_commands_reach_the_largest_and_none():
    """Each axis alone to both its ends, pairs of axes, and one command to stand."""
    rows = commands(torch.tensor([2.0, 0.5, 1.0]))
    assert (rows.abs().amax(0) == torch.tensor([2.0, 0.5, 1.0])).all()
    assert (rows == 0).all(1).sum() == 1 and ((rows != 0).sum(1) == 2).sum() == 12
    for axis in range(3):  # each has its opposite
        alone = rows[(rows != 0).sum(1) == 1][:, axis]
        assert alone.sum().abs() < 1e-6 and len(alone[alone != 0].unique()) >= 6
    assert len(rows.unique(dim=0)) == len(rows)


def test_a_robot_that_stands_follows_no_command_to_move(monkeypatch):
    """Every command is held to the end; a policy of zeros with a still clock follows one."""
    monkeypatch.setattr(drives, "SECONDS", 3.0)
    monkeypatch.setattr(drives, "SETTLE", 2.5)
    task = make_task("quadruped", gait_pose=(0.0, 0.0, 0.0))
    held, still = [], Stateless(lambda obs: torch.zeros(len(obs), 12))
    followed = type(task).followed

    def watch(self, s):
        held.append(s.command.clone())
        return followed(self, s)

    monkeypatch.setattr(type(task), "followed", watch)
    rows = drives.drive(still, task, weights=make_config("task=quadruped").task.weights)
    assert len(held) == 150 and all(torch.equal(x, task.drives) for x in held)
    assert [row.asked for row in rows] == task.drives.tolist()
    assert all(abs(x) < 0.02 for row in rows for x in row.got)
    assert [row for row in rows if row.followed] == [row for row in rows if not any(row.asked)]


def test_scores_of_drives():
    """The tolerance is 0.03, or 8 % of a larger command; a fall counts as not followed."""
    rows = [
        Drive([0.1, 0.0, 0.0], [0.129, 0.0, 0.0], False),
        Drive([1.0, 0.0, 0.0], [0.93, 0.0, 0.0], False),
        Drive([-1.0, 0.0, 0.0], [-0.9, 0.0, 0.0], False),
        Drive([0.0, 0.3, 0.0], [0.031, 0.3, 0.0], False),
        Drive([0.0, 0.0, 1.0], [0.0, 0.0, 1.0], True),
        Drive([0.5, 0.3, 0.0], [9.0, 0.3, 0.0], False),
    ]
    assert [row.followed for row in rows] == [True, True, False, False, False, False]
    scores = drives.drive_scores(rows, NAMES)
    assert scores["as_told"] == pytest.approx(2 / 6)
    assert scores["bias_forward"] == pytest.approx((0.029 - 0.07 + 0.1) / 3)
    assert scores["bias_left"] == pytest.approx(0.0) and scores["bias_turn"] is None


def test_nothing_is_drawn_in_a_drive():
    """Each entry is off, those of readings too, and the task keeps its own."""
    before = make_task("quadruped").randomise
    quiet = drives.without_draws(before)
    kinds = [x["kind"] for name, x in quiet.items() if name != "bias"]
    assert set(kinds) | {x["kind"] for x in quiet["bias"].values()} == {"off"}
    assert before["friction"]["kind"] == "uniform"


def test_other_tasks_are_not_driven():
    """Rough ground and a cart have no such commands."""
    for name in ("cartpole", "quadruped_rough"):
        assert make_task(name).drives is None
