"""How long a control step takes on this machine: runtime, guard, and the bare network.

    python -m benchmarks.latency [steps=2000]

For quadrupeds with networks of 128² and 512-256-128 it prints the median and the 99th percentile
[ms] of `Policy.act` and of `Guard.act`, and their ratios to the bare network's: matrices of the
same size in onnxruntime. These are times of the processor, which other programs do not lengthen;
the last column is the median by the clock on the wall. Exits with 1 if the 99th percentile of the
smaller network's `Policy.act` is above 0.3 ms.
"""

import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from torch import nn

from benchmarks import program
from gpusim_rl.deploy.controller import Controller
from gpusim_rl.deploy.export_policy import rest
from gpusim_rl.deploy.onboard.guard import Guard
from gpusim_rl.deploy.runtime import Policy
from gpusim_rl.deploy.to_onnx import to_onnx
from tests.exported import export_task, fresh_env
from tests.simulated_robot import Simulated
from tests.worlds import make_policy, make_task

SIZES = {"128-128": (128, 128), "512-256-128": (512, 256, 128)}
ALLOWED = 0.3  # ms


def bare(hidden: tuple[int, ...], inputs: int, outputs: int) -> onnxruntime.InferenceSession:
    """A multi-layer perceptron alone."""
    widths = (inputs, *hidden, outputs)
    layers = [x for a, b in pairwise(widths) for x in (nn.Linear(a, b), nn.ELU())]
    sample = {"obs": torch.zeros(2, inputs)}
    model = to_onnx(nn.Sequential(*layers[:-1]), sample, ["action"])
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model.SerializeToString(), options)


def exported(folder: Path, hidden: tuple[int, ...]) -> Path:
    """An untrained quadruped's file with a network of this size."""
    task = make_task("quadruped")
    env = fresh_env(task, "quadruped", 2)
    widths = (env.views[x].shape[0] for x in ("actor", "critic"))
    actor: Any = make_policy(*widths, env.task.action_width, hidden=hidden, seed=3).actor
    about = rest(task, Controller(task, actor))
    return export_task("quadruped", folder / "policy.onnx", task=task, actor=actor, rest=about).path


def timed(path: Path, hidden: tuple[int, ...], steps: int) -> dict[str, np.ndarray]:
    """(2, steps) seconds of the processor, and of the wall."""
    policy, other = Policy(path), Policy(path)
    sim, net = Simulated(policy), bare(hidden, 48, 12)
    name = net.get_inputs()[0].name
    guard = Guard(other, clock=lambda: sim.data.time, checks="warn", say=lambda line: None)
    guard.phase, guard.sent = "run", guard.stance
    readings, obs = sim.read(), np.zeros((1, 48), np.float32)
    calls = {
        "network": lambda: net.run(None, {name: obs}),
        "runtime": lambda: policy.act(readings, [0.5, 0, 0]),
        "guard": lambda: guard.act(readings, [0.5, 0, 0]),
    }
    times = {name: np.zeros((2, steps)) for name in calls}
    for step in range(-100, steps):
        sim.data.time += policy.dt
        for name_, call in calls.items():
            begin, wall = time.thread_time(), time.perf_counter()
            call()
            ends = time.thread_time() - begin, time.perf_counter() - wall
            times[name_][:, max(step, 0)] = ends
    return times


def main(words: list[str]) -> None:
    """Measure and print."""
    own = program.read_keys(__doc__, words, steps=2000)
    worst = {}
    print("| network | what | p50 [ms] | p99 [ms] | p50 / network's | p99 / network's | wall p50 |")
    print("|---|---|---|---|---|---|---|")
    for size, hidden in SIZES.items():
        with tempfile.TemporaryDirectory() as folder:
            times = timed(exported(Path(folder), hidden), hidden, own.steps)
        base = np.percentile(times["network"][0], (50, 99))
        for what, x in times.items():
            ends = np.percentile(x[0], (50, 99))
            ratio = ends / base
            row = [*(f"{1e3 * t:.3f}" for t in ends), *(f"{r:.1f}" for r in ratio)]
            row.append(f"{1e3 * np.median(x[1]):.3f}")
            print("|", " | ".join([size, what, *row]), "|")
            worst[size, what] = 1e3 * ends[1]
    sys.exit(int(worst[next(iter(SIZES)), "runtime"] > ALLOWED))


if __name__ == "__main__":
    main(sys.argv[1:])
