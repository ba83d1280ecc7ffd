"""The cases that `bench time` compares: commits of this checkout, and command lines."""

import json
import os
import shlex
import subprocess
import sys
import tarfile
from collections.abc import Callable
from io import BytesIO
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from gpusim_rl.core.paths import PACKAGE

TRAINING_RUN = Path(__file__).with_name("training_run.py")  # a program; it is not imported
HERE = "."  # of commits=: this checkout as it is


class Case(NamedTuple):
    """A commit with a command line."""

    name: str
    commit: str  # in full, or HERE
    checkout: Path
    words: list[str]


def git(*words: str) -> bytes | None:
    """The output of git for this checkout; None if it fails. ValueError if there is no git."""
    line = ["git", "-C", str(PACKAGE.parent), *words]
    try:
        done = subprocess.run(line, capture_output=True, check=False)
    except FileNotFoundError:
        raise ValueError("commits= needs git") from None
    return None if done.returncode else done.stdout


def unpack(commit: str, folder: Path) -> tuple[str, Path]:
    """The full name of a commit, and a folder with its files; HERE is this checkout itself.

    ValueError if it is no commit of this checkout.
    """
    if commit == HERE:
        return HERE, PACKAGE.parent
    full = git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{commit}^{{commit}}")
    if full is None:
        raise ValueError(f"commits: {PACKAGE.parent} has no commit {commit!r}")
    name = full.decode().strip()
    with tarfile.open(fileobj=BytesIO(git("archive", name) or b"")) as files:
        safe: Any = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # 3.11.4
        files.extractall(folder / name, **safe)
    return name, folder / name


def make_cases(cfg: dict[str, Any], words: list[str], folder: Path) -> list[Case]:
    """Each of `commits` with each of `settings`; `words` are those of all trainings."""
    checkouts = [(commit, *unpack(commit, folder)) for commit in cfg["commits"] or [HERE]]
    cases: list[Case] = []
    for (commit, full, checkout), setting in product(checkouts, cfg["settings"] or [""]):
        name = " ".join(filter(None, (commit if cfg["commits"] or not setting else "", setting)))
        again = sum(other.name.partition(" #")[0] == name for other in cases)
        name += f" #{again + 1}" if again else ""  # the same twice shows the noise
        cases.append(Case(name, full, checkout, ["log=none", *words, *shlex.split(setting)]))
    return cases


def run(
    case: Case, job: dict[str, Any], folder: Path, show: Callable[[str], None]
) -> dict[str, Any]:
    """The result of `gpusim_rl/tools/bench/training_run.py` for a case.

    Args:
        job: its job, but for the checkout.
        folder: where it may write.
        show: called with each line that it prints.
    ValueError with its last line if it fails.
    """
    job, result = job | {"checkout": str(case.checkout)}, folder / "result.json"
    line = [sys.executable, "-P", str(TRAINING_RUN), json.dumps(job), str(result)]
    path = [str(case.checkout), *filter(None, [os.environ.get("PYTHONPATH")])]
    # conf/ and tasks/ of a checkout are no user's: another checkout has others
    at_home = Path.cwd().resolve() == PACKAGE.parent
    last = ""
    with subprocess.Popen(
        line,
        cwd=case.checkout if at_home else None,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as child:
        try:
            for text in child.stdout or ():
                last = text.strip() or last
                show(last)
        except KeyboardInterrupt:  # it has its own, and ends after its iteration
            child.wait()
            raise
    if child.returncode < 0:
        raise ValueError(f"{case.name}: ended by signal {-child.returncode} after: {last}")
    if child.returncode:
        reason = last.removeprefix("error: ").removeprefix("ValueError: ")
        raise ValueError(f"{case.name}: {reason}")
    return json.loads(result.read_text())
