"""A robot with short legs is asked for less than conf/task/quadruped.yaml says."""

import os
import random

import pytest
import yaml

from gpusim_rl.adapters.common import compose_config
from gpusim_rl.build import make_task
from gpusim_rl.config import resume, robot_size, validate
from gpusim_rl.config.compose import compose_plain
from gpusim_rl.core.errors import warn_once
from tests.commands import TINY, command, refused
from tests.strangers.robots import Shape, mjcf
from tests.worlds import numbers

ASKED = ("fastest", "lift", "sigma_feet", "gait")
SHORT = dict(fastest=[0.5, 0.25, 1.0], lift=0.02, sigma_feet=0.025, gait=4.0)
SHORT |= dict(centre=[-0.0075, 0.0075], push=[-0.25, 0.25], timestep=0.005)


@pytest.fixture(autouse=True)
def unsaid():
    """Lines that other tests have said count as new."""
    warn_once.cache_clear()


@pytest.fixture
def short(monkeypatch) -> str:
    """A robot whose legs are taken to be a quarter as long as those of our own."""
    monkeypatch.setattr(robot_size, "leg_length", lambda *_: robot_size.LEG / 4)
    return "robot.mjcf=tasks/assets/quadruped.xml"


def asked(words: list[str]) -> dict:
    """What a training with these words asks of its robot."""
    return part(resume.check_training(compose_plain("config", words), words))


def part(cfg: dict) -> dict:
    """What a configuration asks of its robot, and the ranges that follow its size."""
    task, drawn = cfg["task"], cfg["task"]["randomise"]
    ranges = {key: [drawn[key]["low"], drawn[key]["high"]] for key in ("centre", "push")}
    return {key: task[key] for key in ASKED} | ranges | {"timestep": task["training"]["timestep"]}


def test_short_legs_are_asked_for_less(short, capsys):
    """Lengths follow the legs, speeds their root and the clock its inverse; one line says it."""
    words = ["task=quadruped", short]
    assert asked(words) == SHORT
    said = capsys.readouterr().err
    assert "legs of 0.11 m, and its training follows them: task.fastest=[0.5, 0.25, 1.0]" in said
    assert said.count("\n") == 1 and all(f"task.{key}=" in said for key in ASKED)
    adapted = compose_config("quadruped", 2, [short, "task.training.timestep=0.005"], {})
    assert part(adapted) == SHORT  # for other trainers


@pytest.mark.parametrize(
    "size, wanted", [(0.95, 0.01), (0.8, 0.02 / 3), (0.4, 0.005), (0.05, 0.005)]
)
def test_timesteps_follow_the_size(monkeypatch, size, wanted):
    """Small robots move faster. A control step is whole timesteps, no shorter than the model's."""
    monkeypatch.setattr(robot_size, "leg_length", lambda *_: size * robot_size.LEG)
    cfg = compose_plain("config", ["robot.mjcf=tasks/assets/quadruped.xml"])
    scaled = robot_size.scale_to_legs(cfg, ["task"])["task"]["training"]
    assert scaled == {"timestep": wanted, "joint_friction": False}
    exact = compose_plain(
        "config", ["robot.mjcf=tasks/assets/quadruped.xml", "task.training=exact"]
    )
    assert robot_size.scale_to_legs(exact, ["task.training"])["task"]["training"] == "exact"


def test_what_a_user_says_is_asked(short, capsys):
    """Numbers of the command line, of a curriculum and of the user's own file stay."""
    plan = "curriculum={task.lift:{from:0,to:0.07,by:iteration,start:0,stop:9}}"
    wanted = SHORT | dict(fastest=[1.0, 0.5, 1.0], lift=0.07, push=[-0.5, 0.1])
    words = ["task.fastest=[1,0.5,1]", "task.randomise.push={kind:uniform,low:-0.5,high:0.1}"]
    assert asked([*words, short, plan]) == wanted
    said = capsys.readouterr().err
    assert "task.fastest" not in said and "task.lift" not in said and "task.gait=4" in said
    cfg = compose_plain("config", [short])
    cfg["task"]["gait"] = 2.5  # as another conf/task/quadruped.yaml has it
    assert robot_size.scale_to_legs(cfg, [])["task"]["gait"] == 2.5


def test_others_are_asked_as_the_file_says(monkeypatch):
    """Our own robot, one with legs as long, and one with longer legs: the file's numbers."""
    wanted = part(compose_plain("config", []))
    assert asked(["task=quadruped"]) == wanted
    for length in (robot_size.LEG, 2 * robot_size.LEG):
        monkeypatch.setattr(robot_size, "leg_length", lambda *_, leg=length: leg)
        assert asked(["robot.mjcf=tasks/assets/quadruped.xml"]) == wanted


def test_the_legs_of_our_own_robot():
    """They are as long as the numbers of the task's file are for."""
    cfg = compose_plain("config", ["robot.mjcf=tasks/assets/quadruped.xml"])
    assert robot_size.load(cfg["robot"]).leg == pytest.approx(robot_size.LEG, abs=1e-3)


def test_a_small_robot_trains(tmp_path):
    """The run of a real robot keeps what it was asked for; a continued run goes on with it."""
    shape = Shape(random.Random(3))
    file = tmp_path / "small.xml"
    file.write_text(mjcf(shape))
    leg = shape.upper + shape.lower
    assert leg < robot_size.LEG
    run = tmp_path / "run"
    words = (*TINY, "iterations=1", f"robot.mjcf={file}", f"run_dir={run}")
    assert "its training follows them" in command("train.py", *words, cwd=tmp_path).stderr
    kept = yaml.safe_load((run / "config.yaml").read_text())
    assert kept["task"]["lift"] == pytest.approx(
        numbers("quadruped")["lift"] * leg / robot_size.LEG, rel=0.02
    )
    saved = resume.check_training(compose_plain("config", [f"resume={run}"]), [f"resume={run}"])
    assert part(saved) == part(kept)
    assert list(make_task(saved, "cpu").command.largest) == kept["task"]["fastest"]


def test_a_file_that_changes_is_measured_again(tmp_path):
    """In one process, as in a notebook."""
    file, lengths = tmp_path / "robot.xml", []
    for time, seed in enumerate((3, 5)):
        shape = Shape(random.Random(seed))
        file.write_text(mjcf(shape))
        os.utime(file, ns=(time, time))
        lengths.append(asked([f"robot.mjcf={file}"])["lift"])
    assert lengths[0] != lengths[1]


def test_a_wrong_robot_is_one_line(tmp_path):
    """It is refused before anything is built, and by a multirun too."""
    file = tmp_path / "robot.xml"
    file.write_text("<mujoco/>")
    for options in ([], ["-m", "seed=1,2"]):
        assert f"robot.mjcf={file}" in refused(
            "train.py", f"robot.mjcf={file}", *options, cwd=tmp_path
        )


def test_missing_packages(monkeypatch):
    """A training needs what it logs with and steps with; a run that was made with it is opened."""
    monkeypatch.setattr(validate, "find_spec", lambda name: None)
    cfg = compose_plain("config", ["log=tensorboard"])
    with pytest.raises(ValueError, match=r"log=tensorboard needs tensorboard: pip install"):
        resume.check_training(cfg, ["log=tensorboard"])
    with pytest.raises(ValueError, match=r"sim=mjx needs JAX: pip install"):
        resume.check_training(compose_plain("config", ["sim=mjx"]), ["sim=mjx"])
    validate.check_values(cfg)
