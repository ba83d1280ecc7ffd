"""Curricula: a number goes linearly from one value to another, by iteration or by success; resume
and evaluation know of it."""

import json
import shutil
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from gpusim_rl.adapters import common
from gpusim_rl.algorithms.ppo.spec import SPEC
from gpusim_rl.assembly.iteration import make_iteration
from gpusim_rl.config import check_words as words_of
from gpusim_rl.config import compose, resume
from gpusim_rl.envs import curriculum
from gpusim_rl.envs.declarations import Command, scheduled_fields
from gpusim_rl.envs.load_task import load_task
from gpusim_rl.runs.run import Run
from gpusim_rl.sim.actuator_models import Net
from gpusim_rl.tasks.locomotion.quadruped import Quadruped
from gpusim_rl.training import trainer
from tests.command_lines import succeed
from tests.guard import reads_nothing
from tests.sim.test_actuators import INPUTS
from tests.worlds import ROOT, TASKS, check_words, differing, goes_on, refusal

TINY = (
    "num_envs=8 num_steps=4 algo.hidden=[16] sim=native sim.threads=1 device=cpu fuse=off".split()
)
TINY += ["task.episode=0.2"]
ROBOT = "robot.mjcf=tasks/assets/quadruped.xml"


def schedule(first, last, start=0, stop=1, by="iteration"):
    return {"from": first, "to": last, "by": by, "start": start, "stop": stop}


def written(plan):
    """A plan as a word of the command line."""
    return "curriculum=" + json.dumps(plan).replace('"', "").replace(" ", "")


PLAN = written(
    {
        "task.randomise.push.high": schedule(0, 2, 1, 5),
        "task.randomise.friction.low": schedule(1.25, 0.25, 0, 0.5, "success"),
        "task.weights.action_rate": schedule(0, 0.4, stop=4),
        "task.noise.gyro": schedule(0, 1, stop=4),
        "task.randomise.push.every": schedule(8, 4, stop=4),
        "task.sigma": schedule(1, 0.5, stop=4),
    }
)


def build(*words: str):
    return make_iteration(check_words(*TINY, *words))


def test_numbers_follow_the_plan():
    """Before each iteration the live tensors, at fixed addresses, hold what the plan says."""
    ppo = build(PLAN)
    env = ppo.env
    keys = [key for key in ppo.schedule.plan if key.startswith("task.")]
    places = {key: env.scheduled_number(key) for key in keys}
    address = [place.data_ptr() for place in places.values()]
    # the first episodes are those of the start
    assert (env.sim.model("geom_friction")[:, :, 0] == 1.25).all()
    for i in range(7):
        env.success.fill_(0.1 * i)
        ppo.iteration()
        numbers = {key: place.flatten()[0].item() for key, place in places.items()}
        assert numbers["task.randomise.push.high"] == pytest.approx(2 * min(max((i - 1) / 4, 0), 1))
        assert numbers["task.randomise.friction.low"] == pytest.approx(1.25 - min(0.2 * i, 1))
        assert numbers["task.weights.action_rate"] == pytest.approx(min(0.1 * i, 0.4))
        assert numbers["task.randomise.push.every"] == pytest.approx(8 - min(i, 4))
        assert (env.measurement.amplitudes[:3] == min(i / 4, 1)).all() and (
            env.measurement.amplitudes[3:6] == env.measurement.amplitudes[3]
        ).all()
    assert address == [env.scheduled_number(key).data_ptr() for key in keys]
    assert env.sim.model("geom_friction")[:, :, 0].min() < 1.0


ENDS = {  # key → where it begins, where it ends
    "task.fastest": ([0.25, 0.125, 0.25], [0.5, 0.25, 1.0]),
    "task.share_standing": (0.5, 0.25),
    "task.sigma": (1.0, 0.5),
    "task.swing_height": (0.0, 0.125),
    "task.gait": (1.0, 2.0),
    "algo.gamma": (0.5, 0.75),
    "algo.gae_lambda": (0.5, 1.0),
    "algo.clip_coef": (0.5, 0.125),
    "algo.clip_value": (1.0, 0.25),
    "algo.ent_coef": (0.5, 0.25),
    "algo.target_kl": (1.0, 0.0625),
}


