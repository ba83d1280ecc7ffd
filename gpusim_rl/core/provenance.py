"""What a program runs on: packages, Python, machine and commit."""

import platform
import re
import subprocess
from importlib import metadata
from pathlib import Path

from gpusim_rl.core.paths import PACKAGE

PACKAGES = (
    *("torch", "mujoco", "mujoco-warp", "warp-lang", "numpy"),
    *("onnx", "onnxruntime", "hydra-core", "safetensors"),
)


def versions() -> dict[str, str]:
    """What this program runs on: packages, Python, machine, and the commit of a checkout."""
    import torch

    known = {
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
    }
    known |= {name: metadata.version(name) for name in PACKAGES}
    known["gpu"] = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    return known | {"commit": commit()}


def processor() -> str:
    """Name of the CPU."""
    info = Path("/proc/cpuinfo")
    names = re.findall("model name.*: (.*)", info.read_text()) if info.exists() else []
    return names[0] if names else platform.machine()


def commit() -> str:
    """The commit of the checkout that this program runs from, or "unknown".

    An installed package may lie in another project's repository: git is asked in a checkout only.
    """
    root = PACKAGE.parent
    if not ((root / ".git").exists() and (root / "train.py").is_file()):
        return "unknown"
    line = ["git", "-C", str(root), "rev-parse", "HEAD"]
    try:
        git = subprocess.run(line, capture_output=True, text=True, check=False)
    except OSError:  # git is not installed
        return "unknown"
    return git.stdout.strip() if git.returncode == 0 else "unknown"
