"""The command line: a mistake gets one line and leaves nothing; each log= ends where it should."""

import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from gpusim_rl.assembly.iteration import make_iteration
from gpusim_rl.config import command_line, compose
from gpusim_rl.core.seeds import EVALUATION_SEEDS
from gpusim_rl.evaluation.evaluate import SEED, STOP_SEED
from gpusim_rl.runs.checkpoints import load
from gpusim_rl.runs.run import Run
from gpusim_rl.viewer.offscreen import NO_GL
from tests.command_lines import (
    EXPORTED,
    SMALL,
    TINY,
    command,
    refused,
    refused_here,
    run_process,
    succeed,
)
from tests.films import gray_film
from tests.wandb_file import read_wandb
from tests.worlds import ROOT, make_config, make_env, make_ppo

TRAIN = {
    "sim=warp sim.conditional=true graph=whole": "use graph=parts",
    "task=walk": "unknown task 'walk': choose one of ant, cartpole, drone",
    "log=wandbb": "unknown log 'wandbb': choose one of auto, mlflow, none, tensorboard, wandb",
    "nun_envs=4": "unknown key 'nun_envs': did you mean num_envs",
    "lr=1": "unknown key 'lr': did you mean algo.learning_rate?",
    "algo.lr=1": "unknown key 'algo.lr': did you mean algo.learning_rate?",
    "total_timesteps=9": "unknown key 'total_timesteps': did you mean iterations?",
    "algo=sac buffer_size=9": "unknown key 'buffer_size': did you mean algo.replay?",
    "algo=sac tau=1": "unknown key 'tau': did you mean task or algo.tau or start?",
    "task.weights.velocty=1": "unknown key 'task.weights.velocty': did you mean "
    "task.weights.velocity",
    "num_envs=0": "num_envs=0: expected a whole number from 1 to",
    "num_envs=abc": "num_envs='abc': expected a whole number, such as 384",
    "iterations=1.5": "iterations=1.5: expected a whole number",
    "algo.hidden=[64,wide]": "algo.hidden='wide': expected a whole number",
    f"seed={SEED}": f"expected a whole number from 0 to {EVALUATION_SEEDS - 1}",
    "stop_at=95": "stop_at=95: expected a number above 0, up to 1, or null",
    "task.weights.power=-0.1": "task.weights.power=-0.1: expected a number of at least 0",
    "task.weights.action_rate=null": "task.weights.action_rate=None: expected a number",
    "~task.weights.action_rate": "'~task.weights.action_rate': only KEY=VALUE is understood",
    "+task.weights.joy=1": "'+task.weights.joy=1': only KEY=VALUE is understood",
    "seed=1,2": "'seed=1,2' is a list of values: add -m",
    "-m seed=1,x": "seed='x': expected a whole number",
    "-m num_envs=8,0": "num_envs=0: expected",
    "task.randomise.friction.low=2": "task.randomise.friction: low=2.0 is above high=1.25",
    "task.randomise.push.kind=log_uniform": "task.randomise.push.low=-0.5: a log_uniform draw "
    "needs more than 0",
    "task.randomise.mass.low=0": "task.randomise.mass.low=0.0: expected more than 0",
    "task.randomise.kp.kind=gauss": "task.randomise.kp.kind=gauss: choose one of off, uniform, "
    "log_uniform, normal",
    "task.randomise.frction.low=1": "unknown key 'task.randomise.frction.low': did you mean "
    "task.randomise.friction.low",
    "task.randomise.gravity.how=add": "task.randomise.gravity.how=add: choose one of set, scale",
    "curriculum=5": "curriculum=5: expected KEY",
    "curriculum={task.weights.jrk:{from:0,to:1,by:iteration,start:0,stop:9}}": "curriculum: "
    "unknown key task.weights.jrk",
    "curriculum={task.randomise.mass.low:{from:1,to:0.9,by:iteration,start:0,stop:9}}": "mass is "
    "drawn once, before training",
    "curriculum={task.randomise.force.low:{from:0,to:-9,by:iteration,start:0,stop:9}}": "task."
    "randomise.force is off",
    "curriculum={task.randomise.push.low:{from:1,to:-1,by:iteration,start:0,stop:9}}": "at "
    "iteration 0, success 0: task",
    "curriculum={task.weights.power:{from:1,to:2,by:time,start:0,stop:9}}": "by=time: choose one "
    "of iteration, success",
    "task.fastest=[1,0.5]": "task.fastest=[1, 0.5]: expected 3 numbers, such as [1.0, 0.5, 1.0]",
    "task.clip=nan": "task.clip=nan: expected a finite number",
    "task.name=cartpole": "task.name=cartpole: choose with task=, one of ant, cartpole, drone",
    "-m seed=1,2 run_dir=x": "run_dir=x: each run of a multirun needs one of its own",
    "-m task=glob(*)": "task=glob(*): list the values, as in task=a,b",
    "fast": "'fast' is not KEY=VALUE",
    "=1": "unknown key ''",
    "hydra.run.dir=x": "unknown key 'hydra.run.dir'",
    f"seed={'9' * 5000}": "Exceeds the limit (4300 digits)",
    f"algo.hidden={'[' * 400}8{']' * 400}": "nested too deeply",
    "run_dir=机": "such characters stand in quotes",
    "algo.gamma=1e39": "algo.gamma=1e+39: expected a finite number",
    f"num_envs={2**31}": f"num_envs={2**31}: expected a whole number from 1 to {2**31 - 1}",
    f"algo.lr_min={10**30}": f"algo.lr_min={10**30}: expected a number below 2**63",
    "-m seed=range(0,1000000000)": "a multirun has at most 200 runs",
    "-m jobs=1,2": "jobs: expected one number",
    "-m seed=1,2 jobs=0": "jobs=0: expected a whole number from 1",
    "jobs=2": "jobs=2: add -m and a list of values",
    "--cfg": "--cfg: choose one of job, hydra, all",
    "--cfg job --info": "one option at a time",
    "--frobnicate": "unknown option --frobnicate",
    "gate=true export=none": "gate=true judges the exported file: not with export=none",
    "gate=perhaps": "gate='perhaps': expected",
    "film_every=[1]": "film_every=[1]: expected a whole number from 1",
    "resume=nowhere": "nowhere is not a run directory: it has no config.yaml",
}
TRAIN |= {
    "log.tags=baseline": "log.tags='baseline': expected a list, such as []",
    "log.tags={a:b}": "log.tags={a:b}: expected another kind of value",
    "log.tag=[a]": "unknown key 'log.tag': did you mean log.tags",
    "task.randomise.friction.only=[[a]] task.randomise.friction.kind=uniform": "task.randomise."
    "friction.only=[['a']]: expected",
    "curriculum={1:{from:0,to:1,by:iteration,start:0,stop:1}}": "curriculum: 1 cannot be scheduled",
}
BUILD = {  # answered by what the value is for, when it is built
    "curriculum={algo.update_epochs:{from:1,to:2,by:iteration,start:0,stop:9}}": "algo."
    "update_epochs cannot be scheduled: choose of algo.gamma",
    "task.clip=-1": "task.clip=-1: expected a number above 0",
    "task.share_standing=1.5": "task.share_standing=1.5: expected a number from 0 to below 1",
    "task=cartpole task.randomise.push.kind=uniform": "task.randomise.push: this model has no "
    "free base",
    "task.randomise.mass.only=[wheel]": "task.randomise.mass.only: no body 'wheel', choose of "
    "trunk, FL_hip",
    "task.randomise.payload.kind=uniform task.randomise.payload.low=-9": "task.randomise.payload."
    "low=-9: body_mass could",
    "task=cartpole task.randomise.joint_friction.kind=uniform": "joint_friction: this model has "
    "none to scale, say how=set",
    "task.randomise.damping.kind=uniform task.randomise.damping.how=add "
    "task.randomise.damping.low=0 "
    "curriculum={task.randomise.damping.low:"
    "{from:-9,to:0,by:iteration,start:0,stop:9}}": "damping.low=-9: dof_damping could",
    "algo.gamma=3": "algo.gamma=3: expected a number from 0 to 1",
    "algo.lr_min=1.0 algo.lr_max=1e-5": "algo.lr_min=1.0: expected at most lr_max=1e-05",
    "task.fastest=[-1,0.5,1]": "task.fastest=[-1, 0.5, 1]: expected numbers of at least 0",
    "task.gait_pose=[100,100,100]": "task.gait_pose=[100, 100, 100]: expected numbers from -3.1416",
    "algo.hidden=[-3]": "algo.hidden=[-3]: expected whole numbers",
    "sim=warp device=foo": "unknown device 'foo': choose one of auto, cpu, cuda",
    "graph=some": "graph=some: choose one of parts, whole, off",
    "algo.amp=fp8": "algo.amp=fp8: choose one of bf16, null",
    "algo.hidden=[100000]": "algo.hidden=[100000]: expected whole numbers from 1 to 8192",
    "task.dt=1e30": "task.dt=1e+30 s is not a whole number, from 1 to 1000, of the model's "
    "timestep",
    "task.episode=1e30": "task.episode=1e+30 s: expected 1 to 1000000 control steps",
    "num_envs=2000000000": "num_envs=2000000000 takes more than",
    "episodes=2000000000": "episodes=2000000000 of task.episode=20.0 s takes more than",
    "num_steps=2000000000": "num_steps=2000000000, with algo.update_epochs=",
    "algo.update_epochs=2000000000": "with algo.update_epochs=2000000000, takes more than",
}
PLAY = {
    "demoo": "'demoo' is not KEY=VALUE: did you mean demo?",
    "policy.onnx": "'policy.onnx' is not KEY=VALUE: did you mean onnx=policy.onnx?",
    "mode=fly": "unknown mode 'fly': choose one of auto, viewer, video, evaluate, grid, export",
    "moed=video": "unknown key 'moed': did you mean mode",
    "mode=viewer": "mode=viewer needs a display; use mode=web or video=walk.mp4",
    "mode=web host=example.com": "unknown key 'host'",
    "mode=web compare=[a,b]": "a is not a run directory: it has no config.yaml",
    "compare=[a,b]": "compare=['a', 'b'] needs mode=web",
    "onnx=p.onnx mode=export": "mode=export needs run=, not onnx=",
    "video=missing/walk.mp4": "video=missing/walk.mp4: no directory missing",
    "video=walk.txt": "video=walk.txt: expected a name that ends in .mp4",
    "mode=video video=.mp4/": "expected a name that ends in",
    "mode=evaluate out=/proc/eval.json": "out=/proc/eval.json cannot be written",
    "mode=export out=.": "out=.: expected a name that ends in .onnx",
    "mode=new-task": "mode=new-task needs name=NAME, for example name=my_arm",
    "mode=new-task name=quadruped": "quadruped.py exists already: choose another name",
    "name=my_arm": "name=my_arm needs mode=new-task",
    "seconds=0": "seconds=0: expected a whole number from 1 to 86400",
    "video=w.mp4 camera=": "camera='': expected the name of a camera",
    "command=[fast]": "command=['fast']: expected numbers",
    "command=[nan,0,0]": "command=[nan, 0, 0]: expected numbers",
    "video=w.mp4 size=1280x720": "size=1280x720: expected two even numbers, such as [1280,720]",
    "video=w.mp4 worlds=[4]": "worlds=[4]: expected a whole number from 1 to 64, or null",
    "run=a onnx=p.onnx": "onnx= is a policy by itself: not with run= or checkpoint=",
    "video=w.mp4 out=a.json": "out=a.json needs mode=evaluate or grid or export or record",
    "mode=evaluate video=w.mp4": "video=w.mp4 needs mode=video",
    "demo video=": "video=: expected a name that ends in .mp4",
    "demo mode=evaluate": "mode=evaluate: the demo is shown by mode=viewer, video or web",
    "demo mode=export export=network": "export=network needs run=, not onnx=",
    "demo run=a": "run=a: the demo shows its own policy",
    "run=nowhere": "nowhere is not a run directory: it has no config.yaml",
    "mode=record run=x": "mode=record needs out=FILE.safetensors",
    "mode=record run=x out=a.onnx": "out=a.onnx: expected a name that ends in .safetensors",
    "mode=record out=a.safetensors repro=b": "repro= is shown by itself: not with run=, onnx= or",
    "mode=grid report=a.jpg": "report=a.jpg: expected a name that ends in .png",
    "mode=grid onnx=a.onnx": "mode=grid needs run=, not onnx=",
    "mode=grid worlds=4": "worlds=4 needs mode=video",
    "video=a.mp4 kind=5": "kind=5: expected a kind of rough ground",
    "video=a.mp4 worlds=65": "worlds=65: expected a whole number from 1 to 64",
    "onnx=a.onnx video=a.mp4 worlds=4": "worlds=4 needs run=",
    "mode=gate run=x checkpoint=a": "mode=gate judges an exported file: not with checkpoint=",
    "repro=x mode=robot robot.mjcf=a": "repro= is shown by itself: not with run=, onnx= or mode=r",
    "video=a.mp4 size=[3,4]": "size=[3, 4]: expected two even numbers, such as [1280,720]",
    "mode=robot": "mode=robot needs robot.mjcf=<MJCF or URDF file>",
    "mode=export export=all": "export='all': choose one of controller, network",
    "threads=-1": "threads=-1: expected a whole number from 0 to 1024",
    "mode=evaluate": "no run with a checkpoint under runs/: train one",
}

