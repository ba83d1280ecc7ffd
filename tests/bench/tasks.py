"""Speed and memory of every task: `python -m tests.bench.tasks [KEY=VALUE …]`.

Measures each task on MuJoCo C and on MuJoCo Warp, each in a process of its own, and prints one
table. `physics_only` is the engine alone, `env` adds the task, and `training` the policy and its
update. The keys are those of `python -m gpusim_rl.bench`, which measures each pair, and these:

    tasks=[NAME,…]   only these; all of ours by default
    sims=[NAME,…]    native and warp by default
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from gpusim_rl.config import validate
from gpusim_rl.core import errors
from gpusim_rl.core.paths import CONF
from gpusim_rl.core.waiting import waiting
from gpusim_rl.tools.bench import output

LEVELS = ("physics_only", "env", "training")
HEADS = ("task, sim", "worlds", *(f"{level} steps/s" for level in LEVELS), "of physics", "memory")
TASKS = sorted(file.stem for file in (CONF / "task").glob("*.yaml"))


def run_bench(words: list[str]) -> dict[str, Any]:
    """The results of `python -m gpusim_rl.bench` with these words; ValueError with its error."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "bench.json")
        command = [sys.executable, "-m", "gpusim_rl.bench", *words, f"out={out}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["error: it gave no reason"])[-1]
            raise ValueError(f"{' '.join(words)}: {last.removeprefix('error: ')}")
        again = " ".join(["python -m gpusim_rl.bench", *words])
        return json.loads(out.read_text()) | {"command": again}


def split(words: list[str], keys: tuple[str, ...]) -> tuple[list[str], dict[str, str]]:
    """The words for gpusim_rl.bench, and the values of those whose keys are this program's."""
    values = dict(word.split("=", 1) for word in words if word.startswith(keys))
    return [word for word in words if not word.startswith(keys)], values


def row(result: dict[str, Any]) -> list[str]:
    """The cells of one measurement."""
    speeds = [result["steps_per_s"][level]["median"] for level in LEVELS]
    share = result["ratios"]["training/physics_only"]["median"]
    memory = sum(result["memory"].values()) / 2**20
    cells = [f"{result['task']}, {result['sim']}", str(result["num_envs"])]
    return [*cells, *(f"{x:,.0f}" for x in speeds), f"{share:.2f}", f"{memory:,.0f} MiB"]


def main(words: list[str]) -> None:
    """Measure, print a line for each pair as it is done, then the table; write out=."""
    if {"-h", "--help"} & set(words):
        print(__doc__)
        return
    console = output.make_console(110)
    words, values = split(words, ("tasks=", "sims=", "out="))
    with errors.one_line_errors():
        validate.writable("out", values.get("out"), (".json",))
    tasks, sims = (
        values.get(key, default).strip("[]").split(",")
        for key, default in (("tasks", ",".join(TASKS)), ("sims", "native,warp"))
    )
    pairs = [[f"task={task}", f"sim={sim}"] for task in tasks for sim in sims]
    results, failures = [], []
    for i, pair in enumerate(pairs, 1):
        output.say(console, [f"{i}/{len(pairs)}: {' '.join(pair)}"])
        try:
            with waiting(" ".join(pair)):
                results.append(run_bench([*pair, *words]))
        except ValueError as error:  # the other pairs go on
            failures.append(str(error))
        if "out" in values:
            output.write_json(values["out"], results)
    table = output.table_of_numbers(*HEADS)
    for result in results:
        table.add_row(*row(result))
    console.print(table)
    if results:
        machine = results[0]["versions"]
        output.say(console, [f"{machine['cpu']}, {machine['cores']} cores, GPU {machine['gpu']}"])
    for line in failures:
        errors.warn(f"error: {line}")
    raise SystemExit(bool(failures))


if __name__ == "__main__":
    main(sys.argv[1:])
