"""Training speed of mjlab on this machine, as its own command runs it: `bench compare=mjlab`."""

import os
import re
import subprocess
import sys
import tempfile
from importlib import metadata
from importlib.util import find_spec
from statistics import median
from typing import Any

import torch

TASK = "Mjlab-Velocity-Flat-Unitree-Go1"
# rsl_rl prints one of these at each iteration: until 3, and from 4 on
RATE = re.compile(r"(?:Computation: *([\d,.]+) steps/s|Steps per second: *([\d,.]+))")
ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


def available(name: str) -> None:
    """ValueError in one line unless the trainer `name` can run here."""
    if name != "mjlab":
        raise ValueError(f"compare={name!r}: choose one of mjlab, null")
    if not find_spec("mjlab"):
        raise ValueError("compare=mjlab needs mjlab: pip install mjlab")
    if not torch.cuda.is_available():
        raise ValueError("compare=mjlab needs a CUDA device: mjlab trains on no other")


def rates(text: str) -> list[float]:
    """steps/s of each iteration in what rsl_rl printed."""
    return [float((a or b).replace(",", "")) for a, b in RATE.findall(ESCAPE.sub("", text))]


def mjlab(num_envs: int, *, iterations: int = 40) -> dict[str, Any]:
    """Train mjlab's own Go1 task with its own network and settings.

    Returns its task, command, versions and steps/s: the median of the second half of iterations.

    Raises:
        ValueError: it did not train; with the last line that it printed.
    """
    sizes = ["--env.scene.num-envs", str(num_envs), "--agent.max-iterations", str(iterations)]
    words = ["-m", "mjlab.scripts.train", TASK, *sizes]
    quiet = os.environ | {"WANDB_MODE": "disabled", "MUJOCO_GL": "egl"}
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, *words],
            cwd=folder,
            env=quiet,
            capture_output=True,
            text=True,
            check=False,
        )
    speeds = rates(done.stdout)
    if done.returncode or len(speeds) < iterations // 2:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["nothing"]
        raise ValueError(f"compare=mjlab: its training ended with {done.returncode}: {lines[-1]}")
    return {
        "task": TASK,
        "command": " ".join(["python", *words]),
        "versions": {
            name: metadata.version(name) for name in ("mjlab", "rsl-rl-lib", "mujoco-warp")
        },
        "steps_per_s": median(speeds[len(speeds) // 2 :]),
        "all": speeds,
    }
