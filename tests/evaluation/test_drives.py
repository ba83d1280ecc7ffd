"""Constant commands of an evaluation: what is asked, what is done, and how it is scored."""

from typing import Any, cast

import pytest
import torch

from gpusim_rl.envs.task import Scores
from gpusim_rl.envs.terrain.kinds import KINDS
from gpusim_rl.evaluation import drives
from gpusim_rl.evaluation.drives import Drive
from gpusim_rl.tasks.common.walking import drives as commands
from gpusim_rl.tasks.locomotion.quadruped import Quadruped
from tests.worlds import Stateless, make_config, make_env, make_task

NAMES = ("forward", "left", "turn")
STILL: Any = Stateless(lambda obs: torch.zeros(len(obs), 12))


def weights_of(task: str = "quadruped") -> dict[str, float]:
    """The weights of a task's rewards."""
    return make_config(f"task={task}").task.weights


@pytest.fixture
def commanded(monkeypatch) -> list[torch.Tensor]:
    """The command of each control step."""
    seen, measure = [], Quadruped.measure

    def watch(self, s):
        seen.append(s.command.clone())
        return measure(self, s)

    monkeypatch.setattr(Quadruped, "measure", watch)
    return seen


def test_the_commands_reach_the_largest_and_none():
    """Each axis alone to both its ends, pairs of axes, and one command to stand."""
    rows = commands(torch.tensor([2.0, 0.5, 1.0]))
    assert (rows.abs().amax(0) == torch.tensor([2.0, 0.5, 1.0])).all()
    assert (rows == 0).all(1).sum() == 1 and ((rows != 0).sum(1) == 2).sum() == 12
    for axis in range(3):  # each has its opposite
        alone = rows[(rows != 0).sum(1) == 1][:, axis]
        assert alone.sum().abs() < 1e-6 and len(alone[alone != 0].unique()) >= 6
    assert len(rows.unique(dim=0)) == len(rows)


def test_a_robot_that_stands_follows_no_command_to_move(monkeypatch, commanded):
    """Every command is held to the end; a policy of zeros with a still clock follows one."""
    monkeypatch.setattr(drives, "SECONDS", 3.0)
    monkeypatch.setattr(drives, "SETTLE", 2.5)
    task = make_task("quadruped", gait_pose=(0.0, 0.0, 0.0))
    rows = drives.drive(STILL, task, weights=weights_of())
    asked = task.drives
    assert asked is not None and all(torch.equal(x, asked) for x in commanded[-150:])
    assert [row.asked for row in rows] == asked.tolist()
    assert all(abs(x) < 0.02 for row in rows for x in row.got)
    moving = [row for row in rows if any(row.asked)]
    assert (
        all(row.failed for row in moving) and [row for row in rows if not row.failed] == rows[-1:]
    )
    names = {"action_rate", "roll_pitch_rate", "power_per_weight", "joint_speed_standing"}
    assert all(row.measures.keys() == names for row in rows)


def test_no_time_limit_ends_a_drive(monkeypatch, commanded):
    """Where episodes are short, the command stays to the end all the same."""
    monkeypatch.setattr(drives, "SECONDS", 2.0)
    monkeypatch.setattr(drives, "SETTLE", 1.0)
    task = make_task("quadruped", episode=0.5, gait_pose=(0.0, 0.0, 0.0))
    drives.drive(STILL, task, weights=weights_of())
    # one of the start, and one of the check of the task's methods
    assert len(commanded) == 27
    assert all(torch.equal(x, commanded[-1]) for x in commanded[-25:])


def test_a_measure_beyond_its_bound_is_a_failure(monkeypatch):
    """A robot that shakes where it stands fails by its joints, and one that may not, by nothing."""
    monkeypatch.setattr(drives, "SECONDS", 3.0)
    monkeypatch.setattr(drives, "SETTLE", 1.0)
    shake = {"sign": 1.0}

    def act(obs):
        shake["sign"] = -shake["sign"]
        return torch.full((len(obs), 12), 0.5 * shake["sign"])

    exceeded = {"action_rate": 0.9, "joint_speed_standing": 0.1}
    for bounds, expected in ((exceeded, [*exceeded]), ({}, [])):
        loose = {"least": 9.0}
        task = make_task("quadruped", gait_pose=(0.0, 0.0, 0.0), drive_limits=bounds | loose)
        still = drives.drive(cast(Any, Stateless(act)), task, weights=weights_of())[-1]
        assert still.asked == [0.0, 0.0, 0.0] and still.failed == expected
        assert still.measures.keys() == bounds.keys()


