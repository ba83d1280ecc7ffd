"""The task of docs/task.md learns as the page says, and its exported controller is that of Env."""

import json
import re
import shlex

import pytest
import torch

from gpusim_rl.deploy.controller import Controller
from gpusim_rl.deploy.export import TOLERANCE, parity
from gpusim_rl.deploy.record import record
from gpusim_rl.evaluation.evaluate import evaluation_env
from gpusim_rl.play import player
from gpusim_rl.runs.run import Run
from tests.command_lines import command
from tests.docs.examples import commands, files
from tests.worlds import ROOT

pytestmark = pytest.mark.slow

PAGE = "docs/task.md"
STEPS = 100  # control steps of 32 worlds, whose episodes have 80


def test_the_page_learns_and_is_exported(tmp_path, monkeypatch, no_own_tasks):
    """The page's command reaches its success; the file gives the targets of Env."""
    here = tmp_path / "here"
    for path, text in files(PAGE).items():
        (here / path).parent.mkdir(parents=True, exist_ok=True)
        (here / path).write_text(text)
    program, script, *words = shlex.split(commands(PAGE)[0])
    assert (program, script, *words) == ("python", "train.py", "task=pointer")
    done = command(script, *words, "seed=1", "run_dir=run", cwd=here)
    assert done.returncode == 0, done.stderr
    (stated,) = re.findall(r"to success (\S+) with `seed=1`", (ROOT / PAGE).read_text())
    success = json.loads((here / "run" / "eval.json").read_text())["success"]
    assert success >= 0.9 and abs(success - float(stated)) < 0.05, success

    monkeypatch.chdir(here)
    asked = {"task_code": "here", "episodes": 1, "checkpoint": None}
    ppo, config = player.load_run(Run.open(here / "run"), asked)
    numbers = {"weights": config.task.weights, "noise": config.task.noise}
    env = evaluation_env(ppo.env.task, 32, **numbers, seed=5)
    controller = Controller(env.task, ppo.policy.actor)
    assert controller.readings == ("joint_pos", "joint_vel", "command")
    assert set(controller.start) == {"targets"}  # those of the last step, which a fault holds
    with torch.no_grad():
        recorded = record(env, lambda views, _: ppo.policy.actor(views["actor"]), controller, STEPS)
    assert recorded.restart.size > 2000 and (recorded.restart.sum(0) > 1).all()
    assert recorded.targets.std((0, 1)).min() > 0.05  # it moves
    assert parity((here / "run" / "policy.onnx").read_bytes(), controller, recorded) <= TOLERANCE
