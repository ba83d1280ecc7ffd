"""Our tasks for rsl_rl (leggedrobotics/rsl_rl, Schwarke et al., arXiv:2509.10771): tensors stay on
the device.

    env = gpusim_rl.adapters.rsl_rl_env.make("quadruped", num_envs=4096)
    OnPolicyRunner(env, cfg, log_dir=None, device=str(env.device)).learn(100)

`docs/adapters.md` has a whole `cfg`.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gpusim_rl.adapters import common
from gpusim_rl.config.sections import Config
from gpusim_rl.core.streams import torch_threads
from gpusim_rl.envs.observation import Observation

with common.needs(__name__, "rsl-rl-lib 5 or newer", "rsl"):
    from rsl_rl.env import VecEnv
    from tensordict import TensorDict


class RslWorlds(VecEnv):
    """B worlds of a task, or agents of its worlds, stepped together, restarted in the step in which
    their episode ends.

    Observations: groups "policy" (B, no), what a robot measures with its noise, and "critic" (B,
    nc), the same without noise and what only the simulator knows; those that the task adds have
    the names of their views. `extras["time_outs"]` (B,)
    float32 is 1 where the clock alone ended an episode, and where a world was quarantined, which is
    no failure of the policy; `extras["log"]["/fault"]` is their share.
    """

    def __init__(self, cfg: Config):
        self.cfg, self.env = cfg.plain, common.make_env(cfg)
        self.num_envs, self.num_actions = self.env.num_rows, self.env.task.action_width
        self.max_episode_length, self.device = self.env.task.horizon, self.env.device

    @property
    def episode_length_buf(self) -> Tensor:
        """(B,) int64 control steps since each restart; setting it moves the time-outs, as
        `init_at_random_ep_len` does."""
        return self.env.time

    @episode_length_buf.setter
    def episode_length_buf(self, value: Tensor) -> None:
        self.env.time.copy_(value)

    def get_observations(self) -> TensorDict:
        """All groups, of now."""
        return self._groups({name: view.clone() for name, view in self.env.observation.items()})

    @torch.no_grad()
    @torch_threads(1)  # torch's would fight the engine's
    def step(self, actions: Tensor) -> tuple[TensorDict, Tensor, Tensor, dict[str, Any]]:
        """Apply actions (B, nu) for one control step: observations, rewards (B,), dones (B,) int64,
        extras."""
        observation, _, reward, terminated, truncated, fault = self.env.step(actions)
        out = truncated | fault
        extras = {"time_outs": out.float(), "log": {"/fault": fault.float().mean()}}
        return self._groups(observation), reward, (terminated | out).long(), extras

    def _groups(self, views: Observation) -> TensorDict:
        groups = {"policy" if name == "actor" else name: x for name, x in views.items()}
        return TensorDict(groups, batch_size=[self.num_envs], device=self.device)


def make(
    task: str, num_envs: int | None = None, *, overrides: Sequence[str] = (), **keys: Any
) -> RslWorlds:
    """Worlds of a task for rsl_rl. Arguments and errors are those of `gymnasium_env.make`."""
    return RslWorlds(common.compose_config(task, num_envs, overrides, keys))
