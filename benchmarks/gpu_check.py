"""The first minutes with a GPU, from imports to a robot that walks.

    python -m benchmarks.gpu_check [out=gpu-check] [worlds=N] [simulated=true] [only=[STEP,…]]

Each step is a process of its own with its own limit, and a step that fails stops none after it. All
limits together are 17 minutes; `only` runs some steps. After each step, `gpu_check.json` and
`gpu_check.md` in `out` say what became of it: its command, seconds, exit code and last lines. They
also say how many kernel modules it compiled because the cache lacked them. `worlds` makes the
number of worlds of trainings and of the benchmark at most N. `simulated` runs on the simulated CUDA
runtime (tests/cuda/README.md) with ten times the limits. It leaves out the steps `reads` and
`walks`, which need a GPU's times, and `loops`, whose graphs have nodes that only a GPU runs. Exits
with 1 if a step failed.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import program
from gpusim_rl.core.errors import exit_with_error
from tests.worlds import ROOT

TRAIN = ("train.py", "device=cuda", "log=none")
SHORT = ("episodes=16", "export=none", "report=false")
TESTS = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "gpu", "tests/test_gpu.py", "-k")
BENCH = ("-m", "benchmarks.levels", "task=quadruped", "device=cuda", "repeats=3", "seconds=2")
IMPORTS = "import gpusim_rl.training.trainer, mujoco_warp, torch; assert torch.cuda.is_available()"
READ = "import json; from gpusim_rl.core.provenance import versions; print(json.dumps(versions()))"
WITHOUT_GRAPH = "runs without a graph"
REAL = ("loops", "reads", "walks")  # steps that need a GPU
SLOWER = 10  # times that the simulation may take


@dataclass
class Step:
    """A command, and what became of it.

    Args:
        words: of Python's command line.
        limit_s: when it is ended.
        worlds: the value of num_envs that is appended; 0 for none.
        command: the whole command line.
        code: exit code; negative if a signal ended it.
        compiled: kernel modules that the cache lacked.
        problem: why it failed; empty if it did not.
        said: its last lines.
    """

    name: str
    limit_s: float
    words: tuple[str, ...]
    worlds: int = 0
    command: str = ""
    code: int = 0
    seconds: float = 0.0
    compiled: int = 0
    problem: str = "interrupted"
    said: str = ""


def steps(folder: Path) -> list[Step]:
    """All of them, in the order of what fails first."""
    runs = folder / "trainings"
    run = f"run_dir={runs}"
    cartpole, quadruped = (*TRAIN, "task=cartpole"), (*TRAIN, "task=quadruped")
    eager = (*quadruped, "graph=off")
    many = (*quadruped, "iterations=20", "save_every=1", *SHORT)
    pieces = "auto or noise or fused or test_graphs or control_step or no_memory"
    bench = (*BENCH, "num_steps=24", f"out={folder}/bench.json")
    return [
        Step("imports", 60, ("-c", IMPORTS)),
        Step("cartpole", 60, (*cartpole, "iterations=8", *SHORT, f"{run}/cartpole")),
        Step("pieces", 90, (*TESTS, pieces)),
        Step("equal", 120, (*TESTS, "captured_is_eager and not conditional")),
        Step("loops", 60, (*TESTS, "conditional")),
        Step("reads", 90, (*TESTS, "reads_nothing or read_nothing or profiler")),
        Step("eager", 90, (*eager, "iterations=100", *SHORT, f"{run}/eager"), 4096),
        Step("many", 60, (*many, f"{run}/many"), 16384),
        Step("again", 60, (*many, f"{run}/again"), 16384),
        Step("speed", 120, bench, 4096),
        Step("resume", 60, (*TRAIN, f"resume={runs}/cartpole", "iterations=12")),
        Step("walks", 120, (*TESTS, "walks_within_a_minute")),
    ]


def modules() -> int:
    """Kernel modules for GPUs in Warp's cache."""
    cache = Path(os.environ.get("WARP_CACHE_PATH", Path.home() / ".cache" / "warp"))
    return sum(1 for ending in ("cubin", "ptx") for _ in cache.rglob(f"*.{ending}"))


def command(step: Step, worlds: int, simulated: bool) -> list[str]:
    """The whole command line of a step."""
    words = [*step.words]
    begins = words[0] == "train.py" and not any(word.startswith("resume=") for word in words)
    if step.worlds or (worlds and begins):
        words.append(f"num_envs={min(filter(None, (step.worlds, worlds)))}")
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
        said, _ = process.communicate(timeout=limit)
        step.code = process.returncode
        step.problem = f"exit code {step.code}" if step.code else ""
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        said, _ = process.communicate()
        step.code, step.problem = process.returncode, f"longer than {limit:g} s"
    except BaseException:  # Ctrl-C
        os.killpg(process.pid, signal.SIGKILL)
        raise
    step.seconds, step.compiled = round(time.monotonic() - start, 1), modules() - before
    step.said = "\n".join(said.splitlines()[-40:])
    if not step.problem and WITHOUT_GRAPH in said:
        step.problem = next(line for line in said.splitlines() if WITHOUT_GRAPH in line)


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
    page = ["# First check of a GPU", text, "\n".join(rows), *last]
    (folder / "gpu_check.md").write_text("\n\n".join(page) + "\n")


def main(words: list[str]) -> int:
    """Run the steps. Returns how many failed."""
    names = [step.name for step in steps(Path())]
    keys = dict(worlds=0, simulated=False, only=names)
    own = program.read_keys(__doc__, words, **keys, out="gpu-check")
    program.choose(own.only, names)
    folder = Path(own.out).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    left_out = REAL if own.simulated else ()
    chosen = [x for x in steps(folder) if x.name in own.only and x.name not in left_out]
    if not chosen:
        exit_with_error(f"only={', '.join(own.only)}: the simulation does not run these")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that a step ends, too
    known = versions()
    for number, step in enumerate(chosen, 1):
        line = command(step, own.worlds, own.simulated)
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
