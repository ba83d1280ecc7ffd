"""The Python examples of the docs run."""

import shutil
from pathlib import Path

import pytest

from tests.command_lines import command
from tests.docs.examples import PAGES, Block, blocks
from tests.worlds import ROOT

# Shorter trainings, so that an example takes seconds: in the text → instead.
SHORT = {"learn(200_000)": "learn(2_000)", "learn(20,": "learn(1,", "range(100)": "range(10)"}
SHORT |= {"iterations=20": "iterations=2", "stop_at=0.95": "iterations=2, episodes=4, report=False"}
EXAMPLES = [
    block
    for page in PAGES
    for block in blocks(page)
    if block.language == "python" and not block.title
]
# A real robot sleeps between its control steps, and walks until it is told to stop.
SHORT |= {"robot.send, task": "robot.send, wait=int, clock=robot.clock, task"}
SHORT |= {"Guard(policy, ": "Guard(policy, clock=robot.clock, "}
SHORT |= {'while guard.phase != "off"': "while robot.steps < 900 and guard.phase"}
# A robot for docs/deploy.md: MuJoCo C, for five control steps, or for preflight and some more.
ROBOT = """
import numpy
import runtime
from tests.simulated_robot import Simulated
class Robot(Simulated):
    steps = 0
    def is_on(self):
        return self.steps < 5
    def read(self, name=None):
        values = runtime.readings(self.policy, self.data)
        return values[name] if name else values
    def age(self): return 0.0
    def gyro(self): return self.read("gyro")
    def up(self): return self.read("up")
    def angles(self): return self.read("joint_pos")
    def speeds(self): return self.read("joint_vel")
    def send(self, targets, gain=1.0):
        assert numpy.isfinite(targets).all() and targets.shape == (self.model.nu,)
        super().send(targets)
        self.steps += 1
robot = Robot(runtime.Policy("policy.onnx"))
"""


@pytest.mark.slow
@pytest.mark.parametrize("block", EXAMPLES, ids=lambda block: f"{block.page}:{block.text[:30]!r}")
def test_an_example_runs(block: Block, tmp_path: Path, trained: Path):
    """An example in Python ends well in a process of its own, in an empty directory. That of the
    README learns what it promises."""
    text = block.text
    if block.page == "README.md":
        text += 'assert result.scores["success"] >= 0.95\n'
    else:
        for long, short in SHORT.items():
            text = text.replace(long, short)
    if "policy.onnx" not in text:
        text = text.replace("episodes=4", 'episodes=4, export="none"')
    here = tmp_path / "here"
    here.mkdir()
    if '"policy.onnx"' in text:
        shutil.copy(trained / "policy.onnx", here)
    if "robot." in text:
        shutil.copy(ROOT / "gpusim_rl" / "deploy" / "runtime.py", here)
        shutil.copytree(ROOT / "gpusim_rl" / "deploy" / "onboard", here / "onboard")
        text = ROBOT + text + "assert robot.steps in (5, 907)\n"
    (here / "example.py").write_text(text)
    done = command(str(here / "example.py"), cwd=here)
    assert done.returncode == 0, done.stdout + done.stderr
