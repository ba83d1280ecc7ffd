"""When stop_when=hopeless gives a training up: rows that were made, and a real training."""

import math
import random
from pathlib import Path

import pytest

from gpusim_rl.training.hopeless import hopeless, rises
from gpusim_rl.training.trainer import Trainer
from tests.command_lines import TINY
from tests.worlds import make_config

N = 100  # iterations


def given_up(returns: list[float], success: float = 0.0, kl: float = 0.01) -> int:
    """The iteration at which a training with these returns is given up; 0: it is not."""
    rows: list[dict[str, float]] = []
    for i, value in enumerate(returns, 1):
        rows.append({"iteration": i, "return": value, "approx_kl": kl})
        rows[-1] |= {"success": success} if i % 10 == 0 else {}
        if hopeless(rows, N):
            return i
    return 0


def noisy(curve, seed: int) -> list[float]:
    """A curve of returns over the iterations with noise, and none before the first episode."""
    rng = random.Random(seed)
    return [math.nan if i < 5 else curve(i) + rng.gauss(0, 0.3) for i in range(1, N + 1)]


@pytest.mark.parametrize("seed", range(5))
def test_curves(seed):
    """Flat, falling and settled returns are given up before half; rising ones never."""
    for curve in (
        lambda i: 2.0,
        lambda i: 5 - 0.1 * i,
        lambda i: 8 - 8 * math.exp(-i / 5),
        lambda i: -40 * math.exp(-i / 15),  # rises by less and less
    ):
        assert 35 <= given_up(noisy(curve, seed)) <= 50
        assert given_up(noisy(curve, seed), success=0.2) == 0
    for curve in (
        lambda i: 0.1 * i,
        lambda i: i**2 / 500,
        lambda i: 20 / (1 + math.exp(5 - i / 9)),
    ):
        assert given_up(noisy(curve, seed)) == 0
    assert 35 <= given_up([math.nan] * N) <= 50
    assert not rises([0.0] * 12 + [1e-40] * 3 + [-1.0] * 3, left=1.5)


def test_a_training(tmp_path, monkeypatch, capsys):
    """Whose updates change nothing ends with one line that says so, and its last state is kept."""
    monkeypatch.chdir(tmp_path)
    words = ("task=cartpole", *TINY, "iterations=40", "stop_at=0.95", "eval_every=2")
    frozen = [f"algo.{key}=1e-12" for key in ("learning_rate", "lr_min", "lr_max")]
    trainer = Trainer(make_config(*words, *frozen, "stop_when=hopeless", "run_dir=run"))
    rows = [*trainer.steps()]
    trainer.close()
    assert 14 <= len(rows) <= 20
    said = [x for x in capsys.readouterr().out.splitlines() if "hopeless" in x]
    assert len(said) == 1 and "updates change nothing" in said[0]
    assert f"iteration {len(rows)}: the training ends" in said[0]
    assert trainer.run.checkpoints.latest() == Path(f"run/checkpoints/{len(rows):06d}.safetensors")
    for wrong in ("stop_when=hopelessly", "stop_at=null"):
        with pytest.raises(ValueError, match="stop_when=hopeless"):
            make_config(*words, "stop_when=hopeless", wrong)
