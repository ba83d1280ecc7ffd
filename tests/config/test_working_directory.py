"""Tasks and configuration of the working directory: found beside ours, before ours, and named."""

import json
import re
import shutil
import sys
from functools import partial

import pytest
import torch
import yaml
from hydra.core.global_hydra import GlobalHydra
from safetensors.torch import save_file

from gpusim_rl.adapters import common
from gpusim_rl.assembly.environment import make_task
from gpusim_rl.assembly.joining import make_settings
from gpusim_rl.assembly.learners import load_algorithm
from gpusim_rl.assembly.models import keep_files
from gpusim_rl.commands import train as commands
from gpusim_rl.config import command_line, compose, resume, validate
from gpusim_rl.core import paths
from gpusim_rl.core.paths import CONF, TASKS, find_asset, folders, user_folder
from gpusim_rl.envs.load_task import load_task
from gpusim_rl.play import replay_failure
from gpusim_rl.robots.models import find_mjcf
from gpusim_rl.runs.run import Run
from tests.command_lines import one_line, run_python
from tests.worlds import ROOT
from tests.worlds import TASKS as OURS

ALGO = "name: mine\nelite: 0.2\nhidden: 8\n"
LEARNER = """
from dataclasses import dataclass
from gpusim_rl.algorithms.learner import LearnerSpec
from gpusim_rl.core.ranges import SHARE
from gpusim_rl.core.sections import number

@dataclass(frozen=True, kw_only=True)
class Settings:
    elite: float = number(SHARE)
    hidden: int
    noise: bool = False

def make(spec, settings): ...

SPEC = LearnerSpec(make=make, make_policy=make, settings=Settings, make_source=make)
"""
TASK = "from gpusim_rl.tasks.classic.cartpole import Cartpole\n\n\nclass Mine(Cartpole):\n    ...\n"


@pytest.fixture
def here(tmp_path, monkeypatch, no_own_tasks):
    """A working directory with an algorithm and a task `mine`, and a second `cartpole`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conf" / "task").mkdir(parents=True)
    (tmp_path / "conf" / "algo").mkdir()
    (tmp_path / "conf" / "algo" / "mine.yaml").write_text(ALGO)
    for folder in ("tasks", "algorithms"):
        (tmp_path / folder / "family").mkdir(parents=True)
    (tmp_path / "algorithms" / "family" / "mine.py").write_text(LEARNER)
    text = (CONF / "task" / "cartpole.yaml").read_text()
    for name in ("mine", "cartpole"):
        (tmp_path / "tasks" / "family" / f"{name}.py").write_text(TASK)
        own = text.replace("name: cartpole", f"name: {name}").replace("dt: 0.05", "dt: 0.1")
        (tmp_path / "conf" / "task" / f"{name}.yaml").write_text(own)
    return tmp_path


def test_the_checkout_has_only_ours(monkeypatch):
    """In the repository the folders of the working directory are ours."""
    monkeypatch.chdir(ROOT)
    assert user_folder("tasks") is None and user_folder("conf") is None
    assert folders("tasks") == [TASKS]


def test_configuration_wins(here):
    """A file of the working directory is composed in the place of ours, and names are added."""
    assert compose.choices("task") == sorted({*OURS, "mine"})
    assert compose.compose_plain("config", ["task=cartpole"])["task"]["dt"] == 0.1
    assert compose.compose_plain("config", ["task=mine"])["task"]["name"] == "mine"
    assert compose.compose_plain("config", ["task=quadruped"])["task"]["dt"] == 0.02
    assert compose.choices("algo") == ["distill", "dream", "mine", "ppo", "sac"]


def test_numbers_of_an_algorithm(here):
    """An algorithm has the numbers of its own file and of the command line, no task's for PPO."""
    moving = "curriculum={algo.elite:{from:0.5,to:0.2,by:iteration,start:0,stop:9}}"
    words = ["task=cartpole", "algo=mine", "algo.hidden=9", moving]
    cfg = compose.compose_plain("config", words)
    assert cfg["algo"] == {"name": "mine", "elite": 0.2, "hidden": 9} and cfg["num_envs"] == 256
    assert resume.check_training(cfg, words).algo_code == "here"
    with pytest.raises(ValueError, match=r"unknown key 'algo\.clip_coef'"):
        compose.compose_plain("config", ["algo=mine", "algo.clip_coef=0.1"])


