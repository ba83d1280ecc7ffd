"""What needs CUDA: `pytest -m gpu`. Each has a twin on the CPU elsewhere in tests/."""

import mujoco
import pytest
import torch

from gpusim_rl import config
from gpusim_rl.assemble import make_ppo
from gpusim_rl.noise import Noise
from gpusim_rl.sim import choose, make
from gpusim_rl.task import converged
from tests.worlds import TASKS, make_task

pytestmark = pytest.mark.gpu


def trained(task: str, iterations: int, num_envs: int = 256):
    """A PPO after some iterations on CUDA."""
    cfg = config.compose_plain("config", [f"task={task}", f"num_envs={num_envs}", "device=cuda"])
    ppo = make_ppo(cfg)
    for _ in range(iterations):
        ppo.iteration()
    return ppo


def test_auto_is_warp_on_cuda():
    """With a GPU `auto` means MuJoCo Warp on it."""
    assert choose("auto", "auto") == ("warp", "cuda")


def test_noise_is_that_of_the_cpu():
    """Uniforms are bit-equal on both devices, normals to 1e-6."""
    draws = {}
    for device in ("cpu", "cuda"):
        noise = Noise(5, torch.arange(100, 1100, device=device))
        noise.uniform("u", 0.0, 1.0)
        noise.normal("n", 5)
        noise.draw(torch.tensor(2**33 + 1, device=device))
        draws[device] = noise.uniform("u", 0.0, 1.0).cpu(), noise.normal("n", 5).cpu()
    assert torch.equal(draws["cpu"][0], draws["cuda"][0])
    assert (draws["cpu"][1] - draws["cuda"][1]).abs().max() < 1e-6


def test_a_control_step_is_that_of_mujoco_c():
    """With converged solvers one control step of 100 quadrupeds agrees with MuJoCo C: |Δqpos| ≤ 1e-5, |Δqvel| ≤ 1e-3."""
    mjm: mujoco.MjModel = converged(make_task("quadruped").mjm)
    native, warp = make("native", mjm, 100, device="cpu"), make("warp", mjm, 100, device="cuda")
    generator = torch.Generator().manual_seed(0)
    stance = torch.from_numpy(mjm.key_ctrl[0])
    everyone, qpos = torch.ones(100, dtype=torch.bool), torch.from_numpy(mjm.key_qpos[0]).expand(100, -1)
    native.reset(everyone, qpos, torch.zeros(100, mjm.nv, dtype=torch.float64))
    for _ in range(25):  # onto the ground, and about
        native.ctrl.copy_(stance + 0.3 * torch.randn(100, mjm.nu, generator=generator, dtype=torch.float64))
        native.step(4)
    qpos, qvel, ctrl = native.qpos.clone(), native.qvel.clone(), native.ctrl.clone()
    for sim in (native, warp):
        device, dtype = sim.qpos.device, sim.qpos.dtype
        sim.reset(everyone.to(device), qpos.to(device, dtype), qvel.to(device, dtype))
        sim.ctrl.copy_(ctrl)
        sim.step(4)
    assert (warp.qpos.cpu() - native.qpos).abs().max() <= 1e-5
    assert (warp.qvel.cpu() - native.qvel).abs().max() <= 1e-3


@pytest.mark.parametrize("task", TASKS)
def test_an_iteration_reads_nothing(task):
    """After a warm-up an iteration on CUDA never waits for the device: torch raises at a synchronising call."""
    ppo = trained(task, 2)
    torch.cuda.set_sync_debug_mode("error")
    try:
        ppo.iteration()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("task", TASKS)
def test_training_stays_finite(task):
    """Ten iterations on CUDA change every weight, keep them finite and quarantine no world."""
    ppo = trained(task, 1)
    before = {name: value.clone() for name, value in ppo.policy.named_parameters()}
    for _ in range(9):
        ppo.iteration()
    for name, value in ppo.policy.named_parameters():
        assert torch.isfinite(value).all() and not torch.equal(value, before[name]), name
    assert ppo.metrics()["fault"] == 0
