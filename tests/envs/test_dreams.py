"""A control step without its physics gives the simulated numbers, where the physics is given."""

import pytest
import torch

from gpusim_rl.algorithms.collector import Collector, step_columns
from gpusim_rl.assembly.iteration import make_iteration
from gpusim_rl.core.graphs import PartTimer
from gpusim_rl.core.record import Record
from gpusim_rl.envs.dreams import Dreams
from gpusim_rl.fuse.kernel import Kernel
from tests.worlds import TASKS, make_config

SMALL = ("num_envs=16", "num_steps=8", "task.episode=0.6", "sim=native", "sim.threads=1")
SMALL += ("device=cpu", "algo.num_minibatches=4", "fuse=off")
DRAWN = ("drone", "getup")  # critic or control sees numbers that are drawn in each step
LATE = ("task.observation_delay=[0,2]", "task.history.speeds=3", "task.acceleration=[3,2,4]")


def collect(task: str, fuse: str, *words: str) -> tuple[Dreams, Collector]:
    """What a learner dreams with, and 63 steps with the rows of the worlds."""
    iteration = make_iteration(make_config(f"task={task}", *SMALL, *words))
    env, policy = iteration.env, iteration.policy
    record = Record.zeros(step_columns(env, policy), 63, 16, device=env.device)
    timer = PartTimer(env.device)
    collector = Collector(env, policy, record, graph="off", fuse=fuse, timer=timer)
    collector.collect(63)
    return Dreams(env), collector


def step(record: Record, t: int) -> Record:
    return Record(record.columns, {kind: x[t] for kind, x in record.parts.items()})


@pytest.mark.parametrize("task", TASKS)
def test_dreams_are_what_was_simulated(task):
    """From each recorded step and its physics: rewards, ends and critic's views, to the bit."""
    names = ["reward", "terminated", "truncated", *["end"] * (task not in DRAWN)]
    dreams, collector = collect(task, "off")
    record, rng, compared = collector.record, dreams.rng(16, 0), 0
    for t in range(62):
        rows, same = dreams.begin(step(record, t)), torch.ones(16, dtype=torch.bool)
        # what was drawn is in the rows, but not for a second step
        for now in (step(record, t), step(record, t + 1))[: 1 if task in DRAWN else 2]:
            rng.draw(torch.tensor(t))
            rows = dreams.act(rows, now.action)
            if same.all():  # later ones may depend on the noise of a reading
                assert torch.equal(rows["ctrl"].float(), now.column("after/ctrl"))
            rows |= {x: now.column(f"after/{x}") for x in ("qpos", "qvel", "sensordata")}
            end = dreams.end(rows, rng)
            for name in names:
                a, b = getattr(end.step, name), getattr(now, name)
                assert torch.equal(a[same], b[same]), (t, name)
            rows = dreams.observe(end, rng)
            same &= ~(now.terminated | now.truncated | now.fault)
            compared += int(same.sum())
    assert compared > 900


def test_kernels_write_the_rows():
    """They give the same rows as torch, of any shape and type, and stay three."""
    (dreams, fused), (_, plain) = (collect("quadruped", x, *LATE) for x in ("on", "off"))
    assert {x.ndim for x in (fused.record.column(y) for y in dreams.columns)} == {2, 3, 4}
    assert fused.record.column("rows/delay/age").dtype == torch.int64
    for name in dreams.columns:
        a, b = (x.record.column(name)[:3].float() for x in (fused, plain))
        assert b.any() or name == "rows/sim/force"  # nothing pushes
        assert ((a - b).abs() / (1 + b.abs())).max() < 1e-3, name
    assert [isinstance(x, Kernel) for x in fused.fused.kernels.values()] == [True] * 3


def test_dreams_draw_numbers_of_their_own():
    """Others than the worlds and at each count, and the same ones when that is drawn again."""
    dreams, collector = collect("cartpole", "off")
    rng, drawn = dreams.rng(16, 0), [collector.env.rng.uniform("observe", 0.0, torch.ones(4))]
    for count in (collector.env.step_count, 1, 2, 1):
        rng.draw(torch.as_tensor(count))
        drawn.append(rng.uniform("observe", 0.0, torch.ones(4)).clone())
    assert torch.equal(drawn[2], drawn[4])
    assert len({tuple(x.flatten().tolist()) for x in drawn[:4]}) == 4
