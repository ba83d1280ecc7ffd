"""What a new GPU does: equal bits, speed, and the robots that learn, in some 12 minutes.

    python -m benchmarks.gpu_check [out=gpu-check] [only=[STEP,…]]
    python -m benchmarks.gpu_check simulated=true 'more=["num_envs=8","iterations=2"]'

Each step is a process of its own with its own limit, and a step that fails stops none after it. All
limits together are 12 minutes; `only` runs some steps. A training that reaches its limit is asked
to end, as by Ctrl-C, and keeps a checkpoint if it has done an iteration. All files lie in `out`.
After each step, `gpu_check.json` and `gpu_check.md` there say what became of it: its command,
seconds, exit code and last lines. They also say how many kernel modules it compiled because the
cache lacked them.

`more` are words that come last in the command lines of trainings and measurements. `simulated`
runs on the simulated CUDA runtime (tests/cuda/README.md) with twenty times the limits. Steps `go1`
and `g1` train models of mjlab, and are left out without it. Exits with 1 if a step failed.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks import program
from tests.worlds import ROOT

TRAIN = ("train.py", "device=cuda", "log=none", "report=false")
TESTS = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "gpu", "tests/test_gpu.py", "-k")
IMPORTS = "import gpusim_rl.training.trainer, mujoco_warp, torch; assert torch.cuda.is_available()"
READ = "import json; from gpusim_rl.core.provenance import versions; print(json.dumps(versions()))"
WITHOUT_GRAPH = "runs without a graph"
OF_MJLAB = ("go1", "g1")
SLOWER = 20  # times that the simulation may take
FAREWELL = 10  # s before its limit, in which a training that is asked to end writes its checkpoint


@dataclass
class Step:
    """A command, and what became of it.

    Args:
        limit_s: when it is ended.
        words: of Python's command line.
        command: the whole command line.
        code: exit code; negative if a signal ended it.
        compiled: kernel modules that the cache lacked.
        problem: why it failed; empty if it did not.
        said: its last lines.
    """

    name: str
    limit_s: float
    words: tuple[str, ...]
    command: str = ""
    code: int = 0
    seconds: float = 0.0
    compiled: int = 0
    problem: str = "interrupted"
    said: str = ""


def steps(folder: Path) -> list[Step]:
    """All of them, in the order of what matters most."""

    def train(name: str, limit_s: float, *words: str) -> Step:
        return Step(name, limit_s, (*TRAIN, f"run_dir={folder / name}", *words))

    walk = ("task=quadruped", "stop_at=0.95")
    levels = ("-m", "benchmarks.levels", "task=quadruped", "device=cuda", "repeats=2", "seconds=2")
    parts = ("-m", "benchmarks.cuda_parts", "task=quadruped", f"out={folder / 'parts.json'}")
    return [
        Step("imports", 30, ("-c", IMPORTS)),
        train("walk-1", 90, *walk, "seed=1"),
        train("walk-2", 45, *walk, "seed=2"),
        train("walk-3", 45, *walk, "seed=3"),
        Step("equal", 50, (*TESTS, "captured_is_eager and not conditional")),
        Step("speed", 50, (*levels, f"out={folder / 'speed.json'}")),
        Step("parts", 30, parts),
        train("many", 30, "task=quadruped", "num_envs=16384", "iterations=20", "export=none"),
        train("robot", 110, "task=quadruped", "recipe=robot", "gate=true"),
        train("rough", 60, "task=quadruped_rough"),
        train("go1", 40, "task=quadruped", "robot=go1"),
        train("humanoid", 50, "task=humanoid"),
        train("g1", 50, "task=humanoid", "robot=g1"),
        train("sac", 40, "task=quadruped", "algo=sac"),
    ]


def modules() -> int:
    """Kernel modules for GPUs in Warp's cache."""
    cache = Path(os.environ.get("WARP_CACHE_PATH", Path.home() / ".cache" / "warp"))
    return sum(1 for ending in ("cubin", "ptx") for _ in cache.rglob(f"*.{ending}"))


def command(step: Step, more: list[str], simulated: bool) -> list[str]:
    """The whole command line of a step; more: those of trainings and measurements, which win."""
    words = [*step.words]
    if words[0] == "train.py" or words[1].startswith("benchmarks."):
        given = [word.partition("=")[0] for word in more]
        words = [word for word in words if word.partition("=")[0] not in given] + more
    if not simulated:
        return [sys.executable, *words]
    if words[:2] == ["-m", "pytest"]:
        words[2:2] = ["-p", "pytest_simulated"]
        return ["bash", "tests/cuda/run", *words]
    return ["bash", "tests/cuda/run", *([] if words[0] == "-c" else ["main.py"]), *words]


