"""`--help numbers` prints each number that is checked."""

import pytest

from gpusim_rl.config import compose, numbers
from gpusim_rl.config.sections import table
from gpusim_rl.core.ranges import GATE, PLAY
from tests.command_lines import refused_here, run_here
from tests.worlds import TASKS


@pytest.mark.parametrize("task", TASKS)
def test_each_checked_number_is_a_row(task):
    """With its range, for each task, and with what the task adds; none is there twice."""
    cfg = compose.compose_plain("config", [f"task={task}"])
    heading, *lines = numbers.lines("config", cfg)
    names = [line.split()[0] for line in lines]
    assert heading.split() == ["key", "default", "unit", "range"]
    assert len(names) == len({*names}) and max(map(len, lines)) <= 128
    assert not [key for key in table() if not any(x.startswith(key.rstrip("*")) for x in names)]
    assert all("number" in line for line in lines)
    assert not [name for name in names if name.startswith("task.weights.*")]


def test_rows_of_training():
    """The default is that of the task, and the unit that of the comments in conf/."""
    lines = numbers.lines("config", compose.compose_plain("config", ["task=quadruped"]))
    rows = {line.split()[0]: " ".join(line.split()[1:]) for line in lines}
    assert rows["num_envs"] == "384 a whole number from 1 to 2147483647"
    assert rows["task.dt"] == "0.02 s a number above 0"
    assert rows["task.noise.joint_vel"] == "1.5 rad/s a number of at least 0"
    assert rows["task.gait"] == "2.0 Hz a number above 0"
    assert rows["robot.kd"].startswith("null N m s/rad a number above 0, up to")
    assert rows["task.dropout.*"] == "a number from 0 to below 1"


def test_rows_of_play():
    """They are those of play.py and of the gate; the narrower range of a key is the one."""
    lines = numbers.lines("play", compose.compose_plain("play", []))
    rows = {line.split()[0]: " ".join(line.split()[1:]) for line in lines}
    assert {key for key in {**PLAY, **GATE} if "*" not in key} <= {*rows}
    assert rows["gate.limits.success"] == "0.5 a number from 0 to below 1"
    assert rows["seconds"] == "20 s a whole number from 1 to 86400"


def test_the_command_prints_them(capsys):
    """In both programs, for the task of the command line, in one or two words."""
    code, said, _ = run_here("train.py", "task=reach", "--help", "numbers", capsys=capsys)
    assert code == 0 and "task.weights.fine" in said and "task.gait" not in said
    assert run_here("play.py", "--help=numbers", capsys=capsys)[1].startswith("key ")


def test_code_of_the_working_directory_is_not_imported(tmp_path, elsewhere, capsys):
    """It is, as in a training, only if the task is named."""
    (tmp_path / "tasks").mkdir()
    file = tmp_path / "tasks" / "quadruped.py"
    file.write_text("raise SystemExit(99)")
    said = refused_here("train.py", "--help", "numbers", capsys=capsys)
    assert said == f"error: {file} is imported only if you name it: say task=quadruped\n"