def test_numbers_that_begin_with_those_of_ppo(here):
    """Below its own, such a file has those of the task, of its recipe, GPU and curriculum, too."""
    ours = compose.compose_plain("config", ["task=quadruped", "recipe=robot"])
    mine = "defaults: [ppo, _self_]\nname: mine\nelite: 0.2\nent_coef: 0.125\n"
    (here / "conf" / "algo" / "mine.yaml").write_text(mine)
    words = ["task=quadruped", "recipe=robot", 'algo="mine"', "algo.clip_coef=0.5"]
    cfg = compose.compose_plain("config", words)
    changed = {"name": "mine", "elite": 0.2, "ent_coef": 0.125, "clip_coef": 0.5}
    assert cfg["algo"] == ours["algo"] | changed
    assert (cfg["gpu"], cfg["recipe"]) == (ours["gpu"], ours["recipe"])
    plan = cfg["curriculum"]
    assert plan == ours["curriculum"] and "algo.max_std" in plan and "algo.ent_coef" not in plan


def test_numbers_that_begin_with_those_of_sac(here):
    """Below its own, such a file has what a task has for SAC: its section, and the discount."""
    mine = "defaults: [sac, _self_]\nname: mine\nelite: 0.2\ntau: 0.125\n"
    (here / "conf" / "algo" / "mine.yaml").write_text(mine)
    for more in ((), ("recipe=robot", "algo.alpha=0.5")):
        words = ["task=quadruped", *more]
        ours = compose.compose_plain("config", [*words, "algo=sac"])
        cfg = compose.compose_plain("config", [*words, "algo=mine"])
        assert cfg == ours | {"algo": ours["algo"] | {"name": "mine", "elite": 0.2, "tau": 0.125}}
    (here / "conf" / "algo" / "mine.yaml").write_text(f"{mine}gamma: 0.5\nbound: 3.0\n")
    algo = compose.compose_plain("config", ["task=quadruped", "algo=mine"])["algo"]
    assert (algo["gamma"], algo["bound"]) == (0.5, 3.0)
    (here / "conf" / "algo" / "mine.yaml").write_text("defaults: [sac, _self_]\ngamma: 0.5\n")
    algo = compose.compose_plain("config", ["task=quadruped", "algo=mine"])["algo"]
    assert (algo["name"], algo["gamma"]) == ("sac", 0.5)


def test_other_numbers_for_ppo(here):
    """A file without a name has numbers for PPO."""
    numbers = yaml.safe_load((CONF / "algo" / "ppo.yaml").read_text()) | {"max_grad_norm": 0.5}
    del numbers["name"]
    (here / "conf" / "algo" / "tuned.yaml").write_text(yaml.safe_dump(numbers))
    tuned = commands.configure("task=quadruped", "algo=tuned")
    assert tuned.algo.name == "ppo" and tuned.algo.settings.max_grad_norm == 0.5
    assert tuned.algo_code is None


def test_settings_of_a_learner(here):
    """The keys of a learner are the fields of its settings, which say their ranges."""
    assert yaml.safe_load(ALGO) == {"name": "mine", "elite": 0.2, "hidden": 8}
    spec, numbers = load_algorithm("mine"), {"elite": 0.2}
    assert spec.make_source and load_algorithm("mine") is spec
    for values, says in (
        ({"elite": 2, "hidden": 8}, r"algo\.elite=2: expected a number from 0 to 1"),
        ({"depth": 2}, r"algo\.hidden is missing in conf/algo/mine\.yaml"),
        ({"hidden": 8, "depth": 2}, r"unknown key 'algo\.depth' .*: choose one of elite, hidden"),
        ({"hidden": 8}, r"algo\.hidden has no range: Settings\.hidden = number\(…\)"),
    ):
        with pytest.raises(ValueError, match=says):
            make_settings(spec, numbers | values, "mine")


