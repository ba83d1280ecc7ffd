"""Training speed beside that of mjlab on this machine: `python -m benchmarks.mjlab KEY=VALUE …`.

The keys are those of `python -m benchmarks.levels`, which measures ours first, with the model's own
physics. mjlab then trains its own Go1 task as its own command runs it, with as many worlds.
"""

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

from benchmarks import program
from benchmarks.tasks import run_bench
from gpusim_rl.core import errors

TASK = "Mjlab-Velocity-Flat-Unitree-Go1"
# rsl_rl prints one of these at each iteration: until 3, and from 4 on
RATE = re.compile(r"(?:Computation: *([\d,.]+) steps/s|Steps per second: *([\d,.]+))")
ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


def check_available() -> None:
    """ValueError in one line unless mjlab can train here."""
    if not find_spec("mjlab"):
        raise ValueError("this needs mjlab: pip install mjlab")
    if not torch.cuda.is_available():
        raise ValueError("this needs a CUDA device: mjlab trains on no other")


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
        raise ValueError(f"mjlab: its training ended with {done.returncode}: {lines[-1]}")
    return {
        "task": TASK,
        "command": " ".join(["python", *words]),
        "versions": {
            name: metadata.version(name) for name in ("mjlab", "rsl-rl-lib", "mujoco-warp")
        },
        "steps_per_s": median(speeds[len(speeds) // 2 :]),
        "all": speeds,
    }


def main(words: list[str]) -> None:
    """Measure both, print the ratio and write out=."""
    own, words = program.split_words(__doc__, words, out=None)
    with errors.one_line_errors():
        check_available()
        results = run_bench(["task.training=exact", *words])  # as mjlab has it
        results["mjlab"] = other = mjlab(results["num_envs"])
    ours, theirs = results["steps_per_s"]["training"]["median"], other["steps_per_s"]
    line = (
        f"{results['task']}: {ours:,.0f} steps/s; mjlab trains {TASK} at {theirs:,.0f}:"
        f" this is {ours / theirs:.2f} times it"
    )
    program.finish(program.make_console(), results, [line], own.out)


if __name__ == "__main__":
    main(sys.argv[1:])
