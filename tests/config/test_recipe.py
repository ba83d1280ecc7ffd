"""The group `recipe`: what a policy for a real robot learns beside a task's own numbers."""

from typing import Any

import pytest
import yaml

from gpusim_rl.commands.train import configure
from gpusim_rl.config import compose, robot_size
from gpusim_rl.config.compose import build_base
from gpusim_rl.config.nested_dict import flatten
from gpusim_rl.config.recipe import apply_recipe, describe_recipe, leaves, unlearned
from tests.command_lines import TINY, one_line, refused_here, run_here
from tests.worlds import TASKS, composed, make_config

DEPLOYABLE = [x for x in TASKS if x not in ("ant", "cartpole", "hopper")]
SHORT = (*TINY, "num_steps=8", "iterations=2", "episodes=2", "log=none")  # of eight minibatches


def test_robots_have_a_recipe():
    """All tasks that can be deployed have recipe=robot, and no other has."""
    recipes = {x: build_base("config", (f"task={x}",))["recipe"] for x in TASKS}
    assert [x for x in TASKS if "robot" in recipes[x]] == DEPLOYABLE


@pytest.mark.parametrize("task", TASKS)
def test_fast_is_the_file_as_it_stands(monkeypatch, task):
    """recipe=fast is the default, and changes nothing of a configuration."""
    cfg = composed(f"task={task}")
    assert cfg["recipe"]["name"] == "fast" and cfg == composed(f"task={task}", "recipe=fast")
    monkeypatch.setattr(compose, "apply_recipe", lambda cfg, keys: cfg)
    assert cfg == compose.build("config", [f"task={task}"])


@pytest.mark.parametrize("task", DEPLOYABLE)
def test_robot_has_the_numbers_of_the_section(task):
    """Each number of the section is in its place, and all of it is a sound configuration."""
    cfg = make_config(f"task={task}", "recipe=robot")
    numbers = leaves(cfg.recipe["robot"])
    assert numbers and numbers.items() <= flatten(cfg.plain).items()
    assert cfg.plain["task"]["observation_delay"] == [0, 3]
    said = describe_recipe(cfg.recipe, cfg.plain)
    assert said.startswith("recipe=robot: ") and "task.observation_delay=[0, 3]" in said
    assert unlearned(cfg.recipe, cfg.plain) == "" == describe_recipe({"name": "fast"}, cfg.plain)


def test_the_command_line_wins():
    """A key of the line is as it says, and a curriculum of the recipe leaves it alone."""
    words = ("recipe=robot", "task.redraw=7", "task.randomise.push.high=0.3", "algo.gamma=0.9")
    cfg = configure(*words, "task.fastest=[1,0.5,1]", "iterations=30")
    task = cfg.plain["task"]
    assert (task["redraw"], task["randomise"]["push"]["high"], cfg.iterations) == (7, 0.3, 30)
    assert (task["randomise"]["push"]["low"], cfg.plain["algo"]["gamma"]) == (-1.0, 0.9)
    plan = configure(*words).curriculum
    left = {*(cfg.curriculum or {})}
    assert plan and left == {*plan} - {"task.fastest"} == {"algo.max_std"}
    assert configure("recipe=robot", "curriculum=null").curriculum is None
    assert configure("recipe=robot", "task=quadruped", "task.redraw=7").num_envs == 1024
    assert configure("recipe=robot", "recipe.robot.num_envs=99").num_envs == 99
    said = describe_recipe(cfg.recipe, cfg.plain)
    assert "redraw" not in said and "push.low=-1.0" in said and "push.high" not in said


def test_what_is_unlearned_is_said():
    """The line names what the recipe would add, less what the command line has already."""
    cfg = configure("task=quadruped")
    line = unlearned(cfg.recipe, cfg.plain)
    assert "late readings, lost readings, biased readings" in line and "recipe=robot" in line
    late = configure("task=quadruped", "task.observation_delay=[0,3]")
    assert "late readings" not in unlearned(late.recipe, late.plain)
    plain = configure("task=cartpole")
    assert unlearned(plain.recipe, plain.plain) == ""
    assert unlearned({"name": "fast", "robot": None}, cfg.plain) == ""


@pytest.mark.parametrize(
    "section, says",
    [
        ({"num_env": 4}, "recipe.robot.num_env: this section cannot change this key"),
        ({"task": {"mjcf": "a.xml"}}, "recipe.robot.task.mjcf: this section cannot change this"),
        ({"algo": {"gama": 0.9}}, "recipe.robot: unknown key algo.gama"),
        ({"task": {"redraw": "often"}}, "recipe.robot: task.redraw='often': expected a number"),
        (None, "recipe=robot does not exist for task=quadruped"),
    ],
)
def test_a_wrong_section_is_one_line(section, says):
    """It says which recipe has which wrong key."""
    cfg = composed() | {"recipe": {"name": "robot", "robot": section}}
    with one_line(says):
        apply_recipe(cfg, [])


def test_mistakes_are_one_line(elsewhere, capsys):
    """A recipe that is unknown, or that a task does not have."""
    said = refused_here("train.py", "recipe=slow", capsys=capsys)
    assert "choose one of fast, humanoid, robot" in said
    said = refused_here("train.py", "task=cartpole", "recipe=robot", capsys=capsys)
    assert "recipe=robot does not exist for task=cartpole" in said


def test_a_run_keeps_its_recipe(tmp_path, elsewhere, capsys):
    """config.yaml has the name and the numbers, resume= goes on with them, and no other recipe."""
    words = ("task=drone", "recipe=robot", *SHORT, "run_dir=run")
    code, out, error = run_here("train.py", *words, capsys=capsys)
    assert (code, error) == (0, "")
    assert "recipe=robot: " in out and "did not learn" not in out
    kept: dict[str, Any] = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert kept["recipe"] == {"name": "robot"} and kept["task"]["observation_delay"] == [0, 3]
    with pytest.raises(ValueError, match=r"recipe\.name robot → fast"):
        configure("resume=run", "recipe=fast")
    again = ("task=drone", "recipe=robot", "auto_resume=true", "run_dir=run", "num_envs=16")
    for words in (("resume=run",), ("resume=run", "recipe=robot"), again):
        cfg = configure(*words)
        assert cfg.plain["task"] == kept["task"] and cfg.recipe == {"name": "robot"}
    code, out, error = run_here("train.py", "resume=run", "iterations=3", capsys=capsys)
    assert (code, error) == (0, "") and "warning" not in out


def test_a_plan_follows_the_legs(monkeypatch):
    """Both ends of the recipe's curriculum are scaled with the number; one of the line is not."""
    monkeypatch.setattr(robot_size, "leg_length", lambda *_: robot_size.LEG / 4)
    words = ("recipe=robot", "robot.mjcf=tasks/assets/quadruped.xml")
    plan = configure(*words).curriculum
    assert plan and plan["task.fastest"]["from"] == [0.65, 0.325, 1.3]
    assert plan["task.fastest"]["to"] == [0.5, 0.25, 1.0]
    entry = "{from:[1,1,1],to:[1,0.5,1],by:iteration,start:0,stop:9}"
    typed = configure(*words, f"curriculum={{task.fastest:{entry}}}").curriculum
    assert typed and typed["task.fastest"]["to"] == [1.0, 0.5, 1.0]
