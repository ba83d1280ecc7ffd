"""play.py mode=record: episodes of a run and of an exported file."""

from pathlib import Path
from typing import Any

import pytest
import torch

from gpusim_rl.commands import play
from gpusim_rl.config.compose import compose_plain
from gpusim_rl.evaluation.demonstrate import SEED
from gpusim_rl.evaluation.evaluate import evaluate
from gpusim_rl.play import record_episodes
from gpusim_rl.play.player import load_run
from gpusim_rl.runs.demonstrations import Demonstrations
from gpusim_rl.runs.run import find_run
from gpusim_rl.training.trainer import Trainer
from tests.command_lines import TINY
from tests.worlds import check_words


def trained(path: Path, task: str) -> Trainer:
    """A training of two iterations that has ended."""
    words = [f"task={task}", *TINY, "log=none", f"run_dir={path}", "iterations=2"]
    words += ["algo.num_minibatches=2", "algo.update_epochs=1", "export=controller"]
    trainer = Trainer(check_words(*words))
    trainer.train()
    trainer.close()
    return trainer


def settings(*words: str) -> dict[str, Any]:
    """The configuration of play.py."""
    return compose_plain("play", ["mode=record", "episodes=3", *words])


def test_episodes_of_a_run(tmp_path, capsys):
    """Whole first episodes, as an evaluation plays them; their rewards are its return."""
    trained(run := tmp_path / "run", "hopper")
    cfg = settings(f"run={run}", f"out={tmp_path / 'a.safetensors'}")
    play.play(cfg)
    demos = Demonstrations.read(tmp_path / "a.safetensors")
    assert "3 episodes" in capsys.readouterr().out and demos.episodes == 3
    assert demos.description["task"] == "hopper" and demos.record.action.abs().max() <= 1.0
    follows = ~demos.ended[:-1]
    assert torch.equal(demos.record.end[:-1][follows], demos.record.critic[1:][follows])
    iteration, config = load_run(find_run(cfg), cfg)
    how = {"weights": config.task.weights, "noise": config.task.noise, "episodes": 3}
    scores = evaluate(iteration.policy, iteration.env.task, **how, seed=SEED + cfg["seed"])
    assert demos.record.reward.sum() / 3 == pytest.approx(scores["return"], rel=1e-5)


@pytest.mark.matrix
def test_episodes_of_a_file(tmp_path):
    """An exported file does in its task's worlds what the policy does."""
    trainer = trained(run := tmp_path / "run", "quadruped")
    trainer.write_files(trainer.evaluate())
    file = run / "policy.onnx"
    one = record_episodes.record_episodes(settings(f"onnx={file}", f"run={run}"))
    other = record_episodes.record_episodes(settings(f"run={run}"))
    torch.testing.assert_close(one.record.rows, other.record.rows, rtol=1e-3, atol=1e-3)