def test_the_tolerance_of_a_command():
    """0.03, or 8 % of a larger number; a task may say otherwise, but of no other measure."""
    asked, task = torch.tensor([[0.0, 0.3, -1.0]]), make_task("quadruped", drive_limits={})
    assert drives.tolerance(asked, task).tolist() == [pytest.approx([0.03, 0.03, 0.08])]
    task = make_task("quadruped", drive_limits={"relative": 0.2, "least": 0.05})
    assert drives.tolerance(asked, task).tolist() == [pytest.approx([0.05, 0.06, 0.2])]
    with pytest.raises(ValueError, match="'shake' is no measure: choose of relative, least, track"):
        make_env("quadruped", 2, drive_limits={"shake": 1.0})


def test_scores_of_drives():
    """Shares of failures by cause, mean errors of single axes, and the dead zone of each."""
    rows = [
        Drive([0.1, 0.0, 0.0], [0.04, 0.0, 0.0], ["forward"]),
        Drive([1.0, 0.0, 0.0], [0.93, 0.0, 0.0]),
        Drive([-1.0, 0.0, 0.0], [-0.9, 0.0, 0.0], ["forward", "power"]),
        Drive([0.0, 0.3, 0.0], [0.0, 0.3, 0.0]),
        Drive([0.0, 0.0, 1.0], [0.0, 0.0, 0.1], ["fell", "turn"]),
        Drive([0.5, 0.3, 0.0], [9.0, 0.3, 0.0], ["forward"]),
    ]
    scores = drives.drive_scores(rows, NAMES)
    assert scores["tracking"] == pytest.approx(2 / 6) == drives.share_tracked(rows)
    assert scores["not_forward"] == pytest.approx(3 / 6)
    assert scores["not_power"] == scores["not_fell"] == pytest.approx(1 / 6)
    assert scores["bias_forward"] == pytest.approx((-0.06 - 0.07 + 0.1) / 3)
    assert scores["dead_forward"] == 0.1 and scores["dead_left"] == 0.0
    assert scores["bias_turn"] is scores["dead_turn"] is None  # it fell


def test_success_counts_the_drives():
    """It is the product of both shares; other tasks keep their scores."""
    episodes: Scores = {"success": 0.9, "fell": 0.1}
    rows = [Drive([1.0, 0.0, 0.0], [1.0, 0.0, 0.0]), Drive([0.0] * 3, [1.0, 0.0, 0.0], ["forward"])]
    scores = drives.add_drives(episodes, rows, make_task("quadruped"))
    assert scores["success"] == pytest.approx(0.45) and scores["episodes_passed"] == 0.9
    assert scores["fell"] == 0.1 and scores["tracking"] == 0.5
    assert drives.add_drives(episodes, [], make_task("cartpole")) == episodes


def test_nothing_is_drawn_in_a_drive():
    """Each entry is off, those of readings too, and the task keeps its own."""
    before = make_task("quadruped").randomise
    quiet = drives.without_draws(before)
    kinds = [x["kind"] for name, x in quiet.items() if name != "bias"]
    assert set(kinds) | {x["kind"] for x in quiet["bias"].values()} == {"off"}
    assert before["friction"]["kind"] == "uniform"


def test_a_robot_of_rough_ground_is_driven_on_level_ground(monkeypatch):
    """All worlds have the plane alone, of the mean friction, whatever kinds the task has."""
    rough, made, make = make_task("quadruped_rough"), [], drives.evaluation_env
    monkeypatch.setattr(
        drives, "evaluation_env", lambda *x, **y: made.append(make(*x, **y)) or made[-1]
    )
    monkeypatch.setattr(type(rough), "kinds", {"slope": KINDS["slope"]})
    options: Any = dict(commands=torch.zeros(4, 3), times=(0.1, 0.05))
    drives.drive(STILL, rough, weights=weights_of("quadruped_rough"), **options)
    (env,) = made
    s, friction = env.current_state(), rough.terrain["friction"]
    assert env.task.patches.kinds == ("flat",) and (s.below == s.below[0, 0]).all()
    assert env.task.patches.friction.tolist() == pytest.approx([sum(friction) / 2])
