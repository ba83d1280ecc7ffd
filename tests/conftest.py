"""What all tests share. Small tensors gain nothing from more than one torch thread."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from gpusim_rl.core.paths import CODE
from gpusim_rl.fuse import kernel
from tests.command_lines import EXPORTED, TINY, succeed
from tests.shared import shared

torch.set_num_threads(1)
kernel.STRICT = True  # a mistake of the writer of kernels is no reason to run as torch
os.environ.pop("WANDB_MODE", None)  # the tests choose
# as if the environment were active: commands that are printed then begin with `python`
os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"


@pytest.fixture(scope="session", autouse=True)
def compiled(tmp_path_factory) -> None:
    """What JAX compiles, which takes 10 s for a model, is kept for the other workers."""
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(shared(tmp_path_factory, "jax", lambda _: None))
    os.environ["JAX_COMPILATION_CACHE_MAX_SIZE"] = str(1 << 30)  # bytes; else it takes no lock


@pytest.fixture(scope="session")
def trained(tmp_path_factory) -> Path:
    """A quadruped run of two iterations by train.py, not to be changed."""

    def make(cwd: Path) -> None:
        words = ("task=quadruped", *TINY, EXPORTED, "iterations=2", "run_dir=run")
        said = succeed("train.py", *words, cwd=cwd, block="wandb mujoco_warp jax ray")
        (cwd / "stdout.txt").write_text(said)

    return shared(tmp_path_factory, "trained", make) / "run"


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """MuJoCo writes MUJOCO_LOG.TXT to the working directory when a world goes wrong."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def disk(tmp_path):
    """A disk of 4 MB, of which we may do anything."""
    path = tmp_path / "disk"
    path.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "none", path], capture_output=True, check=False
    ).returncode:
        pytest.skip("only root may mount a disk")
    yield path
    subprocess.run(["umount", "-lR", path], check=True)


@pytest.fixture
def no_own_tasks(monkeypatch):
    """No code of a working directory is imported before the test, nor after it."""

    def names() -> list[str]:
        return [name for name in sys.modules if name.split(".")[0] in CODE.values()]

    for name in names():
        monkeypatch.delitem(sys.modules, name)
    yield
    for name in names():
        del sys.modules[name]
