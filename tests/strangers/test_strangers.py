"""Robots and files of strangers, drawn from a seed."""

import random
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess, TimeoutExpired

import mujoco
import pytest

from tests.command_lines import TINY, command, environment, refused, run_process, succeed
from tests.strangers.files import Attack, Draw, prepare
from tests.strangers.robots import FAULTS, Shape, draw
from tests.worlds import ROOT, make_robot

LIMIT = 120  # s that a command may take, under strace
Answer = Callable[[Attack, Path], CompletedProcess[str] | None]


def load(text: str, suffix: str, folder: Path) -> mujoco.MjModel:
    """The model that a file becomes; ValueError if it is refused."""
    file = folder / f"robot{suffix}"
    file.write_text(text)
    return make_robot(mjcf=str(file)).mjm


def test_most_good_robots_are_accepted(tmp_path):
    """Of twelve at most two are refused, and only since they do not stand."""
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
    assert says in line and "\n" not in line


@pytest.mark.slow
def test_drawn_robots_by_command(tmp_path):
    """A good robot that mode=robot accepts trains; of one with a fault it says so in one line."""
    pick = random.Random(3)
    for i, faulty in enumerate((0, 0, 1)):
        robot, here = draw(pick, faulty), tmp_path / f"{i}" / "here"
        here.mkdir(parents=True)
        (here / f"robot{robot.suffix}").write_text(robot.text)
        word = f"robot.mjcf=robot{robot.suffix}"
        if faulty:
            line = refused("play.py", "mode=robot", word, cwd=here)
            assert robot.says in line
            continue
        succeed("play.py", "mode=robot", word, cwd=here)
        words = (*TINY, "task=quadruped", word, "iterations=2", "log=none", "run_dir=run")
        assert command("train.py", *words, cwd=here).returncode == 0


# -- hostile files ---------------------------------------------------------------------------------


def outside(folder: Path) -> Path:
    """A folder that nothing may touch."""
    (folder / "outside").mkdir()
    for name in ("victim", "victim.stl", "v.stl"):
        (folder / "outside" / name).write_text(f"precious {name}")
    return folder / "outside"


def contents(folder: Path) -> dict[str, str]:
    """The files of a folder."""
    return {path.name: path.read_text() for path in folder.iterdir()}


def traced(attack: Attack, folder: Path) -> CompletedProcess[str] | None:
    """What a command said that reads `folder/here`, with strace's record; None if too late."""
    script = attack.script.split() if attack.script[0] == "-" else [str(ROOT / attack.script)]
    line = [sys.executable, *script, *attack.words]
    if shutil.which("strace"):
        trace = ("-f", "-y", "-qq", "--seccomp-bpf", "-e", "trace=%file")
        line = ["strace", *trace, "-o", str(folder / "record"), *line]
    try:
        env = environment(folder / "home")
        return run_process(*line, cwd=folder / "here", env=env, timeout=LIMIT)
    except TimeoutExpired:
        return None


def touched(record: Path) -> list[str]:
    """The lines of strace's record in which what is outside was opened, by name or link."""
    calls = ("open", "rename", "unlink", "link", "mkdir", "creat", "trunc", "chmod", "symlink")
    return [
        line
        for line in record.read_text(errors="replace").splitlines()
        if "/outside" in line and any(call in line.split("(")[0] for call in calls)
    ]


def suffered(attack: Attack, folder: Path, answer: Answer) -> tuple[str, str]:
    """(how a command ended that reads `folder/here`, what was wrong with that or "")."""
    before = contents(folder / "outside")
    done = answer(attack, folder)
    if contents(folder / "outside") != before:
        return "outside", "a file outside was changed"
    if done is None:
        return "hang", f"it took more than {LIMIT} s"
    said = done.stdout + done.stderr
    if "Traceback" in said:
        return "traceback", said[-1500:]
    if any((ord(c) < 32 and c not in "\n\t") or ord(c) == 127 for c in said):
        return "control characters", repr(said[-500:])
    lines = [x for x in done.stderr.splitlines() if not x.startswith("warning: ")]
    if done.returncode == 0:
        return "worked", ""
    if done.returncode not in (1, 2) or len(lines) != 1 or not lines[0].startswith("error: "):
        return "other", f"exit code {done.returncode}: {done.stderr[-800:]}"
    return "refused", ""


@pytest.mark.slow
def test_hostile_files_do_no_harm(tmp_path):
    """Each command works or ends in one line, and nothing outside is opened or changes."""
    base, draws = prepare(tmp_path), Draw(7)
    for i in range(8):
        folder = tmp_path / str(i)
        shutil.copytree(base, folder / "here")
        outside(folder)
        attack = draws.attack(i, folder / "here")
        _, problem = suffered(attack, folder, traced)
        assert not problem, (attack, problem)
        record = folder / "record"
        assert not record.exists() or touched(record) == [], attack


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
def test_what_a_command_did_is_judged(tmp_path, code, out, error, how):
    """Each way to misbehave is told apart, and a file that changed outside counts before all."""
    done = None if code is None else CompletedProcess([], code, out, error)
    attack, victim = Attack("any", "play.py", ()), outside(tmp_path) / "victim"
    ended, problem = suffered(attack, tmp_path, lambda *_: done)
    assert ended == how and bool(problem) == (how not in ("worked", "refused"))
    harmed = suffered(attack, tmp_path, lambda *_: (victim.write_text("overwritten"), done)[1])
    assert harmed[0] == "outside"


def test_what_was_opened_outside_is_read_from_a_record(tmp_path):
    """By name and through a link."""
    lines = [
        '8 openat(AT_FDCWD</x>, "/x/here/run/config.yaml", O_RDONLY) = 3</x/here/run/config.yaml>',
        '8 openat(AT_FDCWD</x>, "run/config.yaml", O_RDONLY) = 3</x/outside/victim>',
        '9 rename("/x/here/a", "/x/outside/a") = 0',
        '9 lstat("/x/outside/victim", {st_mode=S_IFREG|0644}) = 0',
    ]
    (tmp_path / "record").write_text("\n".join(lines))
    assert touched(tmp_path / "record") == [lines[1], lines[2]]
