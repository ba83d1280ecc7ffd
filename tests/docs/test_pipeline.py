"""The files of docs/pipeline.md: one `make` from words to a released policy, and what stops it."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import numpy as np
import pytest
import yaml

from gpusim_rl.commands import registry
from gpusim_rl.config.recipe import unlearned
from gpusim_rl.deploy.onboard.log import Log
from gpusim_rl.deploy.runtime import Policy
from gpusim_rl.identify import simulated
from tests import serving
from tests.command_lines import run_process
from tests.docs.examples import files
from tests.worlds import ROOT, check_words

FOLDER = ROOT / "docs" / "examples" / "pipeline"
SMALL = """task=quadruped iterations=2 num_envs=8 num_steps=8 algo.hidden=[16] episodes=2
task.episode=1 device=cpu threads=1 sim=native sim.threads=1 log=none report=false
"""
LAX = """gate.robots=2 gate.seconds=1 gate.endurance.robots=1 gate.endurance.minutes=0.02
gate.limits.success=0 gate.limits.tracking=0 gate.limits.falls=1 gate.limits.endurance_falls=1e6
gate.limits.velocity=9 gate.limits.turn=9 gate.limits.torque=1 gate.limits.joint=1
gate.limits.speed=1 gate.limits.transport=1e6 gate.limits.change=9
"""
STRICT = LAX.replace("gate.limits.success=0", "gate.limits.success=0.99")


def make(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Call make in a directory, with the programs of this checkout."""
    line = [f"GPUSIM={sys.executable} -m gpusim_rl"]
    env = {key: x for key, x in os.environ.items() if not key.startswith(("MAKE", "MFLAGS"))}
    return run_process("make", *line, *words, cwd=folder, env=env | {"PYTHONPATH": str(ROOT)})


@pytest.fixture
def work(tmp_path) -> Path:
    """A copy of the directory."""
    return Path(shutil.copytree(FOLDER, tmp_path / "work"))


def test_the_page_shows_the_files():
    """Each file of the directory stands on the page as it is, and each of them can be read."""
    shown = files("docs/pipeline.md")
    assert shown == {file.name: file.read_text(encoding="utf-8") for file in FOLDER.iterdir()}
    stages = yaml.safe_load(shown["dvc.yaml"])["stages"]
    assert [*stages] == ["train", "gate", "register", "release"]
    run = re.findall(r"runs/pipeline-\$\((.*?)\)", shown["dvc.yaml"])
    assert run == ["cksum < train.txt | cut -d' ' -f1"] * 3  # an edit begins another run
    made = [x for stage in stages.values() for x in stage["outs"] if isinstance(x, str)]
    assert made == ["policy.onnx", "judged.onnx", "registered.json"]
    job = yaml.safe_load(shown["kubernetes.yaml"])["spec"]["template"]["spec"]
    assert job["restartPolicy"] == "OnFailure" and job["terminationGracePeriodSeconds"] >= 60
    assert yaml.safe_load(shown["osmo.yaml"])["workflow"]["tasks"]


def test_the_training_teaches_what_the_gate_judges():
    """The words of train.txt leave out nothing that a robot needs, so their policy can pass."""
    cfg = check_words(*(FOLDER / "train.txt").read_text().split())
    assert cfg.recipe["name"] == "robot" and not unlearned(cfg.recipe, cfg.plain)


def test_what_make_would_do(work):
    """It trains, judges, registers, releases; only what is older than its source again."""

    def said(*words: str) -> str:
        return make(work, "-n", *words).stdout

    first = said()
    verbs = ("gpusim_rl train", "mode=gate", "registry add", "promote")
    places = [first.index(f"{x} ") for x in verbs]
    assert places == sorted(places)
    for i, name in enumerate(("policy.onnx", "judged.onnx", "registered.json", "released.json")):
        (work / name).touch()
        os.utime(work / name, (2e9 + i, 2e9 + i))
    assert "Nothing to be done" in make(work).stdout
    os.utime(work / "gate.txt", (2e9 + 9, 2e9 + 9))
    again = said()
    assert " train " not in again and "mode=gate" in again and "promote" in again
    (work / "robot.mcap").touch()  # what a log tells of the robot is drawn by the training
    identified = (text := said()).index("gpusim_rl identify robot.mcap out=conf/ranges/robot.yaml")
    assert identified < text.index("$(cat train.txt) ranges=robot run_dir=")
    run = r"identify today\.mcap policy=policy\.onnx against=runs/pipeline-\d+ metrics=drift\.prom"
    assert re.search(run, said("drift", "NEWEST=today.mcap"))


