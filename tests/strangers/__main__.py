"""What strangers bring: robots, files and command lines that are drawn from a seed.

    python -m tests.strangers [PART …] [seed=1] [count=20] [keep=FOLDER] [trace=FILE]

robots: each is shown to `play.py mode=robot`. One that it accepts must train two iterations; one
that it refuses gets one line and exit code 2, and for a robot with a fault the line must name the
fault. At least 60 % of the good robots must be accepted.
files: each hostile file is read by a command, which may work or end in one line. Nothing that lies
outside of its folder may change, and with `trace` nothing there may be opened: then all runs under
strace, whose record is FILE.
lines: command lines, as `lines.py` has them.
walks: done only if asked for. Each good robot gets a whole training by the recipe, and must
then succeed in 90 % of the episodes. Of eight robots, one may fail.

Prints what was wrong, and how many of each kind were accepted. Exits with 1 if something was wrong.
`keep` leaves the folders of what was wrong.
"""

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess, TimeoutExpired
from typing import NamedTuple

from benchmarks import program
from tests.command_lines import TINY, command
from tests.strangers import files, lines
from tests.strangers.robots import draw

LIMIT = 20  # s that a command may take
ACCEPTED = 0.6  # least share of the good robots
WHOLE = 3600  # s that a whole training may take
WALKS = 0.9  # least success of a robot after it


class End(NamedTuple):
    """What became of something that was drawn."""

    kind: str
    how: str
    problem: str  # what was wrong with that, or ""


def answer(*words: str, cwd: Path, limit: float = LIMIT) -> CompletedProcess[str] | None:
    """What a command said; None if it took longer than a limit [s]."""
    try:
        return command(*words, cwd=cwd, timeout=limit)
    except (TimeoutError, TimeoutExpired):
        return None


def ended(done: CompletedProcess[str] | None, codes: tuple[int, ...] = (2,)) -> tuple[str, str]:
    """(how a command ended, what was wrong with that or ""). It may work, or be refused in one
    line with one of these exit codes."""
    if done is None:
        return "hang", "it took too long"
    said = done.stdout + done.stderr
    if "Traceback" in said:
        return "traceback", said[-1500:]
    if any((ord(c) < 32 and c not in "\n\t") or ord(c) == 127 for c in said):
        return "control characters", repr(said[-500:])
    if done.returncode == 0:
        return "worked", ""
    lines = error_lines(done)
    if done.returncode not in codes or len(lines) != 1 or not lines[0].startswith("error: "):
        return "other", f"exit code {done.returncode}: {done.stderr[-800:]}"
    return "refused", ""


def error_lines(done: CompletedProcess[str]) -> list[str]:
    """What a command said on stderr, but for warnings."""
    return [line for line in done.stderr.splitlines() if not line.startswith("warning: ")]


def outside(folder: Path) -> Path:
    """A folder that nothing may touch."""
    (folder / "outside").mkdir()
    for name in ("victim", "victim.stl", "v.stl"):
        (folder / "outside" / name).write_text(f"precious {name}")
    return folder / "outside"


def contents(folder: Path) -> dict[str, str]:
    """The files of a folder."""
    return {path.name: path.read_text() for path in folder.iterdir()}


def suffered(attack: files.Attack, folder: Path) -> tuple[str, str]:
    """(how a command ended that reads `folder/here`, what was wrong with that or "")."""
    before = contents(folder / "outside")
    done = answer(attack.script, *attack.words, cwd=folder / "here")
    if contents(folder / "outside") != before:
        return "outside", "a file outside was changed"
    return ended(done, (1, 2))


def touched(record: Path) -> list[str]:
    """The lines of strace's record in which another process than the first opened what is outside,
    by its name or through a link."""
    lines = record.read_text(errors="replace").splitlines()
    first = lines[0].split()[0] if lines else ""
    calls = ("open", "rename", "unlink", "link", "mkdir", "creat", "trunc", "chmod", "symlink")
    return [
        line
        for line in lines
        if "/outside" in line
        and line.split()[0] != first
        and any(call in line.split("(")[0] for call in calls)
    ]


# -- the parts: each makes, for a seed, a function of a new folder that draws and tries ------------

Try = Callable[[Path], End]


