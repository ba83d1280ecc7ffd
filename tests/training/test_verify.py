"""`gpusim verify`: whether a run is what its configuration makes."""

import json
import shutil

import pytest

from gpusim_rl.commands.train import configure, train_or_exit
from gpusim_rl.runs.run import Run
from gpusim_rl.training import verify
from tests.command_lines import TINY

PLAN = "curriculum={task.weights.calm:{from:0,to:1,by:success,start:-1,stop:1}}"


def train_run(path: str, *words: str) -> None:
    """Train a small policy in a run directory."""
    train_or_exit(configure(*TINY, "log=none", f"run_dir={path}", *words))


@pytest.mark.parametrize("words, last", [(("stop_at=1.0",), 4), ((PLAN,), 2)])
def test_evaluations_do_not_matter(words, last, elsewhere, monkeypatch, capsys):
    """Unless a curriculum goes by them, from the first one on."""
    monkeypatch.setattr("gpusim_rl.evaluation.evaluate.evaluate", lambda *_, **__: {"success": 0.3})
    train_run("run", "task=cartpole", *words, "eval_every=2", "iterations=4")
    verify.main(["run"])
    said = capsys.readouterr().out
    assert f"iteration {last}: all" in said and f"iteration {last + 1}: all" not in said


def test_verify(trained, tmp_path, capsys):
    """Iterations trained again are equal; a hash that differs is named, a mistake is one line."""
    run = Run(shutil.copytree(trained, tmp_path / "run"))
    hashes = run.path / "hashes.jsonl"
    verify.main([str(run.path)])
    said = capsys.readouterr().out
    assert said.splitlines()[-1].startswith("iteration 2: all ")
    assert said.count("agree, bit by bit") == 2
    rows = run.rows("hashes.jsonl")
    rows[1]["sha256"]["policy/log_std"] = "0" * 16
    hashes.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(SystemExit, match="1"):
        verify.main([str(run.path)])
    said = capsys.readouterr().out
    assert "iteration 1: all " in said and "tensors differ: policy/log_std" in said
    assert "iteration 2: 1 of " in said
    hashes.unlink()
    for more, says in (([], "run keeps no hashes"), (["x"], "expected a run directory")):
        with pytest.raises(SystemExit, match="2"):
            verify.main([str(run.path), *more])
        line = capsys.readouterr().err
        assert says in line and line.count("\n") == 1


def test_a_run_that_was_changed(elsewhere, monkeypatch, capsys):
    """Continued with other values it cannot be made again: one line says so."""
    monkeypatch.setattr("gpusim_rl.evaluation.evaluate.evaluate", lambda *_, **__: {"success": 0.3})
    train_run("run", "task=cartpole", "iterations=2")
    for words in (
        ["resume=run", "iterations=3", "graph=off", "sim.threads=2"],
        ["resume=run", "iterations=4", "task.weights.calm=1"],
    ):
        train_or_exit(configure(*words))
        if "iterations=3" in words:
            verify.main(["run"])
        warned = "this is not the run that was begun" in capsys.readouterr().err
        assert warned == ("task.weights.calm=1" in words)
    with pytest.raises(SystemExit, match="2"):
        verify.main(["run"])
    says = "run was continued with other values from iteration 3 on (task.weights.calm)"
    assert says in capsys.readouterr().err


def test_a_run_that_began_with_weights(elsewhere, capsys):
    """A run begun with start= agrees, though the other run has gone on since."""
    train_run("first", "task=cartpole", "iterations=1")
    train_run("second", "task=cartpole", "iterations=1", "start=first")
    train_or_exit(configure("resume=first", "iterations=2"))
    verify.main(["second"])
    assert "iteration 1: all" in capsys.readouterr().out
