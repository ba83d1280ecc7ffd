"""What strangers bring: robots that are drawn from a seed.

    python -m tests.strangers [--seed 1] [--count 20] [--keep FOLDER]

Each robot is shown to `play.py mode=robot`. One that it accepts must train two iterations; one that
it refuses gets one line and exit code 2, and for a robot with a fault the line must name the fault.
Prints the refusals of good robots and what went wrong, then how many of each kind were accepted.
Exits with 1 if something was wrong, or if less than 60 % of the good robots were accepted. --keep
leaves the files of what was wrong in a folder.
"""

import argparse
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path
from subprocess import CompletedProcess, TimeoutExpired

from tests.commands import TINY, command
from tests.strangers.robots import Stranger, draw

LIMIT = 60  # s that a command may take
ACCEPTED = 0.6  # least share of the good robots


def answer(*words: str, cwd: Path) -> CompletedProcess[str] | None:
    """What a command said; None if it took too long."""
    try:
        return command(*words, cwd=cwd, timeout=LIMIT)
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


def main() -> int:
    """Draw and try them. Returns the number of what went wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--keep", type=Path)
    args = parser.parse_args()
    pick, failures = random.Random(args.seed), 0
    drawn: Counter[str] = Counter()
    taken: Counter[str] = Counter()
    for i in range(args.count):
        robot = draw(pick)
        with tempfile.TemporaryDirectory() as name:
            accepted, problem = wrong(robot, Path(name))
        drawn[robot.kind] += 1
        taken[robot.kind] += accepted
        if problem:
            failures += 1
            print(f"robot {i}: {problem}", flush=True)
            if args.keep:
                args.keep.mkdir(parents=True, exist_ok=True)
                (args.keep / f"{args.seed}-{i}{robot.suffix}").write_text(robot.text)
    for kind, n in sorted(drawn.items()):
        print(f"{kind}: {taken[kind]} of {n} accepted")
    few = taken["good"] < ACCEPTED * drawn["good"]
    return failures + few


if __name__ == "__main__":
    sys.exit(min(main(), 1))