@pytest.mark.slow
def test_a_log_of_a_robot_that_walks(work):
    """It is read with the file that walked, which WALKED names; this one walked too shortly."""
    demo = ROOT / "gpusim_rl" / "demo" / "quadruped.onnx"
    policy = Policy(demo)
    log = Log(work / "robot.mcap", policy)
    readings = {name: np.zeros(width) for name, width in policy.needs.items()}
    log(simulated.step(0.0, readings, np.zeros(3), np.array(policy.outputs["safe_pose"])))
    log.close()
    said = make(work, "conf/ranges/robot.yaml", f"WALKED={demo}").stderr
    assert "s of walking: at least 8 s are needed" in said
    said = make(work, "conf/ranges/robot.yaml").stderr
    assert "name its controller with policy=FILE" in said


def test_a_job_of_slurm_goes_on(tmp_path):
    """Before its time is over make gets SIGTERM with all that it runs, and the job is queued."""
    for name, text in {
        "make": "trap 'echo saved > saved; exit 143' TERM\necho > begun\nsleep 60 & wait",
        "scontrol": 'echo "$@" > queued',
    }.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    env = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "7"}
    job = subprocess.Popen(["bash", FOLDER / "slurm.sh"], cwd=tmp_path, env=env)
    while not (tmp_path / "begun").exists():
        time.sleep(0.01)
    job.send_signal(signal.SIGTERM)
    assert job.wait(600) > 128
    assert (tmp_path / "saved").exists() and (tmp_path / "queued").read_text() == "requeue 7\n"


def wait_for(address: str, digest: str) -> None:
    """Wait until a server serves a version."""
    line, deadline = f'gpusim_serve_version{{version="{digest[:12]}"}}', time.monotonic() + 60
    text = ""
    while line not in text:
        assert time.monotonic() < deadline, text
        with urllib.request.urlopen(f"{address.replace('ws:', 'http:')}/metrics") as answer:
            text = answer.read().decode()
        time.sleep(0.02)


@pytest.mark.matrix
def test_the_circle(work):
    """`make` releases, then does nothing; a failed gate stops it; a server follows."""
    for name, text in {"train.txt": SMALL, "gate.txt": LAX, "ab.txt": "ab.margin=0.5\n"}.items():
        (work / name).write_text(text.replace("\n", " "))
    done = make(work)
    assert done.returncode == 0, done.stdout + done.stderr
    first = json.loads((work / "released.json").read_text())
    assert first["version"] == 1 and first["alias"] == "released"
    assert "Nothing to be done" in make(work).stdout

    (work / "gate.txt").write_text(STRICT.replace("\n", " "))
    done = make(work)
    assert done.returncode == 2 and "fails the gate: " in done.stderr
    assert not (work / "judged.onnx").exists()
    assert len(registry.history(work / "registry", "quadruped")) == 1

    alias = ("registry=registry", "alias=quadruped.released")
    with serving.process(*alias, cwd=work, env=os.environ | {"PYTHONPATH": str(ROOT)}) as (_, at):
        wait_for(at, first["sha256"])
        (work / "gate.txt").write_text(LAX.replace("\n", " "))
        serving.other_version(work / "policy.onnx", work / "next.onnx")
        (work / "next.onnx").replace(work / "policy.onnx")
        done = make(work)
        assert done.returncode == 0, done.stdout + done.stderr
        second = json.loads((work / "released.json").read_text())
        assert second["version"] == 2
        wait_for(at, second["sha256"])
        registry.rollback(work / "registry", "quadruped", "released", why="a test")
        wait_for(at, first["sha256"])
    events = registry.history(work / "registry", "quadruped")
    assert [x["version"] for x in events] == [1, 2, 1]
    assert "not_worse_than" in events[1]["evidence"]