@pytest.mark.parametrize("fused", ["true", "false"])
def test_a_number_that_arrived_is_that_number(fused):
    """Where schedules have ended, a training is bit by bit that of their numbers; before, not."""
    plan = {key: schedule(*ends, stop=2) for key, ends in ENDS.items()}
    fused = f"algo.fused={fused}"
    one = build(fused, written(plan))
    other = build(fused, *(f"{key}={last}" for key, (_, last) in ENDS.items()))
    places = {key: one.numbers[key] for key in ENDS}
    address = [place.data_ptr() for place in places.values()]
    for i in range(3):
        other.load(one.state(), "test")
        one.iteration()
        other.iteration()
        for key, (first, last) in ENDS.items():
            first, last = torch.tensor(first), torch.tensor(last)
            assert torch.equal(places[key], first + min(i / 2, 1) * (last - first))
        assert (not differing(one.state(), other.state())) == (i == 2)
    assert address == [one.numbers[key].data_ptr() for key in ENDS]


def test_an_iteration_with_schedules_reads_nothing():
    """Numbers that move are read on the device."""
    plan = {key: schedule(*ends, by="success") for key, ends in ENDS.items()}
    ppo = build(written(plan))
    ppo.iteration()
    reads_nothing(ppo, calls=500)
    assert ppo.report()()["fault"] == 0


MOVING = {task: [f"task.{name}" for name in scheduled_fields(load_task(task))] for task in TASKS}
MOVING["quadruped"] += [f"algo.{name}" for name in SPEC.changeable]
# What a number is multiplied by, where half of it would change nothing within some iterations.
SHARES = {"task.share_standing": 9.0, "algo.clip_value": 0.001, "algo.max_std": 0.01}
SHARES |= {"algo.lr_min": 900.0, "algo.max_grad_norm": 0.1}


@cache
def live_iteration(task: str) -> tuple[Any, list[dict]]:
    """An iteration whose numbers are all live, and its states before and after each of four."""
    words = ["algo.num_minibatches=2", "algo.learning_rate=0.01", "task.episode=0.04"]
    words += ["terrain.variants=1"] * (task == "quadruped_rough")
    cfg = check_words(*TINY, *words, f"task={task}", "curriculum=null")
    ppo = make_iteration(cfg, changeable=MOVING[task])
    states = [ppo.state()]
    for _ in range(4):
        ppo.iteration()
        states.append(ppo.state())
    return ppo, states


@pytest.mark.parametrize("task, key", [(task, key) for task in TASKS for key in MOVING[task]])
def test_each_number_is_heeded(task, key):
    """With another value of one number a run differs after some iterations; with the same, not."""
    ppo, (first, *later) = live_iteration(task)
    number = ppo.numbers[key]
    before = number.clone()
    other = before * SHARES.get(key, 0.5) if before.any() else before + 0.5
    for value in (other, before) if key == MOVING[task][0] else (other,):
        number.copy_(before)  # what is observed first is of the first state
        ppo.load(first, "test")
        number.copy_(value)

        def differs(state: dict) -> bool:
            ppo.iteration()
            return bool(differing(ppo.state(), state))

        assert any(map(differs, later)) == (value is other)
    number.copy_(before)


def test_an_evaluation_has_the_last_values():
    """From the first iteration on, evaluation and the run's configuration have the plan's end."""
    cfg = check_words(*TINY, PLAN)
    assert (cfg.task.weights["action_rate"], cfg.task.noise["gyro"]) == (0.4, 1)
    ppo = make_iteration(cfg)
    ppo.iteration()
    task = ppo.env.task.evaluation()
    assert task.randomization.entries["friction"]["low"] == 0.25
    assert task.randomization.scheduled_number("friction", "low").item() == 0.25
    assert ppo.env.scheduled_number("task.randomise.friction.low").item() == 1.25


@pytest.mark.parametrize("name", TASKS)
def test_every_number_that_moves_is_in_the_docs(name):
    """docs/randomisation.md lists what can be scheduled, and the configuration has it."""
    text = (ROOT / "docs" / "randomisation.md").read_text()
    section = compose.compose_plain("config", [f"task={name}"])["task"]
    for key in scheduled_fields(load_task(name)):
        assert f"`{key}`" in text and (key in section and curriculum.is_numeric(section[key]))
    assert all(f"{key}`" in text for key in SPEC.changeable)


@dataclass(kw_only=True)
class Ranged(Quadruped):
    """Two ranges of its command, and what the critic sees, follow a number of a curriculum."""

    @property
    def command(self):
        command = super().command
        (vector,) = command.parts
        vector = replace(vector, largest=(self.sigma, 0.5, 2 * self.sigma))
        return Command(parts=(vector,), redraw=command.redraw)

    def privileged(self, s):
        return super().privileged(s) | dict(scaled=s.qpos / self.sigma)


