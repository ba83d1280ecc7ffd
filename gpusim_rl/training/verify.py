"""Whether a run is what its configuration makes.

    gpusim verify RUN [ITERATIONS] [task_code=here]

A run keeps hashes of every tensor of its state (physics, task, networks, optimizer, counters) after
each of its first iterations. This trains them again on this machine, and says which tensors differ.
What to expect on which machine: docs/determinism.md. task_code=here allows a task whose code is in
tasks/ of the working directory.
Exits with 0 if all agree, 1 if they differ, 2 for a mistake.
"""

from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from gpusim_rl.algorithms.iteration import Iteration
from gpusim_rl.assembly.iteration import make_iteration
from gpusim_rl.config import resume
from gpusim_rl.core import errors
from gpusim_rl.core.arguments import parse, show_usage
from gpusim_rl.core.files import read_map, read_text
from gpusim_rl.core.provenance import versions
from gpusim_rl.core.waiting import waiting
from gpusim_rl.runs.run import Run
from gpusim_rl.runs.writer import HASHED, digests
from gpusim_rl.training.open_run import START

MAX_NAMES = 5  # of tensors in a message


def main(arguments: list[str]) -> None:
    """Train again, compare, and print what differs."""
    show_usage(arguments, __doc__)
    expected = "a run directory, and perhaps a number of iterations"
    with errors.one_line_errors():
        (path, *limit), values = parse(arguments, ("task_code",), expected, most=2)
        if values.get("task_code", "here") != "here" or not all(map(str.isdecimal, limit)):
            raise ValueError(f"{' '.join(arguments)}: expected {expected}")
        run = Run.open(Path(path))
        cfg = resume.load_config(run, values.get("task_code"))
        resume.check_judge(run, cfg.plain, values.get("task_code"))
        hashes = read_hashes(run)
        count = min(int(limit[0]) if limit else HASHED, max(hashes, default=0))
        if count < 1:
            raise ValueError(f"{run.path} keeps no hashes of its first iterations")
        training = make_iteration(cfg)
        if (file := run.path / START).is_file():
            training.policy.load(load_file(file), str(file))
        training.begin()
        training.open(run.path)
    for line in differences(run):
        print(errors.printable(line))
    if training.schedule.needs_evaluation and count > cfg.eval_every:
        count = cfg.eval_every
        print(
            "the curriculum goes by evaluations, which are not repeated here: "
            f"up to iteration {count}"
        )
    for i in range(1, count + 1):
        with waiting(f"iteration {i} of {count}"):
            training.iteration()
        if i in hashes:
            compare(training, i, hashes[i])


def read_hashes(run: Run) -> dict[int, dict[str, Any]]:
    """Iteration → tensor's name → hash; ValueError if the run went on with other values."""
    hashes: dict[int, dict[str, Any]] = {}
    for row in run.rows("hashes.jsonl"):
        if "changed" in row:
            raise ValueError(
                f"{run.path} was continued with other values from iteration {row['iteration']} on "
                f"({str(row['changed'])[:200]}): its config.yaml is not what began it"
            )
        if isinstance(row.get("sha256"), dict):
            hashes[row["iteration"]] = row["sha256"]
    return hashes


def compare(training: Iteration, iteration: int, expected: dict[str, Any]) -> None:
    """Print whether a state has the expected hashes; exits with 1 if it has not."""
    hashes = digests({name: value.cpu() for name, value in training.state().items()})
    names = sorted(hashes.keys() | expected.keys())
    wrong = [name for name in names if hashes.get(name) != expected.get(name)]
    if not wrong:
        print(f"iteration {iteration}: all {len(hashes)} tensors agree, bit by bit")
        return
    more = f" and {len(wrong) - MAX_NAMES} more" if len(wrong) > MAX_NAMES else ""
    print(
        f"iteration {iteration}: {len(wrong)} of {len(hashes)} tensors differ: "
        f"{errors.printable(', '.join(wrong[:MAX_NAMES]))}{more}"
    )
    raise SystemExit(1)


def differences(run: Run) -> list[str]:
    """Lines for what differs between this machine, its packages and those of the run."""
    try:
        then = read_map(read_text(run.path / "versions.json"))
        return [
            f"{key}: {then.get(key)} there, {now} here"
            for key, now in versions().items()
            if then.get(key) != now
        ]
    except (OSError, ValueError):
        return ["versions.json cannot be read"]
