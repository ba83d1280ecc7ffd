"""What all benchmarks answer, every task in a table, mjlab, and the reference PPO."""

import json
import runpy
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import (
    cluster_model,
    gpu_check,
    levels,
    mistakes,
    mjlab,
    profile,
    reference_ppo,
    strangers,
    tasks,
    time_to_success,
)
from gpusim_rl.config.compose import compose_plain
from tests.command_lines import command
from tests.packages import source_files
from tests.worlds import ROOT, TASKS, make_env, make_ppo

SMALL = ("device=cpu", "warmup=1", "repeats=1", "num_envs=8", "num_steps=4", "fuse=off")


@pytest.mark.slow
def test_tasks_has_a_row_for_each_pair(tmp_path, monkeypatch, capsys):
    """Of task and sim; a pair that fails is named, and the others go on."""
    forked = partial(command, "-m benchmarks.levels", cwd=tmp_path)
    processes = SimpleNamespace(run=lambda line, **_: forked(*line[3:]))
    monkeypatch.setattr(tasks, "subprocess", processes)
    out = tmp_path / "all.json"
    words = ("tasks=[cartpole,flying]", "sims=[native,warp]", f"out={out}", "seconds=1e-3")
    with pytest.raises(SystemExit) as end:
        tasks.main([*words, *SMALL])
    said, error = capsys.readouterr()
    assert end.value.code == 1 and error.count("\n") == 2, error
    assert "error: task=flying sim=warp" in error and "unknown task 'flying'" in error
    results = json.loads(out.read_text())
    names = [(x["task"], x["sim"], x["num_envs"]) for x in results]
    assert names == [("cartpole", "native", 8), ("cartpole", "warp", 8)]
    assert all(x["steps_per_s"]["training"]["median"] > 0 for x in results)
    rows = [line.split()[:3] for line in said.splitlines()]
    head = next(i for i, row in enumerate(rows) if row[:2] == ["task,", "sim"])
    assert rows[head + 1 : head + 3] == [["cartpole,", "native", "8"], ["cartpole,", "warp", "8"]]
    assert tasks.TASKS == TASKS


def test_strangers_stand_beside_the_demo(tmp_path, capsys):
    """A row has commands and source; a file that cannot be judged has a line."""
    (tmp_path / "broken.onnx").write_bytes(b"none")
    few = ("gate.robots=2", "gate.seconds=1", "gate.endurance.minutes=0.02")
    with pytest.raises(SystemExit) as end:
        strangers.main([f"{tmp_path}", f"out={tmp_path / 'all.json'}", *few])
    assert end.value.code == 1 and "broken.onnx" in capsys.readouterr().err
    lines = (tmp_path / "all.md").read_text().splitlines()
    heads = [x.split(" | ")[0] for x in lines if x[:2] == "| "]
    assert heads == ["| policy", "| ---", "| quadruped"]
    assert "forward -1 to 1 m/s" in lines[4] and "gpusim_rl" in lines[4]
    assert lines[-1].startswith("- broken cannot be judged: ")
    (report,) = json.loads((tmp_path / "all.json").read_text())["policies"]
    assert report["cpu_s"] > 0 and len(report["rows"]) == 14


@pytest.mark.parametrize(
    ("program", "word", "says"),
    [
        (levels, "task=bicycle", "unknown task 'bicycle'"),
        (levels, "repeat=3", "unknown key 'repeat'"),
        (levels, "repeats=0", "repeats=0: expected a value such as 5"),
        (levels, "seconds=x", "seconds=x: expected a value such as 2.0"),
        (levels, "out=no/such/directory/bench.json", "no directory no/such/directory"),
        (levels, "out=bench.txt", "ends in .json"),
        (levels, "num_envs=0", "num_envs=0"),
        (levels, "resume=runs/a", "it measures a new training"),
        (profile, "seconds=0", "seconds=0"),
        (profile, "repeats=3", "unknown key 'repeats'"),
        (time_to_success, "seed=3", "say seeds=[1,2,3]"),
        (time_to_success, "resume=runs/a", "each training is a new run"),
        (time_to_success, "iteratons=3", "did you mean iterations"),
        (time_to_success, "seeds=[]", "at least one"),
        (time_to_success, "seeds=[1,1]", "different seeds"),
        (time_to_success, "seeds=[1,x]", "seeds: 'x' is no int"),
        (time_to_success, "seeds=[-3]", "seed=-3"),
        (time_to_success, "target=0", "target=0"),
        (time_to_success, "judge=some", "choose one of all, first, bisect"),
        (time_to_success, 'require=["lift>0.03"]', "no condition"),
        (time_to_success, "settings=[3]", "settings: 3 is no str"),
        (time_to_success, 'settings=["num_envs=0"]', "num_envs=0"),
        (time_to_success, "picture=time.jpg", "ends in .svg"),
        (tasks, "out=no/such/file.json", "no directory no/such"),
        (mjlab, "num_envs=8", "this needs mjlab: pip install mjlab"),
        (reference_ppo, "algo.memory=gru", "the reference has algo.memory=none"),
        (reference_ppo, "algo.symmetry=net", "the reference has algo.symmetry=none"),
        (cluster_model, "actor=3", "unknown word 'actor=3': choose of actors=, "),
        (cluster_model, "actors=0", "actors=0: expected a value such as 2"),
    ],
)
def test_a_mistake_is_one_line(monkeypatch, capsys, program, word, says):
    """A mistake of the user's is answered in one line before anything is trained."""
    monkeypatch.setattr(mjlab, "find_spec", lambda name: None)
    with pytest.raises(SystemExit) as stop:
        program.main([word])
    out, err = capsys.readouterr()
    assert stop.value.code == 2 and out == ""
    assert err.startswith("error: ") and len(err.splitlines()) == 1 and says in err


