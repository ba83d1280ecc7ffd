"""Versions that a program runs on: packages, Python, machine and commit."""

import os
import platform
import random
import re
import subprocess
from importlib import metadata
from pathlib import Path

from gpusim_rl.core.paths import PACKAGE

# Why: docs/decisions/dependencies.md
PACKAGES = (
    *("torch", "mujoco", "mujoco-warp", "warp-lang", "numpy"),
    *("onnx", "onnxruntime", "hydra-core", "safetensors"),
)

LONGEST_DIFF = 200_000  # characters of a diff that are kept
NEW = ("ls-files", "--others", "--exclude-standard")  # files that git neither has nor ignores


def versions() -> dict[str, str]:
    """Versions of packages and of Python, the machine, and the commit of a checkout."""
    import torch

    rows = {
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
    }
    rows |= {name: metadata.version(name) for name in PACKAGES}
    rows["gpu"] = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    return rows | {"commit": commit()}


def record() -> dict[str, str]:
    """`versions`, the processor, and as `diff` what the checkout has that its commit lacks.

    That is `git diff`, then the names of new files.
    """
    new = "".join(f"new file: {name}\n" for name in git(*NEW).splitlines())
    diff = f"{git('diff', '--no-ext-diff', 'HEAD')}\n{new}".strip()[:LONGEST_DIFF]
    machine = {"processor": processor(), "cores": str(cores_available())}
    return versions() | machine | ({"diff": diff} if diff else {})


def cores_available() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def limit_cores(count: int) -> None:
    """Let this process use so many of its cores, 0 all; of use before torch is loaded.

    Two programs with one core each get different ones, most often: which ones is drawn.
    """
    if not count:
        return
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, random.sample(cores, min(count, len(cores))))
    os.environ["OMP_NUM_THREADS"] = str(min(count, cores_available()))


def processor() -> str:
    """Name of the CPU."""
    info = Path("/proc/cpuinfo")
    names = re.findall("model name.*: (.*)", info.read_text()) if info.exists() else []
    return names[0] if names else platform.machine()


def commit() -> str:
    """The commit of the checkout that this program runs from, or "unknown"."""
    return git("rev-parse", "HEAD") or "unknown"


def git(*words: str) -> str:
    """Output of git in the checkout that this program runs from; "" where there is none."""
    root = PACKAGE.parent  # an installed package may lie in another project's repository
    if not ((root / ".git").exists() and (root / "train.py").is_file()):
        return ""
    line = ["git", "-C", str(root), *words]
    try:
        done = subprocess.run(line, capture_output=True, text=True, errors="replace", check=False)
    except OSError:  # git is not installed
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
