"""A robot with short legs is asked for less than conf/task/quadruped.yaml says."""

import os
import random

import pytest
import yaml

from gpusim_rl.adapters.common import compose_config
from gpusim_rl.assembly.environment import make_task
from gpusim_rl.config import robot_size, validate
from gpusim_rl.config.compose import compose_plain
from gpusim_rl.core.errors import warn_once
from gpusim_rl.core.paths import CONF, TASKS
from tests.command_lines import TINY, refused_here, run_here
from tests.strangers.robots import Shape, mjcf
from tests.worlds import check_words, make_config, numbers

ASKED = ("fastest", "swing_height", "sigma_feet", "gait")
SHORT = dict(fastest=[0.5, 0.25, 1.0], swing_height=0.02, sigma_feet=0.025, gait=4.0)
SHORT |= dict(center=[-0.0075, 0.0075], push=[-0.25, 0.25], timestep=0.005)


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
    return part(check_words(*words).plain)


def part(cfg: dict) -> dict:
    """What a configuration asks of its robot, and the ranges that follow its size."""
    task, drawn = cfg["task"], cfg["task"]["randomise"]
    ranges = {key: [drawn[key]["low"], drawn[key]["high"]] for key in ("center", "push")}
    return {key: task[key] for key in ASKED} | ranges | {"timestep": task["training"]["timestep"]}


def test_short_legs_are_asked_for_less(short, capsys):
    """Lengths follow the legs, speeds their root and the clock its inverse; one line says it."""
    words = ["task=quadruped", short]
    assert asked(words) == SHORT
    said = capsys.readouterr().err
    assert said.endswith(
        "legs of 0.106 m, so its task's numbers are scaled: speeds up to 0.5 m/s; "
        "feet lifted by 2 cm; 4 steps a second (--cfg job shows all 7)\n"
    )
    assert said.count("\n") == 1
    adapted = compose_config("quadruped", 2, [short], {}).plain["task"]  # for other trainers
    assert {key: adapted[key] for key in ASKED} == {key: SHORT[key] for key in ASKED}
    assert adapted["training"] == "exact"


@pytest.mark.parametrize(
    "size, wanted", [(0.95, 0.01), (0.8, 0.02 / 3), (0.4, 0.005), (0.05, 0.005)]
)
def test_timesteps_follow_the_size(monkeypatch, size, wanted):
    """Small robots move faster. A control step is whole timesteps, no shorter than the model's."""
    monkeypatch.setattr(robot_size, "leg_length", lambda *_: size * robot_size.LEG)
    cfg = compose_plain("config", ["robot.mjcf=tasks/assets/quadruped.xml"])
    scaled = robot_size.fit_to_robot(cfg, ["task"])["task"]["training"]
    assert scaled == {"timestep": wanted, "integrator": None, "joint_friction": False}
    exact = compose_plain(
        "config", ["robot.mjcf=tasks/assets/quadruped.xml", "task.training=exact"]
    )
    assert robot_size.fit_to_robot(exact, ["task.training"])["task"]["training"] == "exact"


def test_what_a_user_says_is_asked(short, capsys):
    """Numbers of the command line and of a curriculum stay."""
    plan = "curriculum={task.swing_height:{from:0,to:0.07,by:iteration,start:0,stop:9}}"
    wanted = SHORT | dict(fastest=[1.0, 0.5, 1.0], swing_height=0.07, push=[-0.5, 0.1])
    words = ["task.fastest=[1,0.5,1]", "task.randomise.push={kind:uniform,low:-0.5,high:0.1}"]
    assert asked([*words, short, plan]) == wanted
    said = capsys.readouterr().err
    assert "scaled: 4 steps a second (--cfg job shows all 4)" in said


@pytest.mark.parametrize("key", ["low=0.02", "high=-0.02"])
def test_a_range_stays_whole(short, key):
    """With one end given, the other one stays: scaled alone it may lie on the wrong side."""
    end, value = key.split("=")
    wanted = {"low": -0.03, "high": 0.03} | {end: float(value)}
    assert asked([short, f"task.randomise.center.{key}"])["center"] == [*wanted.values()]
    entry = f"{{from:{value},to:{value},by:iteration,start:0,stop:9}}"
    plan = f"curriculum={{task.randomise.push.{end}:{entry}}}"
    wanted = {"low": -0.5, "high": 0.5} | {end: float(value)}
    assert asked([short, plan])["push"] == [*wanted.values()]


