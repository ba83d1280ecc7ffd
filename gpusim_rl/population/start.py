"""Several trainings by one command, on this machine or on a cluster, `jobs` of them at once.

`train.py -m seed=1,2,3 algo.gamma=0.97,0.99 jobs=2` trains with each combination of the listed
values, in a process of its own, as if somebody had typed its command line. So does search=grid. One
that fails does not end the others.

Of another search each process is a place that hosts members. This one starts the places, starts
those again that were killed, and shows what the folder of the search says. It decides nothing.
"""

import json
import math
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from threading import Thread
from typing import IO

import yaml

from gpusim_rl.config.command_line import MAX_RUNS, Sweep, run_name
from gpusim_rl.config.compose import compose_plain, named
from gpusim_rl.config.resume import find_earlier_run
from gpusim_rl.config.validate import code_words
from gpusim_rl.core import errors
from gpusim_rl.core.files import new_directory, write_whole
from gpusim_rl.core.paths import program, quoted, search_path
from gpusim_rl.population.clusters import RayJob, SlurmJob, submitter
from gpusim_rl.population.search import (
    ROWS,
    Search,
    forget_failures,
    hold,
    lineage,
    open_home,
    schedule,
)
from gpusim_rl.population.table import MemberTable, best_member, states
from gpusim_rl.runs.rows import Rows
from gpusim_rl.runs.run import BEST, SEARCH, Run
from gpusim_rl.runs.summary import number, read_json
from gpusim_rl.training.signals import Signals

# -P: no module comes from the working directory
PROGRAM = (sys.executable, "-P", "-m", "gpusim_rl.commands.train")
INSTALLED = (*PROGRAM[:-1], "gpusim_rl", "train")  # its lines name `gpusim`
PLACE = (*PROGRAM[:-1], "gpusim_rl.population.place")
EXPORT = (sys.executable, "-P", "-m", "gpusim_rl.commands.play")
SHOWN = {"success": "success", "return": "return", "time_s": "seconds"}  # score → its column
PERIOD = 0.1  # s between two looks at the processes
DRAIN = 5.0  # s; a process that a training has left behind may keep its output open
RESTARTS = 3  # of a killed place in a row in which no member went on


@dataclass
class Job:
    """One training of a multirun, or a place of a search."""

    number: int  # among all, from 0
    overrides: list[str]  # of its command line
    name: str  # of its directory
    program: tuple[str, ...] = ()  # what takes the overrides; empty: train.py
    path: Path | None = None  # until it begins, or if another process of torchrun makes it
    restarts, done = 0, 0  # in a row without progress, and the progress at the last one
    failure: str = "not begun"  # why it has not ended well; empty if it has


class Child(subprocess.Popen[str]):
    """A training in a process of this machine.

    name: what each of its lines begins with; empty: it has the terminal, with the live table.
    """

    def __init__(self, command: list[str], name: str):
        pipe = subprocess.PIPE if name else None
        super().__init__(command, stdout=pipe, stderr=pipe, text=True, errors="replace")
        self.threads = [
            Thread(target=copy_lines, args=(*streams, name), daemon=True)
            for streams in ((self.stdout, sys.stdout), (self.stderr, sys.stderr))
            if name
        ]
        for thread in self.threads:
            thread.start()

    def poll(self) -> int | None:
        """Its exit code, after its last lines are printed; None while it runs."""
        code = super().poll()
        for thread in self.threads if code is not None else ():
            thread.join(DRAIN)
        return code


def copy_lines(source: IO[str], target: IO[str], name: str) -> None:
    with suppress(OSError), source:  # the process notices that nobody reads any more
        for line in source:
            target.write(f"{name}: {line.rstrip()}\n")
            target.flush()


Process = Child | SlurmJob | RayJob
Start = Callable[[Job, int], Process]  # starts a training in a place, numbered from 0