def run(step: Step, line: list[str], slower: float = 1) -> None:
    """Run a step, and fill in what became of it. In place. Its limit is `slower` times as long."""
    limit = slower * step.limit_s
    for word in step.words:
        if word.startswith("run_dir="):  # of an earlier check
            shutil.rmtree(word.removeprefix("run_dir="), ignore_errors=True)
    before, start, step.command = modules(), time.monotonic(), " ".join(line)
    how: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "cwd": ROOT}
    how |= {"stdin": subprocess.DEVNULL, "start_new_session": True}
    environment = os.environ | {"PHYSICS": "1"}  # the simulation runs MuJoCo Warp's kernels, too
    process = subprocess.Popen(line, env=environment, **how)
    try:
        said, _ = process.communicate(timeout=limit - FAREWELL)
        step.code = process.returncode
        step.problem = f"exit code {step.code}" if step.code else ""
    except subprocess.TimeoutExpired:
        said = end(process)
        step.code, step.problem = process.returncode, f"longer than {limit - FAREWELL:g} s"
    except BaseException:  # Ctrl-C
        os.killpg(process.pid, signal.SIGKILL)
        raise
    step.seconds, step.compiled = round(time.monotonic() - start, 1), modules() - before
    step.said = "\n".join(said.splitlines()[-40:])
    if not step.problem and WITHOUT_GRAPH in said:
        step.problem = next(line for line in said.splitlines() if WITHOUT_GRAPH in line)


def end(process: subprocess.Popen[str]) -> str:
    """End a process and those that it began, at once if it does not when asked. Its output."""
    os.killpg(process.pid, signal.SIGTERM)
    try:
        said, _ = process.communicate(timeout=FAREWELL)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        said, _ = process.communicate()
    return said


def versions() -> dict[str, str]:
    """Packages, machine and commit; or why they are unknown."""
    line = [sys.executable, "-c", READ]
    how: Any = {"cwd": ROOT, "capture_output": True, "text": True, "timeout": 120, "check": True}
    try:
        return json.loads(subprocess.run(line, **how).stdout)
    except (subprocess.TimeoutExpired, subprocess.CalledProcessError) as error:
        return {"unknown": f"{error}: {(error.stderr or '')[-1000:]}"}


def write(folder: Path, done: list[Step], known: dict[str, str]) -> None:
    """The results so far, for programs and for people."""
    report = {"versions": known, "steps": [asdict(step) for step in done]}
    (folder / "gpu_check.json").write_text(json.dumps(report, indent=1))
    rows = ["| step | result | seconds | modules compiled |", "|---|---|---|---|"]
    for step in done:
        result = step.problem.replace("|", "/") or "passed"
        rows.append(f"| {step.name} | {result} | {step.seconds} | {step.compiled} |")
    text = "\n".join(f"- {name}: {value}" for name, value in known.items())
    last = [f"## {x.name}\n\n```text\n$ {x.command}\n{x.said}\n```" for x in done]
    page = ["# Check of a GPU", text, "\n".join(rows), *last]
    (folder / "gpu_check.md").write_text("\n\n".join(page) + "\n")


def main(words: list[str]) -> int:
    """Run the steps. Returns how many failed."""
    every = [step.name for step in steps(Path())]
    names = [name for name in every if find_spec("mjlab") or name not in OF_MJLAB]
    keys = dict(more=list[str](), simulated=False, only=names)
    own = program.read_keys(__doc__, words, **keys, out="gpu-check")
    program.choose(own.only, every)
    if missing := [name for name in every if name not in names]:
        print(f"mjlab is not installed: left out unless `only` has them: {', '.join(missing)}")
    folder = Path(own.out).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    chosen = [x for x in steps(folder) if x.name in own.only]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that a step ends, too
    known = versions()
    for number, step in enumerate(chosen, 1):
        line = command(step, own.more, own.simulated)
        print(f"{number}/{len(chosen)} {step.name}: {' '.join(line)}", flush=True)
        try:
            run(step, line, SLOWER if own.simulated else 1)
        finally:
            write(folder, chosen[:number], known)
        result = step.problem or "passed"
        print(f"    {result}, {step.seconds} s, {step.compiled} modules compiled", flush=True)
    return sum(bool(step.problem) for step in chosen)


if __name__ == "__main__":
    raise SystemExit(min(main(sys.argv[1:]), 1))