@pytest.mark.filterwarnings("ignore")  # of packages, and of modules that are there already
def test_each_program_starts(monkeypatch, capsys):
    """Each answers --help: no import in it is of a name that is gone."""
    names = {f"benchmarks.{file.stem}" for file in (ROOT / "benchmarks").glob("*.py")}
    names -= {"benchmarks.__init__", "benchmarks.program"}
    for name in names:
        monkeypatch.setattr(sys, "argv", [name, "--help"])
        with pytest.raises(SystemExit) as end:
            runpy.run_module(name, run_name="__main__")
        assert not end.value.code and f"python -m {name}" in capsys.readouterr().out, name
    assert len(names) > 6


def test_the_plain_update_is_the_same_update():
    """After three epochs its weights are the fused ones' to 0.5 % of their step."""
    steps = []
    for plain in (True, False):
        ppo = make_ppo(make_env(num_envs=32, episode=0.3), update_epochs=3, ent_coef=0.01)
        ppo.iteration()
        for value in ppo.learner.optimizer.tensors().values():  # both begin with empty moments
            value.zero_()
        ppo.learner.optimizer.rates["actor"].fill_(ppo.learner.cfg.learning_rate)
        ppo.collect()
        before = {k: v.clone() for k, v in ppo.policy.state_dict().items()}
        (reference_ppo.Plain(ppo) if plain else ppo).update()
        steps.append({k: v - before[k] for k, v in ppo.policy.state_dict().items()})
    for name, step in steps[0].items():
        if name == "min_std":
            continue
        scale = step.abs().max()
        assert scale > 0 and (step - steps[1][name]).abs().max() < 5e-3 * scale, name


def test_both_updates_are_timed(tmp_path, capsys):
    """The reference PPO is timed beside ours, from the same rollouts."""
    out = tmp_path / "updates.json"
    reference_ppo.main(["task=cartpole", f"out={out}", *SMALL, "repeats=2"])
    results = json.loads(out.read_text())
    ours, plain = results["milliseconds"].values()
    assert len(ours) == len(plain) == 2 and min(*ours, *plain) > 0
    assert results["ratios"] == [y / x for x, y in zip(ours, plain, strict=True)]
    assert "plain/ours: " in capsys.readouterr().out


def test_rates_of_another_trainer():
    """Both ways in which rsl_rl prints its speed are read, and nothing else."""
    old = "\x1b[1m Learning iteration 3/40 \x1b[0m\n"
    old += "     Computation: 98304 steps/s (collection: 0.9s, learning 0.1s)\n"
    new = "      Steps per second: 101,250 \n      Total steps: 98304 \n"
    assert mjlab.rates(old + new + "512 steps/s") == [98304, 101250]


def test_a_comparison_that_fails_says_why(monkeypatch, tmp_path):
    """The last line of the other trainer is the one line."""
    (tmp_path / "mjlab" / "scripts").mkdir(parents=True)
    (tmp_path / "mjlab" / "scripts" / "train.py").write_text("raise SystemExit('no such robot')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(ValueError, match="its training ended with 1: no such robot"):
        mjlab.mjlab(4)


def test_mistakes_are_drawn_from_a_seed():
    """A seed draws the same mistakes, in lines that ran, of each kind; each file still compiles."""
    lines = {file: {*range(1, 5000)} for file in source_files(ROOT)[:60]}
    drawn = [mistakes.draw(seed, 40, lines) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert {mistake.kind for mistake in drawn[0]} == {*mistakes.KINDS}
    for mistake in drawn[0]:
        source = (ROOT / mistake.file).read_bytes()
        assert mistake.plant(source) != source
        compile(mistake.plant(source), "planted", "exec")
    few = {Path("gpusim_rl/core/maths.py"): {*range(1, 60)}}
    assert {x.file for x in mistakes.draw(1, 20, few)} == {*few}
    assert max(x.line for x in mistakes.draw(1, 20, few)) < 60


def test_steps_of_the_check_fit_within_twelve_minutes(tmp_path):
    """train.py knows the words of its trainings, where `more` wins."""
    steps = gpu_check.steps(tmp_path)
    assert sum(step.limit_s for step in steps) <= 720
    for step in steps:
        if step.words[0] == "train.py":
            cfg = compose_plain("config", gpu_check.command(step, ["num_envs=8"], False)[2:])
            assert cfg["num_envs"] == 8 and cfg["run_dir"] == str(tmp_path / step.name)
