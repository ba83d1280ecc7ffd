"""What a training takes of its machine is in its rows, and in a file that Prometheus can read."""

import re
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from prometheus_client.parser import text_string_to_metric_families

from gpusim_rl.identify import drift
from gpusim_rl.identify.estimates import Estimate
from gpusim_rl.runs import writer
from gpusim_rl.runs.run import Run
from gpusim_rl.serve.metrics import Metrics
from gpusim_rl.training.machine import Machine, prometheus_text
from gpusim_rl.training.trainer import Trainer
from tests.command_lines import TINY
from tests.docs.examples import files
from tests.worlds import ROOT, make_config

CPU = torch.device("cpu")
GPU = {"busy_share": 0.75, "memory_bytes": 2e9, "temperature_celsius": 61}


@pytest.fixture
def machine(tmp_path) -> Machine:
    """That of a new run."""
    return Machine(Run.create(tmp_path / "run", {}), "quadruped", CPU)


def samples(content: str) -> dict[tuple[str, str], float]:
    """(name, its label `name`) → value, as Prometheus' own parser reads them."""
    families = text_string_to_metric_families(content)
    return {(x.name, x.labels.get("name", "")): x.value for y in families for x in y.samples}


def promtool(*words: str, given: str = "") -> None:
    """Let promtool check something, where it is installed."""
    if program := shutil.which("promtool"):
        done = subprocess.run([program, *words], input=given, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def test_a_training_reports_its_machine(tmp_path, monkeypatch):
    """The thread that writes reads; each reading is in one row, the last row in the file."""
    monkeypatch.setattr(writer, "PERIOD", 0.01)
    threads = set()
    read = Machine.read

    def noted(self: Machine) -> None:
        threads.add(threading.current_thread().name)
        read(self)

    monkeypatch.setattr(Machine, "read", noted)
    words = ("task=quadruped", *TINY, "log=none", "iterations=6", f"run_dir={tmp_path / 'run'}")
    trainer = Trainer(make_config(*words))
    meanwhile: dict[Any, float] = {}
    for row in trainer.steps():
        time.sleep(0.03)  # so that the thread has its turn
        if row["iteration"] == 4:
            meanwhile = samples((tmp_path / "run" / "metrics.prom").read_text())
    trainer.close()
    assert threads == {"checkpoint writer"}
    rows = Run(tmp_path / "run").rows()
    keys = [{key for key in row if key.startswith("system/")} for row in rows]
    parts = {f"system/{x}" for x in ("cpu_share", "memory_share", "process_bytes")}
    assert any(keys) and all(not x or x == parts | {"system/disk_free_bytes"} for x in keys)
    content = (tmp_path / "run" / "metrics.prom").read_text()
    promtool("check", "metrics", given=content)
    last = samples(content)
    assert meanwhile["gpusim_running", ""] == 1 and last["gpusim_running", ""] == 0
    assert last["gpusim_iteration", ""] == 6
    assert last["gpusim_reward", "action_rate"] == pytest.approx(rows[-1]["reward/action_rate"])
    assert 1e7 < last["gpusim_system_process_bytes", ""] < 1e11


def test_a_reading_is_in_one_row(tmp_path, machine):
    """The first call only begins the interval; a reading is in the next row, and not in two."""
    row: dict[str, float] = {"iteration": 1, "return": 2.0}
    machine.read()
    machine.log(row)
    assert set(row) == {"iteration", "return"}
    machine.read()
    rows: list[dict[str, float]] = [{"iteration": i} for i in (2, 3)]
    for one in rows:
        machine.log(one)
    assert 0 < rows[0]["system/memory_share"] < 1 and set(rows[1]) == {"iteration"}
    machine.write(running=True)
    last = samples((tmp_path / "run" / "metrics.prom").read_text())
    assert (last["gpusim_return", ""], last["gpusim_iteration", ""]) == (2, 3)
    assert abs(last["gpusim_written_timestamp_seconds", ""] - time.time()) < 60


def test_a_reading_is_taken_whole(tmp_path, monkeypatch, machine):
    """A row that is logged meanwhile has the reading of before; the file has both."""
    machine.read()
    machine.read()
    row: dict[str, float] = {"iteration": 1}

    def meanwhile() -> float:
        machine.log(row)
        return 61.0

    machine.gpu = {"power_watts": lambda: 9.0, "temperature_celsius": meanwhile}
    machine.read()
    assert len(row) == 5 and not any("gpu" in name for name in row)
    last = samples((tmp_path / "run" / "metrics.prom").read_text())
    assert last["gpusim_iteration", ""] == 1 and last["gpusim_system_gpu_power_watts", ""] == 9
    machine.log(later := {"iteration": 2})
    assert later["system/gpu_temperature_celsius"] == 61


def test_a_metric_that_is_no_number_hides_no_error(tmp_path, machine):
    """The file is written as a training fails, so its own error must not take the place."""
    words: Any = {"iteration": 1, "mine": "high"}
    machine.log(words)
    machine.write(running=False)
    assert not (tmp_path / "run" / "metrics.prom").exists()


def test_a_directory_that_is_gone_ends_nothing(tmp_path, machine):
    """Neither a removed directory nor one that is another run's gets a file."""
    shutil.rmtree(tmp_path / "run")
    machine.write(running=True)
    other = Run.create(tmp_path / "run", {})
    machine.write(running=True)
    assert not (other.path / "metrics.prom").exists()


def test_names_of_strangers():
    """Any name and any value of a row is in Prometheus' format; a group has one head."""
    row = {"reward/a b": 1.0, 'reward/"\\\n': -2.5, "mine ü": float("nan"), "time_s": 3}
    row |= {"steps_per_s": float("inf"), "system/gpu_busy_share": 0.5}
    content = prometheus_text(row, {"run": 'a"b\\c', "task": "t"})
    assert content.count("# TYPE gpusim_reward gauge") == 1
    read = samples(content)
    assert read["gpusim_reward", '"\\\n'] == -2.5 and read["gpusim_reward", "a b"] == 1
    assert read["gpusim_time_seconds", ""] == 3 and read["gpusim_system_gpu_busy_share", ""] == 0.5
    assert read["gpusim_steps_per_second", ""] == float("inf")
    (label,) = {x.labels["run"] for y in text_string_to_metric_families(content) for x in y.samples}
    assert label == 'a"b\\c'


def nvml(**failing: Any) -> Any:
    """What stands in for NVML on a machine without a card."""

    def no_power(card: str) -> float:
        raise RuntimeError("not supported")

    own = {
        "NVML_TEMPERATURE_GPU": 0,
        "nvmlInit": lambda: None,
        "nvmlDeviceGetHandleByUUID": lambda uuid: {"GPU-12-34": "card"}[uuid],
        "nvmlDeviceGetUtilizationRates": lambda card: SimpleNamespace(gpu=75),
        "nvmlDeviceGetMemoryInfo": lambda card: SimpleNamespace(used=2e9),
        "nvmlDeviceGetTemperature": lambda card, sensor: 61,
        "nvmlDeviceGetPowerUsage": no_power,
    }
    return SimpleNamespace(**own | failing)


def test_what_the_card_does(tmp_path, monkeypatch, capfd):
    """Readings of the training's own card, those that it has; without a driver nothing is said."""
    run = Run.create(tmp_path / "run", {})
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda _: SimpleNamespace(uuid="12-34")
    )

    def card_readings(module: Any) -> dict[str, float]:
        monkeypatch.setitem(sys.modules, "pynvml", module)
        machine = Machine(run, "quadruped", torch.device("cuda"))
        row: dict[str, float] = {"iteration": 1}
        machine.read()
        machine.read()
        machine.log(row)
        return {key.removeprefix("system/gpu_"): x for key, x in row.items() if "/gpu_" in key}

    def no_driver() -> None:
        raise OSError("NVML Shared Library Not Found")

    assert card_readings(nvml()) == GPU
    assert card_readings(nvml(nvmlInit=no_driver)) == card_readings(None) == {}
    assert capfd.readouterr() == ("", "")


