"""Robots and files of strangers. `python -m tests.strangers` tries as many as wanted."""

import random
from pathlib import Path
from subprocess import CompletedProcess

import mujoco
import pytest

from tests.strangers import __main__ as program
from tests.strangers.files import Attack
from tests.strangers.robots import FAULTS, Shape, draw
from tests.worlds import make_robot


def load(text: str, suffix: str, folder: Path) -> mujoco.MjModel:
    """The model that a file becomes; ValueError if it is refused."""
    file = folder / f"robot{suffix}"
    file.write_text(text)
    return make_robot(mjcf=str(file)).mjm


def test_most_good_robots_are_accepted(tmp_path):
    """Twelve robots of other formats, sizes, masses, orders, axes, feet, servos and flags: at most
    two are refused, and only since they do not stand."""
    pick, refused = random.Random(20), []
    for _ in range(12):
        robot = draw(pick, faulty=0)
        try:
            mjm = load(robot.text, robot.suffix, tmp_path)
        except ValueError as error:
            refused.append(str(error))
            continue
        assert mjm.nu == 12 and mjm.nq == 19
    assert len(refused) <= 2 and all("the robot does not stand" in line for line in refused)


@pytest.mark.parametrize("kind", FAULTS)
def test_a_fault_is_named(tmp_path, kind):
    """A robot with a fault is refused in one line that names the fault."""
    make, says = FAULTS[kind]
    with pytest.raises(ValueError) as error:
        load(make(Shape(random.Random(4))), ".xml", tmp_path)
    line = str(error.value)
    assert any(part in line for part in says) and "\n" not in line


@pytest.mark.slow
def test_hostile_files_do_no_harm(monkeypatch):
    """Twelve spoiled files: each command works or ends in one line, and nothing outside changes."""
    monkeypatch.setattr(program, "LIMIT", 120)
    assert program.sweep("files", 7, 12, None) == 0


@pytest.mark.parametrize(
    "code, out, error, how",
    [
        (0, "well", "warning: a row was dropped\n", "worked"),
        (2, "", "warning: a row was dropped\nerror: no run\n", "refused"),
        (2, "", "error: no run\nerror: none at all\n", "other"),
        (1, "", "", "other"),
        (139, "", "error: no run\n", "other"),
        (0, "Traceback (most recent call last)", "", "traceback"),
        (2, "", "error: \x1b[2J\n", "control characters"),
        (None, "", "", "hang"),
    ],
)
def test_what_a_command_did_is_judged(tmp_path, monkeypatch, code, out, error, how):
    """Each way to misbehave is told apart, and a file that changed outside counts before all."""
    done = None if code is None else CompletedProcess([], code, out, error)
    monkeypatch.setattr(program, "answer", lambda *_, **__: done)
    attack = Attack("any", "play.py", ())
    victim = program.outside(tmp_path) / "victim"
    ended, problem = program.suffered(attack, tmp_path)
    assert ended == how and bool(problem) == (how not in ("worked", "refused"))

    def harm(*_, **__):
        victim.write_text("overwritten")
        return done

    monkeypatch.setattr(program, "answer", harm)
    assert program.suffered(attack, tmp_path)[0] == "outside"


@pytest.mark.parametrize("bad, failures", [(0, 0), (1, 0), (2, 1), (8, 7)])
def test_walks_are_judged(monkeypatch, tmp_path, bad, failures):
    """Of eight robots one may fail: by a low success, or with no evaluation at all."""
    scores = [0.89, None, *[0.5] * 6][:bad] + [0.9] * (8 - bad)

    def answer(*_, cwd, **__):
        success = scores.pop()
        if success is None:
            return None
        (cwd / "run").mkdir()
        (cwd / "run" / "eval.json").write_text(f'{{"success": {success}}}')
        return CompletedProcess([], 0, "", "")

    monkeypatch.setattr(program, "answer", answer)
    assert program.sweep("walks", 3, 8, tmp_path / "kept") == failures
    assert len([*tmp_path.glob("kept/*")]) == bad


def test_what_was_opened_outside_is_read_from_a_record(tmp_path):
    """By name and through a link, by another process than the one that judges."""
    lines = [
        '7 openat(AT_FDCWD</x>, "/x/outside/victim", O_RDONLY) = 3</x/outside/victim>',
        '8 openat(AT_FDCWD</x>, "/x/here/run/config.yaml", O_RDONLY) = 3</x/here/run/config.yaml>',
        '8 openat(AT_FDCWD</x>, "run/config.yaml", O_RDONLY) = 3</x/outside/victim>',
        '9 rename("/x/here/a", "/x/outside/a") = 0',
        '9 lstat("/x/outside/victim", {st_mode=S_IFREG|0644}) = 0',
    ]
    (tmp_path / "record").write_text("\n".join(lines))
    assert program.touched(tmp_path / "record") == [lines[2], lines[3]]
