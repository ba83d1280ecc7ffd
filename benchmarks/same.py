"""Are the numbers of short trainings those of another commit? A refactor must leave them.

    make same WITH=HEAD~1
    make same WITH=HEAD~1 ARGS="cartpole sac"        two of the cases below
    python -m benchmarks.same HEAD~1                 the same, without make

Every task and every learner trains here and in a copy of the other commit, each on one core. It
compares all tensors of the last checkpoint, all numbers of metrics.jsonl and eval.json but times,
and the joint targets of policy.onnx for fixed inputs, bit for bit. A name may change: what has
another name there and the same numbers is listed, and is no difference. The exit code is 1 if
anything differs.

Each commit is asked by its own copy of this file, as far as it has one, so that formats may change.
"""

import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
TASKS = sorted(path.stem for path in (ROOT / "conf" / "task").glob("*.yaml"))
SMALL = ("num_envs=16", "num_steps=8", "iterations=3", "episodes=4", "task.episode=0.4")
SMALL += ("log=none", "report=false", "sim=native", "sim.threads=1", "threads=1", "device=cpu")
SMALL += ("algo.hidden=[16,16]",)
SAC = ("algo=sac", "algo.warmup=128", "algo.batch_size=64")
# name → words of train.py. A task's own case trains it with PPO and the kernels of its step; the
# others share one task, whose mirror image is known and whose kernels are quick to write.
CASES: dict[str, tuple[str, ...]] = {task: (f"task={task}",) for task in TASKS} | {
    "hopper": ("task=hopper", "algo.num_minibatches=4"),  # of 32, which need longer rollouts
    "robot": ("task=quadruped", "recipe=robot"),
    "unfused": ("task=cartpole", "fuse=off", "algo.fused=false"),
    "symmetry net": ("task=cartpole", "algo.symmetry=net"),
    "symmetry augment": ("task=cartpole", "algo.symmetry=augment"),
    "symmetry none": ("task=cartpole", "algo.symmetry=none"),
    "gru": ("task=cartpole", "algo.memory=gru"),
    "attention": ("task=cartpole", "algo.memory=attention"),
    "rnd": ("task=cartpole", "reward=rnd"),
    "sac": ("task=cartpole", *SAC),
    "sac quadruped": ("task=quadruped", *SAC),
    "distill": ("task=cartpole", "algo=distill", "teacher=cartpole"),
    "distill gru": ("task=cartpole", "algo=distill", "teacher=cartpole", "algo.memory=gru"),
    "ray in step": ("task=cartpole", "cluster=ray", "cluster.sync=true", "fuse=off"),
}
# begin the names of what a clock measures
CLOCKED = ("time", "steps_per_s", "share/", "cores", "system/", "cluster/", "memory")
ROWS = 8  # fixed inputs of the exported policy
LONGEST = 600  # [s] of a case
MANY = 12  # differences of a case that are printed


def digest(values: Iterable[Any]) -> str:
    """A short hash of arrays, with their shapes and types, or of numbers."""
    import numpy as np

    sha = hashlib.sha256()
    for value in values:
        array = np.ascontiguousarray(value)
        sha.update(f"{array.dtype}{array.shape}".encode() + array.tobytes())
    return sha.hexdigest()[:16]


def weights(run: Path) -> dict[str, str]:
    """The hash of each tensor of the last checkpoint."""
    from safetensors.numpy import load_file

    newest = max((run / "checkpoints").glob("*.safetensors"), key=lambda file: int(file.stem))
    return {f"state {name}": digest([x]) for name, x in load_file(newest).items()}


def metrics(run: Path) -> dict[str, str]:
    """The hash of each column of metrics.jsonl and of each number of eval.json."""
    columns: dict[str, list[Any]] = defaultdict(list)
    for line in (run / "metrics.jsonl").read_text().splitlines():
        for name, value in json.loads(line).items():
            columns[f"metric {name}"].append(value)
    for name, value in json.loads((run / "eval.json").read_text()).items():
        columns[f"evaluation {name}"].append(value)
    return {
        name: digest([json.dumps(values)])
        for name, values in columns.items()
        if not name.split(" ", 1)[1].startswith(CLOCKED)
    }


def targets(run: Path) -> dict[str, str]:
    """The hash of each output of policy.onnx for ROWS fixed inputs.

    A row depends on the width of an input alone, so that inputs may have other names.
    """
    import numpy as np
    import onnxruntime

    session = onnxruntime.InferenceSession(run / "policy.onnx", providers=["CPUExecutionProvider"])
    answers: dict[str, list[Any]] = defaultdict(list)
    for row in range(ROWS):
        feed = {}
        for slot in session.get_inputs():
            shape = [size if isinstance(size, int) else 1 for size in slot.shape]
            angles = np.arange(np.prod(shape, dtype=int)).reshape(shape)
            values = np.sin(angles + 0.7 * row)
            kinds = {"tensor(float)": np.float32, "tensor(double)": np.float64}
            kinds |= {"tensor(bool)": bool, "tensor(int64)": np.int64}
            feed[slot.name] = values.astype(kinds[slot.type])
        for slot, value in zip(session.get_outputs(), session.run(None, feed), strict=True):
            answers[f"target {slot.name}"].append(value)
    return {name: digest(values) for name, values in answers.items()}