def test_an_incomplete_file(here):
    """A file of the working directory that lacks a key of ours is refused in one line."""
    for name, missing in (("ppo", "activation"), ("tuned", "activation"), ("mine", "name")):
        (here / "conf" / "algo" / f"{name}.yaml").write_text("gamma: 0.9\n")
        with one_line(f"conf/algo/{name}.yaml lacks the key algo.{missing}"):
            compose.compose_plain("config", ["task=cartpole", f"algo={name}"])


@pytest.mark.parametrize(
    "file, text, says",
    [
        ("task/mine", "# @package _global_\nhydra: {callbacks: {a: {}}}", "the key hydra"),
        ("robot/own", "# @package _global_\nhydra: {job_logging: {}}", "the key hydra"),
        ("algo/ppo", "gamma: {_target_: os.system}", "the key _target_"),
        ("log/auto", "name: auto\na: [{'()': os.system}]", r"the key \(\)"),
        ("log/auto", "# @package hydra.callbacks\nname: auto", "@package hydra.callbacks"),
        ("sim/auto", "defaults: [/task@hydra.callbacks: mine]", "defaults: expected names"),
        ("sim/auto", "defaults: [override /hydra/job_logging: none]", "defaults: expected names"),
        ("algo/ppo", "# @package _global_\ntask_code: here", "the key task_code"),
        ("algo/ppo", "# @package _global_\nalgo_code: here", "the key algo_code"),
        ("task/mine", "# @package _global_\nalgo: {name: mine}", r"the key algo\.name"),
        ("algo/ppo", "name: [mine]", r"algo\.name=\['mine'\]: expected a word"),
        ("algo/ppo", "- gamma", "expected keys with values"),
        ("algo/ppo", "gamma: high", "algo.gamma='high': expected a number"),
        ("algo/ppo", "# @package _global_\nalgo: 3", "algo=3: expected keys with values"),
    ],
)
def test_refused_files(here, file, text, says):
    """A file of the working directory that could run code, or allow it, is named in one line."""
    path = here / "conf" / f"{file}.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text + "\n")
    with pytest.raises(ValueError, match=says) as error:
        compose.compose_plain("config", ["task=mine"])
    assert str(error.value).startswith(f"{path}: ") and "\n" not in str(error.value)
    if file == "robot/own":
        with pytest.raises(ValueError, match=says):
            compose.compose_plain("play", [])


def test_files_of_another_program(here):
    """Files at the root of another program's conf/, and its other folders, are not read."""
    expected = {name: compose.build(name, []) for name in ("config", "play")}
    (here / "conf" / "hydra" / "job_logging").mkdir(parents=True)
    for name in ("config", "play", "common", "hydra/job_logging/default"):
        (here / "conf" / f"{name}.yaml").write_text("model: {layers: 3}\ntask_code: here\n")
    for name, cfg in expected.items():
        assert compose.build(name, []) == cfg
    assert not compose.is_group("hydra")


def test_the_command_runs_no_code(here, monkeypatch):
    """Hydra itself, as the commands start it, refuses a callback in a task's file."""
    path = here / "conf" / "task" / "mine.yaml"
    call = "{_target_: pathlib.Path.touch, self: called}"
    path.write_text(path.read_text() + f"hydra: {{callbacks: {{a: {call}}}}}\n")
    for words in (["task=mine"], ["task=mine", "--cfg", "hydra"]):
        with pytest.raises(SystemExit) as error:
            command_line.check("config", words)
        assert error.value.code == 2
    with pytest.raises(ValueError, match=r"mine\.yaml: the key _target_"):
        monkeypatch.setattr(sys, "argv", ["train"])
        monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
        command_line.answer("config", ["task=mine", "--cfg", "hydra"])
    GlobalHydra.instance().clear()
    assert not (here / "called").exists()


