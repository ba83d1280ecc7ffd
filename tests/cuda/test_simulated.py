"""Training on the simulated CUDA runtime, case by case: `make cuda-test` (see README.md).

Each case is a process of its own, because the runtime is loaded before torch. It sees torch's
streams, captures, allocator and host reads. It cannot see the numbers of GPU kernels, times, Warp's
own memory, conditional nodes, or NCCL, in whose place several processes use gloo.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch

from gpusim_rl.runs.checkpoints import load
from gpusim_rl.runs.run import Run
from tests.command_lines import run_process
from tests.core.test_distributed import start_two_ranks
from tests.worlds import ROOT, TASKS, differing

pytestmark = pytest.mark.simulated
HERE = Path(__file__).parent
CASES = "whole history dropout augment net bf16 unfused plan rnd pd dc seeing everything masses"
CASES += " sac replay dream distill preference"
DEFECTS = "host_read default_stream freed_after_capture pageable_copy allocation host_counter"
SMALL = ("num_envs=16", "num_steps=4", "algo.hidden=[16]", "episodes=4", "task.episode=1")
QUIET = ("log=none", "export=none", "report=false")
TRAIN = ("train.py", "task=cartpole", "device=cuda", *QUIET, *SMALL)
# Tests of tests/test_gpu.py that need no real number: no time, no rounding of a GPU, no profiler.
ON_ANY = "auto or noise or hundred or test_graphs or no_memory or broken"


def simulated(script: str, *words: str, status: int = 0, **settings: str) -> str:
    """What a script printed on the simulated runtime, after it ended with a status."""
    line = ["bash", str(HERE / "run"), script, *words]
    done = run_process(*line, env=os.environ | settings, timeout=1200)
    said = done.stdout + done.stderr
    assert done.returncode == status, said
    return said


def train(*words: str, status: int = 0, **settings: str) -> str:
    """What a small training of the cartpole printed. All of it is captured, as far as it can be."""
    said = simulated("main.py", *TRAIN, *words, status=status, **settings)
    assert "without a graph" not in said and "Traceback" not in said, said
    return said


def last_state(run: Path) -> dict[str, torch.Tensor]:
    """The state in a run's last checkpoint."""
    return load(Run(run).checkpoints.latest())[0]


@pytest.mark.parametrize("case", [*TASKS, *CASES.split()])
def test_an_option_is_captured(case):
    """Captured equals eager, a steady iteration only launches graphs, and no rule is broken."""
    simulated("options.py", case)


@pytest.mark.parametrize("defect", DEFECTS.split())
def test_a_planted_defect_is_found(defect):
    """The checks of the options find a defect that is planted."""
    simulated("planted.py", defect)


@pytest.mark.parametrize("task", TASKS)
def test_no_part_of_an_iteration_grows(task):
    """A control step and an update launch at most three nodes more than `counts.json` says."""
    simulated("count.py", "check", task)


@pytest.mark.parametrize("part", ["robot", "net", "load", "gym", "fuzz", "resume"])
def test_other_parts(part):
    """Another robot, a network as actuator, loaded states, Gymnasium, drawn tasks, resume=."""
    simulated("others.py", part)


@pytest.mark.parametrize("case", ["cartpole", "quadruped", "whole", "plan", "gru", "attention"])
def test_captured_is_eager_with_physics(case):
    """The same with the kernels of MuJoCo Warp, over restarts."""
    simulated("options.py", case, PHYSICS="1")


@pytest.mark.parametrize("graph", ["off", "parts", "whole"])
def test_resume_is_exact(tmp_path, graph):
    """Six iterations in one go, or three and three, end in the same state, bit by bit."""
    words = (f"graph={graph}", "sim.deterministic=true")
    train("iterations=6", f"run_dir={tmp_path}/whole", *words, PHYSICS="1")
    train("iterations=3", f"run_dir={tmp_path}/parts", *words, PHYSICS="1")
    train(f"resume={tmp_path}/parts", "iterations=6", PHYSICS="1")
    assert differing(*(last_state(tmp_path / name) for name in ("parts", "whole"))) == []


def test_a_training_that_diverges_goes_back(tmp_path):
    """It goes back to the last checkpoint as often as it may, and then ends with 1."""
    broken = ("algo.learning_rate=1e30", "algo.lr_max=1e30", "rollbacks=1", "save_every=1")
    said = train("iterations=40", f"run_dir={tmp_path}/run", *broken, status=1)
    assert "3 bad iterations in a row, after 1 roll-backs" in said


def test_capacities_grow(tmp_path):
    """A quadruped whose constraints do not fit gets more room, and is captured again."""
    words = ("task=quadruped", "sim.njmax=8", "iterations=4", f"run_dir={tmp_path}/run")
    said = train(*words, PHYSICS="1")
    assert "njmax" in said and Run(tmp_path / "run").config["sim"]["njmax"] > 8
    assert "more room" not in said  # the iteration that ran before the growth was noticed


def test_a_slow_disk_does_not_break_a_capture(tmp_path):
    """The writer hashes for long while functions are captured."""
    train("iterations=8", "save_every=1", f"run_dir={tmp_path}/run", SLOW="0.4")


@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_a_device_evaluates_and_exports(tmp_path, device):
    """Training, evaluation and export on the first and on the second device."""
    words = (f"device={device}", "export=controller", "iterations=4", f"run_dir={tmp_path}/run")
    train(*words, FAKE_DEVICES="2")
    assert (tmp_path / "run" / "policy.onnx").exists()
    assert json.loads((tmp_path / "run" / "eval.json").read_text())["episodes"] == 4


@pytest.mark.parametrize("words", [(), ("algo.memory=gru", "task.hide=[speeds]")], ids=str)
def test_memory_is_planned(words):
    """`plan=true` ends with the number of worlds that fit."""
    assert "largest num_envs that fits" in train("plan=true", *words)


def test_a_plan_holds():
    """A plan is within a tenth of what a training holds."""
    simulated("memory.py", "plan", "quadruped", "4096")


def test_a_growth_frees_the_smaller_one():
    """A growth of capacities never holds more than 1.1 times the larger training."""
    simulated("memory.py", "growth")


@pytest.mark.parametrize("graph", ["off", "parts"])
def test_two_ranks_are_one(tmp_path, graph):
    """Two processes, each with a device of its own, train what one does, to rounding."""
    rates = ("algo.learning_rate=1e-4", "algo.lr_max=1e-4")
    words = ("num_envs=32", "iterations=4", f"graph={graph}", *rates)
    train(*words, f"run_dir={tmp_path}/one")
    line = ["bash", str(HERE / "run"), "main.py", *TRAIN, *words, f"run_dir={tmp_path}/two"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    ranks = start_two_ranks(line, os.environ | {"FAKE_DEVICES": "2"}, cwd=ROOT, **pipes)
    said = [rank.communicate(timeout=600)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(said)
    assert "without a graph" not in "".join(said)
    one, two = (last_state(tmp_path / name) for name in ("one", "two"))
    assert one.keys() == two.keys()
    worst = max((one[k] - two[k]).abs().max() for k in one if k.startswith("policy/"))
    assert worst <= 1e-5  # of about 1e-3 that they have moved


def test_gpu_tests_that_need_no_real_number():
    """Those that no time, rounding or profiler decides, without the kernels of MuJoCo Warp."""
    words = ("-p", "pytest_simulated", "-q", "-m", "gpu", "tests/test_gpu.py", "-k", ON_ANY)
    said = simulated("-m", "pytest", *words)
    assert "passed" in said