def train_case(name: str) -> dict[str, str]:
    """Train a case in the working directory; the hashes of all that came out."""
    from gpusim_rl.commands.train import train

    run = Path(name.replace(" ", "-"))
    train(*SMALL, *CASES[name], f"run_dir={run}")
    return weights(run) | metrics(run) | targets(run)


def hash_cases(out: Path, names: Iterable[str]) -> None:
    """Write the hashes of all cases as JSON; each trains in a process that is forked from this.

    A case that fails, or takes longer than LONGEST, has one hash, whose name is the error.
    """
    import torch

    import gpusim_rl.training.trainer  # noqa: F401  what all need is loaded once

    torch.set_num_threads(1)
    folder, hashes = out.parent, {}
    for name in names:
        begin, file, log = time.perf_counter(), folder / "case.json", folder / "log.txt"
        file.unlink(missing_ok=True)
        if not (child := os.fork()):
            signal.alarm(LONGEST)
            os.dup2(os.open(log, os.O_CREAT | os.O_WRONLY | os.O_TRUNC), 1)
            os.dup2(1, 2)
            try:
                os.chdir(folder)
                file.write_text(json.dumps(train_case(name)))
            except BaseException:
                os.write(2, traceback.format_exc().encode())
            sys.stdout.flush()
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status == 0 and file.exists():
            hashes[name] = json.loads(file.read_text())
        else:
            last = " ".join(log.read_text().strip().splitlines()[-1:])
            hashes[name] = {f"error: {f'signal {-status}: ' if status else ''}{last}": "none"}
        print(f"{name}: {time.perf_counter() - begin:.1f} s", file=sys.stderr, flush=True)
    out.write_text(json.dumps(hashes))


def differences(mine: dict[str, str], theirs: dict[str, str]) -> tuple[list[str], list[str]]:
    """(what differs between the hashes of a case, what only has another name), a line each."""
    wrong = [f"{name} differs" for name in mine if name in theirs and mine[name] != theirs[name]]
    renamed, left = [], {name: x for name, x in theirs.items() if name not in mine}
    for name in [name for name in mine if name not in theirs]:
        kind = name.split(" ")[0]
        same = [old for old in left if left[old] == mine[name] and old.split(" ")[0] == kind]
        if same:
            renamed.append(f"{same[0]} is now {name}")
            del left[same[0]]
        else:
            wrong.append(f"{name} is only here")
    return wrong + [f"{name} is only there" for name in left], renamed


def compare(commit: str, names: list[str]) -> bool:
    """Print what differs between here and a commit, case by case; whether nothing does."""
    with tempfile.TemporaryDirectory() as temporary:
        there, archive = Path(temporary) / "there", Path(temporary) / "there.tar"
        there.mkdir()
        git = ["git", "archive", f"--output={archive}", "--end-of-options", commit]
        if subprocess.run(git, cwd=ROOT, stderr=subprocess.DEVNULL, check=False).returncode:
            raise SystemExit(f"error: WITH={commit}: {ROOT} has no commit {commit!r}")
        subprocess.run(["tar", "-xf", archive, "-C", there], check=True)
        if not (there / "benchmarks" / "same.py").exists():
            (there / "benchmarks" / "same.py").write_bytes(Path(__file__).read_bytes())
        programs = []
        for label, folder in (("mine", ROOT), ("theirs", there)):
            work = Path(temporary) / label
            work.mkdir()
            line = [sys.executable, "-m", "benchmarks.same", f"out={work / 'hashes.json'}", *names]
            path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
            env = os.environ | {"PYTHONPATH": path, "PYTHONWARNINGS": "ignore"}
            programs.append((work, subprocess.Popen(line, cwd=folder, env=env)))
        if any([process.wait() for _, process in programs]):
            raise SystemExit("error: a checkout has no hashes: see above")
        mine, theirs = (json.loads((work / "hashes.json").read_text()) for work, _ in programs)
    equal = True
    for case in sorted(mine.keys() | theirs.keys()):
        if case not in mine or case not in theirs:
            print(f"{case}: only {'there' if case in theirs else 'here'}")
            equal = False
            continue
        wrong, renamed = differences(mine[case], theirs[case])
        wrong += [name for name in mine[case] if name.startswith("error: ")]  # also of both
        equal = equal and not wrong
        print(f"{case}: {'DIFFERS' if wrong else f'equal, {len(mine[case])} hashes'}")
        for line in wrong[:MANY] + [f"(renamed: {line})" for line in renamed]:
            print(f"    {line}")
        if len(wrong) > MANY:
            print(f"    and {len(wrong) - MANY} more")
    return equal


def main() -> None:
    """Compare with a commit; `out=FILE` hashes the cases of this checkout instead."""
    words = sys.argv[1:]
    if {"-h", "--help"} & {*words}:
        print(__doc__)
        raise SystemExit
    if words and words[0].startswith("out="):
        return hash_cases(Path(words[0][4:]), words[1:] or CASES)
    if not words or not words[0]:
        raise SystemExit("error: say the commit to compare with: make same WITH=HEAD~1")
    raise SystemExit(not compare(words[0], words[1:]))


if __name__ == "__main__":
    main()
