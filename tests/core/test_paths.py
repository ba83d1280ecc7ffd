"""Commands that are printed: they work where the reader stands."""

import os
import shutil
import sys
from pathlib import Path

from gpusim_rl.core import paths


def test_a_command_works_without_an_active_environment(tmp_path, monkeypatch):
    """It has its bare name if the shell finds that one, else a path, relative if below here."""
    folder = tmp_path / "a b" / "bin"
    folder.mkdir(parents=True)
    shutil.copy("/bin/true", folder / "python")
    monkeypatch.setattr(sys, "executable", str(folder / "python3"))
    monkeypatch.setattr(sys, "argv", ["train.py"])
    assert paths.executable("python") == f"'{folder}/python'"
    monkeypatch.chdir(tmp_path)
    assert paths.program("play") == "'a b/bin/python' play.py"
    monkeypatch.chdir(tmp_path / "a b")
    assert paths.program("play") == "bin/python play.py"
    assert paths.install("web") == f"bin/python -m pip install -e '{paths.PACKAGE.parent}[web]'"
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    assert paths.program("train") == "python train.py"
    monkeypatch.chdir(paths.PACKAGE.parent)
    assert paths.install("web") == "python -m pip install -e '.[web]'"
    monkeypatch.setattr(paths, "PACKAGE", Path("/site-packages/gpusim_rl"))
    assert paths.install("web") == "python -m pip install 'gpusim_rl[web]'"
