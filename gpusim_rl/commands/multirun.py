"""Several trainings by one command: `train.py -m seed=1,2,3 algo.gamma=0.97,0.99 jobs=2`.

Each combination of the listed values is a training in a process of its own, as if somebody had
typed its command line: `train.py seed=2 algo.gamma=0.99 run_dir=…`. `jobs` of them run at once, on
this machine or as jobs of Slurm. One that fails does not end the others.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from threading import Thread
from typing import IO, Any, NoReturn, Protocol

import yaml

from gpusim_rl.config.command_line import MAX_RUNS, Sweep, run_name
from gpusim_rl.config.compose import compose_plain, named
from gpusim_rl.config.resume import find_earlier_run
from gpusim_rl.core import errors
from gpusim_rl.core.files import new_directory, write_whole
from gpusim_rl.core.paths import PACKAGE, program, quoted
from gpusim_rl.runs.run import Run
from gpusim_rl.training.signals import Signals

# -P: no module comes from the working directory
PROGRAM = (sys.executable, "-P", "-m", "gpusim_rl.commands.train")
LOOK = 0.1  # s between two looks at the processes
DRAIN = 5.0  # s; a process that a training has left behind may keep its output open
COMMON = (  # resources that submitit has on every cluster; the others are Slurm's
    *("name", "timeout_min", "mem_gb", "nodes", "cpus_per_task", "gpus_per_node"),
    *("tasks_per_node", "stderr_to_stdout"),
)
ENDS = "begins no other training; those that run end after a checkpoint"


class Process(Protocol):
    """A training that runs."""

    def poll(self) -> int | None:
        """Its exit code, or None while it runs."""
        ...

    def terminate(self) -> None:
        """Let it end after its iteration and a checkpoint."""
        ...


@dataclass
class Job:
    """One training of a multirun.

    Args:
        number: among all, from 0.
        words: of its command line.
        name: of its directory.
        path: its run directory; None if another process of torchrun makes that.
        device: as in its configuration; empty until `prepare`.
        failure: how it ended, if not well.
    """

    number: int
    words: list[str]
    name: str
    path: Path | None = None
    device: str = ""
    failure: str = ""


Start = Callable[[Job, int], Process]  # starts a training in a place, numbered from 0


class Child:
    """A training in a process of this machine.

    Args:
        command: its program and words.
        name: what each of its lines begins with; empty: it has the terminal, with the live table.
    """

    def __init__(self, command: list[str], name: str):
        pipe = subprocess.PIPE if name else None
        self.process = subprocess.Popen(
            command, stdout=pipe, stderr=pipe, text=True, errors="replace"
        )
        streams = (self.process.stdout, sys.stdout), (self.process.stderr, sys.stderr)
        self.threads = [
            Thread(target=copy_lines, args=(source, target, name), daemon=True)
            for source, target in streams
            if source
        ]
        for thread in self.threads:
            thread.start()

    def poll(self) -> int | None:
        """Its exit code, after its last lines are printed; None while it runs."""
        code = self.process.poll()
        for thread in self.threads if code is not None else ():
            thread.join(DRAIN)
        return code

    def terminate(self) -> None:
        """Send SIGTERM: Ctrl-C has reached it too, and a second SIGINT would end it at once."""
        self.process.terminate()


def copy_lines(source: IO[str], target: IO[str], name: str) -> None:
    """Print all lines of a process, with its name before each."""
    with suppress(OSError), source:  # the process notices that nobody reads any more
        for line in source:
            target.write(f"{name}: {line.rstrip()}\n")
            target.flush()


class ClusterJob:
    """A training that submitit has handed to a cluster.

    Args:
        job: of submitit.
        name: of the training.
    """

    def __init__(self, job: Any, name: str):
        self.job, self.name = job, name
        print(f"{name}: job {job.job_id}, its output is {job.paths.stdout}", flush=True)

    def poll(self) -> int | None:
        """Its exit code, 1 if the cluster ended it, or None while it waits or runs."""
        if not self.job.done():
            return None
        try:
            return self.job.result()
        except Exception as error:  # submitit has several, and some of its own plugins'
            errors.warn(f"{self.name}: {errors.reason(error)}")
            return 1

    def terminate(self) -> None:
        """Cancel it: Slurm sends SIGTERM."""
        self.job.cancel(check=False)


@dataclass
class Queue:
    """The trainings of a multirun: those that wait, those that run, and those that have ended.

    Args:
        waiting: those that have not begun, in order; each gets its directory by `prepare`.
        places: how many may run at once.
        prepare: makes the directory of a training.
        start: starts one.
    """

    waiting: list[Job]
    places: int
    prepare: Callable[[Job], None]
    start: Start
    running: dict[int, tuple[Job, Process]] = field(default_factory=dict)
    ended: list[Job] = field(default_factory=list)

    def run(self) -> int:
        """Train until all have ended, or all that had begun after a signal: its number, or 0."""
        ending = False
        with Signals(lambda *_: None, ENDS) as signals:
            while self.running or (self.waiting and not signals.caught):
                for place in range(self.places):
                    if self.waiting and place not in self.running and not signals.caught:
                        self.begin(self.waiting.pop(0), place)
                time.sleep(LOOK)
                if signals.caught and not ending:
                    ending = True
                    for _, process in self.running.values():
                        process.terminate()
                self.collect()
        return signals.caught

    def begin(self, job: Job, place: int) -> None:
        """Start a training. One that cannot be started has failed, and the next ones go on."""
        try:
            self.prepare(job)
            self.running[place] = job, self.start(job, place)
        except (ValueError, OSError) as error:
            job.failure = errors.reason(error)
            self.ended.append(job)

    def collect(self) -> None:
        """Note how those have ended that run no more."""
        for place, (job, process) in [*self.running.items()]:
            if (code := process.poll()) is None:
                continue
            del self.running[place]
            self.ended.append(job)
            if code < 0:
                job.failure = f"ended by signal {-code}, {signal.strsignal(-code)}"
            elif code:
                job.failure = f"exit code {code}"
            # a training that wrote nothing, such as with plan=true, leaves no directory
            if job.path:
                with suppress(OSError):
                    job.path.rmdir()


def run(sweep: Sweep) -> None:
    """Train with every combination of the listed values, and compare the runs.

    Exits with 1 if a training failed, and with 128 + n after signal n.
    """
    # as ProcessGroup reads them: that loads torch
    several, first = "WORLD_SIZE" in os.environ, os.environ.get("RANK", "0") == "0"
    if several and (sweep.jobs > 1 or sweep.launcher):
        errors.exit_with_error("torchrun's processes train one policy at a time: leave out jobs=")
    jobs = [Job(i, line, run_name(line, sweep.lists)) for i, line in enumerate(sweep.lines)]
    with errors.one_line_errors():
        home = make_home(sweep) if first else None
        start = on_cluster(sweep, home) if home and sweep.launcher else on_this_machine(sweep)
    places = len(jobs) if sweep.launcher and sweep.jobs == 1 else min(sweep.jobs, len(jobs))
    queue = Queue(jobs, places, partial(prepare, home=home), start)
    if caught := queue.run():
        exit_stopped(queue, caught)
    if home and sweep.report:
        compare(home)
    ended = sorted(queue.ended, key=lambda job: job.number)
    if failures := [f"{job.name} ({job.failure})" for job in ended if job.failure]:
        count = f"{len(failures)} of {len(ended)} runs failed"
        errors.exit_with_error(f"{count}: {', '.join(failures)}", 1)


def make_home(sweep: Sweep) -> Path:
    """The directory of a new multirun, with multirun.yaml, which says what is swept."""
    home = new_directory(Path(f"runs/multirun/{datetime.now():%Y-%m-%d_%H-%M-%S}"))
    about = {"words": sweep.words, "swept": sweep.lists}
    write_whole(home / "multirun.yaml", yaml.safe_dump(about, allow_unicode=True).encode())
    return home


def prepare(job: Job, home: Path | None) -> None:
    """Make the directory of a training, and name it in its words. In place.

    A run that is continued, or has a run_dir, stays where it is. ValueError or OSError in one line.
    """
    cfg = find_earlier_run(compose_plain("config", job.words), named(job.words))
    job.device = cfg["device"]
    if home is None:
        return
    if cfg["resume"]:
        job.path = Path(cfg["resume"])
        return
    if cfg["log"]["group"] is None:
        job.words = [*job.words, quoted("log.group", Path(home.name))]
    if cfg["run_dir"]:
        job.path = Path(cfg["run_dir"])
        return
    job.path = new_directory(home / job.name)
    job.name = job.path.name
    job.words = [*job.words, quoted("run_dir", job.path)]


def command(job: Job, **variables: str) -> list[str]:
    """The command line that trains, with variables of its environment."""
    paths = [str(PACKAGE.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    variables["PYTHONPATH"] = os.pathsep.join(paths)
    return ["env", *(f"{name}={x}" for name, x in variables.items()), *PROGRAM, *job.words]


def on_this_machine(sweep: Sweep) -> Start:
    """Starts trainings as processes. Several at once take the CUDA devices in turn."""
    devices = visible_devices() if sweep.jobs > 1 else []

    def start(job: Job, place: int) -> Process:
        variables = {"PYTHONUNBUFFERED": "1"}  # else lines come in blocks
        if len(devices) > 1 and job.device in ("auto", "cuda"):
            variables["CUDA_VISIBLE_DEVICES"] = devices[place % len(devices)]
        if restarts := os.environ.get("TORCHELASTIC_RESTART_COUNT"):
            # torchrun's store outlives a training: the next one meets there under another number
            number = int(restarts) * MAX_RUNS + job.number
            variables["TORCHELASTIC_RESTART_COUNT"] = str(number)
        return Child(command(job, **variables), job.name if sweep.jobs > 1 else "")

    return start


def visible_devices() -> list[str]:
    """The CUDA devices, as CUDA_VISIBLE_DEVICES names them."""
    if names := os.environ.get("CUDA_VISIBLE_DEVICES"):
        return names.split(",")
    import torch

    return [str(i) for i in range(torch.cuda.device_count())]


def on_cluster(sweep: Sweep, home: Path) -> Start:
    """Starts trainings as jobs of a cluster, whose output goes to files in `home`.

    ValueError in one line if submitit finds no cluster, or refuses a resource.
    """
    import submitit  # pyright: ignore

    try:
        cluster = sweep.launcher.removeprefix("submitit_")
        executor = submitit.AutoExecutor(folder=home / "cluster", cluster=cluster)
        executor.update_parameters(
            **{key if key in COMMON else f"slurm_{key}": x for key, x in sweep.resources.items()}
        )
    except Exception as error:
        shutil.rmtree(home)
        raise ValueError(f"hydra/launcher={sweep.launcher}: {errors.reason(error)}") from None
    return lambda job, place: ClusterJob(executor.submit(subprocess.call, command(job)), job.name)


def compare(home: Path) -> None:
    """Write the report of all runs in the directory of a multirun."""
    from gpusim_rl.report import command as report

    runs = [file.parent for file in sorted(home.glob("*/config.yaml"))]
    if len(runs) > 1 and report.write_or_warn(runs, home / "report.html"):
        print(f"wrote {home}/report.html, which compares {len(runs)} runs")


def exit_stopped(queue: Queue, caught: int) -> NoReturn:
    """Say how the runs continue that a signal has stopped, and which have not begun; then exit."""
    ended = sorted(queue.ended, key=lambda job: job.number)
    stopped = [job.path for job in ended if job.failure and job.path]
    paths = [str(path) for path in stopped if Run(path).checkpoints.saved()]
    says = "stopped"
    if paths:
        option = "-m " if len(paths) > 1 else ""
        says += f"; {program('train')} {option}resume={','.join(paths)} continues"
    if queue.waiting:
        says += f"; not begun: {', '.join(job.name for job in queue.waiting)}"
    print(says)
    raise SystemExit(128 + caught)
