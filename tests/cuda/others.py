"""What else touches the device: another robot, a network as actuator, Gymnasium, loading a state.

bash tests/cuda/run others.py robot net gym load fuzz resume
"""

import sys
import tempfile
import time
import traceback
from pathlib import Path

import emulate
import simgpu

simgpu.warnings_are_errors()
emulate.start()

import torch  # noqa: E402 the simulation is set up first

from tests import graphs  # noqa: E402

HERE = Path(tempfile.mkdtemp())


def iterate(ppo, times: int) -> None:
    """Some iterations."""
    for _ in range(times):
        ppo.iteration()


def robot() -> None:
    """A user's robot, whose joints are listed in another order."""
    from tests.robot_files import mjcf, write

    ppo = graphs.build("cuda", "quadruped", 8, f"robot.mjcf={write(HERE, mjcf())}")
    iterate(ppo, 5)
    assert graphs.uncaptured(ppo) == {}
    assert isinstance(ppo.env.task.joint_columns.qpos, torch.Tensor)


def net() -> None:
    """A small random network as actuator, one step late."""
    from gpusim_rl.sim import actuator_models

    rng = torch.Generator().manual_seed(0)
    inputs = actuator_models.Inputs(dt=0.005, offsets=(0, 1, 2), error=0.5, speed=5.0, torque=20.0)
    layers = [
        (torch.randn(8, 6, generator=rng), torch.zeros(8)),
        (torch.randn(1, 8, generator=rng), torch.zeros(1)),
    ]
    file = HERE / "net.safetensors"
    actuator_models.Net(inputs, layers).save(file)
    words = ("robot.actuator.kind=net", f"robot.actuator.file={file}", "robot.actuator.delay=0.01")
    ppo = graphs.build("cuda", "quadruped", 8, *words)
    iterate(ppo, 5)
    assert graphs.uncaptured(ppo) == {}


def gym() -> None:
    """The vector environment of Gymnasium."""
    from gpusim_rl.adapters import gymnasium_env

    env = gymnasium_env.make("cartpole", num_envs=4, sim="warp", device="cuda")
    obs, _ = env.reset(seed=3)
    for _ in range(3):
        obs, *_ = env.step(env.action_space.sample())
    print(obs.shape)


def load() -> None:
    """A state goes back into its PPO, then into another that has captured nothing yet."""
    a = graphs.build("cuda", "cartpole", 8)
    iterate(a, 5)
    state = {name: value.cpu() for name, value in a.state().items()}
    a.load(state, "here")
    iterate(a, 2)
    b = graphs.build("cuda", "cartpole", 8)
    b.load(state, "there")
    iterate(b, 5)
    worst = a.env.worst_step.read(a.env.worst_step.worst().cpu())
    print("read", worst.world, worst.step)


def fuzz() -> None:
    """A dozen drawn tasks: here a kernel that leaves its rows would write into other tensors."""
    from tests import fuse_fuzz

    for seed in range(200, 212):
        result = fuse_fuzz.run(seed, 10, HERE, "cuda")
        assert len(result.kernels) == 3 and result.apart <= 1, result


def resume() -> None:
    """Numbers that resume= changes are what recorded kernels read, of every learner."""
    import pytest

    from tests.training import test_open_run

    usual = [x for x in test_open_run.SIMS["captured"] if not x.startswith("device")]
    test_open_run.SIMS["cuda"] = (*usual, "device=cuda")
    for kind in test_open_run.NAMES:
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(tempfile.mkdtemp())
            test_open_run.test_what_is_changed_is_used(kind, "cuda")
        print(kind, "reads", len(test_open_run.changes(kind)), "changed numbers", flush=True)


if __name__ == "__main__":
    status = 0
    for part in sys.argv[1:]:
        start = time.time()
        try:
            globals()[part]()
            print(part, "done", round(time.time() - start), "s", flush=True)
        except Exception:
            print(part, "FAILED")
            status = 1
            traceback.print_exc(limit=-5)
    simgpu.finish(status)
