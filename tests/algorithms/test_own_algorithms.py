"""Algorithms of a user's own in a working directory: see tests/own_algorithms.py."""

import dataclasses
import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from gpusim_rl.algorithms.ppo.spec import SPEC
from gpusim_rl.core.file_keys import FileKey
from gpusim_rl.core.ring import RingSpec
from tests import own_algorithms
from tests.command_lines import command, refused
from tests.shared import shared
from tests.worlds import write_files

SMALL = ("num_envs=16", "num_steps=4", "episodes=4", "sim.threads=1", "device=cpu")
SMALL += ("task.episode=1", "fuse=off", "log=none")
BARE = ("export=none", "report=false")


def succeed(cwd: Path, name: str, script: str, *words: str) -> str:
    """What a command printed, after it ended well and said which algorithm it imports."""
    done = command(script, *words, cwd=cwd)
    says = f"importing {cwd}/algorithms/{name}.py\n"
    assert (done.returncode, done.stderr) == (0, says), done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def learners(tmp_path_factory) -> Path:
    """The directory, in which the actor-critic has trained."""

    def make(cwd: Path) -> None:
        own_algorithms.write(cwd)
        words = ("task=cartpole", *SMALL[:-1], "algo=a2c", "log=tensorboard", "run_dir=run")
        said = succeed(cwd, "a2c", "train.py", *words, "iterations=3")
        assert "wrote run/eval.json, run/policy.onnx and run/report.html" in said

    return shared(tmp_path_factory, "learners", make)


@pytest.mark.slow
def test_an_algorithm_of_ones_own(learners):
    """At most 85 lines that import no other algorithm train, and all commands know them."""
    code = (learners / "algorithms" / "a2c.py").read_text().splitlines()
    assert len(code) <= 85 and not any("ppo" in line.lower() for line in code)
    run = learners / "run"
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [math.isfinite(row["value_loss"]) for row in rows] == [True] * 3
    assert "value loss" in (run / "report.html").read_text()
    assert b"loss/value" in b"".join(x.read_bytes() for x in run.glob("tensorboard/*"))
    words = ("mode=evaluate", "episodes=4", "run=run", "task_code=here")
    assert '"success"' in succeed(learners, "a2c", "play.py", *words)
    words = ("mode=gate", "onnx=run/policy.onnx")
    assert "no base that could fall" in refused("play.py", *words, cwd=learners)
    said = succeed(learners, "a2c", "-m gpusim_rl verify", "run", "task_code=here")
    assert said.count("tensors agree, bit by bit") == 3
    succeed(learners, "a2c", "train.py", "resume=run", "iterations=4", "task_code=here")


@pytest.mark.slow
def test_an_own_algorithm_is_judged(learners):
    """The gate judges what it has trained: a quadruped after one iteration fails."""
    words = ("task=quadruped", *SMALL, "algo=a2c", "run_dir=walker", "iterations=1")
    succeed(learners, "a2c", "train.py", *words, "report=false")
    words = ("gate.robots=2", "gate.seconds=4", "gate.endurance.robots=1")
    words += ("gate.endurance.minutes=0.1",)
    gate = command("play.py", "mode=gate", "run=walker", *words, cwd=learners)
    assert gate.returncode == 1 and "policy.onnx fails the gate: " in gate.stderr, gate


@pytest.mark.slow
def test_a_record_from_a_file(learners):
    """A learner whose record is filled from a file learns its actions, and is exported."""
    obs = torch.randn(32, 16, 5, generator=torch.Generator().manual_seed(0))
    steps = {"obs": obs, "action": obs[..., :1].contiguous() * 0.5}
    save_file(steps, learners / "demonstrations.safetensors")
    words = ("task=cartpole", *SMALL, "algo=clone", "run_dir=cloned", "iterations=60")
    said = succeed(learners, "clone", "train.py", *words, "report=false")
    assert "cloned/policy.onnx" in said
    lines = (learners / "cloned" / "metrics.jsonl").read_text().splitlines()
    first, *_, last = (json.loads(line)["miss"] for line in lines)
    assert last < 0.2 * first


@pytest.mark.slow
def test_a_changed_loss_is_used_or_refused(learners):
    """Another loss learns differently; beside algo.fused=true it is refused before a run."""
    words = ("task=cartpole", *SMALL, *BARE, "iterations=2")
    succeed(learners, "spo", "train.py", *words, "algo=spo", "run_dir=spo")
    succeed(learners, "spo", "train.py", *words, "algo=spo", "run_dir=free", "algo.penalty=1e-6")
    losses = [
        json.loads((learners / run / "metrics.jsonl").read_text().splitlines()[-1])["policy_loss"]
        for run in ("spo", "free")
    ]
    assert all(map(math.isfinite, losses)) and losses[0] != losses[1]
    done = command("train.py", *words, "algo=spo", "algo.fused=true", "run_dir=no", cwd=learners)
    error = done.stderr.splitlines()[-1]
    assert done.returncode and error.startswith("error: algo.fused=true: its kernels"), done
    assert error.endswith("SPO has another: set algo.fused=false")
    assert not (learners / "no").exists()


WRONG = """
from dataclasses import replace
from gpusim_rl.algorithms.ppo import ppo, spec

class Mine(ppo.PPO):
    def __init__(self, spec, settings):
        super().__init__(spec, settings)
        del self.rates

SPEC = replace(spec.SPEC, make=Mine)
"""
YAML = "defaults: [ppo, _self_]\nname: mine\n"


@pytest.mark.slow
def test_a_learner_that_is_wrong(tmp_path):
    """It is refused in one line as the training begins, and no run is left."""
    write_files(tmp_path, {"algorithms/mine.py": WRONG, "conf/algo/mine.yaml": YAML})
    done = command("train.py", "task=cartpole", "algo=mine", cwd=tmp_path)
    says = f"importing {tmp_path}/algorithms/mine.py\nerror: the learner Mine lacks rates\n"
    assert (done.returncode, done.stderr) == (2, says), done
    assert {x.name for x in tmp_path.iterdir()} == {"algorithms", "conf"}


@pytest.mark.parametrize(
    "part, wanted",
    [
        ({"ring": RingSpec(4)}, "a function"),
        ({"make_policy": None}, "a function"),
        ({"world_multiple": 4}, "a function"),
        ({"settings": SPEC}, "a dataclass"),
        ({"changeable": "gamma"}, "a tuple of str"),
        ({"files": FileKey("algo.labels", "copy")}, "a tuple of FileKey"),
        ({"files": ("algo.labels",)}, "a tuple of FileKey"),
    ],
)
def test_a_part_of_a_spec_is_of_another_type(part, wanted):
    """It is named in one line as the SPEC is made."""
    (name,) = part
    with pytest.raises(ValueError, match=rf"^SPEC\.{name} is .*, expected {wanted}$"):
        dataclasses.replace(SPEC, **part)