FILES = {".lock", "config.yaml", "versions.json", "metrics.json", "metrics.jsonl", "metrics.prom"}
FILES |= {"hashes.jsonl", "checkpoints", "eval.json", "readings.json", "policy.onnx"}


@pytest.mark.parametrize("line", TRAIN)
def test_train_answers_a_mistake_at_once(here, line):
    """In one line, before torch and MuJoCo are loaded."""
    assert TRAIN[line] in refused("train.py", *line.split(), cwd=here, block="torch mujoco warp")


@pytest.mark.parametrize("line", BUILD)
def test_what_is_built_answers_for_its_numbers(line):
    """A ValueError with key, value and range; train.py makes it one line."""
    with pytest.raises(ValueError, match=re.escape(BUILD[line])):
        make_iteration(make_config("num_envs=4", *line.split()))


@pytest.mark.parametrize("line", PLAY)
def test_play_answers_a_mistake_at_once(here, line):
    """In one line, before torch and MuJoCo are loaded."""
    assert PLAY[line] in refused("play.py", *line.split(), cwd=here, block="torch mujoco warp")


def test_the_block_works(here):
    """What loads torch where these tests forbid it does end in a traceback."""
    done = command("train.py", *TINY, "iterations=1", cwd=here, block="torch")
    assert done.returncode == 1 and "torch was imported" in done.stderr
    assert not list(here.iterdir())


