"""What a training takes of its machine, and its newest metrics as a file for Prometheus.

docs/watching.md says who reads it.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import Any

import psutil
import torch

from gpusim_rl.core.files import Plain, write_whole
from gpusim_rl.runs.run import Run
from gpusim_rl.training.dashboard import Row

FILE = "metrics.prom"
GROUP = "system/"  # of the readings' names, whose units stand in them
UNITS = {"time_s": "time_seconds", "steps_per_s": "steps_per_second"}  # as Prometheus writes them


class Machine:
    """Readings of the machine and of a device, and a file with the newest metrics of a training."""

    def __init__(self, run: Run, task: str, device: torch.device):
        self.run, self.process = run, psutil.Process()
        self.labels = {"run": str(run.path), "task": task}
        self.gpu = gpu_readings(device)
        # each is assigned whole, and by one thread: the first by that of `read`
        self.reading: Row = {}
        self.row: Row = {}  # all newest metrics of rows
        self.logged = self.reading  # the last reading that is in a row
        self.begun = False

    def read(self) -> None:
        """Take a reading, and write the file. Another thread than the training's does this."""
        share = psutil.cpu_percent() / 100  # since the call before, of this thread
        if self.begun:
            reading: Row = {
                "system/cpu_share": share,
                "system/memory_share": psutil.virtual_memory().percent / 100,
                "system/process_bytes": self.process.memory_info().rss,
                "system/disk_free_bytes": psutil.disk_usage(str(self.run.path)).free,
            }
            for name, read in self.gpu.items():
                with suppress(Exception):  # a part of a card, say, has no power of its own
                    reading[f"system/gpu_{name}"] = read()
            self.reading = reading
        self.begun = True
        self.write(running=True)

    def log(self, row: Row) -> None:
        """Take a row of metrics, and add the last reading to it if that is new. In place."""
        reading = self.reading
        if reading is not self.logged:
            row |= reading
            self.logged = reading
        self.row = self.row | row

    def write(self, running: bool) -> None:
        """Write the file, unless the disk is full or the directory is another run's."""
        row = self.row | self.reading
        row |= {"running": running, "written_timestamp_seconds": time.time()}
        # as a training fails, an error of this file would hide the training's own
        with suppress(Exception):
            self.run.check_lock()
            write_whole(self.run.path / FILE, prometheus_text(row, self.labels).encode())


def gpu_readings(device: torch.device) -> dict[str, Callable[[], float]]:
    """Name of a reading → what takes it from NVML; {} on a CPU, or where NVML is not to be had."""
    if device.type != "cuda":
        return {}
    try:
        nvml: Any = import_module("pynvml")  # of nvidia-ml-py
        nvml.nvmlInit()
        uuid = torch.cuda.get_device_properties(device).uuid
        card = nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
    except Exception:  # no package, no driver, or a part of a card: there is nothing to read
        return {}
    temperature = partial(nvml.nvmlDeviceGetTemperature, card, nvml.NVML_TEMPERATURE_GPU)
    return {
        "busy_share": lambda: nvml.nvmlDeviceGetUtilizationRates(card).gpu / 100,
        "memory_bytes": lambda: nvml.nvmlDeviceGetMemoryInfo(card).used,
        "power_watts": lambda: nvml.nvmlDeviceGetPowerUsage(card) / 1000,
        "temperature_celsius": temperature,
    }


# Why: docs/decisions/metrics.md
def prometheus_text(
    row: Plain, labels: dict[str, str], source: str = "metrics.jsonl of a training"
) -> str:
    """A row of metrics in Prometheus' text format.

    A key such as `reward/up` is `gpusim_reward{name="up"}`; all metrics are gauges. Their `source`
    is their help.
    """
    families: dict[str, list[str]] = {}
    for key, value in row.items():
        name, slash, part = (key, "", "") if key.startswith(GROUP) else key.partition("/")
        name = UNITS.get(name, name)
        family = "gpusim_" + "".join(x if x.isalnum() and x.isascii() else "_" for x in name)
        # node_exporter wants the same help of all runs, so no learner's own words
        head = f"# HELP {family} from {source}\n# TYPE {family} gauge"
        pairs = (labels | ({"name": part} if slash else {})).items()
        words = ",".join(f"{label}={quote(x)}" for label, x in pairs)
        families.setdefault(family, [head]).append(f"{family}{{{words}}} {float(value)}")
    return "".join(f"{line}\n" for lines in families.values() for line in lines)


def quote(value: str) -> str:
    """The value of a label, in quotation marks."""
    escaped = value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    return f'"{escaped}"'