@pytest.mark.parametrize("kind", [Quadruped, Ranged])
def test_resume_is_exact(kind, monkeypatch):
    """A PPO loaded in the middle of a plan goes on bit by bit, also where a view moves with it."""
    monkeypatch.setattr("gpusim_rl.assembly.environment.load_task", lambda *_: kind)
    one, other = build(PLAN), build(PLAN)
    one.env.success.fill_(0.25)
    for _ in range(3):
        one.iteration()
    goes_on(one, other, 2)
    assert one.env.scheduled_number("task.randomise.friction.low").item() == pytest.approx(0.75)


def test_a_number_in_the_commands_ranges(monkeypatch):
    """A scheduled number among others in `Command.largest` moves the range of what is drawn."""
    monkeypatch.setattr("gpusim_rl.assembly.environment.load_task", lambda *_: Ranged)
    ppo = build(written({"task.sigma": schedule(0.125, 2.0, stop=2)}))
    command = ppo.env.memory["command"]
    assert (command.abs() <= torch.tensor([0.125, 0.5, 0.25])).all()
    ppo.iteration()
    reads_nothing(ppo, 2)
    limit = ppo.env.scheduled_task.command_limit
    assert torch.equal(limit, torch.tensor([2.0, 0.5, 4.0]))
    ppo.env.restart()
    assert (command.abs() <= limit).all() and (command.abs()[:, 0] > 0.125).any()


def test_a_schedule_of_the_tasks_file(tmp_path, monkeypatch):
    """A plan of the command line joins that in conf/task/, which may be dropped."""
    folder = tmp_path / "conf"
    shutil.copytree(compose.CONF, folder)
    plan = {"task.spread": schedule(0.1, 0.3)}
    run = compose.compose_plain("config", ["task=cartpole"])
    run["curriculum"] = {"task.sigma": schedule(1, 0.5)}
    with (folder / "task" / "cartpole.yaml").open("a") as file:
        file.write(f"curriculum: {json.dumps(plan)}\n")
    monkeypatch.setattr(compose, "CONF", folder)
    compose.build_cached.cache_clear()
    try:
        base = compose.compose_plain("config", ["task=cartpole"])
        assert base["curriculum"] == plan
        dropped = compose.compose_plain("config", ["task=cartpole", "curriculum=null"])
        assert dropped["curriculum"] is None
        more = {"task.sigma": schedule(1, 0.5)}
        both = compose.compose_plain("config", ["task=cartpole", written(more)])
        assert both["curriculum"] == plan | more
        assert words_of.merge(base, run)["curriculum"] == run["curriculum"]
        assert words_of.merge(base, run | {"curriculum": None})["curriculum"] is None
        spread = [
            common.compose_config("cartpole", 4, words, {}).plain["task"]["spread"]
            for words in ([], ["task.spread=0.9"])
        ]
        assert spread == [0.3, 0.9]  # another trainer follows no plan
    finally:
        compose.build_cached.cache_clear()


def test_a_dropped_schedule_is_said():
    """A schedule, or one of two, that a continuation leaves out is a change."""
    cfg = compose.compose_plain("config", [])
    two = {"task.swing_height": schedule(0, 0.08), RATE: schedule(0, 0.01)}
    one = {"task.swing_height": schedule(0, 0.08)}
    for before, after in ((two, one), (one, {}), (one, None), (None, one)):
        changes = resume.changes(cfg | {"curriculum": before}, cfg | {"curriculum": after})
        assert list(changes) == ["curriculum"]
    assert not resume.changes(cfg | {"curriculum": {}}, cfg | {"curriculum": None})
    judged = cfg | {"curriculum": {RATE: schedule(0, 0.01, by="success")}}
    assert list(resume.changes(judged, judged | {"eval_every": 3})) == ["eval_every"]
    assert not resume.changes(cfg, cfg | {"eval_every": 3})


def test_learned_gains_cannot_be_scheduled(tmp_path):
    """kp and kd of a learned actuator are refused in one line."""
    net = tmp_path / "net.safetensors"
    Net(INPUTS, [(torch.zeros(1, 6), torch.zeros(1))]).save(net)
    words = [f"robot.actuator.file={net}", "robot.actuator.kind=net"]
    says = r"kp\.low: cannot be scheduled, since this actuator has learned its gains"
    with pytest.raises(ValueError, match=says):
        build(*words, written({LOW: schedule(0.8, 0.9)}))