def test_the_rules_name_metrics_that_there_are(tmp_path):
    """The page's rules are the example's, and name metrics that something writes."""
    path = ROOT / "docs" / "examples" / "alerts.yaml"
    assert path.read_text(encoding="utf-8") == files("docs/watching.md")["alerts.yaml"]
    promtool("check", "rules", str(path))
    server = SimpleNamespace(pools=(), sessions=0, settings={"sessions": 1})
    keys = ["iteration", "rollbacks", "steps_per_s", "running", "written_timestamp_seconds"]
    keys += [f"system/{x}" for x in ("disk_free_bytes", *map("gpu_{}".format, GPU))]
    comparison = drift.Comparison("kp", Estimate(1.3, 0.1), (0.9, 1.1))
    drift.write_metrics(tmp_path / "drift.prom", [comparison], {})
    content = prometheus_text(dict.fromkeys(keys, 1.0), {}) + Metrics(server).text()
    content += (tmp_path / "drift.prom").read_text()
    names = {name for name, _ in samples(content)}
    rules = [x for y in yaml.safe_load(path.read_text())["groups"] for x in y["rules"]]
    assert len(rules) >= 10
    for rule in rules:
        used = set(re.findall(r"gpusim_\w+", rule["expr"]))
        assert used and used <= names and rule["annotations"]["summary"], rule


def test_the_page_lists_the_readings():
    """docs/watching.md names each reading of the machine, and no other."""
    page = Path(ROOT / "docs" / "watching.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^\| `system/(\w+)` \|", page, re.MULTILINE))
    code = Path(ROOT / "gpusim_rl" / "training" / "machine.py").read_text(encoding="utf-8")
    cards = {f"gpu_{name}" for name in re.findall(r'^        "(\w+)": ', code, re.MULTILINE)}
    assert listed == set(re.findall(r'"system/(\w+)": ', code)) | cards
