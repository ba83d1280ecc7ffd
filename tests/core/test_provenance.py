"""The commit that a run notes: that of our own checkout, and of no other repository."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.worlds import ROOT

ENV = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
PROGRAM = "from gpusim_rl.core import provenance; print(provenance.commit())"


def git(folder: Path, *words: str) -> str:
    """What a git command printed in a folder."""
    line = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b", *words]
    done = subprocess.run(line, env=ENV, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path) -> Path:
    """A git repository with one commit."""
    git(tmp_path, "init", "-q")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "first")
    return tmp_path


def commit(folder: Path, **env: str) -> str:
    """The commit that a copy of the package in a folder notes."""
    core = folder / "gpusim_rl" / "core"
    core.mkdir(parents=True)
    for name in ("__init__.py", "paths.py", "provenance.py"):
        shutil.copy(ROOT / "gpusim_rl" / "core" / name, core)
    shutil.copy(ROOT / "gpusim_rl" / "__init__.py", core.parent)
    line = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(
        line, cwd=folder, env=ENV | env, capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


@pytest.mark.parametrize(
    "folder, env", [("", {}), ("site-packages", {}), ("", {"PATH": "/nowhere"})]
)
def test_the_commit_of_a_checkout(repository, folder, env):
    """HEAD in our checkout; unknown within another repository, and without git."""
    (repository / "train.py").touch()
    unknown = folder or env
    expected = "unknown" if unknown else git(repository, "rev-parse", "HEAD")
    assert commit(repository / folder, **env) == expected