@pytest.mark.slow
def test_by_success_evaluates(tmp_path):
    """A plan by success has training evaluate, without stop_at, and a run with a plan resumes."""
    plan = "curriculum={task.randomise.push.high:{from:0,to:1,by:success,start:0,stop:1}}"
    words = "iterations=2 eval_every=1 save_every=1 episodes=4 export=none report=false".split()
    succeed("train.py", *TINY, *words, "run_dir=run", "log=none", plan, cwd=tmp_path)
    assert '"success"' in (tmp_path / "run" / "metrics.jsonl").read_text()
    succeed("train.py", "resume=run", "iterations=3", cwd=tmp_path)


FASTEST = ([0.2, 0.1, 0.2], [1.0, 0.5, 1.0])


def learns_slowly(monkeypatch) -> list[float]:
    """Evaluations succeed at small commands until the tenth; returns the speeds evaluated."""
    seen: list[float] = []

    def evaluate(policy, task, **_):
        seen.append(task.fastest[0])
        return {"success": float(task.fastest[0] <= (0.6 if len(seen) < 10 else 1.0))}

    monkeypatch.setattr("gpusim_rl.evaluation.evaluate.evaluate", evaluate)
    return seen


def train(*words: str) -> None:
    """Train, with an evaluation after each iteration."""
    words = (*TINY, "eval_every=1", "log=none", "run_dir=run", *words)
    if "resume=run" in words:
        words = words[len(TINY) + 3 :]
    trainer.Trainer(check_words(*words)).train()


def test_success_is_measured_where_the_numbers_are(tmp_path, monkeypatch):
    """Slow commands that succeed get faster, unjudged on the way; a resumed run does the same."""
    words = (written({"task.fastest": schedule(*FASTEST, 0.3, 0.8, "success")}), "stop_at=0.9")
    every = []
    monkeypatch.setattr(trainer, "tracking", lambda *_: 1.0)
    for name, parts in (("whole", (40,)), ("parts", (5, 40))):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        seen = learns_slowly(monkeypatch)
        train(*words, f"iterations={parts[0]}")
        for count in parts[1:]:
            train("resume=run", f"iterations={count}")
        rows = Run(Path("run")).rows()
        speeds = [row["schedule/task.fastest.0"] for row in rows]
        mean, wanted = 0.0, []
        for row in rows:
            wanted.append(0.2 + 0.8 * min(max((mean - 0.3) / 0.5, 0), 1))
            mean += 0.5 * (row["success"] - mean)
        assert seen == pytest.approx(wanted) and speeds == pytest.approx(wanted)
        assert seen[0] == 0.2 and 0.4 < seen[8] < 0.8 and rows[0]["success"] == 1
        assert len(rows) < 40 and seen[-1] == 1.0 and max(seen[:-1]) < 1.0
        saved = Run(Path("run")).checkpoints.manifest()
        scores = [entry["success"] for entry in saved.values()]
        assert scores.count(1.0) == 1 and scores.count(None) == len(scores) - 1
        every.append(speeds)
    assert every[0] == every[1]


def test_failure_takes_numbers_back_to_the_start():
    """After a success and many failures numbers are where they began, not a little beside it."""
    key = "task.randomise.push.high"
    ppo = build(written({key: schedule(0, 2, 0, 0.8, "success")}))
    ppo.schedule.follow(1 / 128, ppo.env.success)
    assert ppo.env.success > 0
    for _ in range(80):
        ppo.schedule.follow(0.0, ppo.env.success)
    assert ppo.env.success == 0


def test_the_task_now_needs_no_file(tmp_path, monkeypatch):
    """With a robot's file, too, the task that is evaluated has the number of the moment."""
    robot = tmp_path / "robot.xml"
    robot.write_text((ROOT / "tasks" / "assets" / "quadruped.xml").read_text())
    height = build(f"robot.mjcf={robot}").env.task.base_height
    plan = {"task.base_height": schedule(0.2, height, 0, 1, "success")}
    words = [f"robot.mjcf={robot}", f"task.base_height={height}", written(plan)]
    cfg = check_words(*TINY, *words)
    ppo = make_iteration(cfg)
    robot.unlink()
    task, section = ppo.schedule.task_now(ppo.env.task, cfg.plain, 0.25)
    assert task.base_height == section["base_height"] == pytest.approx(0.75 * 0.2 + 0.25 * height)
    assert ppo.env.task.base_height == height and task.evaluation().base_height == task.base_height


