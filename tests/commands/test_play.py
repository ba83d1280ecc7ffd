"""From train.py to a film, scores and an exported file; resume= continues exactly."""

import json
import os
import re
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gpusim_rl.assembly.iteration import make_iteration
from gpusim_rl.commands import modes, play, play_mode
from gpusim_rl.config import check_words, compose, resume
from gpusim_rl.envs import curriculum
from gpusim_rl.evaluation import calibrate
from gpusim_rl.evaluation.evaluate import evaluate
from gpusim_rl.runs.checkpoints import load
from gpusim_rl.runs.run import Run, newest
from gpusim_rl.viewer.film import film
from tests.command_lines import EXPORTED, TINY, command, one_line, refused, refused_here, succeed
from tests.films import decoded
from tests.worlds import ROOT, make_task, numbers

QUICK = ("gate.robots=2", "gate.seconds=1", "gate.endurance.minutes=0.02")


# -- train.py --------------------------------------------------------------------------------------


def test_train_says_where_the_run_is(trained):
    """First and last, with iterations, scores and what a fast training leaves out."""
    lines = (trained.parent / "stdout.txt").read_text().splitlines()
    lines = [x for x in lines if not re.search(r": \d+%, | so far$", x)]  # of a slow machine
    assert lines[0].startswith("run: run; physics while learning: timesteps of 10 ms") and lines[
        -2
    ].endswith("see it: python play.py run=run")
    assert lines[-9].startswith("iteration 2/2  0.00 M steps") and lines[-8].startswith("bound by")
    assert lines[-7].startswith("evaluating ") and re.match(
        r"success 0\.\d{3} \(\d\.\d{3} to \d\.\d{3}\): \d of 4 episodes passed × \d+ of 35 com",
        lines[-6],
    )
    assert lines[-5].startswith("foot lift 0.") and lines[-5].endswith(" J/m")
    assert lines[-4] == "wrote run/eval.json and run/policy.onnx"
    assert re.fullmatch(r"\d+ CPU s of training, \d+ of evaluation, export and report", lines[-3])
    assert lines[-1].startswith("the policy did not learn late readings, ")


def test_run_directory_is_whole(trained):
    """Configuration, versions, rows, checkpoints, scores and policy."""
    run = Run(trained)
    words = ["task=quadruped", *TINY, EXPORTED, "iterations=2", "run_dir=run"]
    cfg = compose.compose_plain("config", words)
    own = {"threads": 1, "gpu": {}, "recipe": {"name": "fast"}, "algo_code": None}
    assert run.config == curriculum.config_at(cfg["curriculum"], cfg) | own
    versions = json.loads((trained / "versions.json").read_text())
    assert {"python", "torch", "mujoco", "commit", "gpu"} <= versions.keys()
    rows = run.rows()
    assert [(row["iteration"], row["env_steps"]) for row in rows] == [(1, 64), (2, 128)]
    terms = {f"reward/{term}" for term in numbers("quadruped")["weights"]}
    terms |= {"iteration", "env_steps", "time_s", "steps_per_s", "return", "fault"}
    assert all(terms <= row.keys() for row in rows)
    assert 0 < rows[0]["time_s"] < rows[1]["time_s"]
    assert all(row["fault"] == 0 and row["steps_per_s"] > 0 for row in rows)
    assert [p.name for p in run.checkpoints.saved()] == ["000000.safetensors", "000002.safetensors"]
    assert [row["iteration"] for row in run.rows("hashes.jsonl")] == [1, 2]
    scores = json.loads((trained / "eval.json").read_text())
    assert scores["episodes"] == 4 and scores["time_s"] >= rows[1]["time_s"]


def test_cores_are_limited(tmp_path):
    """threads=1 leaves play.py one core, whatever its mode; the gate says so before it begins."""
    file = shutil.copy(modes.DEMO, tmp_path / "policy.onnx")
    words = ("mode=gate", f"onnx={file}", "gate.endurance.robots=1", *QUICK, "threads=1")
    done = command("play.py", *words, cwd=tmp_path)
    assert done.stdout.splitlines()[0].endswith(" s on 1 core"), done


# -- play.py ---------------------------------------------------------------------------------------