def try_robots(seed: int, base: Path) -> Try:
    """Robots, some with a fault."""
    pick = random.Random(seed)

    def attempt(folder: Path) -> End:
        robot = draw(pick)
        file = folder / f"robot{robot.suffix}"
        file.write_text(robot.text)
        asked = answer("play.py", "mode=robot", f"robot.mjcf={file.name}", cwd=folder)
        how, problem = ended(asked)
        if asked is None or problem:
            return End(robot.kind, how, problem)
        line = " ".join(error_lines(asked))
        if how == "refused":
            named = not robot.says or any(part in line for part in robot.says)
            return End(robot.kind, how, "" if named else f"it says: {line}")
        if robot.says or line:
            return End(robot.kind, "accepted", f"it was accepted: {line}")
        words = (*TINY, "task=quadruped", f"robot.mjcf={file.name}", "iterations=2", "log=none")
        how, problem = ended(answer("train.py", *words, "run_dir=run", cwd=folder), ())
        return End(robot.kind, "accepted", problem)

    return attempt


def try_files(seed: int, base: Path) -> Try:
    """Hostile files."""
    draws, prepared = files.Draw(seed), files.prepare(base)

    def attempt(folder: Path) -> End:
        shutil.copytree(prepared, folder / "here")
        outside(folder)
        attack = draws.attack(folder / "here")
        how, problem = suffered(attack, folder)
        line = " ".join((attack.script, *attack.words))
        return End(attack.kind, how, problem and f"{line}: {problem}")

    return attempt


def try_lines(seed: int, base: Path) -> Try:
    """Command lines of every kind in turn."""
    drawn, trained = lines.Draw(seed).lines(), lines.make_run(base)

    def attempt(folder: Path) -> End:
        line = next(drawn)
        how, problem = lines.judge(line, lines.run, trained)
        return End(line.kind, how, problem and f"{line.script} {' '.join(line.words)}: {problem}")

    return attempt


def try_walks(seed: int, base: Path) -> Try:
    """Whole trainings of good robots."""
    pick = random.Random(seed)

    def attempt(folder: Path) -> End:
        robot = draw(pick, faulty=0)
        file = folder / f"robot{robot.suffix}"
        file.write_text(robot.text)
        words = ("task=quadruped", f"robot.mjcf={file.name}", "log=none", "export=none")
        words += ("report=false", "run_dir=run")
        done = answer("train.py", *words, cwd=folder, limit=WHOLE)
        result = folder / "run" / "eval.json"
        success = json.loads(result.read_text())["success"] if result.is_file() else 0.0
        print(f"{file.name}: success {success:.3f}", flush=True)
        said = done.stderr[-500:] if done else "no end"
        return End(robot.kind, "walks", "" if success >= WALKS else f"{success:.3f}: {said}")

    return attempt


PARTS = {"robots": try_robots, "files": try_files, "lines": try_lines, "walks": try_walks}


def sweep(part: str, seed: int, count: int, keep: Path | None) -> int:
    """Draw and try so many of a part. Returns the number of what went wrong."""
    failures, ends = 0, Counter[tuple[str, str]]()
    with tempfile.TemporaryDirectory() as name:
        attempt = PARTS[part](seed, Path(name))
        for i in range(count):
            folder = Path(name) / str(i)
            folder.mkdir()
            kind, how, problem = attempt(folder)
            ends[kind, how] += 1
            failures += bool(problem)
            if problem:
                print(f"{part} {i}, {kind}: {problem}", flush=True)
            if problem and keep:
                shutil.copytree(folder, keep / f"{part}-{seed}-{i}", symlinks=True)
            shutil.rmtree(folder)
    for (kind, how), n in sorted(ends.items()):
        print(f"{kind}: {n} {how}")
    if part == "walks":
        return max(0, failures - count // 8)
    good = sum(n for (kind, _), n in ends.items() if kind == "good")
    return failures + (ends["good", "accepted"] < ACCEPTED * good)


def main(words: list[str]) -> int:
    """Draw and try them. Returns the number of what went wrong."""
    own, parts = program.split_words(__doc__, words, seed=1, count=20, keep=None, trace=None)
    parts = program.choose(parts, PARTS) if parts else ["robots", "files", "lines"]
    keep = Path(own.keep) if own.keep else None
    if not own.trace:
        return sum(sweep(part, own.seed, own.count, keep) for part in parts)
    line = [sys.executable, "-m", "tests.strangers"]
    line += [word for word in words if not word.startswith("trace=")]
    strace = ["strace", "-f", "-y", "-qq", "-e", "trace=%file", "-o", own.trace]
    failed = subprocess.run([*strace, *line], env=os.environ, check=False).returncode
    calls = touched(Path(own.trace))
    print(f"{len(calls)} calls opened or changed what is outside", *calls[:9], sep="\n")
    return failed + len(calls)


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:]), 1))
