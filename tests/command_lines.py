"""Real processes for the tests: train.py and play.py as a user runs them, in a directory and a home
of their own."""

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

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
    if light or not (fresh or settings or GPU.exists()):
        return fork_server.run(line, cwd=cwd, env=env, timeout=timeout, light=light)
    return run_process(sys.executable, *line, cwd=cwd, env=env, timeout=timeout)


def succeed(script: str, *words: str, cwd: Path, **settings: Any) -> str:
    """What it printed, after it ended well and had nothing to complain about."""
    done = command(script, *words, cwd=cwd, **settings)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    return done.stdout


def refused(script: str, *words: str, cwd: Path, **settings: str) -> str:
    """The one line in which it answered a mistake, after it left nothing behind."""
    before = sorted(cwd.rglob("*"))
    done = command(script, *words, cwd=cwd, **settings)
    assert done.returncode == 2, done
    assert "Traceback" not in done.stdout + done.stderr
    assert re.fullmatch("error: .*\n", done.stderr), done.stderr
    assert sorted(cwd.rglob("*")) == before
    return done.stderr


def train_here(_: Any) -> Any:
    """Stands in for `multirun.on_this_machine`: each training is done in this process."""
    from gpusim_rl.commands.train import train_or_exit
    from gpusim_rl.config import command_line

    def start(job: Any, place: int) -> Any:
        train_or_exit(command_line.check("config", job.overrides))
        return SimpleNamespace(poll=lambda: 0)

    return start