# -- the model -------------------------------------------------------------------------------------

XML = (ROOT / "tasks" / "assets" / "quadruped.xml").read_text()


def without(*parts: str) -> str:
    """The quadruped's MJCF without the lines that hold one of the parts."""
    kept = [line for line in XML.splitlines() if not any(part in line for part in parts)]
    assert len(kept) == XML.count("\n") - len(parts)
    return "\n".join(kept)


NO_FIT = "task.mjcf=robot.xml does not fit task=quadruped: it lacks "
MODELS: dict[str, tuple[str | None, str]] = {
    "missing": (None, "task.mjcf: no file 'robot.xml', here or among ant.xml, arm.xml, cart"),
    "broken": ("<mujoco><worldbody>", "task.mjcf: robot.xml: XML parse error"),
    "invalid": (
        "<mujoco><worldbody><body><joint/></body></worldbody></mujoco>",
        "task.mjcf: robot.xml: Error: mass and inertia",
    ),
    "empty": ("<mujoco/>", f"{NO_FIT}'FL_abduction', 'FL_abduction_torque'"),
    "no gyro": (without("<gyro name"), "'gyro', which no sensor or memory of this model has"),
    "no position": (without('"FR_position"'), f"{NO_FIT}'FR_position'"),
    "no torque": (without('"RL_knee_torque"'), f"{NO_FIT}'RL_knee_torque'"),
    "no keyframe": (without("<key name"), f"{NO_FIT}a keyframe"),
}