def check_film(path: Path, seconds: int) -> None:
    """A real film: 25 frames a second, neither black nor of one color, and it moves."""
    frames = decoded(path, 480, 720)
    assert len(frames) == 25 * seconds
    assert 30 < frames.mean() < 225 and frames[0].std() > 15
    assert np.abs(frames[-1].astype(int) - frames[0]).mean() > 0.5


def test_film_of_the_newest_run(here, copy):
    """Without a display play.py films it into its directory, and names mode=web."""
    (here / "runs" / "quadruped").mkdir(parents=True)
    shutil.copytree(copy, here / "runs" / "quadruped" / "old")
    shutil.move(copy, here / "runs" / "quadruped" / "new")
    for name, time in (("old", 500), ("new", 1000)):
        for file in (here / "runs" / "quadruped" / name / "checkpoints").iterdir():
            os.utime(file, (time, time))
    assert newest(here / "runs").name == "new"
    said = succeed("play.py", "seconds=1", cwd=here)
    assert said.splitlines() == [
        "wrote runs/quadruped/new/play.mp4",
        "in a browser: python play.py run=runs/quadruped/new mode=web",
    ]
    check_film(here / "runs" / "quadruped" / "new" / "play.mp4", 1)


def test_film_from_the_file_alone(here, trained):
    """Where neither torch nor the run can be had; only the film is left."""
    shutil.copy(trained / "policy.onnx", here / "p.onnx")
    words = ("onnx=p.onnx", "video=walk.mp4", "seconds=2", "command=[0.5,0,0]")
    said = succeed("play.py", *words, cwd=here, block="torch")
    assert said == "wrote walk.mp4\n"
    assert sorted(p.name for p in here.iterdir()) == ["p.onnx", "walk.mp4"]
    check_film(here / "walk.mp4", 2)


def test_a_film_runs_at_the_speed_of_the_robot(here):
    """Two seconds are twenty steps of 0.1 s, also of a model without large frames."""
    task, shown = make_task("cartpole"), 0

    def frames():
        nonlocal shown
        for shown in range(1, 100):
            yield shown / 10, np.array([0.01 * shown, 0.1 * shown])

    assert task.mjm.vis.global_.offwidth < 720
    film(task.mjm, frames(), here / "pole.mp4", 2)
    assert shown == 20
    check_film(here / "pole.mp4", 2)


@pytest.mark.parametrize(
    "line, film",
    [
        ("demo", "demo.mp4"),
        ("demo mode=video", "demo.mp4"),
        ("demo video=x.gif", "x.gif"),
        ("demo mode=web port=0", None),
        ("mode=web demo", None),
    ],
)
def test_the_demo_is_shown_as_another_policy(line, film, monkeypatch):
    """The word may stand with a mode or a film; without a display it writes demo.mp4."""
    shown: list[dict[str, Any]] = []
    monkeypatch.setattr(play_mode, "has_display", lambda: False)
    for name in ("video", "web"):
        monkeypatch.setitem(play_mode.MODES, name, play_mode.MODES[name]._replace(run=shown.append))
    play.main(line.split())
    assert [(x["onnx"], x["video"]) for x in shown] == [(str(modes.DEMO), film)]


@pytest.mark.parametrize("line, name", [("", "demo.onnx"), ("out=walk.onnx", "walk.onnx")])
def test_the_demo_as_a_file(here, line, name, capsys):
    """mode=export copies it, with its verdict."""
    play.main(["demo", "mode=export", *line.split()])
    assert capsys.readouterr().out == f"wrote {name}\n"
    assert (here / name).read_bytes() == modes.DEMO.read_bytes()


def test_command_of_another_width(here, trained, capsys):
    """One line, from a run and from a file."""
    for source in (f"run={trained}", f"onnx={trained}/policy.onnx"):
        words = (source, "video=walk.mp4", "command=[0.5,0]")
        line = refused_here("play.py", *words, capsys=capsys)
        assert "command=[0.5, 0]: this policy follows 3 numbers: forward, left, turn" in line


