"""Acceptance: time and iterations to success with each kind of symmetry, and the error of what was
exported.

    python -m tests.acceptance.symmetry [--kinds none augment loss net] [--seeds 1 2 3]
        [--stop-at 0.95] [--out DIR] [words …]

For every seed and kind in turn, `train.py task=quadruped algo.symmetry=KIND seed=SEED stop_at=0.95`
runs as a process of its own; the words go to it, too (num_envs=…, robot=…). A row for each run:
whether it succeeded, iterations until then, seconds of training (its median iteration times their
number) and in all (with an evaluation after every tenth), success of its last evaluation, and the
largest |π(M o) - A π(o)| of policy.onnx over observations of its task; then the medians over the
seeds. Exits with 1 if an error of symmetry=net is more than 1e-6. Seeds come first, so that what a
busy machine slows, it slows in all kinds.
"""

import argparse
import statistics
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnxruntime
import torch

from gpusim_rl.build import find_mirrors
from gpusim_rl.core.symmetry import MirrorModule
from gpusim_rl.deploy.export_policy import export_bare_network
from gpusim_rl.evaluation.evaluate import observe
from gpusim_rl.play.player import load_run
from gpusim_rl.runs.run import Run
from tests.worlds import ROOT, Stateless

SYMMETRIES = ("none", "augment", "loss", "net")
ALLOWED = 1e-6  # of an action


class Row(NamedTuple):
    """What became of one training."""

    kind: str
    seed: int
    reached: bool
    iterations: int
    training: float  # s, of the median iteration times their number
    seconds: float  # as the log has them: with evaluations
    success: float  # of the last evaluation
    error: float


def train(kind: str, seed: int, folder: Path, stop_at: float, words: list[str]) -> Row:
    """A training of its own; SystemExit with what it said if it fails."""
    own = [
        "task=quadruped",
        f"algo.symmetry={kind}",
        f"seed={seed}",
        f"stop_at={stop_at}",
        "eval_every=10",
        "log=none",
    ]
    command = [sys.executable, str(ROOT / "train.py"), *own, f"run_dir={folder}", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    rows = list(Run.open(folder).rows("metrics.jsonl"))
    success: list[float] = [row["success"] for row in rows if "success" in row]
    last: dict[str, Any] = rows[-1]
    final = success[-1] if success else 0.0
    times, iterations = [row["time_s"] for row in rows], int(last["iteration"])
    training = iterations * statistics.median(after - before for before, after in pairwise(times))
    return Row(
        kind, seed, final >= stop_at, iterations, training, last["time_s"], final, asymmetry(folder)
    )


def asymmetry(folder: Path) -> float:
    """Largest |π(M o) - A π(o)| of a run's exported network, over observations that its own policy
    meets."""
    play = {"task_code": None, "episodes": 1, "checkpoint": None}
    ppo, cfg = load_run(Run.open(folder), play)
    images = find_mirrors(ppo.env)
    assert images
    view, out = MirrorModule(images.obs), MirrorModule(images.action)
    export_bare_network(ppo, cfg, folder, folder / "network.onnx")
    session = onnxruntime.InferenceSession(
        (folder / "network.onnx").read_bytes(), providers=["CPUExecutionProvider"]
    )

    def act(obs: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(np.asarray(session.run(["action"], {"obs": obs.numpy()})[0]))

    seen = observe(Stateless(act), ppo.env.task, weights=cfg.task.weights, noise=cfg.task.noise)
    return (act(view(seen)) - out(act(seen))).abs().max().item()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kinds", nargs="+", default=SYMMETRIES, choices=SYMMETRIES)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--stop-at", type=float, default=0.95)
    parser.add_argument(
        "--out", type=Path, default=Path("runs") / f"symmetry-{time.strftime('%Y%m%d-%H%M%S')}"
    )
    args, words = parser.parse_known_args()
    rows: list[Row] = []
    print(
        "| kind | seed | reached | iterations | training s | in all s | success | error "
        "|\n|---|---|---|---|---|---|---|---|"
    )
    for seed in args.seeds:
        for kind in args.kinds:
            row = train(kind, seed, args.out / f"{kind}-s{seed}", args.stop_at, words)
            rows.append(row)
            reached = "yes" if row.reached else "no"
            times = f"{row.iterations} | {row.training:.1f} | {row.seconds:.1f}"
            scores = f"{row.success:.3f} | {row.error:.1e}"
            print(f"| {kind} | {seed} | {reached} | {times} | {scores} |", flush=True)
    for kind in args.kinds:
        mine = [row for row in rows if row.kind == kind]
        iterations, training = (
            statistics.median(x)
            for x in zip(*((row.iterations, row.training) for row in mine), strict=True)
        )
        reached = f"{sum(row.reached for row in mine)} of {len(mine)} reached {args.stop_at}"
        print(f"{kind}: {reached}; median {iterations} iterations, {training:.1f} s of training")
    sys.exit(any(row.error > ALLOWED for row in rows if row.kind == "net"))


if __name__ == "__main__":
    main()
