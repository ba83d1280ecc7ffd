"""Long work says how far it is."""

import io
import re
import time

from gpusim_rl.core import waiting


def test_counted_steps_say_how_far_they_are(monkeypatch):
    """Without a terminal there is a line each ten seconds, and all steps are done."""
    seconds, lines = iter(range(0, 1000, 4)), []
    monkeypatch.setattr("time.monotonic", lambda: float(next(seconds)))
    assert list(waiting.counted(10, "evaluating", lines.append)) == list(range(10))
    assert lines == [
        "evaluating: 30%, 0:28 left",
        "evaluating: 60%, 0:16 left",
        "evaluating: 90%, 0:04 left",
    ]


def test_steps_that_compile_are_no_pace(monkeypatch):
    """What is left is told from the steps but the first and the slowest one."""
    seconds, lines = iter([0.0, 90.0, 92.0, 300.0]), []
    monkeypatch.setattr("time.monotonic", lambda: next(seconds))
    with waiting.progress("checking", lines.append) as tell:
        for done in (0.02, 0.04, 0.06):
            tell(done)
    assert lines == ["checking: 2%", "checking: 6%, 1:34 left"]


def test_work_of_unknown_length_says_that_it_goes_on(monkeypatch):
    """There are lines while it goes on, none after it, and none of what is short."""
    monkeypatch.setattr(waiting, "EVERY", 0.05)
    lines: list[str] = []
    with waiting.waiting("exporting", lines.append):
        for _ in range(100):
            time.sleep(0.01 * (len(lines) < 2))
    said = len(lines)
    assert said >= 2 and all(re.fullmatch(r"exporting: \d+:\d\d so far", x) for x in lines)
    time.sleep(0.1)
    assert len(lines) == said
    monkeypatch.setattr(waiting, "EVERY", 60.0)
    with waiting.waiting("exporting", lines.append):
        pass
    assert len(lines) == said


def test_a_terminal_shows_a_path_as_it_is(monkeypatch):
    """Brackets in a name of a file are not read as rich's markup."""
    terminal, doing = io.StringIO(), "filming runs/[new]/a[/b].mp4"
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr("sys.stdout", terminal)
    assert list(waiting.counted(2, doing)) == [0, 1]
    with waiting.waiting(f"still {doing}"):
        pass
    assert doing in terminal.getvalue() and f"still {doing}" in terminal.getvalue()
