"""A process of two is killed while torchrun trains, and the weights come out the same.

    python -m benchmarks.restarts [runs=10] [both=2] [iterations=20]

Each run trains the cartpole on two gloo processes with --max-restarts=3 and auto_resume=true, and
saves at every iteration. One process is killed with SIGKILL at a drawn moment, and torchrun starts
both again. In every fifth run that moment is within a save. In `both` further runs torchrun and
both processes are killed, and the same line is started again. The last checkpoint must be that of a
run that nobody disturbed, bit by bit. Prints what each kill met and the seconds from it to the end.
Exits with 1 if a checkpoint differs, a run fails or hangs, or a kill came too late.
"""

import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import program
from gpusim_rl.runs.checkpoints import load
from gpusim_rl.runs.run import Run
from tests.command_lines import TINY, environment
from tests.worlds import ROOT, differing

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
    )


def ranks(torchrun: int) -> list[int]:
    """The process numbers of torchrun's children that train."""
    try:
        text = Path(f"/proc/{torchrun}/task/{torchrun}/children").read_text()
    except FileNotFoundError:  # it has ended
        return []
    return [int(pid) for pid in text.split()]


def saving(run: Path) -> bool:
    """Whether a checkpoint is being written."""
    folder = run / "checkpoints"
    return folder.exists() and any(".part" in name for name in os.listdir(folder))


def end(processes: list[int]) -> None:
    """Kill processes, and wait until they are gone."""
    for pid in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    while any(alive(pid) for pid in processes):
        time.sleep(0.01)


def alive(pid: int) -> bool:
    """Whether a process runs: it may be a zombie, whose parent has not asked for it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def disturb(
    run: Path, iterations: int, rng: random.Random, in_save: bool, both: bool
) -> tuple[str, bool]:
    """Train with a kill at a drawn moment. Returns what it met, and whether all went well."""
    process, wanted = start(run, iterations), rng.randrange(iterations)
    while process.poll() is None:
        if len(ranks(process.pid)) == 2 and len(Run(run).rows()) >= wanted:
            break
        time.sleep(0.005)
    time.sleep(rng.uniform(0, 0.2))
    while in_save and not saving(run) and process.poll() is None:
        pass
    met = f"a save at row {len(Run(run).rows())}" if saving(run) else f"row {len(Run(run).rows())}"
    victims = ranks(process.pid)
    if len(victims) < 2:
        process.wait()
        return f"{met}: too late", False
    killed = time.monotonic()
    if both:
        end([process.pid, *victims])
        process.wait()
        process = start(run, iterations)
    else:
        end([rng.choice(victims)])
    try:
        code = process.wait(HANGS)
    except subprocess.TimeoutExpired:
        end([process.pid, *ranks(process.pid)])
        return f"{met}: HANGS", False
    return f"{met}: ended with {code} after {time.monotonic() - killed:.0f} s", code == 0


def main(words: list[str]) -> None:
    """Train once undisturbed, then with kills, and compare."""
    own = program.read_keys(__doc__, words, runs=10, both=2, iterations=20)
    folder, rng, wrong = Path(tempfile.mkdtemp(prefix="accept-restarts-")), random.Random(0), 0
    whole = folder / "whole"
    assert start(whole, own.iterations).wait() == 0, (folder / "whole.txt").read_text()
    theirs, _ = load(Run(whole).checkpoints.latest())
    for i in range(own.runs + own.both):
        run, both = folder / f"run{i}", i >= own.runs
        met, well = disturb(run, own.iterations, rng, in_save=i % 5 == 4, both=both)
        ours, note = load(Run(run).checkpoints.latest())
        differ = differing(theirs, ours)
        done = note["iteration"] == str(own.iterations)
        wrong += bool(differ) or not done or not well
        who = "both" if both else "one"
        print(f"run {i + 1}, {who} killed: {met}; {len(differ)} tensors differ", flush=True)
    print(f"{wrong} of {own.runs + own.both} wrong; {folder}")
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main(sys.argv[1:])