@pytest.mark.parametrize("model", MODELS)
def test_a_model_that_does_not_fit(here, model, capsys):
    """What is missing, broken, or lacks what the task reads is named in one line."""
    text, says = MODELS[model]
    if text:
        (here / "robot.xml").write_text(text)
    words = (*TINY, "task.mjcf=robot.xml", "run_dir=run")
    assert says in refused_here("train.py", *words, capsys=capsys)


# -- run directories and checkpoints ---------------------------------------------------------------


def test_run_directory_that_cannot_be_written(here, trained):
    """One line each, and nothing of it remains."""
    (here / "file").write_text("x")
    for path, says in (
        ("file/run", "Not a directory"),
        ("/proc/run", "cannot be written"),
        (str(trained), "is not empty"),
    ):
        line = refused("train.py", *TINY, f"run_dir={path}", cwd=here, block="torch")
        assert f"run_dir={path}" in line and says in line
    assert (here / "file").read_text() == "x"


def test_a_cache_that_cannot_be_written(here):
    """Warp keeps its kernels there; without WARP_CACHE_PATH it is in the home."""
    line = refused("train.py", *TINY, cwd=here, WARP_CACHE_PATH="/proc/x")
    assert "set WARP_CACHE_PATH to a folder that can be written" in line


def both(says: str, capsys: Any) -> None:
    """play.py and train.py refuse the run in the same words."""
    assert says in refused_here("play.py", "run=run", "mode=export", capsys=capsys)
    assert says in refused_here("train.py", "resume=run", "iterations=3", capsys=capsys)


