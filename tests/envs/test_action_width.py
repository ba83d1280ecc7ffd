"""Actions of another width than the actuators: `Task.action_width`."""

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

SHORT = ("num_envs=16", "iterations=2", "episodes=2", "task.episode=1.6", "sim=native")
SHORT += ("threads=1", "log=none", "report=false", "run_dir=run")
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
COUPLED = """
    @property
    def action_width(self):
        return 1

    def control(self, s):
        turn = 0.1 * s.action
        return s.joint_pos + self.constant((1.0, -1.0)) * turn  # a belt: both joints turn

    def observe(self, s):
        tip = self.tip(s.joint_pos)
        return dict(
            angles=s.joint_pos, speeds=s.joint_vel, tip=tip, command=s.command, action=s.action
        )
"""


def write_pair(folder) -> None:
    """A task `pair` of two numbers for one actuator."""
    text = (CONF / "task" / "cartpole.yaml").read_text()
    (folder / "tasks").mkdir()
    (folder / "conf" / "task").mkdir(parents=True)
    (folder / "tasks" / "pair.py").write_text(PAIR)
    (folder / "conf/task/pair.yaml").write_text(text.replace("name: cartpole", "name: pair"))


def write_coupled(folder) -> None:
    """A task `coupled` of one number for two actuators, which the actor remembers."""
    for path, text in new_task.render("coupled").items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    file = folder / "tasks" / "coupled.py"
    text = file.read_text()
    a, b = text.index("    def control"), text.index("    def error")
    text = text[:a] + COUPLED[1:] + "\n" + text[b:]
    mirror = "Reflection(axis=1, action=Flip((0,), (-1.0,)))"
    text = text.replace("Reflection(axis=1)  # left and right", mirror)
    text = text.replace(
        "import torch\n", "import torch\n\nfrom gpusim_rl.core.symmetry import Flip\n"
    )
    file.write_text(text)
    file = folder / "conf" / "task" / "coupled.yaml"
    file.write_text(file.read_text().replace("command: 1}", "command: 1, action: 1}"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "write, name, width", [(write_pair, "pair", 2), (write_coupled, "coupled", 1)]
)
def test_it_trains_and_exports(tmp_path, write, name, width):
    """Two iterations with the mirror image; the exported file gives what the Env gives."""
    write(tmp_path)
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
    write_coupled(tmp_path)
    monkeypatch.chdir(tmp_path)
    cfg = compose_plain("config", ["task=coupled", *SHORT, "device=cpu"])
    env = build_env(Config.of(cfg | {"task_code": "here"}), 4)
    assert env.task.action_width == env.dims[2] == env.action.shape[1] == 1
    assert derive_flips(env.task)["action"] == ((0,), (-1.0,))
    worlds = gymnasium_env.make("coupled", 4, sim="native", device="cpu")
    assert worlds.single_action_space.shape == (1,)


@pytest.mark.slow
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
def test_what_does_not_fit_is_refused(tmp_path, text, says):
    """A control of another width than the actuators', and a mirror without the action."""
    write_pair(tmp_path)
    (tmp_path / "tasks" / "pair.py").write_text(text)
    words = ("task=pair", *SHORT, "algo.symmetry=net")
    done = command("train.py", *words, cwd=tmp_path)
    assert done.returncode == 2 and says in done.stderr and "Traceback" not in done.stderr