def test_what_has_no_effect_is_not_said(short, capsys):
    """A range that is off, and the training's timestep beside actuators that keep the model's."""
    words = ["task.randomise.push.kind=off", "robot.actuator.kind=pd"]
    assert asked([short, *words]) == SHORT | dict(push=[-0.5, 0.5], timestep=0.01)
    said = capsys.readouterr().err
    assert "feet lifted" in said and "(--cfg job shows all 5)" in said


def test_a_users_own_file_is_asked(short, tmp_path, elsewhere, capsys):
    """Its numbers stay, those too that are ours."""
    text = (CONF / "task" / "quadruped.yaml").read_text()
    (tmp_path / "conf" / "task").mkdir(parents=True)
    own = tmp_path / "conf" / "task" / "quadruped.yaml"
    own.write_text(text.replace("swing_height: 0.08", "swing_height: 0.05"))
    for words in (["task=quadruped"], []):
        file = f"robot.mjcf={TASKS / 'assets' / 'quadruped.xml'}"
        wanted = part(compose_plain("config", []))
        assert wanted["swing_height"] == 0.05 and asked([*words, file]) == wanted
        assert not capsys.readouterr().err


def test_others_are_asked_as_the_file_says(monkeypatch):
    """Our own robot, one with legs as long, and one with longer legs: the file's numbers."""
    wanted, words = part(compose_plain("config", [])), ["robot.mjcf=tasks/assets/quadruped.xml"]
    size = robot_size.load_section(compose_plain("config", words)["robot"], "quadruped").shape.size
    assert size == pytest.approx(robot_size.LEG, abs=1e-3)
    assert asked(words) == asked(["task=quadruped"]) == wanted
    for length in (robot_size.LEG, 2 * robot_size.LEG):
        monkeypatch.setattr(robot_size, "leg_length", lambda *_, leg=length: leg)
        assert asked(words) == wanted


def test_a_small_robot_trains(tmp_path, elsewhere, capsys):
    """The run of a real robot keeps what it was asked for; a continued run goes on with it."""
    shape = Shape(random.Random(3))
    file = tmp_path / "small.xml"
    file.write_text(mjcf(shape))
    leg = shape.upper + shape.lower
    assert leg < robot_size.LEG
    run = tmp_path / "run"
    words = (*TINY, "iterations=1", f"robot.mjcf={file}", f"run_dir={run}")
    error = run_here("train.py", *words, capsys=capsys)[2]
    assert "its task's numbers are scaled" in error
    kept = yaml.safe_load((run / "config.yaml").read_text())
    assert kept["task"]["swing_height"] == pytest.approx(
        numbers("quadruped")["swing_height"] * leg / robot_size.LEG, rel=0.02
    )
    saved = check_words(f"resume={run}")
    assert part(saved.plain) == part(kept)
    again = [*words, "auto_resume=true"]
    assert asked(again) == part(kept)
    assert list(make_task(saved, "cpu").command.largest) == kept["task"]["fastest"]


def test_a_file_that_changes_is_measured_again(tmp_path):
    """In one process, as in a notebook."""
    file, lengths = tmp_path / "robot.xml", []
    for time, seed in enumerate((3, 5)):
        shape = Shape(random.Random(seed))
        file.write_text(mjcf(shape))
        os.utime(file, ns=(time, time))
        lengths.append(asked([f"robot.mjcf={file}"])["swing_height"])
    assert lengths[0] != lengths[1]


def test_a_wrong_robot_is_one_line(tmp_path, elsewhere, capsys):
    """Also of a multirun; `--cfg job` needs no file, and shows the scaled numbers."""
    file = tmp_path / "robot.xml"
    file.write_text("<mujoco/>")
    for words in ([], ["-m", "seed=1,2"]):
        said = refused_here("train.py", f"robot.mjcf={file}", *words, capsys=capsys)
        assert f"robot.mjcf={file}: " in said and "could be the base" in said
    words = (f"robot.mjcf={tmp_path}/none.xml", "--cfg", "job")
    assert "swing_height: 0.08" in run_here("train.py", *words, capsys=capsys)[1]
    file.write_text(mjcf(Shape(random.Random(3))))
    shown = run_here("train.py", f"robot.mjcf={file}", "--cfg", "job", capsys=capsys)[1]
    wanted = asked([f"robot.mjcf={file}"])["swing_height"]
    assert yaml.safe_load(shown)["task"]["swing_height"] == wanted < 0.08


def test_missing_packages(monkeypatch):
    """A training needs what it logs with and steps with; a run that was made with it is opened."""
    monkeypatch.setattr(validate, "find_spec", lambda name: None)
    for word, needs in (("log=tensorboard", "tensorboard"), ("sim=mjx", "JAX")):
        with pytest.raises(ValueError, match=f"{word} needs {needs}: python -m pip install"):
            check_words(word)
        make_config(word)