def test_checkpoint_that_is_cut_short(here, copy, capsys):
    """The one before takes its place; if none is whole, both programs say it in one line."""
    for file in Run(copy).checkpoints.saved()[::-1]:
        done = command("play.py", "run=run", "mode=evaluate", "episodes=4", cwd=here)
        assert done.returncode == 0 and done.stderr.count("\n") == (
            file != Run(copy).checkpoints.latest()
        )
        file.write_bytes(file.read_bytes()[:-100])
    assert f"cut short; going on from {file.relative_to(here)}" in done.stderr
    says = "is not a whole checkpoint: cut short; none in run/checkpoints is whole"
    both(f"{file.relative_to(here)} {says}", capsys)


def test_checkpoint_of_another_task_or_network(here, copy, capsys):
    """A checkpoint of another task or of another network is refused in one line with its name."""

    def save(run: Path, task: str, width: int) -> Path:
        ppo = make_ppo(make_env(task, 16), num_steps=4, hidden=(width,))
        return Run(run).checkpoints.save(9, ppo.state(), {})

    file = save(here / "other", "cartpole", 16)
    line = ("run=run", f"checkpoint={file.relative_to(here)}", "mode=export")
    says = f"{file.relative_to(here)} does not fit this run: 'actor."
    assert says in refused_here("play.py", *line, capsys=capsys)
    file = save(copy, "quadruped", 24)
    both(f"{file.relative_to(here)} does not fit", capsys)


def test_checkpoint_that_is_missing(here, copy, capsys):
    """checkpoint= without such a file, and a run without any, get one line."""
    line = ("play.py", "run=run", "mode=export")
    said = refused_here(*line, "checkpoint=x.safetensors", capsys=capsys)
    assert "no checkpoint x.safetensors" in said
    shutil.rmtree(copy / "checkpoints")
    assert "run holds no checkpoint" in refused_here(*line, capsys=capsys)


DISAGREE = "reward terms and weights disagree: "


@pytest.mark.parametrize(
    "key, value, says",
    [
        ("task.weights.action_rate", None, f"{DISAGREE}'action_rate' has no weight"),
        ("task.weights.joy", 1.0, f"{DISAGREE}'joy' is no term"),
        ("task.weights.power", -1.0, "config.yaml: task.weights.power=-1.0: expected a number of"),
        ("algo", 3, "config.yaml: algo=3: expected keys with values"),
        ("algo.speed", 3, "config.yaml: unknown key algo.speed"),
    ],
)
def test_config_of_a_run_is_not_trusted(copy, key, value, says, capsys):
    """A term without weight or an unknown key is one line."""
    place = tree = yaml.safe_load((copy / "config.yaml").read_text())
    *sections, last = key.split(".")
    for section in sections:
        place = place[section]
    place[last] = value
    if value is None:
        del place[last]
    (copy / "config.yaml").write_text(yaml.safe_dump(tree))
    assert says in refused_here("play.py", "run=run", "mode=export", capsys=capsys)


def foreign() -> bytes:
    """A network of another program."""
    x, y = (onnx.helper.make_tensor_value_info(z, onnx.TensorProto.FLOAT, [1]) for z in "xy")
    node = onnx.helper.make_node("Identity", ["x"], ["y"])
    graph, opset = onnx.helper.make_graph([node], "g", [x], [y]), onnx.helper.make_opsetid("", 18)
    model = onnx.helper.make_model(graph, opset_imports=[opset], ir_version=9)
    return model.SerializeToString()


@pytest.mark.parametrize(
    "data, says",
    [
        (b"", "no ONNX file p.onnx"),
        (b"policy", "p.onnx is not an ONNX file"),
        (foreign(), "was not exported by gpusim_rl"),
    ],
    ids=["missing", "text", "foreign"],
)
def test_onnx_file_that_is_none_of_ours(here, data, says):
    """Missing, not ONNX, or of another program: one line."""
    if data:
        (here / "p.onnx").write_bytes(data)
    assert says in refused("play.py", "onnx=p.onnx", "video=walk.mp4", cwd=here, block="torch")