def test_evaluate(here, trained):
    """mode=evaluate prints and writes what evaluate() gives on the same seeds."""
    words = (f"run={trained}", "mode=evaluate", "out=eval.json", "episodes=4")
    said = succeed("play.py", *words, cwd=here)
    scores = json.loads((here / "eval.json").read_text())
    assert json.loads(said) == scores and scores["episodes"] == 4
    names = {"success", "return", "episodes", "velocity_rmse", "yaw_rmse", "falls_per_episode"}
    assert names <= scores.keys()
    settings = resume.load_config(Run(trained))
    ppo = make_iteration(settings)
    ppo.load(load(Run(trained).checkpoints.latest())[0], "the run")
    calibrate.read(trained / calibrate.FILE, ppo.policy.actor, ppo.iterations)
    weights, noise = settings.task.weights, settings.task.noise
    task = make_task(episode=0.2)
    episodes = evaluate(ppo.policy, task, weights=weights, noise=noise, episodes=4)
    played = {key: x for key, x in scores.items() if key in episodes}
    assert played | {"success": scores["episodes_passed"]} == episodes
    driven = {f"{x}_{axis}" for x in ("bias", "dead") for axis in ("forward", "left", "turn")}
    causes = {key for key in scores if key.startswith("not_")}
    assert {*scores} - {*episodes} - causes == {"tracking", "episodes_passed"} | driven
    assert scores["success"] == scores["episodes_passed"] * scores["tracking"]
    at_the_end = json.loads((trained / "eval.json").read_text())
    assert scores == {key: value for key, value in at_the_end.items() if key != "time_s"}


def test_export(here, trained):
    """mode=export writes, byte for byte, the file that train.py wrote."""
    said = succeed("play.py", f"run={trained}", "mode=export", "out=p.onnx", cwd=here)
    line = said.splitlines()[-1]  # a slow machine says first that it goes on
    assert line.startswith("wrote p.onnx: within ") and float(line.split()[3]) <= 1e-5
    assert (here / "p.onnx").read_bytes() == (trained / "policy.onnx").read_bytes()


OUTPUTS = {
    "mode=evaluate run=run out=run/config.yaml": "expected a name that ends in .json",
    "mode=evaluate run=run out=run/eval.json": "run/eval.json is a file of the run run",
    "mode=evaluate run=run out=run/metrics.json": "is a file of the run run",
    "mode=evaluate run=run out=run/checkpoints/manifest.json": "is a file of the run run",
    "mode=evaluate run=run out=pipe.json": "out=pipe.json is a pipe or a device",
    "mode=evaluate run=run out=device.json": "out=device.json is a pipe or a device",
    "mode=grid run=run out=run/metrics.jsonl": "expected a name that ends in .json",
    "mode=export run=run out=run/checkpoints/000002.safetensors": "expected a name that ends in",
    "mode=export run=run out=run/.lock": "expected a name that ends in .onnx",
    "mode=export run=run out=run/checkpoints/p.onnx": "is a file of the run run",
    "mode=robot robot.mjcf=own.xml out=own.xml": "expected a name that ends in .yaml",
    "mode=robot robot.mjcf=own.yaml out=own.yaml": "out=own.yaml would replace a file that is read",
    "mode=robot robot.mjcf=own.xml out=run/config.yaml": "is a file of the run run",
    "mode=robot robot.mjcf=own.png report=own.png": "would replace a file that is read",
    "onnx=own.mp4 video=own.mp4": "video=own.mp4 would replace a file that is read",
}


@pytest.mark.parametrize("line", OUTPUTS)
def test_an_output_replaces_no_file_that_is_needed(copy, line):
    """A file of a run, an input, a pipe and a device are refused as outputs, in one line."""
    for name in ("own.xml", "own.yaml", "own.mp4", "own.png"):
        Path(name).write_text("mine")
    os.mkfifo("pipe.json")
    Path("device.json").symlink_to("/dev/null")
    with one_line(OUTPUTS[line]):
        play_mode.choose_mode(compose.compose_plain("play", line.split()))


@pytest.mark.parametrize(
    "line",
    [
        "mode=export run=run out=run/policy.onnx",
        "mode=evaluate run=run out=run/scores.json",
        "mode=robot robot.mjcf=own.xml out=old.yaml report=run/robot.png",
        "mode=video run=run video=run/films/000002.mp4",
    ],
)
def test_an_output_may_replace_one_of_before(copy, line):
    """What these modes write by default, and any other file of the user's, may be named."""
    Path("run/films").mkdir()
    Path("old.yaml").touch()
    assert play_mode.choose_mode(compose.compose_plain("play", line.split()))


