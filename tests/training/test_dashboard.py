"""The board: plain lines without a terminal, a table in one."""

import io
import os
import pty
import re
import subprocess
import sys

import pytest
from rich.console import Console
from rich.text import Text

from gpusim_rl.core.metrics import Metric
from gpusim_rl.core.waiting import clock
from gpusim_rl.envs.statistics import Statistics
from gpusim_rl.training.dashboard import Dashboard, Picture, Row, Table, curve
from tests.command_lines import run_python
from tests.worlds import ROOT

ROW: Row = {"iteration": 3, "env_steps": 1_500_000, "time_s": 65.0, "steps_per_s": 23456.0}
ROW |= {"reward": 3.25, "return": 12.345, "length": 19.5, "fault": 0.0}
ROW |= {"skipped": 0.0, "approx_kl": 0.0123}
ROW |= {"learning_rate": 1e-3, "std": 0.5, "reward/velocity": 0.75, "reward/action_rate": -0.01}
ROW |= {"measure/yaw_error": 0.2, "share/physics": 0.6, "share/environment": 0.2}
ROW |= {"share/policy": 0.1, "share/update": 0.1, "cores": 1.0}
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
    row = "iteration 3/4  1.50 M steps  23,456 steps/s  reward 3.25/s  time 1:05  left 0:06"
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
    with Dashboard("t", 100) as table:  # ends at its success
        for i in range(1, 8):
            table.show(ROW | {"iteration": i} | ({"success": 0.25 * i} if i in (1, 3) else {}), i)
    first, *_, last, _ = capsys.readouterr().out.splitlines()
    assert "  success 0.750 (iteration 3)  " in last and last.startswith("iteration 7/100")
    assert "  success 0.250  " in first


def test_table_in_a_terminal():
    """In a terminal the board is a table with every number; the cursor is left as it was."""
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
    parts = ("quadruped · 16 worlds · [/red]/a[0]", "4 / 4", "1.50", "23,456", "velocity")
    for part in (*parts, "+0.750", "-0.010", "yaw_error", "bound by simulation"):
        assert part in plain, plain


def drawn(board: Dashboard, row: Row, width: int, height: int = 24) -> list[str]:
    """The lines of a table in a terminal of this size [characters]."""
    console = Console(
        file=io.StringIO(), force_terminal=True, width=width, height=height, color_system=None
    )
    console.print(Table(board, row, 61.0))
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


LONG: Row = {f"reward/a_term_with_a_long_name_{i}": 100.0 * i for i in range(10)}
LONG |= {f"measure/a_measure_with_a_long_name_{i}": -1e5 * i for i in range(20)}
METRICS = (*Statistics.metrics, Metric("approx_kl", format=".4f", table="KL [nat]"))


@pytest.mark.parametrize("width, height", [(80, 24), (100, 30), (140, 40)])
@pytest.mark.parametrize("more", [{}, LONG], ids=["short", "long"])
def test_no_line_is_longer_than_the_terminal(width, height, more):
    """At the usual sizes all lines are on the screen, also with long names; others are cut."""
    board = Dashboard("quadruped " * 20, 4, metrics=METRICS, quiet=True)
    row = ROW | more | {"cores": 1.9, "share/physics": 0.1, "share/update": 0.6}
    for i in range(1, 5):
        board.show(row | {"iteration": i, "success": i / 4}, 61.0)
    lines = drawn(board, row | {"success": 0.5}, width, height)
    assert len(lines) <= height and max(map(len, lines)) <= width
    begins = [line.split()[0] for line in lines if line]
    assert begins[:4] == ["quadruped", "iteration", "Training", "steps"]
    assert begins[-4:] == ["reward/s", "success", "time:", "bound"]
    assert lines[0].endswith("…") and lines[-1].startswith("bound by learning: networks and ")
    names = ("Training", "Reward terms [1/s]", "Measures")
    assert all(name in lines[3] for name in names)
    assert any("… 16" in line for line in lines) == bool(more)
    for narrow in (1, 10, 30, 60):
        lines = drawn(board, row, narrow)
        assert len(lines) <= 24 and max(map(len, lines)) <= narrow


