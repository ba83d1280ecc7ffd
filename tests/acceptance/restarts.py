"""Acceptance: a process of two is killed while torchrun trains, and the weights come out the same.

    python -m tests.acceptance.restarts [--runs 10] [--both 2] [--iterations 20]

Each run trains the cartpole on two gloo processes with --max-restarts=3 and auto_resume=true, and
saves at every iteration. One process is killed with SIGKILL at a drawn moment, in every fifth run
within a save, and torchrun starts both again. In --both further runs torchrun and both processes
are killed, and the same line is started again. The last checkpoint must be that of a run that
nobody disturbed, bit by bit. Prints what each kill met and the seconds from it to the end. Exits
with 1 if a checkpoint differs or a run hangs.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from gpusim_rl.runs.checkpoints import load
from gpusim_rl.runs.run import Run
from tests.commands import TINY, environment
from tests.worlds import ROOT

RESTARTS = ("--standalone", "--nproc-per-node=2", "--max-restarts=3")
HANGS = 120.0  # [s] after a kill


def start(run: Path, iterations: int) -> subprocess.Popen[bytes]:
    """torchrun with two processes that train, or go on with, a run."""
    line = [sys.executable, "-m", "torch.distributed.run", *RESTARTS, str(ROOT / "train.py")]
    words = ["task=cartpole", *TINY, f"iterations={iterations}", "save_every=1", "log=none"]
    return subprocess.Popen(
        [*line, *words, "auto_resume=true", f"run_dir={run}"],
        env=environment(run.parent / "home"),
        stdout=subprocess.DEVNULL,
        stderr=(run.parent / f"{run.name}.txt").open("ab"),
        start_new_session=True,
    )


def ranks(torchrun: int) -> list[int]:
    """The process numbers of torchrun's children that train."""
    text = Path(f"/proc/{torchrun}/task/{torchrun}/children").read_text()
    return [int(pid) for pid in text.split()]


def saving(run: Path) -> bool:
    """Whether a checkpoint is being written."""
    folder = run / "checkpoints"
    return folder.exists() and any(".part" in name for name in os.listdir(folder))


def disturb(run: Path, iterations: int, rng: random.Random, in_save: bool, both: bool) -> str:
    """Train with a kill at a drawn moment. Returns what it met, and how long the rest took."""
    process, wanted = start(run, iterations), rng.randrange(iterations)
    while len(Run(run).rows()) < wanted and process.poll() is None:
        time.sleep(0.005)
    time.sleep(rng.uniform(0, 0.2))
    while in_save and not saving(run) and process.poll() is None:
        pass
    met = f"a save at row {len(Run(run).rows())}" if saving(run) else f"row {len(Run(run).rows())}"
    if process.poll() is not None:
        return f"{met}: too late, it had ended"
    victims = ranks(process.pid)
    killed = time.monotonic()
    if both:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process = start(run, iterations)
    else:
        os.kill(rng.choice(victims), signal.SIGKILL)
    try:
        code = process.wait(HANGS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return f"{met}: HANGS"
    return f"{met}: ended with {code} after {time.monotonic() - killed:.0f} s"


def main() -> None:
    """Train once undisturbed, then with kills, and compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--both", type=int, default=2)
    parser.add_argument("--iterations", type=int, default=20)
    args = parser.parse_args()
    folder, rng, wrong = Path(tempfile.mkdtemp(prefix="accept-restarts-")), random.Random(0), 0
    whole = folder / "whole"
    assert start(whole, args.iterations).wait() == 0, (folder / "whole.txt").read_text()
    theirs, _ = load(Run(whole).checkpoints.latest())
    for i in range(args.runs + args.both):
        run, both = folder / f"run{i}", i >= args.runs
        met = disturb(run, args.iterations, rng, in_save=i % 5 == 4, both=both)
        ours, note = load(Run(run).checkpoints.latest())
        differ = [name for name, value in theirs.items() if not torch.equal(value, ours[name])]
        done = note["iteration"] == str(args.iterations)
        wrong += bool(differ) or not done or "HANGS" in met
        who = "both" if both else "one"
        print(f"run {i + 1}, {who} killed: {met}; {len(differ)} tensors differ", flush=True)
    print(f"{wrong} of {args.runs + args.both} wrong; {folder}")
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()
