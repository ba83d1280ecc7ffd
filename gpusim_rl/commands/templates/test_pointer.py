"""The task `pointer`: finite values, its kinematics and mirror image, a training and its export."""

import math
from pathlib import Path

import mujoco
import pytest
import torch

from gpusim_rl.assembly.environment import build_env
from gpusim_rl.commands.train import configure
from gpusim_rl.deploy.export_policy import export_policy
from gpusim_rl.envs.mirror import derive_flips
from gpusim_rl.training.trainer import Trainer

SMALL = ("num_envs=16", "iterations=2", "device=cpu", "sim=native", "sim.threads=1", "log=none")


@pytest.fixture
def cfg(tmp_path, monkeypatch):
    """The configuration of a short training."""
    monkeypatch.chdir(Path(__file__).parents[1])  # where conf/ and tasks/ are
    return configure("task=pointer", *SMALL, f"run_dir='{tmp_path}/run'")


def test_values_are_finite(cfg):
    """Observations, rewards and measures stay finite in an episode of large random actions."""
    env, generator = build_env(cfg, 16), torch.Generator().manual_seed(0)
    for _ in range(env.task.horizon):
        step = env.step(3 * torch.randn(16, env.task.action_width, generator=generator))
        values = (
            *step.observation.values(),
            step.reward,
            *env.task.measure(env.current_state()).values(),
        )
        assert all(x.isfinite().all() for x in values) and not step.fault.any()


def test_forward_kinematics(cfg):
    """The position that the task computes of the joints' angles is that of MuJoCo."""
    task = build_env(cfg, 1).task
    data = mujoco.MjData(task.mjm)
    data.qpos[:] = 0.4, -0.9
    mujoco.mj_kinematics(task.mjm, data)
    tip = task.tip(task.tensor(data.qpos)[None])
    torch.testing.assert_close(tip[0], task.tensor(data.site("tip").xpos[:2]))


def test_mirror_image(cfg):
    """In the mirror both joints turn the other way, and y has the other sign."""
    flips = derive_flips(build_env(cfg, 1).task)
    for term in ("angles", "speeds", "action"):
        assert tuple(flips[term]) == ((0, 1), (-1, -1)), term
    for term in ("tip", "command"):
        assert tuple(flips[term]) == ((0, 1), (1, -1)), term


def test_training_and_export(cfg):
    """Two iterations give finite metrics, and the exported controller the targets of Env."""
    trainer = Trainer(cfg)
    trainer.train()
    assert [math.isfinite(row["return"]) for row in trainer.run.rows()] == [True, True]
    assert export_policy(trainer.loop.iteration, trainer.cfg, trainer.run.path) <= 1e-5