# -- no display and no GL --------------------------------------------------------------------------


@pytest.mark.slow
def test_no_off_screen_gl(here, trained):
    """Without a library, or without a driver behind it, one line says what to install."""
    line = ("play.py", f"run={trained}", "video=walk.mp4", "seconds=1")
    for settings in (
        {"hide": "EGL OSMesa", "block": "torch mujoco"},
        {"MUJOCO_GL": "glf", "block": "torch"},
        {"MUJOCO_GL": "egl", "__EGL_VENDOR_LIBRARY_DIRS": "/nowhere"},
    ):
        assert NO_GL in refused(*line, cwd=here, **settings)


@pytest.mark.slow
def test_a_display_that_does_not_open(here, trained):
    """One line, for the viewer and for a video through it."""
    line = ("play.py", f"run={trained}")
    says = "no window can be opened on the display :99"
    assert says in refused(*line, cwd=here, DISPLAY=":99")
    film = ("video=walk.mp4", "seconds=1")
    assert NO_GL in refused(*line, *film, cwd=here, DISPLAY=":99", MUJOCO_GL="glfw")


# -- help, multirun, logs --------------------------------------------------------------------------


@pytest.mark.parametrize("script", ["train.py", "play.py"])
def test_help_fits_a_screen(here, script):
    """--help is at most 60 lines of at most 128 characters, names every key, and leaves no file."""
    said = succeed(script, "--help", cwd=here, block="torch mujoco")
    name = {"train.py": "config", "play.py": "play"}[script]
    assert said.count("\n") <= 60 and max(map(len, said.splitlines())) <= 128
    keys = compose.compose_plain(name, []).items()
    assert not [key for key, value in keys if not isinstance(value, dict) and key not in said]
    assert said.rstrip().endswith("`--help numbers` prints every range")
    assert not list(here.iterdir())


def test_help_of_an_environment_with_a_space(here):
    """--help names the Python of an environment that is not active, whatever its path is."""
    python = Path(sys.executable)
    (here / "a b").symlink_to(python.parent.parent)
    line = (f"{here}/a b/bin/{python.name}", f"{ROOT}/train.py", "--help")
    done = run_process(*line, cwd=here, env={**os.environ, "PATH": "/usr/bin:/bin"})
    assert done.returncode == 0 and "'a b/bin/python' train.py task=quadruped" in done.stdout


@pytest.mark.slow
def test_multirun(here):
    """Each run is that of a single training, in a directory that says what was swept."""
    words = ("task=cartpole", *SMALL, "iterations=1", "log=none")
    sweep = ("seed=2", "algo.hidden=[8],[8,8]")
    said = succeed("train.py", "-m", *sweep, *words, "jobs=2", cwd=here)
    assert [p.name for p in here.iterdir()] == ["runs"]
    (home,) = (here / "runs" / "multirun").iterdir()
    names = ["algo.hidden_8", "algo.hidden_8_8"]
    assert sorted(p.name for p in home.iterdir()) == [*names, "search.yaml"]
    about = yaml.safe_load((home / "search.yaml").read_text())
    assert about["swept"] == {"algo.hidden": ["[8]", "[8,8]"]}
    assert about["words"] == [*sweep, *words, "jobs=2"]
    assert all(f"{name}: run: runs/multirun/{home.name}/{name}\n" in said for name in names)
    runs = [home / name for name in names]
    assert all({p.name for p in run.iterdir()} == FILES - {"policy.onnx"} for run in runs)
    succeed("train.py", "seed=2", "algo.hidden=[8,8]", *words, "run_dir=single", cwd=here)
    one, two = (load(Run(run).checkpoints.latest())[0] for run in (here / "single", runs[-1]))
    assert all(torch.equal(one[name], two[name]) for name in one if name.startswith("policy/"))
    single, last = Run(here / "single").config, Run(runs[-1]).config
    assert last["log"]["group"] == home.name and last["run_dir"].endswith(names[-1])
    assert single == last | {"run_dir": "single", "log": single["log"]}


