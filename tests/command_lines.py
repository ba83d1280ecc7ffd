"""Real processes: train.py and play.py as a user runs them, in a home of their own."""

import os
import re
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gpusim_rl.commands import play, registry, train
from tests import fork_server
from tests.worlds import ROOT

# Without policy.onnx and report.html, which take longer than such a training; `EXPORTED` asks for
# the first.
SMALL = ("num_envs=16", "num_steps=4", "episodes=4", "export=none", "report=false", "fuse=off")
EXPORTED = "export=controller"
TINY = (*SMALL, "task.episode=0.2", "algo.hidden=[16]", "sim=native", "sim.threads=1", "device=cpu")
# Run at the start of every Python with this directory on its path: what GPUSIM_BLOCK names cannot
# be imported, and what GPUSIM_HIDE names is no library of this machine. Signals work, though a
# shell's background job and nohup ignore them.
SITE = """
import ctypes.util, os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in os.environ.get("GPUSIM_BLOCK", "").split():
            raise RuntimeError(f"{name} was imported")
sys.meta_path.insert(0, Block())
find, hidden = ctypes.util.find_library, os.environ.get("GPUSIM_HIDE", "").split()
ctypes.util.find_library = lambda name: None if name in hidden else find(name)
"""
MAIN = {"train.py": train.main, "play.py": play.main, "gpusim registry": registry.main}
GPU = Path("/dev/nvidiactl")  # of NVIDIA's driver
PRIVATE = ("WANDB", "DISPLAY", "WAYLAND", "NETRC", "MUJOCO_GL", "EGL_", "__EGL", "PYTHON", "GPUSIM")


def environment(home: Path, block: str = "", hide: str = "", **settings: str) -> dict[str, str]:
    """The environment of a user who has no display, no login and an empty home."""
    site = home / "site"
    site.mkdir(parents=True, exist_ok=True)
    (site / "sitecustomize.py").write_text(SITE)
    kept = {key: value for key, value in os.environ.items() if not key.startswith(PRIVATE)}
    # Otherwise every home would compile its kernels anew.
    cache = os.environ.get("WARP_CACHE_PATH", str(Path.home() / ".cache" / "warp"))
    path = os.pathsep.join([str(site), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    kept |= {
        "HOME": str(home),
        "PYTHONPATH": path,
        "WARP_CACHE_PATH": cache,
        "OMP_NUM_THREADS": "1",
    }
    return kept | {"GPUSIM_BLOCK": block, "GPUSIM_HIDE": hide, "PYTHONWARNINGS": ""} | settings


def run_process(
    *line: str, cwd: Path = ROOT, timeout: float = 900, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """A process that has ended, with what it printed. It has no terminal."""
    return subprocess.run(
        line,
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


@contextmanager
def start_server(
    says: str, *line: str, **options: Any
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Python with a command line that serves, and the address that its first line says.

    It is ended at the end. says: a pattern of that line, with the address as its group.
    """
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True} | options
    with subprocess.Popen([sys.executable, *line], **options) as server:
        try:
            match = re.match(says, first := first_line(server))
            assert match, [first, *server.communicate(timeout=20)]
            yield server, match[1]
        finally:
            server.terminate()
            server.wait(30)


def first_line(process: subprocess.Popen[str], patience: float = 120.0) -> str:
    """What a process prints first. TimeoutError unless it does within this time [s]."""
    assert process.stdout
    if not select.select([process.stdout], [], [], patience)[0]:
        raise TimeoutError(f"nothing was printed within {patience:g} s")
    return process.stdout.readline()


def run_python(program: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """A program in a Python of its own, in the repository; settings are its environment's."""
    return run_process(sys.executable, "-c", program, env=os.environ | settings)


def command(
    script: str, *words: str, cwd: Path, timeout: float = 900, fresh: bool = False, **settings: str
) -> subprocess.CompletedProcess[str]:
    """Run train.py, play.py or "-m a.module" in cwd with no terminal.

    It is forked from a server, unless `fresh`, or with `settings`, which are those of
    `environment`. With block="torch …" alone the server has loaded none of what is blocked. With a
    GPU only that one forks: a child of a process that has initialized CUDA cannot use it.
    """
    line = [*(script.split() if script.startswith("-m ") else [str(ROOT / script)]), *words]
    env = environment(cwd.parent / f"{cwd.name}-home", **settings)
    blocked = settings.get("block", "").split()
    light = [*settings] == ["block"] and "torch" in blocked and {*blocked} <= {*fork_server.HEAVY}
    late = {*settings} <= {"WARP_CACHE_PATH"}  # which is read when a command starts Warp
    if light or (late and not (fresh or GPU.exists())):
        return fork_server.run(line, cwd=cwd, env=env, timeout=timeout, light=light)
    return run_process(sys.executable, *line, cwd=cwd, env=env, timeout=timeout)


def succeed(script: str, *words: str, cwd: Path, **settings: Any) -> str:
    """What it printed, after it ended well and had nothing to complain about."""
    done = command(script, *words, cwd=cwd, **settings)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    return done.stdout


def run_here(script: str, *words: str, capsys: Any) -> tuple[int, str, str]:
    """(exit code, output, error) of a command within this process, in its working directory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [script, *words])
        try:
            MAIN[script]([*words])
            code = 0
        except SystemExit as end:  # pytest.raises would keep the run, and its lock
            code = int(end.code or 0)
    return code, *capsys.readouterr()


def refused_here(script: str, *words: str, capsys: Any) -> str:
    """As `refused`, within this process and its working directory."""
    before = sorted(Path.cwd().rglob("*"))
    code, _, error = run_here(script, *words, capsys=capsys)
    assert code == 2 and re.fullmatch("error: .*\n", error), error
    assert sorted(Path.cwd().rglob("*")) == before
    return error


def refused(script: str, *words: str, cwd: Path, **settings: str) -> str:
    """The one line in which it answered a mistake, after it left nothing behind."""
    before = sorted(cwd.rglob("*"))
    done = command(script, *words, cwd=cwd, **settings)
    assert done.returncode == 2, done
    assert "Traceback" not in done.stdout + done.stderr
    assert re.fullmatch("error: .*\n", done.stderr), done.stderr
    assert sorted(cwd.rglob("*")) == before
    return done.stderr


@contextmanager
def one_line(*says: str) -> Iterator[None]:
    """What is done meanwhile is refused in one line, which says each of these texts."""
    with pytest.raises((ValueError, OSError)) as error:
        yield
    line = str(error.value)
    assert "\n" not in line and all(x in line for x in says), line