def test_a_robot_is_not_written_through_a_link(here):
    """mode=robot replaces a link by its file, and the file that the link names stays."""
    Path("precious.txt").write_text("mine")
    Path("robot.yaml").symlink_to("precious.txt")
    words = ["mode=robot", f"robot.mjcf={ROOT}/tasks/assets/quadruped.xml", "out=robot.yaml"]
    play.play(compose.compose_plain("play", words))
    assert Path("precious.txt").read_text() == "mine"
    assert not Path("robot.yaml").is_symlink() and "stance" in Path("robot.yaml").read_text()


# -- resume= ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_resume_is_exact(here, copy):
    """Two iterations and two in another process are four, bit by bit; time and rows go on."""
    words = ["task=quadruped", *TINY, "log=none"]
    succeed("train.py", *words, "iterations=4", "run_dir=whole", "save_every=2", cwd=here)
    before = Run(copy).rows()
    # as a crash leaves it: a row that the checkpoint does not know of, and one cut short
    with open(copy / "metrics.jsonl", "a") as file:
        row = json.dumps(before[-1] | {"iteration": 3, "return": -99.0})
        file.write(f'{row}\n{{"iteration": 4, "retu')
    words = ("resume=run", "iterations=4", "log=none", "save_every=1", "export=none")
    said = succeed("train.py", *words, cwd=here, fresh=True)
    first, second, *_ = said.splitlines()
    assert first.startswith("run: run;") and second.startswith(("iteration 3/4", "iteration 4/4"))
    runs = Run(copy), Run(here / "whole")
    (mine, note), (whole, _) = (load(run.checkpoints.latest()) for run in runs)
    assert note["iteration"] == "4" and mine.keys() == whole.keys()
    assert [name for name in whole if not torch.equal(mine[name], whole[name])] == []
    rows = Run(copy).rows()
    assert rows[:2] == before and [row["iteration"] for row in rows] == [1, 2, 3, 4]
    assert all(a["time_s"] < b["time_s"] for a, b in pairwise(rows))
    same = ("env_steps", "return", "reward/velocity", "approx_kl", "learning_rate")
    assert [[r[k] for k in same] for r in rows] == [
        [r[k] for k in same] for r in Run(here / "whole").rows()
    ]
    assert Run(copy).config == Run(here / "whole").config | {"run_dir": "run", "save_every": 1}


def test_resume_changes_little(here, copy, capsys):
    """What would make another run is refused in one line; other changes are a warning."""
    resume_run = ("train.py", "resume=run")
    words = ("seed=2", "task=cartpole", "num_envs=17", "algo.hidden=[8]")
    line = refused(*resume_run, *words, cwd=here, block="torch")
    differences = ("seed 1 → 2", "task.name quadruped → cartpole", "num_envs 16 → 17")
    assert all(x in line for x in (*differences, "algo.hidden [16] → [8]"))
    before = (copy / "config.yaml").read_bytes()
    line = refused_here(*resume_run, "iterations=1", capsys=capsys)
    assert "iterations=1: run has done 2 already" in line
    assert (copy / "config.yaml").read_bytes() == before
    words = ("task=quadruped", "num_envs=16", "iterations=3", "export=none", "report=false")
    changes = ("algo.gamma=0.9", "task.weights.action_rate=1")
    done = command(*resume_run, *words, *changes, cwd=here)
    assert done.returncode == 0 and re.fullmatch("warning: .*\n", done.stderr)
    differences = ("task.weights.action_rate 0.04 → 1", "algo.gamma 0.97 → 0.9")
    assert all(x in done.stderr for x in ("from iteration 2 on this is not the run", *differences))
    assert Run(copy).config["algo"]["gamma"] == 0.9
    assert not (copy / "policy.onnx").exists()  # export=none: it was of iteration 2


def test_a_run_may_be_older_than_a_key(trained):
    """A run without a key that came later has its default; its own values stay."""
    run = Run(trained)
    kept = run.config
    del kept["episodes"], kept["task"]["swing_height"], kept["algo_code"]
    cfg = check_words.merge(compose.build("config", ["task=quadruped"]), kept)
    assert cfg["episodes"] == 512 and cfg["num_envs"] == 16
    assert cfg["task"]["swing_height"] == numbers("quadruped")["swing_height"]
