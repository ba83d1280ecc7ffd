"""Acceptance: SIGKILL at random moments of a quadruped run, saves included, and the weights come out the same.

    python -m tests.accept_kill [--kills 50] [--jobs 2]

Each trial is a run of its own that saves at every iteration and is killed once, at a moment drawn from its whole life, then
started again with the same line (auto_resume=true). Its last checkpoint must be, bit by bit, that of an uninterrupted run.
Exits with 1 unless all are.
"""

import argparse
import random
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from gpusim_rl.checkpoint import load
from gpusim_rl.run import Run
from tests.commands import environment
from tests.worlds import ROOT

WORDS = (
    *("task=quadruped", "num_envs=32", "num_steps=8", "iterations=60", "save_every=1", "episodes=4", "task.episode=2"),
    *("sim=native", "sim.threads=1", "device=cpu", "log=none", "auto_resume=true"),
)


def line(run: Path) -> list[str]:
    """The command line of a run."""
    return [sys.executable, str(ROOT / "train.py"), *WORDS, f"run_dir={run}"]


def trial(folder: Path, number: int, life: float) -> tuple[Path, str]:
    """(run, what the kill met) of a run that was killed and started again."""
    run, env, rng = folder / f"killed{number}", environment(folder / "home"), random.Random(number)
    quiet = {"env": env, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    first = subprocess.Popen(line(run), **quiet)
    started = time.monotonic()
    while not (run / "checkpoints").exists() and first.poll() is None:
        time.sleep(0.01)
    time.sleep(rng.uniform(0, life))
    first.kill()
    first.communicate()
    parts = [path.name for path in run.glob("**/.*.part")]
    met = "a save" if parts else f"iteration {len(Run(run).rows())}" if run.exists() else "the start"
    done = subprocess.run(line(run), **quiet, text=True, check=False)
    if done.returncode:
        met += f", and the second start failed: {done.stderr}"
    return run, f"killed after {time.monotonic() - started:.1f} s in {met}"


def main() -> None:
    """Run the trials, print each, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="accept-kill-"))
    subprocess.run(line(folder / "whole"), env=environment(folder / "home"), stdout=subprocess.DEVNULL, check=True)
    whole, _ = load(Run(folder / "whole").checkpoints.latest())
    made = [path.stat().st_mtime for path in (folder / "whole" / "checkpoints", folder / "whole" / "policy.onnx")]
    life = made[1] - (folder / "whole" / "versions.json").stat().st_mtime
    good = saves = 0
    with ThreadPoolExecutor(args.jobs) as pool:
        for run, met in pool.map(lambda number: trial(folder, number, args.jobs * life), range(args.kills)):
            state, _ = load(Run(run).checkpoints.latest())
            differ = [name for name in whole if not torch.equal(whole[name], state[name])]
            rows = [row["iteration"] for row in Run(run).rows()]
            same = not differ and state.keys() == whole.keys() and rows == list(range(1, len(rows) + 1)) and len(rows) == 60
            good, saves = good + same, saves + ("a save" in met)
            print(f"{run.name}: {met}: {'identical' if same else f'differs in {differ[:3]}, {len(rows)} rows'}", flush=True)
            shutil.rmtree(run)
    print(f"{good} of {args.kills} identical to the uninterrupted run, {saves} of them killed inside a save")
    shutil.rmtree(folder)
    raise SystemExit(good != args.kills)


if __name__ == "__main__":
    main()