def test_five_measures_are_shown():
    """First how well a command is followed, then what has a bound; the others are counted."""
    measures = ("settled", "wobble", "power", "effort", "velocity_error", "x", "y")
    board = Dashboard("title", 4, bounds=("effort", "wobble"), quiet=True)
    lines = drawn(board, ROW | {f"measure/{name}": 0.5 for name in measures}, 100)
    shown = [line.split()[-2] for line in lines[4:9]]
    assert shown == ["yaw_error", "velocity_error", "wobble", "effort", "settled"]
    assert lines[9].strip() == "… 3 in metrics.jsonl"


def test_decimal_points_stand_below_each_other():
    """Of each group, with whole numbers to the left of the point."""
    row = ROW | {"measure/power": 89.18, "measure/x": -0.038, "reward/fall": -120.5}
    lines = drawn(Dashboard("title", 4, metrics=METRICS), row, 80)
    table = lines[4:7]
    assert [line.split()[:3] for line in table] == [
        ["steps", "[M]", "1.50"],
        ["steps/s", "23,456", "action_rate"],
        ["return", "12.35", "fall"],
    ]
    points = [[x.start() for x in re.finditer(r"\.\d", line)] for line in table]
    ends = table[1].index("23,456") + len("23,456")
    assert points[0] == [ends, *points[1]] == points[2]


def test_curves_of_reward_and_success(capsys):
    """A reward that is no number is left out; a success is a share of a full bar."""
    board = Dashboard("title", 9, quiet=True)
    for i, mean in enumerate((2.0, 1.0, 4.0, float("nan"), 3.0)):
        row: Row = ROW | {"iteration": i, "reward": mean}
        board.show(row | ({"success": 0.0} if i == 2 else {}), 1.0)
    board.show(ROW | {"success": 1.0}, 1.0)
    *_, mean, success, _, _ = drawn(board, ROW | {"success": 1.0}, 80)
    assert mean.split() == ["reward/s", "3.25", "▃▁█▆▆"] and success.split() == [
        *("success", "1.000", "▁█")
    ]
    assert curve([0.0] * 500 + [1.0] * 500, 10) == "▁▁▁▁▁█████"
    assert curve([-1.0, 0.5, 3.0], 3, (0, 1)) == "▁▅█"  # a task's success may be no share
    assert (curve([], 10), curve([1.0], 0), curve([3.0, 3.0], 9)) == ("", "", "▁▁")


def test_a_terminal_of_another_size_is_drawn_anew():
    """Nothing of the old picture is left: the screen is erased, and what was said is repeated."""
    console = Console(file=io.StringIO(), force_terminal=True, width=100, height=30)
    live = Picture(console, ["what was said"])
    live.auto_refresh = False
    with live:
        live.update(Text("a table"), refresh=True)
        console.size = (70, 20)  # type: ignore[assignment]
        before = len(console.file.getvalue())  # type: ignore[attr-defined]
        live.refresh()
        after = console.file.getvalue()[before:]  # type: ignore[attr-defined]
        assert after.startswith("\x1b[H\x1b[2K") and after.count("\x1b[2K") == 20
        assert after.endswith("\x1b[Hwhat was said\na table")
        live.refresh()
        assert console.file.getvalue().count("what was said") == 1  # type: ignore[attr-defined]


def test_success_stays_on_the_board(capsys):
    """The last success is shown until the next; time left counts this process alone."""
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


def test_numbers_with_a_slash_are_lines_of_the_table():
    """Scheduled ones have their whole names; numbered ones are a histogram, others in one line."""
    keys = ("task.fastest.0", "task.fastest.1", "task.randomise.friction.low")
    row = ROW | {f"schedule/{key}": 0.25 for key in keys}
    lines = [line.rstrip() for line in drawn(Dashboard("title", 10), row, 80)]
    assert all(any(line.endswith(f"{key} 0.25") for line in lines) for key in keys)
    shares = {f"measure/level/{i}": share for i, share in enumerate((0.5, 0.25, 0.0))}
    kinds = {"measure/level/slope": 0.25, "measure/level/gaps": 0.0}
    text = "\n".join(drawn(Dashboard("title", 10), ROW | shares | kinds, 100))
    assert "level 0 █▄  2" in text and "level: slope 0.25, gaps 0.00" in text
    assert "level/" not in text
