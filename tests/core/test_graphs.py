"""Graphs on the CPU, where Warp's launches alone are captured: what tests/test_gpu.py runs on
CUDA."""

import time

import pytest
import torch

from gpusim_rl.core.graphs import PartTimer, capture
from tests import graphs
from tests.robot_files import mjcf, write
from tests.worlds import TASKS

GRU = ("cartpole", "algo.memory=gru", "task.hide=[speeds]", "reward=rnd")
ATTENTION = ("cartpole", "algo.memory=attention", "task.hide=[speeds]")
SAC = ("algo=sac", "algo.warmup=32", "algo.batch_size=16", "algo.replay=32")
REPLAY = ("cartpole", *SAC, "algo.draw=prioritized", "algo.memory=gru", "algo.sequence=2")
EACH = [pytest.param([x], marks=[pytest.mark.slow] * (x != "quadruped")) for x in TASKS]


@pytest.mark.parametrize("words", [*EACH, GRU, ATTENTION, REPLAY], ids=str)
def test_captured_is_eager(words):
    """Replayed kernels of sim=warp leave the state of eager ones, to the bit, and read nothing."""
    graphs.an_iteration_reads_nothing(graphs.captured_is_eager("cpu", *words))


@pytest.mark.parametrize(
    "body",
    [
        graphs.a_graph_is_replayed,
        graphs.another_shape_is_captured_anew,
        graphs.a_fetch_is_of_its_moment,
    ],
)
def test_graphs(body):
    """Recording, capturing anew, fetching."""
    body("cpu")


def test_another_robot_is_captured(tmp_path):
    """A stranger's robot trains through the same graphs, with the network sizes of mjlab."""
    graphs.trains_their_robot("cpu", f"robot.mjcf={write(tmp_path, mjcf())}")


def test_a_function_that_cannot_be_captured_runs(capsys):
    """It runs each time, its reason is kept, and said once in one line."""
    calls = []

    def fn() -> None:
        calls.append(1)
        if len(calls) == 4:
            raise RuntimeError("no graph\nfor this")

    captured = capture(fn, "cpu", kernels=True)
    for _ in range(3):
        captured()
    captured()  # is recorded: fails, and runs
    captured()
    assert len(calls) == 6 and captured.reason == "no graph for this"
    out, err = capsys.readouterr()
    assert (
        out == "" and err.count("\n") == 1 and "fn runs without a graph: no graph for this" in err
    )


def test_off_and_torch_on_the_cpu_simply_run():
    """Torch on the CPU is never captured, nor anything when switched off; both say why."""
    x = torch.zeros(3)
    plain, off = (
        capture(lambda: x.add_(1), "cpu"),
        capture(lambda: x.add_(1), "cpu", kernels=True, on=False),
    )
    for _ in range(10):
        plain()
        off()
    assert (x == 20).all() and plain.graph is None and off.graph is None
    assert "torch on the CPU" in plain.reason and off.reason == "switched off"


def test_phases_add_up():
    """Times of one name add up, those without are left out, and taking begins anew."""
    timer = PartTimer(torch.device("cpu"))
    for _ in range(3):
        timer.start("work")
        time.sleep(0.01)
        timer.start("")
        time.sleep(0.01)
        timer.start("rest")
    timer.start("")
    spent = timer.read()
    timer.start("later")
    assert set(spent()) == {"work", "rest"}
    assert spent()["work"].wall >= 0.03 > spent()["rest"].wall
    assert spent()["work"].processor < spent()["work"].wall  # it slept
    assert timer.read()() == {}
