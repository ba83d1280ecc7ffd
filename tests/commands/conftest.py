"""A directory to run commands in, and a run in it."""

import shutil
from pathlib import Path

import pytest


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """An empty working directory."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


@pytest.fixture
def copy(here, trained) -> Path:
    """A copy of the trained run, to be changed."""
    return shutil.copytree(trained, here / "run")
