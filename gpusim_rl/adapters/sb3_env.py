"""Our tasks for Stable-Baselines3, whose VecEnv is not Gymnasium's.

from stable_baselines3 import PPO
PPO("MlpPolicy", gpusim_rl.adapters.sb3_env.make("cartpole", num_envs=256)).learn(500_000)
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpusim_rl.adapters import gymnasium_env
from gpusim_rl.adapters.common import needs

with needs(__name__, "stable-baselines3", "sb3"):
    from stable_baselines3.common.vec_env import VecEnv
    from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices


class VecWorlds(VecEnv):
    """`gymnasium_env.Worlds` as Stable-Baselines3 takes them.

    An episode that ended says so in its world's info.
    `terminal_observation`, as of one world, is the observation it ended in, without noise;
    `TimeLimit.truncated` whether only the clock ended it, so that its value is bootstrapped.
    `fault` is there for a quarantined world: neither, so that nothing is bootstrapped from a state
    that is not known.
    """

    def __init__(self, worlds: gymnasium_env.Worlds):
        self.worlds = worlds
        super().__init__(
            worlds.num_envs, worlds.single_observation_space, worlds.single_action_space
        )

    def reset(self) -> Any:
        """The observation. The seed of `seed()` is used once, as Stable-Baselines3 has it."""
        obs, _ = self.worlds.reset(seed=self._seeds[0], options=self._options[0])
        self._reset_seeds()
        self._reset_options()
        return obs

    def step_async(self, actions: np.ndarray) -> None:
        """Keep actions (B, nu) for `step_wait`."""
        self.actions = actions

    def step_wait(self) -> tuple[Any, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        """One control step: observation, reward (B,), done (B,), an info each."""
        obs, reward, terminated, truncated, info = self.worlds.step(self.actions)
        done, infos = terminated | truncated, [{} for _ in range(self.num_envs)]
        for i in np.flatnonzero(done):
            fault = bool(info["fault"][i])
            infos[i] = {
                "terminal_observation": info["final_obs"][i],
                "TimeLimit.truncated": bool(truncated[i]) and not fault,
            }
            infos[i] |= {"fault": True} if fault else {}
        return obs, reward, done, infos

    def get_images(self) -> Sequence[np.ndarray | None]:
        """A picture of each world."""
        return self.worlds.render() or [None] * self.num_envs

    def close(self) -> None:
        self.worlds.close()

    # -- the worlds are one object: what is asked of some is asked of it ---------------------------

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """The attribute of `worlds`, once for each index."""
        return [getattr(self.worlds, attr_name)] * self._count(indices)

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        """Set it for all; ValueError for some."""
        self._all(indices)
        setattr(self.worlds, attr_name, value)

    def env_method(
        self,
        method_name: str,
        *method_args: Any,
        indices: VecEnvIndices = None,
        **method_kwargs: Any,
    ) -> list[Any]:
        """Call a method of `worlds` once, for all; ValueError for some."""
        self._all(indices)
        return [getattr(self.worlds, method_name)(*method_args, **method_kwargs)] * self.num_envs

    def env_is_wrapped(self, wrapper_class: type, indices: VecEnvIndices = None) -> list[bool]:
        """Never."""
        return [False] * self._count(indices)

    def _count(self, indices: VecEnvIndices) -> int:
        return len(list(self._get_indices(indices)))

    def _all(self, indices: VecEnvIndices) -> None:
        if self._count(indices) != self.num_envs:
            raise ValueError(f"indices={indices}: all worlds are one object, so choose all of them")


def make(task: str, num_envs: int | None = None, **keys: Any) -> VecWorlds:
    """Worlds of a task for Stable-Baselines3. Arguments are those of `gymnasium_env.make`."""
    return VecWorlds(gymnasium_env.make(task, num_envs, **keys))
