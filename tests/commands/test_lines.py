"""Lines of tests/strangers: whatever the command line, success or one clear line."""

from itertools import groupby
from pathlib import Path

import pytest

from tests.strangers.lines import Line, all_lines, judge, run

TRAIN = ("trains", "plays")
ROW = {"config.yaml", "versions.json", "metrics.jsonl"}
LINES = [
    pytest.param(line, id=f"{kind} {i}", marks=[pytest.mark.slow] * (i > 0 or kind in TRAIN))
    for kind, lines in groupby(all_lines(), lambda line: line.kind)
    for i, line in enumerate(lines)
]


@pytest.mark.parametrize("line", LINES)
def test_a_line_ends_well_or_in_one_line(trained, line):
    """It ends with 0 and nothing on stderr, or with 2, one line and nothing left behind."""
    complaint = judge(line, run, trained)
    assert not complaint, line


@pytest.mark.parametrize(
    "right, status, error, left, says",
    [
        (None, 0, "", (), ""),
        (None, 2, "error: seed=x\n", (), ""),
        (None, 2, "error: iteration 3\n", (*ROW, "checkpoints/1"), ""),
        (False, 0, "", (), "it succeeded"),
        (None, 0, "warning: slow\n", (), "it succeeded, but said"),
        (True, 2, "error: seed=x\n", (), "it was refused"),
        (None, 1, "Traceback\n", (), "it ended with 1"),
        (None, None, "", (), "it ended with None"),
        (None, 2, "error: a\nb\n", (), "not one line"),
        (None, 2, "usage: train.py\n", (), "not one line"),
        (None, 2, "error: seed=x\n", ("config.yaml",), "left behind"),
    ],
)
def test_judge(trained, right, status, error, left, says):
    """The judge names what is wrong with an end, and nothing where nothing is."""

    def end(line: Line, here: Path) -> tuple[int | None, str]:
        for name in left:
            (here / "run" / name).parent.mkdir(parents=True, exist_ok=True)
            (here / "run" / name).write_text("x")
        return status, error

    complaint = judge(Line("any", "train.py", (), right), end, trained)
    assert complaint.startswith(says) and bool(complaint) == bool(says)
