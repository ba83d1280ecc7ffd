"""The board: plain lines without a terminal, a table in one."""

import io
import os
import pty
import re
import subprocess
import sys

import pytest
from rich.console import Console

from gpusim_rl.core.waiting import clock
from gpusim_rl.training.dashboard import Dashboard
from tests.command_lines import run_python
from tests.worlds import ROOT

ROW = {
    **{
        "iteration": 3,
        "env_steps": 1_500_000,
        "time_s": 65.0,
        "steps_per_s": 23456.0,
        "return": 12.345,
        "length": 19.5,
    },
    **{
        "fault": 0.0,
        "skipped": 0.0,
        "approx_kl": 0.0123,
        "learning_rate": 1e-3,
        "std": 0.5,
        "reward/velocity": 0.75,
        "reward/jerk": -0.01,
    },
    **{"measure/yaw_error": 0.2, "share/physics": 0.6, "share/environment": 0.2},
    **{"share/policy": 0.1, "share/update": 0.1, "cores": 1.0},
}
PROGRAM = f"""
from gpusim_rl.training.dashboard import Dashboard
with Dashboard("quadruped · 16 worlds · [/red]/a[0]", 4) as table:
    table.say("run: [bold]/a[0]/b")
    for i in (3, 4):
        table.show({ROW!r} | {{"iteration": i}}, 6.0 * i)
"""


def test_lines_without_a_terminal():
    """Through a pipe each row is one line of plain text, with nothing that moves a cursor."""
    done = run_python(PROGRAM)
    lines = done.stdout.splitlines()
    assert (done.returncode, done.stderr, len(lines)) == (0, "", 4)
    assert "\x1b" not in done.stdout and lines[0] == "run: [bold]/a[0]/b"
    assert lines[3].startswith("bound by simulation") and ": physics takes 60% of" in lines[3]
    row = "iteration 3/4  1.50 M steps  23,456 steps/s  return 12.35  time 1:05  left 0:06"
    assert lines[1] == row


def test_lines_are_seconds_apart(capsys):
    """Rows that come faster than every five seconds are left out, but for the last."""
    with Dashboard("t", 100) as table:
        for i in range(1, 101):
            table.show(ROW | {"iteration": i}, 0.2 * i)
    *lines, bound = capsys.readouterr().out.splitlines()
    numbers = [int(line.split()[1].split("/")[0]) for line in lines]
    assert bound.startswith("bound by simulation")
    assert numbers == [1, 26, 51, 76, 100]


def test_table_in_a_terminal():
    """In a pseudo-terminal the board is a live table with every number and leaves the cursor as it
    found it."""
    ours, theirs = pty.openpty()
    env = os.environ | {"TERM": "xterm-256color", "COLUMNS": "120", "LINES": "40"}
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, env=env, stdout=theirs, stderr=theirs
    ) as drawing:
        os.close(theirs)
        said = b""
        try:
            while part := os.read(ours, 4096):
                said += part
        except OSError:  # the other side has closed
            pass
    os.close(ours)
    assert drawing.returncode == 0
    text = said.decode()
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    # The cursor is hidden, and shown again.
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1
    parts = ("quadruped · 16 worlds · [/red]/a[0]", "4 / 4", "1.50 M", "23,456", "velocity")
    for part in (*parts, "+0.750", "-0.010", "yaw_error", "bound by simulation"):
        assert part in plain, plain


def test_table_fits_a_screen():
    """The table of a task with twelve reward terms is at most 24 lines of 100 characters, names and
    numbers in full."""
    row = ROW | {f"reward/term_{i}": float(i) for i in range(10)}
    console = Console(file=io.StringIO(), force_terminal=True, width=100, color_system=None)
    board = Dashboard("t", 4, quiet=True)
    board.show(row, 61.0)
    console.print(board.table(row, 61.0))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert text.count("\n") <= 24 and max(map(len, text.splitlines())) <= 100
    assert [line.split()[0] for line in text.splitlines()[3:6]] == ["iteration", "steps", "steps/s"]
    assert all(part in text for part in ("1:05, 1:01 left", "term_9", "+9.000", "at the end"))


def test_success_stays_on_the_board(capsys):
    """The success of the last evaluation is shown until the next, and time left counts this
    process's iterations alone."""
    with Dashboard("t", 14, done=10) as table:
        table.show(ROW | {"iteration": 11, "success": 0.5}, 10.0)
        table.show(ROW | {"iteration": 12}, 20.0)
        table.show(ROW | {"iteration": 14, "success": 0.75}, 40.0)
    one, two, three, _ = capsys.readouterr().out.splitlines()
    assert "success 0.500" in one and one.endswith("left 0:30")
    assert "success 0.500" in two and two.endswith("left 0:20")
    assert "success 0.750" in three and three.endswith("left 0:00")


@pytest.mark.parametrize(
    "seconds, says",
    [(0, "0:00"), (59.6, "1:00"), (65, "1:05"), (3599.4, "59:59"), (3909, "1:05:09")],
)
def test_clock(seconds, says):
    """Minutes and seconds, and hours where there are any."""
    assert clock(seconds) == says


def test_scheduled_numbers_are_lines_of_the_table():
    """Each has its whole name, in a narrow terminal, too."""
    keys = ("task.fastest.0", "task.fastest.1", "task.randomise.friction.low")
    row = ROW | {f"schedule/{key}": 0.25 for key in keys}
    console = Console(width=80, file=io.StringIO())
    console.print(Dashboard("title", 10).table(row, 5.0))
    text = console.file.getvalue()
    assert all(f"{key} 0.25\n" in re.sub(" +\n", "\n", text) for key in keys)


def test_measures_with_a_slash_are_lines_of_the_table():
    """Numbered ones are a histogram; the others stand in one line."""
    shares = {f"measure/level/{i}": share for i, share in enumerate((0.5, 0.25, 0.0))}
    kinds = {"measure/level/slope": 0.25, "measure/level/gaps": 0.0}
    console = Console(width=100, file=io.StringIO())
    console.print(Dashboard("title", 10).table(ROW | shares | kinds, 5.0))
    text = console.file.getvalue()
    assert "level 0 █▄  2" in text and "level: slope 0.25, gaps 0.00" in text
    assert "level/" not in text
