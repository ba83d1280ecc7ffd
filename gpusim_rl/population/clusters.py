"""Trainings as jobs of Slurm, by submitit, or on the machines of a Ray (https://docs.ray.io)."""

import atexit
import ctypes
import math
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpusim_rl.config.command_line import Sweep
from gpusim_rl.core import errors

Submit = Callable[[list[str], str], "SlurmJob | RayJob"]  # command line and name → what it became
COMMON = (  # resources that submitit has on every cluster; the others are Slurm's
    *("name", "timeout_min", "mem_gb", "nodes", "cpus_per_task", "gpus_per_node"),
    *("tasks_per_node", "stderr_to_stdout"),
)
RESOURCES = ("num_cpus", "num_gpus")  # of a job of Ray
PATIENCE = 60  # s that a job waits for a machine before a line says so
PR_SET_PDEATHSIG = 1  # linux/prctl.h


class SlurmJob:
    """A training that submitit has handed to a cluster as its `job`."""

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


class CommandLine:
    """What a process of Ray does: run a command line, which ends with that process.

    folder: to work in; output: a file. All machines see both.
    """

    cores = 1

    def __init__(self, command: list[str], folder: str, output: str):
        prctl = ctypes.CDLL(None).prctl
        with open(output, "ab") as file:
            self.process = subprocess.Popen(
                command,
                cwd=folder,
                stdout=file,
                stderr=subprocess.STDOUT,
                # a training whose command was killed would go on without anybody
                preexec_fn=lambda: prctl(PR_SET_PDEATHSIG, signal.SIGKILL),
            )

    def identity(self) -> dict[str, str]:
        """As an `Actor` has it: there is nothing that must be the same."""
        return {}

    def poll(self) -> int | None:
        """Its exit code; None while it runs."""
        return self.process.poll()

    def terminate(self) -> None:
        """Let it end after a checkpoint."""
        self.process.terminate()


class RayJob:
    """A training on a machine of Ray's, as a process that `engine` has started."""

    def __init__(self, engine: Any, process: Any, begun: Any, output: Path):
        self.engine, self.process, self.begun = engine, process, begun
        self.name, self.start = output.stem, time.monotonic()
        print(f"{output.stem}: its output is {output}", flush=True)

    def ask(self, method: str) -> int | None:
        """What `CommandLine` answers; -SIGKILL if its process or its machine is gone."""
        from gpusim_rl.cluster.engine import ProcessLost

        if not self.engine.ready([self.begun], wait=False):
            if time.monotonic() > self.start + PATIENCE:
                errors.warn_once(f"{self.name} waits for a core of Ray, or for what else it asked")
            return None
        try:
            self.engine.get(self.begun)
            return self.engine.get(self.engine.call(self.process, method))
        except ProcessLost:
            return -signal.SIGKILL
        except (ValueError, OSError) as error:  # such as a folder that its machine does not see
            errors.warn(f"{self.name}: {errors.reason(error)}")
            return 1

    def poll(self) -> int | None:
        """Its exit code, less than 0 if its machine is gone; None while it waits or runs."""
        if (code := self.ask("poll")) is not None:
            self.engine.end(self.process)  # its core is free for the next one
        return code

    def terminate(self) -> None:
        """Let it end after a checkpoint, or take it back if it has not begun."""
        if self.engine.ready([self.begun], wait=False):
            self.ask("terminate")
        else:
            self.engine.end(self.process)


def submitter(sweep: Sweep, home: Path, places: int) -> Submit:
    """What hands command lines to a cluster; their output goes to files in `home`.

    ValueError in one line if there is no such cluster, or a resource is refused.
    """
    if sweep.launcher == "ray":
        return on_ray(sweep.resources, home, places)
    import submitit  # pyright: ignore

    try:
        cluster = sweep.launcher.removeprefix("submitit_")
        executor = submitit.AutoExecutor(folder=home / "cluster", cluster=cluster)
        executor.update_parameters(
            **{key if key in COMMON else f"slurm_{key}": x for key, x in sweep.resources.items()}
        )
    except Exception as error:  # submitit has several, and some of its own plugins'
        raise ValueError(f"hydra/launcher={sweep.launcher}: {errors.reason(error)}") from None
    return lambda command, name: SlurmJob(executor.submit(subprocess.call, command), name)


def on_ray(resources: dict[str, Any], home: Path, places: int) -> Submit:
    """Runs command lines on the machines of a Ray that runs at `address`, or of one started here.

    A job whose machine is lost counts as killed.
    """
    from gpusim_rl.cluster.engine import Engine

    address = resources.pop("address", None)
    for key, x in resources.items():
        if key not in RESOURCES or not isinstance(x, int | float) or x < 0:
            what = f"hydra.launcher.{key}={x}"
            raise ValueError(f"{what}: Ray has address and the numbers {', '.join(RESOURCES)}")
    cores = resources.get("num_cpus", CommandLine.cores)
    try:
        engine = Engine(0 if address else math.ceil(places * cores), address)
    except ValueError as error:
        raise ValueError(str(error).replace("cluster.", "hydra.launcher.", 1)) from None
    atexit.register(engine.close)
    there = engine.ray.cluster_resources()
    for name, asked in {"CPU": cores, "GPU": resources.get("num_gpus", 0)}.items():
        if places * asked > (has := there.get(name, 0)):
            what = f"jobs={places} need {places * asked:g} {name} at once"
            raise ValueError(f"hydra/launcher=ray: {what}, its machines have {has:g}")
    folder = home.resolve() / "cluster"
    folder.mkdir(exist_ok=True)

    def submit(command: list[str], name: str) -> RayJob:
        output = folder / f"{name}.log"
        words = command, os.getcwd(), str(output)
        return RayJob(engine, *engine.start(CommandLine, {}, *words, **resources), output)

    return submit