@pytest.mark.parametrize(
    "old, new, says",
    [
        ("noise: {", "noise: null # {", "task.noise=None: expected keys with values"),
        ("weights: {", "weights: 3 # {", "task.weights=3: expected keys with values"),
        ("  clip:", "  history: 3\n  clip:", "task.history=3: expected keys with values"),
        ("dt: 0.1", "dt: null", "task.dt=None: expected a number"),
        ("randomise:\n", "randomise:\n    mass: 3\n    old:\n", "task.randomise.mass=3"),
        ("num_envs: 256", "num_envs: many", "num_envs='many': expected a whole number"),
        ("weights: {", "# {", "lacks the key task.weights"),
        ("mjcf: ", "# ", "lacks the key task.mjcf"),
    ],
)
def test_wrong_values(here, old, new, says):
    """A value of the wrong kind, or a missing one, is told in one line with its file and key."""
    path = here / "conf" / "task" / "mine.yaml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new).replace("    mass: {", "    other: {", 1))
    with pytest.raises(ValueError, match=says) as error:
        compose.compose_plain("config", ["task=mine"])
    assert str(error.value).startswith(str(path)) and "\n" not in str(error.value)


def test_unknown_number(here):
    """A number that a constructor does not take is answered with those that it takes."""
    (here / "conf" / "robot").mkdir()
    text = (CONF / "robot" / "own.yaml").read_text().replace("stall:", "stal: 1\n  stall:")
    (here / "conf" / "robot" / "own.yaml").write_text(text)
    says = r"unknown key 'robot\.actuator\.stal' in .*: choose one of kind, "
    with pytest.raises(ValueError, match=says):
        commands.configure("task=mine")


def test_a_run_of_ours_stays_ours(here):
    """A run of our task has our configuration, code and model, whatever the directory holds."""
    ours = compose.build("config", ["task=cartpole"], builtin=True)
    run = Run.create(here / "run", ours | {"task_code": None})
    (here / "run" / "checkpoints").mkdir(exist_ok=True)
    (here / "run" / "checkpoints" / "1.safetensors").touch()
    (here / "tasks" / "assets").mkdir()
    for folder in (here, here / "tasks" / "assets"):
        (folder / "cartpole.xml").write_text("<mujoco/>")
    path = here / "conf" / "task" / "cartpole.yaml"
    path.write_text(path.read_text().replace("  sigma: 0.5", "  own: 0.5"))
    for allowed in (None, "here"):
        cfg = resume.load_config(run, allowed)
        assert cfg.task_code is None and cfg.plain["task"] == ours["task"]
    task = make_task(cfg, "cpu")
    assert type(task).__module__ == "gpusim_rl.tasks.classic.cartpole"
    assert task.mjm.nu == 1 and "cart" in task.mjcf_text()
    assert keep_files(cfg, here / "run", {}) == {}
    for words in (
        ["task=cartpole", "auto_resume=true", "run_dir=run"],
        ["resume=run", "task_code=here"],
    ):
        with pytest.raises(ValueError, match=r"cannot change: .*task_code None → here"):
            commands.configure(*words)
    assert commands.configure("resume=run").task_code is None
    file = here / "run" / "config.yaml"
    file.write_text(file.read_text().replace("mjcf: cartpole.xml", "mjcf: other.xml"))
    (here / "other.xml").write_text("<mujoco/>")
    with pytest.raises(ValueError, match=r"'other\.xml' lies outside of the run"):
        resume.load_config(Run.open(here / "run"))


def test_a_step_of_ours(here):
    """A failed step of our task is read with our configuration."""
    cfg = compose.build("config", ["task=cartpole"], builtin=True)
    about = {key: cfg[key] for key in ("task", "robot", "task_code")}
    path = here / "repro.safetensors"
    save_file({"x": torch.zeros(1)}, path, metadata={"gpusim_rl": json.dumps(about)})
    own = here / "conf" / "task" / "cartpole.yaml"
    own.write_text(own.read_text().replace("  sigma: 0.5", "  own: 0.5"))
    assert replay_failure.read(path)[1].plain["task"] == cfg["task"]


def test_a_name_from_python(here, capsys):
    """A task that a program names counts as named on the command line; a run does not."""
    assert commands.configure("task=mine").task_code == "here"
    assert common.compose_config("mine", 2, [], {}).task_code == "here"
    assert common.compose_config("quadruped", 2, [], {}).task_code is None
    cfg = compose.compose_plain("config", ["task=mine"]) | {"task_code": "here"}
    Run.create(here / "run", cfg)
    with pytest.raises(ValueError, match=r"task .mine. has code of its own"):
        commands.configure("resume=run")
    assert "importing" not in capsys.readouterr().err


def test_a_task_that_is_not_named(here):
    """Neither a task's file nor the default has code of the working directory imported."""
    path = here / "conf" / "task" / "cartpole.yaml"
    path.write_text(path.read_text().replace("name: cartpole", "name: mine"))
    shutil.copy(here / "tasks/family/mine.py", here / "tasks/family/quadruped.py")
    for words, name in ((["task=cartpole"], "mine"), ([], "quadruped")):
        with pytest.raises(ValueError, match=rf"{name}\.py is imported only if you name it"):
            commands.configure(*words)


def test_a_named_task_is_imported(here, capsys):
    """A task that is named comes from the working directory, and the import is told once."""
    assert commands.configure("task=mine").task_code == "here"
    first, again = load_task("mine", "here"), load_task("mine", "here")
    assert first is again and first.__module__ == "tasks.family.mine"
    said = capsys.readouterr()
    assert said.out == "" and said.err == f"importing {here}/tasks/family/mine.py\n"
    assert load_task("cartpole", "here").__module__ == "tasks.family.cartpole"
    assert load_task("cartpole").__module__ == "gpusim_rl.tasks.classic.cartpole"


@pytest.mark.parametrize(
    "load, folder", [(partial(load_task, code="here"), "tasks"), (load_algorithm, "algorithms")]
)
@pytest.mark.parametrize(
    "text, says",
    [
        ("raise OSError('gone')", "line 1: OSError: gone"),
        ("def f(:", "SyntaxError"),
        ("x = 1", "defines 0 subclasses of Task|SPEC is NoneType, expected a LearnerSpec"),
    ],
)
def test_code_that_is_wrong(here, load, folder, text, says):
    """A file that cannot be imported, or has no such class, is named in one line."""
    (here / folder / "family" / "mine.py").write_text(text)
    with pytest.raises(ValueError, match=says) as error:
        load("mine")
    assert "mine.py" in str(error.value) and "\n" not in str(error.value)


def test_code_without_numbers(here):
    """A task whose YAML is missing is there, and what it lacks is named."""
    (here / "conf" / "task" / "mine.yaml").unlink()
    with pytest.raises(
        ValueError, match=r"task=mine: beside .*/mine\.py conf/task/mine\.yaml is m"
    ):
        compose.compose_plain("config", ["task=mine"])


def test_a_run_needs_task_code(here, monkeypatch):
    """task_code=here alone imports its code; the refusal ends with the command to copy."""
    cfg = compose.compose_plain("config", ["task=mine"]) | {"task_code": "here"}
    run = Run.create(here / "run", cfg)
    says = r"task 'mine' has code of its own, tasks/family/mine\.py, .* only if you allow it: "
    copied = {
        "/bin/program": "task_code=here",
        "train.py": "python train.py 'run=my run' task_code=here",
        "gpusim verify": "gpusim verify 'run=my run' task_code=here",
    }
    for name, line in copied.items():
        monkeypatch.setattr(sys, "argv", [name, "run=my run"])
        monkeypatch.setattr(paths, "executable", lambda name: name)
        with pytest.raises(ValueError, match=f"{says}{re.escape(line)}$"):
            resume.load_config(run)
    with pytest.raises(ValueError, match=f"'other': choose one of {', '.join(OURS)}; or give task"):
        validate.saved_code("task", "other", "here", None)
    assert resume.load_config(run, "here").task_code == "here"
    # a run cannot allow it by itself
    for name, code, allowed in (("cartpole", None, None), ("quadruped", None, None)):
        file = here / "run" / "config.yaml"
        said = cfg | compose.compose_plain("config", [f"task={name}"]) | {"task_code": code}
        file.write_text(yaml.safe_dump(said))
        assert resume.load_config(Run.open(here / "run"), allowed).task_code is None
    for group, name in (("task", "quadruped"), ("algo", "ppo")):
        assert validate.saved_code(group, name, None, "here") is None
        with pytest.raises(ValueError, match="task_code=here"):
            validate.saved_code(group, name, "here", None)


def test_a_run_of_an_own_algorithm(here):
    """It is continued with task_code=here, or with auto_resume=true if it is named."""
    cfg = commands.configure("task=quadruped", "algo=mine")
    run = Run.create(here / "run", cfg.plain)
    (run.checkpoints.path / "1.safetensors").touch()
    auto = ["auto_resume=true", "run_dir=run"]
    says = "algorithm 'mine' has code of its own, algorithms/family/mine.py, which is imported only"
    for words in (["resume=run"], auto, [*auto, "task=cartpole"]):
        with pytest.raises(ValueError, match=says):
            commands.configure(*words)
    (here / "tasks" / "family" / "quadruped.py").write_text(TASK)  # a run of our task stays ours
    again = commands.configure("resume=run", "task_code=here", "iterations=200")
    assert again.algo == cfg.algo
    assert (again.task_code, again.algo_code) == (None, "here")
    (here / "tasks" / "family" / "quadruped.py").unlink()
    assert commands.configure(*auto, "algo=mine").algo_code == "here"
    with pytest.raises(ValueError, match=r"cannot change: algo\.name mine → ppo"):
        commands.configure("resume=run", "task_code=here", "algo=ppo")
    run.configure(commands.configure("task=mine", "algo=mine").plain)
    with pytest.raises(ValueError, match="task 'mine' has code of its own"):
        commands.configure(*auto, "algo=mine")
    (here / "algorithms" / "family" / "mine.py").unlink()
    with pytest.raises(ValueError, match=r"algorithms/ of the working directory has no file mine"):
        commands.configure("resume=run", "task_code=here")
    with pytest.raises(ValueError, match=r"algo=mine: no file mine\.py in algorithms/, here or"):
        commands.configure("task=quadruped", "algo=mine")


def test_an_algorithm_that_is_not_named(here):
    """A file of numbers cannot have another algorithm imported; a ppo.py beside it is not ours."""
    (here / "conf" / "algo" / "other.yaml").write_text(ALGO)
    with pytest.raises(
        ValueError, match=r"mine\.py is imported only if you name it: say algo=mine"
    ):
        commands.configure("task=quadruped", "algo=other")
    (here / "algorithms" / "ppo.py").write_text("raise OSError")
    assert commands.configure("task=quadruped", "algo=ppo").algo_code is None


def test_a_run_to_begin_with(here):
    """start= names a run with a checkpoint, and only for a new training."""
    run = Run.create(here / "run", commands.configure("task=quadruped").plain)
    with pytest.raises(OSError, match="start=run: this run has no checkpoint"):
        commands.configure("start=run")
    (run.checkpoints.path / "1.safetensors").touch()
    assert commands.configure("start=run").start == "run"
    assert commands.configure("start=run", "algo=mine").start == "run"
    with pytest.raises(ValueError, match="start= begins a new training"):
        commands.configure("start=run", "resume=run")
    again = commands.configure("start=run", "run_dir=run", "auto_resume=true")
    assert again.resume == "run" and again.start is None


def test_models_beside_a_task(here):
    """A bare name is a model of tasks/assets or of any folder there, then one of ours."""
    (here / "tasks" / "family" / "mine.xml").write_text("<mujoco/>")
    assert find_mjcf("mine.xml") == here / "tasks" / "family" / "mine.xml"
    (here / "tasks" / "assets").mkdir()
    (here / "tasks" / "assets" / "mine.xml").write_text("<mujoco/>")
    assert find_mjcf("mine.xml") == here / "tasks" / "assets" / "mine.xml"
    assert find_mjcf("cartpole.xml") == TASKS / "assets" / "cartpole.xml"
    assert find_asset("../cartpole.xml") is None


@pytest.mark.parametrize("name", ["tasks", "tasks.classic.cartpole"])
def test_one_import_name(name):
    """In the repository a task has the name gpusim_rl.tasks… and no other."""
    done = run_python(f"import {name}")
    assert done.returncode == 1 and "import gpusim_rl.tasks" in done.stderr