def run_search(sweep: Sweep, search: Search) -> None:
    """Train the members of a search until they have decided all, then export the best one.

    Exits with 1 if a member failed, and with 128 + n if signal n stopped the search.
    """
    if "WORLD_SIZE" in os.environ:
        errors.exit_with_error("torchrun's processes train one policy: a search takes jobs=")
    with errors.one_line_errors():
        new = not (search.home / SEARCH).is_file()
        search = open_home(search)
        home, places = search.home, min(sweep.cfg.jobs, len(search.numbers))
        start = starter(sweep, home, places, new)
    parent = 0 if sweep.launcher else os.getpid()
    words = [[str(home), f"{i}", f"{places}", f"{parent}"] for i in range(places)]
    jobs = [Job(i, line, f"place_{i}", program=PLACE) for i, line in enumerate(words)]
    print(f"search: {home}, {len(search.numbers)} members, decisions after {search.rounds}")
    with hold(home, alone=True), MemberTable(search) as shown:
        forget_failures(search)
        caught = train_all(jobs, home, places, start, shown)
    if caught:
        again = f"{program('train')} resume={home}"
        print(f"stopped; {again} jobs={places} continues", flush=True)
        raise SystemExit(128 + caught)
    finish_search(sweep, search, [f"{job.name} ({job.failure})" for job in jobs if job.failure])


def finish_search(sweep: Sweep, search: Search, failures: list[str]) -> None:
    """Name the best member of a search, export its policy, and write curriculum and report."""
    home, members = search.home, states(search)
    failures += [f"{x.name} ({x.ending})" for x in members if x.ending == "failed"]
    if best := best_member(members):
        write_whole(home / BEST, f"{best.name}\n".encode())
        print(f"best of {len(members)}: {best.name}, {search.section.goal} {best.score[0]:.3f}")
        if search.section.name == "pbt":
            write_curriculum(search, best.name)
        if not exports(search.words):
            export(home / best.name)
    if sweep.cfg.report:
        compare(home)
    size = sum(x.stat().st_size for x in home.rglob("*") if x.is_file()) / 1e6
    steps = sum(x.iteration for x in members) * search.cfg.num_envs * search.cfg.num_steps
    seconds = sum(x.cpu_s for x in members)
    print(f"{steps / 1e6:.3g} M samples, {seconds:.0f} processor seconds, {size:.3g} MB in {home}")
    if failures:
        errors.exit_with_error(f"{len(failures)} failed: {', '.join(failures)}", 1)


def write_curriculum(search: Search, name: str) -> None:
    """Write the schedule of the best member as a curriculum, with the command that repeats it."""
    rows = {x: Rows(search.home / x / ROWS).read() for x in search.numbers}
    found = lineage(rows, name)
    plan = schedule(found)
    values = {key: x for key, x in found[0][1].items() if key not in plan}
    words = [*search.base, *(f"{key}={x}" for key, x in values.items())]
    words += [f"curriculum={json.dumps(plan)}".replace('"', "")] if plan else []
    line = f"{program('train')} {shlex.join(words)}"
    file = search.home / "curriculum.yaml"
    text = f"# {line}\n{yaml.safe_dump({'curriculum': plan}, sort_keys=False)}"
    write_whole(file, text.encode())
    print(f"its schedule is {file}; one training repeats it: {line}", flush=True)


def run(sweep: Sweep) -> None:
    """Train with every combination of the listed values, and compare the runs.

    Exits with 1 if a training failed, and with 128 + n if signal n stopped one.
    """
    # as ProcessGroup reads them: that loads torch
    several, first = "WORLD_SIZE" in os.environ, os.environ.get("RANK", "0") == "0"
    if several and (sweep.cfg.jobs > 1 or sweep.launcher):
        errors.exit_with_error("torchrun's processes train one policy at a time: leave out jobs=")
    more = [] if exports(sweep.words) else ["export=none"]  # the best one is exported at the end
    lines = enumerate(sweep.lines)
    jobs = [Job(i, [*more, *line], run_name(line, sweep.lists)) for i, line in lines]
    with errors.one_line_errors():
        home = make_home(sweep) if first else None
        places = len(jobs) if sweep.launcher and sweep.cfg.jobs == 1 else sweep.cfg.jobs
        start = starter(sweep, home, places := min(places, len(jobs)), new=True)
    caught = train_all(jobs, home, places, start)
    for path in home.iterdir() if home else ():
        with suppress(OSError):  # of a training that wrote nothing, such as with plan=true
            path.rmdir()
    if home and any(map(scores_of, jobs)):
        print(table(jobs), flush=True)
    if home and not caught and not exports(sweep.words):
        export_best(jobs)
    if home and sweep.cfg.report and not caught:
        compare(home)
    if failures := [f"{job.name} ({job.failure})" for job in jobs if job.failure]:
        says = f"{len(failures)} of {len(jobs)} runs {'were stopped' if caught else 'failed'}"
        errors.exit_with_error(f"{says}: {', '.join(failures)}", 128 + caught if caught else 1)


