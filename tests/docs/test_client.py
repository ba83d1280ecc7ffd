"""The client of docs/deploy.md drives a robot, which is MuJoCo C in another process."""

import os
import pickle
import subprocess
import sys

import numpy as np

from gpusim_rl.deploy import runtime
from tests.command_lines import run_process
from tests.docs.examples import files
from tests.simulated_robot import Simulated
from tests.worlds import ROOT

STEPS = 25
# What `import robot` gives the client: the other end is this test.
ROBOT = """
import pickle, sys
sys.path.insert(0, {tests!r})
import robot_computer
sys.path.pop(0)
sys.meta_path.insert(0, robot_computer.Ban())
out = sys.stdout.buffer
def ask(*words):
    pickle.dump(words, out)
    out.flush()
    return pickle.load(sys.stdin.buffer)
def start(*words): return ask("start", *words)
def is_on():
    on = ask("is_on")
    assert on or not [x for x in robot_computer.BANNED if x in sys.modules]
    return on
def read(name, joints): return ask("read", name, joints)
def command(): return ask("command")
def send(targets): return ask("send", targets)
"""


class Robot(Simulated):
    """A robot in MuJoCo C, which answers what the client asks."""

    def __init__(self, policy: runtime.Policy):
        super().__init__(policy)
        self.path: list[np.ndarray] = []

    def start(self, joints, kp, kd, pose):
        assert len(joints) == len(kp) == len(kd) == len(pose) == self.model.nu

    def is_on(self):
        return len(self.path) < STEPS

    def read(self, name, joints):
        if joints is None:
            return self.data.sensor(name).data.tolist()
        field = {"joint_pos": "qpos", "joint_vel": "qvel"}[name]
        return [float(getattr(self.data.joint(joint), field)[0]) for joint in joints]

    def command(self):
        return [0.5, 0.0, 0.2]

    def send(self, targets):
        super().send(np.array(targets))
        self.path.append(self.data.qpos.copy())


def test_the_client_of_the_docs(trained, tmp_path):
    """Copied from the page, the client moves the robot along the path of `runtime.py`."""
    text, policy = files("docs/deploy.md")["client.py"], runtime.Policy(trained / "policy.onnx")
    assert len(text.splitlines()) <= 34 and "gpusim_rl import" not in text
    (tmp_path / "client.py").write_text(text)
    (tmp_path / "robot.py").write_text(ROBOT.format(tests=str(ROOT / "tests")))
    (tmp_path / "policy.onnx").write_bytes((trained / "policy.onnx").read_bytes())
    robot, twin = Robot(policy), Robot(policy)
    with subprocess.Popen(
        [sys.executable, "client.py"],
        cwd=tmp_path,
        env={key: x for key, x in os.environ.items() if key != "PYTHONPATH"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as client:
        assert client.stdin and client.stdout
        on = True
        while on:
            word, *arguments = pickle.load(client.stdout)
            answer = getattr(robot, word)(*arguments)
            on = word != "is_on" or answer
            pickle.dump(answer, client.stdin)
            client.stdin.flush()
    assert client.returncode == 0
    twin.start(policy.joints, *(policy.outputs[key] for key in ("kp", "kd", "safe_pose")))
    while twin.is_on():
        twin.send(policy.act(runtime.readings(policy, twin.data), twin.command()))
    np.testing.assert_allclose(np.stack(robot.path), np.stack(twin.path), atol=1e-5)
    assert np.abs(robot.path[-1] - robot.path[0]).max() > 0.01


def test_the_simulated_robot_of_the_docs(trained, tmp_path):
    """Beside the page's robot.py, the page's client runs as printed, for a second."""
    for name, text in files("docs/deploy.md").items():
        (tmp_path / name).write_text(text.replace("data.time < 5", "data.time < 1"))
    (tmp_path / "policy.onnx").write_bytes((trained / "policy.onnx").read_bytes())
    done = run_process(sys.executable, "client.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 50 and lines[-1].startswith("1.00 s: ") and lines[-1].endswith("m forward")
