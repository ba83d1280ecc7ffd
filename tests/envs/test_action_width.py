"""Actions of another width than the actuators: `Task.action_width`."""

import re

import numpy as np
import pytest

from gpusim_rl.adapters import gymnasium_env
from gpusim_rl.assembly.environment import build_env
from gpusim_rl.commands import new_task
from gpusim_rl.config.compose import compose_plain
from gpusim_rl.config.sections import Config
from gpusim_rl.core.paths import CONF
from gpusim_rl.deploy.runtime import Policy
from gpusim_rl.envs.mirror import derive_flips
from tests.command_lines import command
from tests.worlds import refusal, widths, write_files

SHORT = ("num_envs=16", "iterations=2", "episodes=2", "task.episode=1.6", "sim=native")
SHORT += ("threads=1", "log=none", "report=false", "fuse=off", "run_dir=run")
PAIR = '''
from gpusim_rl.core.symmetry import Flip
from gpusim_rl.envs.declarations import Reflection
from gpusim_rl.tasks.classic.cartpole import Cartpole


class Pair(Cartpole):
    """One motor, whose force is the difference of two numbers."""

    action_width = 2
    mirror = property(lambda self: Reflection(axis=0, action=Flip((1, 0), (1.0, 1.0))))

    def control(self, s):
        return (s.action[:, :1] - s.action[:, 1:]) / 2
'''
COUPLED = '''
from gpusim_rl.core.symmetry import Flip


class Coupled(Pointer):
    """A belt: one number turns both joints."""

    action_width = 1
    mirror = property(lambda self: Reflection(axis=1, action=Flip((0,), (-1.0,))))

    def control(self, s):
        return s.joint_pos + self.constant((1.0, -1.0)) * 0.1 * s.action

    def observe(self, s):
        return super().observe(s) | dict(action=s.action)  # the actor remembers it


del Pointer  # a file has one task
'''


def write(folder, name: str, source: str = "") -> None:
    """A task: `pair` of two numbers for one actuator, or `coupled` of one number for two."""
    files = new_task.render("pointer")
    python, base = files["tasks/pointer.py"] + COUPLED, files["conf/task/pointer.yaml"]
    if name == "pair":
        python, base = source or PAIR, (CONF / "task" / "cartpole.yaml").read_text()
    base = re.sub("name: (cartpole|pointer)", f"name: {name}", base)
    write_files(folder, files | {f"tasks/{name}.py": python, f"conf/task/{name}.yaml": base})


@pytest.mark.slow
@pytest.mark.parametrize("name, width", [("pair", 2), ("coupled", 1)])
def test_it_trains_and_exports(tmp_path, name, width):
    """Two iterations with the mirror image; the exported file gives what the Env gives."""
    write(tmp_path, name)
    done = command("train.py", f"task={name}", *SHORT, "algo.symmetry=net", cwd=tmp_path)
    assert done.returncode == 0 and "policy.onnx" in done.stdout, done.stdout + done.stderr
    policy = Policy(tmp_path / "run" / "policy.onnx")
    readings = {key: np.zeros(n) for key, n in policy.needs.items()}
    point = np.zeros(2) if policy.command else None
    assert policy.act(readings, point).shape == (3 - width,)
    for key in ("action", "previous"):
        assert policy.memory.get(key, np.zeros((1, width))).shape == (1, width)


def test_the_width_is_that_of_all(tmp_path, monkeypatch, no_own_tasks):
    """Env, its dims, the mirror and Gymnasium's space have the task's width."""
    write(tmp_path, "coupled")
    monkeypatch.chdir(tmp_path)
    cfg = compose_plain("config", ["task=coupled", *SHORT, "device=cpu"])
    env = build_env(Config.of(cfg | {"task_code": "here"}), 4)
    assert env.task.action_width == widths(env)[2] == env.action.shape[1] == 1
    assert derive_flips(env.task)["action"] == ((0,), (-1.0,))
    worlds = gymnasium_env.make("coupled", 4, sim="native", device="cpu")
    assert worlds.single_action_space.shape == (1,)


@pytest.mark.parametrize(
    "text, says",
    [
        (
            PAIR.replace("def control", "def steer"),
            "Pair.control has shape (16, 2), expected (16, 1): a number for each actuator",
        ),
        (PAIR.replace(", action=Flip((1, 0), (1.0, 1.0))", ""), "`mirror` says no `action`"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path, monkeypatch, no_own_tasks, text, says):
    """A control of another width than the actuators', and a mirror without the action."""
    write(tmp_path, "pair", text)
    monkeypatch.chdir(tmp_path)
    assert says in refusal("task=pair", *SHORT, "device=cpu", "algo.symmetry=net")