# Why: docs/decisions/configuration.md
def make_home(sweep: Sweep) -> Path:
    """The directory of a new multirun, with search.yaml, which says what is swept."""
    home = new_directory(Path(f"runs/multirun/{datetime.now():%Y-%m-%d_%H-%M-%S}"))
    summary = {"words": sweep.words, "swept": sweep.lists}
    write_whole(home / SEARCH, yaml.safe_dump(summary, allow_unicode=True).encode())
    return home


def train_all(
    jobs: list[Job],
    home: Path | None,
    places: int,
    start: Start,
    shown: Callable[[], int] = lambda: 0,
) -> int:
    """Train until all have ended, or all that had begun after a signal: its number, or 0.

    One that cannot be started has failed, and the next ones go on. At most `places` run at once. A
    place of a search that was killed starts again; one that fails ends the search.

    shown: called often; returns how much all members have done.
    """
    waiting, running, broken = [*jobs], dict[int, tuple[Job, Process]](), False
    with Signals(lambda *_: None) as signals:
        while (waiting or running) and not signals.caught and not broken:
            for place in sorted({*range(places)} - running.keys())[: len(waiting)]:
                job = waiting.pop(0)
                try:
                    prepare(job, home)
                    running[place] = job, start(job, place)
                except (ValueError, OSError) as error:
                    job.failure = errors.reason(error)
            collect(running)
            done = shown()
            for job in [x for x in jobs if x.program and x.failure not in ("", "not begun")]:
                job.restarts = 0 if done > job.done else job.restarts + 1
                if "signal" not in job.failure or job.restarts > RESTARTS or signals.caught:
                    waiting, broken = [], True  # others would wait for its members
                    continue
                errors.warn(f"{job.name} was {job.failure}: it goes on")
                job.failure, job.done = "not begun", done
                waiting.append(job)
        for _, process in running.values():
            # not SIGINT: Ctrl-C has reached it too, and a second one would end it at once
            process.terminate()
        while running:
            collect(running)
    return signals.caught


def collect(running: dict[int, tuple[Job, Process]]) -> None:
    """Take out those that have ended, after a short while, and note how. In place."""
    time.sleep(PERIOD)
    for place, (job, process) in [*running.items()]:
        if (code := process.poll()) is not None:
            cause = f"ended by signal {-code}" if code < 0 else f"exit code {code}"
            job.failure = cause if code else ""
            del running[place]


def prepare(job: Job, home: Path | None) -> None:
    """Make the directory of a training in `home`, and name it in its words. In place.

    A run that is continued, or has a run_dir, stays where it is; without `home` another process of
    torchrun makes it. ValueError or OSError in one line.
    """
    if job.program:
        return
    cfg = find_earlier_run(compose_plain("config", job.overrides), named(job.overrides))
    chosen = cfg["resume"] or cfg["run_dir"]
    job.path = Path(str(chosen)) if chosen else None
    if home is None or cfg["resume"]:
        return
    if cfg["log"]["group"] is None:
        job.overrides = [*job.overrides, quoted("log.group", Path(home.name))]
    if not cfg["run_dir"]:
        job.path = path = new_directory(home / job.name)
        job.name, job.overrides = path.name, [*job.overrides, quoted("run_dir", path)]


def command(job: Job, **variables: str) -> list[str]:
    """The command line that trains, with variables of its environment."""
    variables["PYTHONPATH"] = search_path()
    train = INSTALLED if Path(sys.argv[0]).name.startswith("gpusim") else PROGRAM
    words = [*(job.program or train), *job.overrides]
    return ["env", *(f"{name}={x}" for name, x in variables.items()), *words]


