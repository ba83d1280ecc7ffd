"""The whole of it learns: a shortened training of the small task, judged as every policy is."""

import pytest

from gpusim_rl.algorithms.ppo.ppo import PPO
from gpusim_rl.assembly.iteration import make_iteration
from gpusim_rl.config.sections import Config
from gpusim_rl.evaluation.evaluate import STOP_SEED, evaluate
from tests.worlds import make_config


def judge(ppo: PPO, cfg: Config) -> dict[str, float]:
    weights, noise = cfg.task.weights, cfg.task.noise
    return evaluate(
        ppo.policy, ppo.env.task, weights=weights, noise=noise, episodes=64, seed=STOP_SEED
    )


def test_cartpole_is_learned():
    """45 iterations swing the pole up in nine of ten worlds, for thrice the return."""
    words = ["task=cartpole", "sim=native", "sim.threads=1", "device=cpu", "seed=1"]
    cfg = make_config(*words, "num_envs=128")
    ppo = make_iteration(cfg)
    before = judge(ppo, cfg)
    for _ in range(45):
        ppo.iteration()
    after = judge(ppo, cfg)
    assert before["success"] == 0 and after["success"] >= 0.9
    assert after["return"] > 3 * max(before["return"], 4.0)
    assert before["upright_s"] > 9 and after["upright_s"] < 5  # s until it is up for good
    assert ppo.env.metrics()["fault"] == pytest.approx(0)
