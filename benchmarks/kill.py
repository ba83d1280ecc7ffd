"""SIGKILL at random moments of a quadruped run, saves included, and the weights come out the same.

    python -m benchmarks.kill [kills=50] [iterations=400] [KEY=VALUE …]

One run saves at every iteration; again and again it is killed at a drawn moment, every other time
in the next save after it, and started with the same line (auto_resume=true). Its last checkpoint
must be, bit by bit, that of a run that nobody disturbed, and its rows those. Exits with 1 unless it
is.
"""

import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import program
from gpusim_rl.runs.checkpoints import load
from gpusim_rl.runs.run import Run
from tests.command_lines import environment
from tests.worlds import ROOT, differing

SAME = "iteration env_steps return reward/velocity approx_kl learning_rate fault".split()
WORDS = (
    *"task=quadruped num_envs=32 num_steps=8 save_every=1 episodes=4 task.episode=2".split(),
    *("sim=native", "sim.threads=1", "device=cpu", "log=none", "auto_resume=true"),
)


def line(run: Path, words: list[str]) -> list[str]:
    """The command line of a run; `words` win."""
    return [sys.executable, str(ROOT / "train.py"), *WORDS, *words, f"run_dir={run}"]


def parts(run: Path) -> list[str]:
    """Files that are being written, of checkpoints."""
    folder = run / "checkpoints"
    return [name for name in os.listdir(folder) if ".part" in name] if folder.exists() else []


def kill(run: Path, words: list[str], env: dict[str, str], wait: float, in_a_save: bool) -> str:
    """Start the run, kill it some seconds after its first new row, in its start, or in a save; what
    the kill met."""
    quiet = {"env": env, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(line(run, words), **quiet) as process:
        before = len(Run(run).rows())
        while wait > 0.2 and len(Run(run).rows()) == before and process.poll() is None:
            time.sleep(0.01)
        time.sleep(wait)
        while in_a_save and not parts(run) and process.poll() is None:
            pass
        process.kill()
    if process.returncode != -9:
        return f"the end: it had ended with {process.returncode}"
    return f"a save ({parts(run)[0]})" if parts(run) else f"iteration {len(Run(run).rows())}"


def main(words: list[str]) -> None:
    """Kill, start, compare."""
    own, words = program.split_words(__doc__, words, kills=50, iterations=400)
    words = [f"iterations={own.iterations}", *words]
    folder, rng = Path(tempfile.mkdtemp(prefix="accept-kill-")), random.Random(0)
    env, runs = environment(folder / "home"), [folder / "whole", folder / "killed"]
    met = []
    for i in range(own.kills):
        met.append(kill(runs[1], words, env, rng.uniform(0, 1.5), i % 2 == 1))
        print(f"kill {i + 1} met {met[-1]}", flush=True)
    for run in runs:
        subprocess.run(line(run, words), env=env, stdout=subprocess.DEVNULL, check=True)
    (whole, _), (killed, _) = (load(Run(run).checkpoints.latest()) for run in runs)
    differ = differing(whole, killed)
    rows = [[{k: row.get(k) for k in SAME} for row in Run(run).rows()] for run in runs]
    equal = rows[0] == rows[1]
    saves, late = sum("a save" in what for what in met), sum("the end" in what for what in met)
    print(f"{own.kills - late} kills, {saves} of them inside a save; rows equal: {equal}")
    print(f"of {len(whole)} tensors {len(differ)} differ: {differ[:3]}")
    shutil.rmtree(folder)
    raise SystemExit(bool(differ) or not equal or len(rows[0]) != own.iterations)


if __name__ == "__main__":
    main(sys.argv[1:])
