"""Speed and memory of every task: `python -m gpusim_rl.bench tasks [KEY=VALUE …]`.

Measures each task on MuJoCo C and on MuJoCo Warp, each in a process of its own, and prints one
table. `bare` is the engine alone, `env` adds the task, and `training` the policy and its update.
The keys are those of `python -m gpusim_rl.bench`, with which each pair is measured, and these:

    tasks=[NAME,…]   only these; all of ours unless given
    sims=[NAME,…]    native and warp unless given
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from rich.console import Console
from rich.table import Table
from yaml import YAMLError

from gpusim_rl.config import validate
from gpusim_rl.core import errors
from gpusim_rl.core.files import write_whole
from gpusim_rl.core.paths import CONF
from gpusim_rl.core.waiting import waiting

SIMS = ("native", "warp")
LEVELS = ("bare", "env", "training")
OWN = ("tasks", "sims", "out")
HEADS = ("task", "sim", "worlds", *(f"{level} steps/s" for level in LEVELS), "of bare", "memory")


def task_names() -> list[str]:
    """The names of our tasks, in alphabetical order."""
    return sorted(file.stem for file in (CONF / "task").glob("*.yaml"))


def measured(task: str, sim: str, words: list[str]) -> dict[str, Any]:
    """What `python -m gpusim_rl.bench` writes of a task on a sim; ValueError with its error."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "bench.json")
        keys = [f"task={task}", f"sim={sim}", f"out={out}", *words]
        command = [sys.executable, "-m", "gpusim_rl.bench", *keys]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["error: no reason was given"])[-1]
            raise ValueError(f"task={task} sim={sim}: {last.removeprefix('error: ')}")
        again = " ".join(["python -m gpusim_rl.bench", *keys[:2], *words])
        return json.loads(out.read_text()) | {"command": again}


def row(result: dict[str, Any]) -> list[str]:
    """The cells of one measurement."""
    speeds = [result["steps_per_s"][level]["median"] for level in LEVELS]
    share = result["ratios"]["training/bare"]["median"]
    used = sum(result["memory"].values()) / 2**20
    cells = [result["task"], result["sim"], str(result["num_envs"])]
    return [*cells, *(f"{x:,.0f}" for x in speeds), f"{share:.2f}", f"{used:,.0f} MiB"]


def settings(words: list[str]) -> tuple[list[str], dict[str, Any]]:
    """The words for each measurement, and our own keys; ValueError for an unknown task or sim."""
    try:
        own = OmegaConf.from_dotlist([word for word in words if word.split("=")[0] in OWN])
    except YAMLError:
        raise ValueError("tasks= and sims= take lists, such as tasks=[drone,reach]") from None
    keys: Any = OmegaConf.to_container(own)
    known = {"tasks": task_names(), "sims": [*SIMS, "mjx"]}
    for key, names in known.items():
        keys[key] = keys.get(key) or (names if key == "tasks" else list(SIMS))
        if not isinstance(keys[key], list):
            raise ValueError(f"{key}={keys[key]}: expected a list, such as {key}=[{names[0]}]")
        for name in keys[key]:
            if name not in names:
                raise ValueError(f"{key}: {name!r}: choose among {', '.join(names)}")
    return [word for word in words if word.split("=")[0] not in OWN], keys


def main(words: list[str]) -> None:
    """Measure, print a line for each pair as it is done, then the table; write out=."""
    if {"-h", "--help"} & set(words):
        print(__doc__)
        return
    console = Console() if sys.stdout.isatty() else Console(width=110)
    results, refused = [], []
    with errors.one_line_errors():
        words, keys = settings(words)
        validate.writable("out", keys.get("out"))
    pairs = [(task, sim) for task in keys["tasks"] for sim in keys["sims"]]
    for i, (task, sim) in enumerate(pairs, 1):
        console.print(f"{i}/{len(pairs)}: task={task} sim={sim}", highlight=False)
        try:
            with waiting(f"task={task} sim={sim}"):
                results.append(measured(task, sim, words))
        except ValueError as error:  # the other pairs go on
            refused.append(str(error))
        if keys.get("out"):
            write_whole(Path(keys["out"]), (json.dumps(results, indent=1) + "\n").encode())
    show(results, console)
    for line in refused:
        print(f"error: {line}", file=sys.stderr)
    if refused:
        raise SystemExit(1)


def show(results: list[dict[str, Any]], console: Console) -> None:
    """Print a row for each measurement, and what they were made on."""
    table = Table(*HEADS, box=None, pad_edge=False)
    for column in table.columns[2:]:
        column.justify = "right"
    for result in results:
        table.add_row(*row(result))
    console.print(table)
    if results:
        made = results[0]["versions"]
        console.print(f"{made['cpu']}, {made['cores']} cores, GPU {made['gpu']}", highlight=False)
