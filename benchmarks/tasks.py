"""Speed and memory of every task: `python -m benchmarks.tasks [KEY=VALUE …]`.

Measures each task on MuJoCo C and on MuJoCo Warp, each in a process of its own, and prints one
table. `physics_only` is the engine alone, `env` adds the task, and `training` the policy and its
update. The keys are those of `python -m benchmarks.levels`, which measures each pair, and these:

    tasks=[NAME,…]   only these; all of ours by default
    sims=[NAME,…]    native and warp by default
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import program
from gpusim_rl.core.errors import warn
from gpusim_rl.core.paths import CONF
from gpusim_rl.core.waiting import waiting

LEVELS = ("physics_only", "env", "training")
HEADS = ("task, sim", "worlds", *(f"{level} steps/s" for level in LEVELS), "of physics", "memory")
TASKS = sorted(file.stem for file in (CONF / "task").glob("*.yaml"))


def run_bench(words: list[str]) -> dict[str, Any]:
    """The results of `python -m benchmarks.levels` with these words; ValueError with its error."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "bench.json")
        command = [sys.executable, "-m", "benchmarks.levels", *words, f"out={out}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["error: it gave no reason"])[-1]
            raise ValueError(f"{' '.join(words)}: {last.removeprefix('error: ')}")
        again = " ".join(["python -m benchmarks.levels", *words])
        return json.loads(out.read_text()) | {"command": again}


def row(result: dict[str, Any]) -> list[str]:
    """The cells of one measurement."""
    speeds = [result["steps_per_s"][level]["median"] for level in LEVELS]
    share = result["ratios"]["training/physics_only"]["median"]
    memory = sum(result["memory"].values()) / 2**20
    cells = [f"{result['task']}, {result['sim']}", str(result["num_envs"])]
    return [*cells, *(f"{x:,.0f}" for x in speeds), f"{share:.2f}", f"{memory:,.0f} MiB"]


def main(words: list[str]) -> None:
    """Measure, print a line for each pair as it is done, then the table; write out=."""
    keys = dict(tasks=TASKS, sims=["native", "warp"], out=None)
    own, words = program.split_words(__doc__, words, **keys)
    console = program.make_console(110)
    pairs = [[f"task={task}", f"sim={sim}"] for task in own.tasks for sim in own.sims]
    results, failures = [], []
    for i, pair in enumerate(pairs, 1):
        program.say(console, [f"{i}/{len(pairs)}: {' '.join(pair)}"])
        try:
            with waiting(" ".join(pair)):
                results.append(run_bench([*pair, *words]))
        except ValueError as error:  # the other pairs go on
            failures.append(str(error))
        if own.out:
            program.write_json(own.out, results)
    table = program.table_of_numbers(*HEADS)
    for result in results:
        table.add_row(*row(result))
    console.print(table)
    if results:
        machine = results[0]["versions"]
        program.say(console, [f"{machine['cpu']}, {machine['cores']} cores, GPU {machine['gpu']}"])
    for line in failures:
        warn(f"error: {line}")
    raise SystemExit(bool(failures))


if __name__ == "__main__":
    main(sys.argv[1:])
