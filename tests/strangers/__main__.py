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
from pathlib import Path
from subprocess import CompletedProcess, TimeoutExpired

from benchmarks import program
from tests.command_lines import TINY, command
from tests.strangers import lines as command_lines
from tests.strangers.files import Attack, Draw, prepare
from tests.strangers.robots import Stranger, draw

LIMIT = 20  # s that a command may take
ACCEPTED = 0.6  # least share of the good robots
WHOLE = 3600  # s that a whole training may take
WALKS = 0.9  # least success of a robot after it


def answer(*words: str, cwd: Path, limit: float = LIMIT) -> CompletedProcess[str] | None:
    """What a command said; None if it took longer than a limit [s]."""
    try:
        return command(*words, cwd=cwd, timeout=limit)
    except (TimeoutError, TimeoutExpired):
        return None


def wrong(robot: Stranger, folder: Path) -> tuple[bool, str]:
    """(whether a robot was accepted, what was wrong with the answers or "")."""
    file = folder / f"robot{robot.suffix}"
    file.write_text(robot.text)
    asked = answer("play.py", "mode=robot", f"robot.mjcf={file.name}", cwd=folder)
    if asked is None:
        return False, f"mode=robot took more than {LIMIT} s"
    lines = asked.stderr.splitlines()
    said = [line for line in lines if not line.startswith("warning: ")]
    if asked.returncode == 2:
        if len(said) != 1 or not said[0].startswith("error: "):
            return False, f"refused without one line: {asked.stderr[-500:]}"
        if robot.says and not any(part in said[0] for part in robot.says):
            return False, f"{robot.kind}, but it says: {said[0]}"
        if not robot.says:
            print(f"refused: {said[0]}", flush=True)
        return False, ""
    if asked.returncode != 0 or said:
        return False, f"exit code {asked.returncode}: {asked.stderr[-1000:]}"
    if robot.says:
        return True, f"{robot.kind}, and was accepted"
    words = (*TINY, "task=quadruped", f"robot.mjcf={file.name}", "iterations=2", "log=none")
    done = answer("train.py", *words, "run_dir=run", cwd=folder)
    if done is None:
        return True, f"train.py took more than {LIMIT} s"
    if done.returncode:
        return True, f"accepted, but train.py ends with {done.returncode}: {done.stderr[-1000:]}"
    return True, ""


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


def suffered(attack: Attack, folder: Path, limit: float = LIMIT) -> tuple[str, str]:
    """(how a command ended that reads `folder/here`, what was wrong with that or "")."""
    before = contents(folder / "outside")
    done = answer(attack.script, *attack.words, cwd=folder / "here", limit=limit)
    if contents(folder / "outside") != before:
        return "outside", "a file outside was changed"
    if done is None:
        return "hang", f"it took more than {limit} s"
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


# -- all of them -----------------------------------------------------------------------------------


def try_robots(seed: int, count: int, keep: Path | None) -> int:
    """Draw robots and try them. Returns the number of what went wrong."""
    pick, failures = random.Random(seed), 0
    drawn: Counter[str] = Counter()
    taken: Counter[str] = Counter()
    for i in range(count):
        robot = draw(pick)
        with tempfile.TemporaryDirectory() as name:
            accepted, problem = wrong(robot, Path(name))
        drawn[robot.kind] += 1
        taken[robot.kind] += accepted
        if problem:
            failures += 1
            print(f"robot {i}: {problem}", flush=True)
            if keep:
                keep.mkdir(parents=True, exist_ok=True)
                (keep / f"{seed}-{i}{robot.suffix}").write_text(robot.text)
    for kind, n in sorted(drawn.items()):
        print(f"{kind}: {taken[kind]} of {n} accepted")
    return failures + (taken["good"] < ACCEPTED * drawn["good"])


def try_files(seed: int, count: int, keep: Path | None) -> int:
    """Draw hostile files and have them read. Returns the number of what went wrong."""
    draws, failures = Draw(seed), 0
    ended: Counter[tuple[str, str]] = Counter()
    with tempfile.TemporaryDirectory() as name:
        base = prepare(Path(name))
        for i in range(count):
            folder = Path(name) / str(i)
            shutil.copytree(base, folder / "here")
            outside(folder)
            attack = draws.attack(folder / "here")
            how, problem = suffered(attack, folder)
            ended[attack.kind, how] += 1
            if problem:
                failures += 1
                line = " ".join((attack.script, *attack.words))
                print(f"file {i}, {attack.kind}: {line}: {problem}", flush=True)
                if keep:
                    shutil.copytree(folder, keep / f"{seed}-{i}", symlinks=True)
            shutil.rmtree(folder)
    for (kind, how), n in sorted(ended.items()):
        print(f"{kind}: {n} {how}")
    return failures


def try_lines(seed: int, count: int, keep: Path | None) -> int:
    """Draw command lines and run them. Returns the number of what went wrong."""
    failures = 0
    with tempfile.TemporaryDirectory() as name:
        trained = command_lines.make_run(Path(name))
        for line in command_lines.Draw(seed).lines(count, ""):
            _, problem = command_lines.judge(line, command_lines.outside, trained)
            failures += bool(problem)
            if problem:
                print(f"line {' '.join((line.script, *line.words))}: {problem}", flush=True)
    print(f"lines: {count - failures} of {count} right")
    return failures


def try_walks(seed: int, count: int, keep: Path | None) -> int:
    """Train good robots. Returns 0 unless more than one in eight fails."""
    pick, walked = random.Random(seed), 0
    for i in range(count):
        robot = draw(pick, faulty=0)
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            file = folder / f"robot{robot.suffix}"
            file.write_text(robot.text)
            words = ("task=quadruped", f"robot.mjcf={file.name}", "log=none", "export=none")
            words += ("report=false",)
            done = answer("train.py", *words, "run_dir=run", cwd=folder, limit=WHOLE)
            result = folder / "run" / "eval.json"
            success = json.loads(result.read_text())["success"] if result.is_file() else 0.0
            walked += success >= WALKS
            said = "" if success else f": {done.stderr[-500:] if done else 'no end'}"
            print(f"robot {i}{robot.suffix}: success {success:.3f}{said}", flush=True)
            if keep and success < WALKS:
                keep.mkdir(parents=True, exist_ok=True)
                shutil.copy(file, keep / f"walk-{seed}-{i}{robot.suffix}")
    print(f"walks: {walked} of {count} succeed")
    return max(0, count - walked - count // 8)


TRY = {"robots": try_robots, "files": try_files, "lines": try_lines, "walks": try_walks}


def main(words: list[str]) -> int:
    """Draw and try them. Returns the number of what went wrong."""
    own, parts = program.split_words(__doc__, words, seed=1, count=20, keep=None, trace=None)
    parts = program.choose(parts, TRY) if parts else ["robots", "files", "lines"]
    keep = Path(own.keep) if own.keep else None
    if not own.trace:
        return sum(TRY[part](own.seed, own.count, keep) for part in parts)
    line = [sys.executable, "-m", "tests.strangers"]
    line += [word for word in words if not word.startswith("trace=")]
    strace = ["strace", "-f", "-y", "-qq", "-e", "trace=%file", "-o", own.trace]
    failed = subprocess.run([*strace, *line], env=os.environ, check=False).returncode
    calls = touched(Path(own.trace))
    print(f"{len(calls)} calls opened or changed what is outside", *calls[:9], sep="\n")
    return failed + len(calls)


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:]), 1))
