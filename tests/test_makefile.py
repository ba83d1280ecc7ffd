"""What `make` installs and runs in a copy of a checkout; a script stands in for Python."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.worlds import ROOT

PYTHON = r"""#!/bin/sh
echo "$(basename "$0") $*" >> "$LOG"
if [ "$2" = venv ]; then mkdir -p "$3/bin" && cp "$0" "$3/bin/python" && touch "$3/bin/pip"; fi
"""


class Checkout:
    """A directory with the Makefile.

    Args:
        path: of the directory, which is made.
    """

    def __init__(self, path: Path):
        self.path, self.log = path, path / "log"
        path.mkdir()
        for name in ("Makefile", "pyproject.toml"):
            shutil.copy(ROOT / name, path)
        (path / "python3").write_text(PYTHON)
        (path / "python3").chmod(0o755)

    def make(self, *words: str, code: int = 0) -> tuple[list[str], str]:
        """What Python was called with, without `-c` and pip's flags; and all that was printed."""
        self.log.write_text("")
        # `make test` hands its flags and variables on
        inherited = ("MAKE", "MFLAGS", "ARGS", "VENV", "TORCH", "EXTRAS", "CPU", "PYTHON")
        env = {key: x for key, x in os.environ.items() if not key.startswith(inherited)}
        done = subprocess.run(
            ["make", "PYTHON=./python3", *words],
            cwd=self.path,
            env=env | {"LOG": str(self.log)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        flags = "python -m pip --disable-pip-version-check install "
        lines = [line.replace(flags, "install ") for line in self.log.read_text().splitlines()]
        return [line for line in lines if " -c " not in line], done.stdout + done.stderr


@pytest.fixture
def checkout(tmp_path) -> Checkout:
    """A checkout in which nothing is installed."""
    return Checkout(tmp_path / "checkout")


def test_parts_are_installed_when_they_are_needed(checkout):
    """A training installs the package alone, the tests `dev` and the page `web`, each once."""
    first = ["python3 -m venv .venv", "install torch", "install -e ."]
    assert checkout.make("train")[0] == [*first, "python train.py task=quadruped"]
    assert checkout.make("demo")[0] == ["python play.py demo"]
    assert checkout.make("play", "ARGS=mode=export")[0] == ["python play.py mode=export"]
    web = "python play.py mode=web"
    assert checkout.make("web")[0] == ["install -e .[web]", web]
    assert checkout.make("web")[0] == [web]
    assert checkout.make("test")[0][0] == "install -e .[dev]"
    assert [line.partition(" -p ")[2] for line in checkout.make("test-fast")[0]] == [
        "tests.fast --fast"
    ]
    assert checkout.make("test-all")[0][0].endswith(" -m not gpu and not simulated and not matrix")
    assert checkout.make("same", "WITH=main", "ARGS=sac")[0] == [
        "python -m benchmarks.same main sac"
    ]
    assert "--since=main" in checkout.make("test-changed", "SINCE=main")[0][0]
    assert checkout.make("test", "EXTRAS=mjx")[0][0] == "install -e .[dev,mjx]"
    assert checkout.make("train", "EXTRAS=mjx", "ARGS=task=drone")[0] == [
        "python train.py task=drone"
    ]
    assert checkout.make("train", "EXTRAS=web,mjx")[0][0] == "install -e .[web,mjx]"
    (checkout.path / "pyproject.toml").touch()
    assert checkout.make("demo")[0][0] == "install -e ."


def test_a_wheel_is_built_without_the_package(checkout):
    """`make dist` needs no torch; a training that follows installs the rest, here as there."""
    wheel = "python -m build --outdir dist"
    assert checkout.make("dist")[0] == ["python3 -m venv .venv", "install build>=1.2,<2", wheel]
    assert checkout.make("dist")[0] == [wheel]
    assert checkout.make("train")[0][:2] == ["install torch", "install -e ."]
    assert checkout.make("dist")[0] == [wheel]


def test_which_torch_is_installed(checkout):
    """CPU=1 takes torch from its own index, TORCH another version; one that is there stays."""
    index = "install --index-url https://download.pytorch.org/whl/cpu torch"
    assert index in checkout.make("train", "CPU=1")[0]
    assert len(checkout.make("train")[0]) == len(checkout.make("train", "CPU=1")[0]) == 1
    assert "install torch==2.13.0" in checkout.make("train", "TORCH=torch==2.13.0")[0]
    assert index in checkout.make("train", "CPU=1")[0]
    (checkout.path / ".venv" / "lib" / "python3.11" / "site-packages" / "nvidia").mkdir(
        parents=True
    )
    said = checkout.make("train", "CPU=1", "TORCH=torch==2.12.0", code=2)[1]
    assert "error: .venv has torch for CUDA: remove it with make clean, or say VENV=…" in said


def test_two_checkouts_with_one_environment(checkout, tmp_path):
    """Each installs itself again after the other one, and a line names the other one."""
    other, venv = Checkout(tmp_path / "other"), f"VENV={tmp_path / 'venv'}"
    checkout.make("train", venv)
    calls, said = other.make("train", venv)
    assert calls == ["install -e .", "python train.py task=quadruped"]
    line = f"{tmp_path}/venv had the checkout {checkout.path}; it gets {other.path}\n"
    assert said.startswith(line)
    assert len(other.make("train", venv)[0]) == 1
    calls, said = checkout.make("train", venv)
    assert calls[0] == "install -e ." and f"had the checkout {other.path};" in said