def starter(sweep: Sweep, home: Path | None, places: int, new: bool) -> Start:
    """What starts trainings; ValueError if there is no such cluster: a new directory is removed."""
    if not home or not sweep.launcher:
        return on_this_machine(sweep)
    try:
        submit = submitter(sweep, home, places)
    except ValueError:
        if new:
            shutil.rmtree(home)
        raise
    return lambda job, _: submit(command(job), job.name)


def on_this_machine(sweep: Sweep) -> Start:
    """Starts trainings as processes. Several at once take the CUDA devices in turn."""
    several = sweep.cfg.jobs > 1
    devices = visible_devices() if several and sweep.cfg.device in ("auto", "cuda") else []

    def start(job: Job, place: int) -> Process:
        variables = {"PYTHONUNBUFFERED": "1"}  # else lines come in blocks
        if len(devices) > 1:
            variables["CUDA_VISIBLE_DEVICES"] = devices[place % len(devices)]
        if restarts := os.environ.get("TORCHELASTIC_RESTART_COUNT"):
            # torchrun's store outlives a training: the next one meets there under another number
            number = int(restarts) * MAX_RUNS + job.number
            variables["TORCHELASTIC_RESTART_COUNT"] = str(number)
        return Child(command(job, **variables), job.name if several else "")

    return start


def visible_devices() -> list[str]:
    if names := os.environ.get("CUDA_VISIBLE_DEVICES"):
        return names.split(",")
    import torch

    return [str(i) for i in range(torch.cuda.device_count())]


def exports(overrides: list[str]) -> bool:
    """Whether the words of a multirun say themselves which trainings export a policy."""
    return any(word.startswith(("export=", "gate=", "plan=")) for word in overrides)


def scores_of(job: Job) -> dict[str, float | None]:
    """The scores that `table` shows, None if unknown; empty if a training was not evaluated."""
    scores = read_json(job.path / "eval.json") if job.path and not job.failure else {}
    return {name: number(scores.get(name)) for name in SHOWN} if scores else {}


def table(jobs: list[Job]) -> str:
    """The trainings side by side: what differs, their scores, and the time of each [s]."""
    width = max(len(job.name) for job in jobs)
    lines = [f"{'run':{width}}{''.join(f'{name:>12}' for name in SHOWN.values())}"]
    for job in jobs:
        values = ["unknown" if x is None else f"{x:.3f}" for x in scores_of(job).values()]
        cells = "".join(f"{x:>12}" for x in values)
        ending = cells or f"  {job.failure or 'not evaluated'}"
        lines.append(f"{job.name:{width}}{ending}")
    return "\n".join(lines)


def export_best(jobs: list[Job]) -> None:
    """Export the policy of the run with the largest success, then return, in a process of its own.

    One line says which it is. Nothing is done if no run was evaluated.
    """
    best, path, highest = "", None, (-math.inf, -math.inf)
    for job in jobs:
        values = (scores_of(job).get(name) for name in ("success", "return"))
        if (order := tuple(-math.inf if x is None else x for x in values)) > highest:
            best, path, highest = job.name, job.path, order
    if path is None:
        return
    success = f"{highest[0]:.3f}" if math.isfinite(highest[0]) else "unknown"
    print(f"best of {len(jobs)}: {best}, success {success}", flush=True)
    export(path)


def export(path: Path) -> None:
    """Export the policy of a run, in a process of its own; one line if that cannot be."""
    overrides = [quoted("run", path), "mode=export", *code_words(Run(path).config)]
    variables = {name: x for name, x in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    variables["PYTHONPATH"] = search_path()
    if subprocess.call([*EXPORT, *overrides], env=variables):
        errors.warn(f"the policy of {path} could not be exported")


def compare(home: Path) -> None:
    """Write the report of all runs in the directory of a multirun."""
    from gpusim_rl.report import command as report

    runs = [file.parent for file in sorted(home.glob("*/config.yaml"))]
    if len(runs) > 1 and report.write_or_warn(runs, home / "report.html"):
        print(f"wrote {home}/report.html, which compares {len(runs)} runs")
