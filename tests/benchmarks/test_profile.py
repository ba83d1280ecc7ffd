"""`benchmarks.profile` finds what bounds a training, in four that are made to be slow."""

import copy
import json
import time
from typing import Any

import pytest

from benchmarks.levels import group_parts
from benchmarks.profile import main, measure
from gpusim_rl.algorithms.ppo.ppo import PPO
from gpusim_rl.core.graphs import PartTime
from gpusim_rl.core.streams import torch_threads
from gpusim_rl.envs.env import Env
from tests.worlds import make_env, make_ppo, make_task

QUICK = 0.3  # s
CHEAP = {"update_epochs": 1, "num_minibatches": 1}  # an update that takes no time


def slow_env() -> Env:
    """The cartpole with 400 timesteps in a control step; its engine has one thread."""
    task = make_task("cartpole")
    model = copy.copy(task.mjm)
    model.opt.timestep = task.dt / 400
    env = make_env("cartpole", 32, mjm=model)
    assert env.task.substeps == 400
    return env


def profile(ppo: PPO) -> dict[str, Any]:
    """The results of `measure` after an iteration that loads kernels, as the command has it."""
    ppo.iteration()
    return measure(ppo, QUICK)


def test_one_core(monkeypatch):
    """Many timesteps in a control step, on one thread of two: bound by simulation on one core."""
    monkeypatch.setattr("gpusim_rl.training.bottleneck.cores_available", lambda: 2)
    ppo = make_ppo(slow_env(), **CHEAP)
    with torch_threads(1):
        results = profile(ppo)
    assert results["bound_by"] == "simulation" and results["shares"]["physics"] > 0.6
    assert results["verdict"].startswith("bound by simulation on one core: physics takes ")
    assert results["verdict"].endswith(" of 2 cores busy") and results["cores_busy"] < 1.1


def test_a_huge_network():
    """Wide layers: bound by learning."""
    ppo = make_ppo(make_env("cartpole", 16), hidden=(1024, 1024))
    results = profile(ppo)
    assert results["bound_by"] == "learning" and results["shares"]["update"] > 0.4


def test_a_sleep_in_the_task():
    """A task that waits: bound by the host, and the cores are idle."""
    env = make_env("cartpole", 16)
    reward = env.scheduled_task.reward
    env.scheduled_task.reward = lambda s: time.sleep(0.05) or reward(s)
    results = profile(make_ppo(env, **CHEAP))
    assert results["bound_by"] == "the host" and results["shares"]["environment"] > 0.6
    assert results["cores_busy"] < 0.6


def test_the_command(capsys, tmp_path):
    """Its table has every share, its JSON the same and the verdict, which is the last line."""
    out = tmp_path / "profile.json"
    words = ["task=cartpole", "device=cpu", "num_envs=16", "num_steps=4", f"out={out}"]
    main([*words, "seconds=0.1", "warmup=1"])
    lines = capsys.readouterr().out.splitlines()
    report = json.loads(out.read_text())
    assert sum(report["shares"].values()) == pytest.approx(1, abs=0.02)
    assert [line.split()[0] for line in lines[1:7]] == [*report["shares"], "all"]
    assert lines[-2] == report["verdict"] and lines[-2].startswith("bound by ")
    assert report["seconds"] >= 0.1 and report["iterations"] >= 1 and report["steps_per_s"] > 0
    assert set(report["shares"]) == {"physics", "environment", "policy", "update", "other"}


def test_parts_of_another_learner():
    """A part that the log does not know belongs to the update; the rest of the time is `other`."""
    parts = {
        "physics": PartTime(1.0, 2.0),
        "plans": PartTime(3.0, 3.0),
        "returns": PartTime(0.5, 0.5),
    }
    groups = group_parts(parts | {"iteration": PartTime(9.0, 9.0)}, 5.0)
    assert groups["update"] == PartTime(3.5, 3.5) and groups["physics"] == PartTime(1.0, 2.0)
    assert groups["other"] == PartTime(0.5, 0.0) and groups["policy"] == PartTime()
