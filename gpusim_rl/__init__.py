"""Robot reinforcement learning in shared tensors: simulate, update, verify and export without
leaving the device.

    import gpusim_rl as g

    result = g.train(task="cartpole", stop_at=0.95)
    policy = g.Policy(result.path / "policy.onnx")
    env = g.make("quadruped", num_envs=64)

Nothing heavy is loaded before it is used.
"""

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpusim_rl.deploy.runtime import Policy as Policy
    from gpusim_rl.envs.env import Env
    from gpusim_rl.training.trainer import Result

__version__ = "0.1.0"

# libgomp reads it when torch is loaded. Its threads wait for each other in a loop: beside another
# program long loops made a quadruped train 15 times slower on two cores.
os.environ.setdefault("GOMP_SPINCOUNT", "5000")


def train(*overrides: str, **keys: Any) -> "Result":
    """Train, evaluate, export and report, as `python train.py` does.

    Args:
        overrides: KEY=VALUE of its command line, such as "algo.gamma=0.98".
        keys: the same as Python values, such as task="cartpole" or seed=3.

    Raises:
        ValueError, OSError: in one line, for a wrong key or value, or results that cannot be
            written.
        TrainingFailed: training went wrong too often.
        KeyboardInterrupt: at Ctrl-C, after a checkpoint, which resume= continues.
    """
    from gpusim_rl.commands.train import train

    return train(*overrides, **keys)


def make(task: str, num_envs: int | None = None, *overrides: str, **keys: Any) -> "Env":
    """Worlds of a task, on exact physics: `env.step(action)` takes and gives torch tensors.

    Args:
        task: its name, as in `python train.py task=quadruped`.
        num_envs: worlds; None for as many as conf/task/<task>.yaml says.
        overrides, keys: as of `train`, without keys of a training.

    Raises:
        ValueError, FileNotFoundError: in one line, as train.py has it.
    """
    from gpusim_rl.adapters import common

    return common.make_env(common.compose_config(task, num_envs, overrides, keys))


def __dir__() -> list[str]:
    return ["Policy", "__version__", "make", "registry", "train"]


def __getattr__(name: str) -> Any:
    if name == "Policy":
        from gpusim_rl.deploy.runtime import Policy

        return Policy
    if name == "registry":
        from importlib import import_module

        return import_module("gpusim_rl.registry")
    raise AttributeError(f"module 'gpusim_rl' has no attribute {name!r}")