def test_lists_of_a_multirun_are_multiplied():
    """Two lists of two values are four runs."""
    sweep = command_line.check_multirun(
        ["-m", "task=cartpole", "seed=1,2", "algo.hidden=[8],[8,8]"]
    )
    pairs = [("seed=1", "[8]"), ("seed=1", "[8,8]"), ("seed=2", "[8]"), ("seed=2", "[8,8]")]
    assert sweep.lines == [["task=cartpole", seed, f"algo.hidden={x}"] for seed, x in pairs]


def test_names_of_swept_runs():
    """They need no quotes in run=, and are not too long for a file system."""
    line = ["task=drone", "seed=1", "robot.mjcf='a b/ü.xml'"]
    name = command_line.run_name(line, ["seed", "robot.mjcf"])
    assert name == "seed_1-robot.mjcf_a_b_.xml"
    assert compose.parse([f"run={name}"])[0].value() == name
    assert len(command_line.run_name([f"a={'x' * 999}"], ["a"])) <= 150
    assert command_line.run_name(["seed=1"], []) == "run"  # below the directory of all


def test_no_login_needs_no_wandb(trained):
    """log=auto then trains without W&B, and a run directory holds this and no more."""
    assert {p.name for p in trained.iterdir()} == FILES | {"drives.json", "calibration.json"}
    assert {p.name for p in trained.parent.iterdir()} == {"run", "stdout.txt"}
    assert Run(trained).config["log"]["name"] == "auto"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["wandb", "tensorboard"])
def test_wandb_and_tensorboard(here, trained, name):
    """resume= may choose them; both hold the final evaluation, the film and the policy."""
    run = shutil.copytree(trained, here / name)
    film = gray_film(run / "play.mp4")
    os.utime(film, (2**31, 2**31))  # as if it were made during the training
    words = (f"resume={name}", "iterations=3", f"log={name}", EXPORTED)
    said = succeed("train.py", *words, cwd=here, timeout=120)
    scores = json.loads((run / "eval.json").read_text())
    policy = (run / "policy.onnx").read_bytes()
    if name == "wandb":
        (folder,) = run.glob("wandb/offline-run-*")
        values, artifact = read_wandb(folder)
        assert f"`wandb sync {folder.relative_to(here)}" in said
        assert values["eval/success"] == scores["success"]
        (kept,) = folder.glob(f"files/{values['eval/film/path']}")
        assert kept.read_bytes() == film.read_bytes()
        assert Path(artifact.manifest.contents[0].local_path).read_bytes() == policy
    else:
        assert "TensorBoard: tensorboard --logdir tensorboard/tensorboard\n" in said
        events = EventAccumulator(str(run / "tensorboard")).Reload()
        (success,) = events.Scalars("eval/success")
        assert (success.step, success.value) == (3, pytest.approx(scores["success"]))
        assert events.Images("eval/film")[-1].encoded_image_string.startswith(b"GIF8")
        assert events.Tensors("policy.onnx")[-1].tensor_proto.string_val[0] == policy
    assert [p.name for p in here.iterdir()] == [name]


def test_seeds_of_evaluation_are_apart():
    """The evaluation's seeds are those that train.py refuses."""
    assert EVALUATION_SEEDS == SEED < STOP_SEED


def test_a_diverged_training_stops(here):
    """It goes back three times, then ends in one line; play.py shows what went wrong."""
    words = ("task=quadruped", *TINY, "iterations=40", "save_every=2", "log=none", "run_dir=run")
    done = command("train.py", *words, "algo.learning_rate=1e30", "algo.lr_max=1e30", cwd=here)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    error = done.stderr.splitlines()[-1]
    assert error.startswith("error: 3 bad iterations in a row, after 3 roll-backs: world ")
    assert "minibatches were skipped, as loss or gradient was not finite: perhaps algo.l" in error
    assert done.stdout.count("bad iterations in a row (world") == 3
    for path in (here / "run" / "checkpoints").glob("*.safetensors"):
        policy = [x for name, x in load(path)[0].items() if name.startswith("policy/")]
        assert policy and all(torch.isfinite(x).all() for x in policy)
    about = json.loads((here / "run" / "report.json").read_text())
    assert about["term"] in about["terms"] and 0 <= about["world"] < 16
    said = succeed("play.py", "repro=run/repro.safetensors", cwd=here).splitlines()
    assert said[0].startswith(f"world {about['world']}  step {about['step']}")
    assert said[-1].startswith("recorded: ")
    assert [line.split(":")[0] for line in said[1:-1]] == [f"timestep {i}" for i in range(3)]
