"""What `bench time` compares: commits of this checkout, and command lines."""

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

TRIAL = Path(__file__).with_name("trial.py")  # the program that trains; it is not imported
HERE = "."  # of commits=: this tree as it is


class Variant(NamedTuple):
    """What is compared: a commit with a command line."""

    name: str
    commit: str  # in full, or HERE
    tree: Path
    words: list[str]


def git(*words: str) -> bytes | None:
    """What git prints about this checkout; None if it fails. ValueError if there is no git."""
    line = ["git", "-C", str(PACKAGE.parent), *words]
    try:
        done = subprocess.run(line, capture_output=True, check=False)
    except FileNotFoundError:
        raise ValueError("commits= needs git") from None
    return None if done.returncode else done.stdout


def unpack(commit: str, folder: Path) -> tuple[str, Path]:
    """The full name of a commit, and a folder with its files; HERE is this tree itself.

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


def variants(cfg: dict[str, Any], words: list[str], folder: Path) -> list[Variant]:
    """Each of `commits` with each of `settings`; `words` are those of all trainings."""
    trees = [(commit, *unpack(commit, folder)) for commit in cfg["commits"] or [HERE]]
    several: list[Variant] = []
    for (commit, full, tree), setting in product(trees, cfg["settings"] or [""]):
        name = " ".join(filter(None, (commit if cfg["commits"] or not setting else "", setting)))
        again = sum(other.name.partition(" #")[0] == name for other in several)
        name += f" #{again + 1}" if again else ""  # the same twice shows the noise
        several.append(Variant(name, full, tree, ["log=none", *words, *shlex.split(setting)]))
    return several


def run(
    variant: Variant, job: dict[str, Any], folder: Path, show: Callable[[str], None]
) -> dict[str, Any]:
    """What `gpusim_rl/tools/bench/trial.py` measures of a variant.

    Args:
        job: its job, but for the tree.
        folder: where it may write.
        show: called with each line that it prints.
    ValueError with its last line if it fails.
    """
    job, result = job | {"tree": str(variant.tree)}, folder / "result.json"
    line = [sys.executable, "-P", str(TRIAL), json.dumps(job), str(result)]
    path = [str(variant.tree), *filter(None, [os.environ.get("PYTHONPATH")])]
    # conf/ and tasks/ of a checkout are its own, and not a user's: another tree has others
    at_home = Path.cwd().resolve() == PACKAGE.parent
    last = ""
    with subprocess.Popen(
        line,
        cwd=variant.tree if at_home else None,
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
        raise ValueError(f"{variant.name}: ended by signal {-child.returncode} after: {last}")
    if child.returncode:
        said = last.removeprefix("error: ").removeprefix("ValueError: ")
        raise ValueError(f"{variant.name}: {said}")
    return json.loads(result.read_text())
