"""Curricula: a number goes linearly from one value to another, by iteration or by success; resume and evaluation know of it."""

import re

import pytest
import torch

from gpusim_rl import config, curriculum, resume
from gpusim_rl.assemble import make_ppo
from tests.commands import succeed

TINY = ["num_envs=8", "num_steps=4", "algo.hidden=[16]", "sim=native", "sim.threads=1", "device=cpu", "task.episode=0.2"]
PLAN = (
    "curriculum={task.randomise.push.high:{from:0,to:2,by:iteration,start:1,stop:5},"
    "task.randomise.friction.low:{from:1.25,to:0.25,by:success,start:0,stop:0.5},"
    "task.weights.jerk:{from:0,to:0.4,by:iteration,start:0,stop:4},task.noise.gyro:{from:0,to:1,by:iteration,start:0,stop:4},"
    "task.randomise.push.every:{from:8,to:4,by:iteration,start:0,stop:4}}"
)


def build(*words: str):
    return make_ppo(resume.settled(config.compose_plain("config", [*TINY, *words]), [*TINY, *words]))


def test_numbers_follow_the_plan():
    """Before each iteration the live tensors hold what the plan says, where graphs read them; the draws follow."""
    ppo = build(PLAN)
    env = ppo.env
    places = {key: env.number(key) for key in ppo.schedule.plan}
    address = [place.data_ptr() for place in places.values()]
    assert (env.sim.model("geom_friction")[:, :, 0] == 1.25).all()  # the first episodes are those of the start
    for i in range(7):
        env.success.fill_(0.1 * i)
        ppo.iteration()
        found = {key: place.flatten()[0].item() for key, place in places.items()}
        assert found["task.randomise.push.high"] == pytest.approx(2 * min(max((i - 1) / 4, 0), 1))
        assert found["task.randomise.friction.low"] == pytest.approx(1.25 - min(0.2 * i, 1))
        assert found["task.weights.jerk"] == pytest.approx(min(0.1 * i, 0.4))
        assert found["task.randomise.push.every"] == pytest.approx(8 - min(i, 4))
        assert (env._spread[:3] == min(i / 4, 1)).all() and (env._spread[3:6] == env._spread[3]).all()
    assert address == [env.number(key).data_ptr() for key in ppo.schedule.plan]
    assert env.sim.model("geom_friction")[:, :, 0].min() < 1.0


def test_resume_is_exact():
    """A PPO loaded in the middle of a plan goes on bit by bit, the success of the last evaluation included."""
    one, other = build(PLAN), build(PLAN)
    one.env.success.fill_(0.25)
    for _ in range(3):
        one.iteration()
    other.load(one.state(), "test")
    for ppo in (one, other):
        ppo.iteration()
        ppo.iteration()
    a, b = one.state(), other.state()
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert one.env.number("task.randomise.friction.low").item() == pytest.approx(0.75)


def test_an_evaluation_has_the_last_values():
    """What is evaluated, and what the run's configuration says, is the end of the plan, from the first iteration on."""
    cfg = resume.settled(config.compose_plain("config", [*TINY, PLAN]), [*TINY, PLAN])
    assert (cfg["task"]["weights"]["jerk"], cfg["task"]["noise"]["gyro"]) == (0.4, 1)
    ppo = make_ppo(cfg)
    ppo.iteration()
    task = ppo.env.task.evaluation()
    assert task.randomisation.entries["friction"]["low"] == 0.25
    assert task.randomisation.number("friction", "low").item() == 0.25
    assert ppo.env.number("task.randomise.friction.low").item() == 1.25


def test_by_success_evaluates(tmp_path):
    """A plan by success has training evaluate, without stop_at, and a run with a plan resumes."""
    plan = "curriculum={task.randomise.push.high:{from:0,to:1,by:success,start:0,stop:1}}"
    words = [*TINY, "iterations=2", "eval_every=1", "save_every=1", "episodes=4", "run_dir=run", "log=none"]
    succeed("train.py", *words, plan, cwd=tmp_path)
    assert '"success"' in (tmp_path / "run" / "metrics.jsonl").read_text()
    succeed("train.py", "resume=run", "iterations=3", cwd=tmp_path)


JERK, TILT = "task.weights.jerk", "task.randomise.tilt.high"


@pytest.mark.parametrize(
    "key, values, says",
    [
        (JERK, (0,), "curriculum: task.weights.jerk: expected {from, to, by, start, stop}"),
        (JERK, (0, -1, "iteration", 0, 1), "curriculum: task.weights.jerk: expected numbers of at least 0"),
        (JERK, (0, 1, "iteration", 4, 4), "curriculum: task.weights.jerk: start=4 is not before stop=4"),
        ("seed", (0, 1, "iteration", 0, 4), "curriculum: seed cannot be scheduled: choose of task"),
        (TILT, (0, 1, "iteration", 0, 4), "task.randomise.tilt is off, say its kind"),
    ],
)
def test_nonsense_gets_a_line(key, values, says):
    """A plan that names or says nonsense is a ValueError before anything is built."""
    task = config.compose_plain("config", [])["task"]
    with pytest.raises(ValueError, match=re.escape(says)):
        curriculum.check({key: dict(zip(curriculum.KEYS, values, strict=False))}, task)