def test_scheduled_numbers_are_columns():
    """The row of metrics has each number as it was in the iteration, and one for each of a list."""
    plan = {"task.fastest": schedule(*FASTEST, stop=2)}
    plan |= {"algo.ent_coef": schedule(0.5, 0.25, stop=4)}
    plan |= {"task.noise.gyro": schedule(0, 1, 0, 4)}
    ppo = build(written(plan))
    for _ in range(2):
        ppo.iteration()
    row = {key: x for key, x in ppo.report()().items() if key.startswith("schedule/")}
    wanted = {"task.fastest.0": 0.6, "task.fastest.1": 0.3, "task.fastest.2": 0.6}
    wanted |= {"algo.ent_coef": 0.4375, "task.noise.gyro": 0.25, "algo.max_std": 0.5}
    assert row == pytest.approx({f"schedule/{key}": x for key, x in wanted.items()})
    plain = build("curriculum=null").report()()
    assert not any(key.startswith("schedule/") for key in plain)


RATE, TILT, SWING = "task.weights.action_rate", "task.randomise.tilt.high", "task.swing_height"
FAST = "task.fastest"


LOW, HIGH = "task.randomise.kp.low", "task.randomise.kp.high"
SIGMA, GAMMA = "task.sigma", "algo.gamma"
NONSENSE: list[tuple] = [
    ({RATE: {"from": 0}}, f"curriculum: {RATE}: expected {{from, to, by, start, stop}}"),
    ({RATE: schedule(0, -1)}, f"curriculum: {RATE}: expected numbers of at least 0"),
    ({RATE: schedule(0, 1, 4, 4)}, f"curriculum: {RATE}: start=4 is not before stop=4"),
    ({RATE: schedule(0, 1, 0, 1.5, "success")}, f"{RATE}: stop=1.5: expected at most 1"),
    ({"seed": schedule(0, 1)}, "curriculum: seed cannot be scheduled: choose of task"),
    ({"algo.hidden": schedule(0, 1)}, "algo.hidden cannot be scheduled: choose of task"),
    ({"task.mjcf": schedule(0, 1)}, "curriculum: task.mjcf cannot be scheduled"),
    ({TILT: schedule(0, 1)}, f"{TILT}: task.randomise.tilt is off, set its kind"),
    ({SWING: schedule([0], 1)}, f"curriculum: {SWING}: from=[0]: expected a number"),
    ({SWING: schedule("x", 1)}, f"curriculum: {SWING}: from='x': expected a number"),
    ({FAST: schedule(0, [1, 1, 1])}, f"{FAST}: from=0: expected as many numbers as {FAST}=["),
    # what the task refuses
    ({"task.dt": schedule(0.02, 0.04)}, " cannot be scheduled: choose of this task's numbers (fa"),
    ({SIGMA: schedule(0, 0.5)}, "task.sigma=0: expected a number above 0"),
    ({SIGMA: schedule(1e-25, 0.5)}, ": from=1e-25: expected 0 or a number of at least 1e-18"),
    ({SWING: schedule(0, 0.2, 0, 1e-9)}, ": start=0 is not before stop=1e-09, by 1e-06 at least"),
    ({GAMMA: schedule(2, 0.5)}, "algo.gamma: from=2: expected a number from 0"),
    ({GAMMA: schedule(0.5, 2)}, "algo.gamma=2: expected a number from 0 to 1"),
    ({"algo.mirror_coef": schedule(0, 1)}, "algo.mirror_coef cannot be scheduled"),
    # plans that contradict the command line
    ({SWING: schedule(0, 0.2)}, f"{SWING}=0.1, but its curriculum ends at 0.2", f"{SWING}=0.1"),
    (
        {RATE: schedule(0, 0.4)},
        "=5, but its curriculum ends at 0.4",
        "task.weights={action_rate:5}",
    ),
    ({"task.base_height": schedule(0.2, 0.25)}, " ends at 0.25, but this robot has", ROBOT),
    # ranges that cross on their way
    (
        {LOW: schedule(0.5, 1), HIGH: schedule(0.8, 1.5, 2, 3)},
        "curriculum, at iteration 1, success 0: task.randomise.kp: low=1.0 is above high=0.8",
    ),
    (
        {LOW: schedule(0.5, 1, by="success"), HIGH: schedule(0.8, 1.5)},
        "curriculum, at iteration 0, success 1: task.randomise.kp: low=1.0 is above high=0.8",
    ),
    # where there is no plan, the line names none
    ({}, "task.randomise.friction: low=9.0 is above high=", "task.randomise.friction.low=9"),
]


@pytest.mark.parametrize("plan, says, words", [(x, y, z) for x, y, *z in NONSENSE])
def test_nonsense_gets_a_line(plan, says, words):
    """A plan of nonsense, out of range, or against the command line is a ValueError of one line."""
    line = refusal(*TINY, *([written(plan)] if plan else []), *words)
    assert says in line and (plan or "curriculum" not in line)
