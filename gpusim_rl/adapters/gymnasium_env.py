"""Our tasks as Gymnasium environments, for CleanRL and others: NumPy in, NumPy out.

    # a gymnasium.vector.VectorEnv
    worlds = gpusim_rl.adapters.gymnasium_env.make("quadruped", num_envs=256, sim="native", seed=1)
    # the same, and one world as a gymnasium.Env, once this module is imported
    worlds = gymnasium.make_vec("gpusim_rl/quadruped-v0", num_envs=256)
    world = gymnasium.make("gpusim_rl/quadruped-v0")

Every task of conf/task/ is registered. docs/adapters.md explains the numbers.
"""

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gpusim_rl.adapters import common
from gpusim_rl.config import compose
from gpusim_rl.config.sections import Config
from gpusim_rl.core.record import Column
from gpusim_rl.core.streams import torch_threads
from gpusim_rl.envs.agents import folded
from gpusim_rl.envs.observation import Observation
from gpusim_rl.envs.state import State
from gpusim_rl.viewer.offscreen import Camera

with common.needs(__name__, "gymnasium 1.1 or newer", "gym"):
    import gymnasium
    from gymnasium.spaces import Box, Dict
    from gymnasium.vector import AutoresetMode, VectorEnv
    from gymnasium.vector.utils import batch_space

MODES = ["rgb_array"]  # a list, as gymnasium.make adds to it
Info = dict[str, Any]
HEIGHT, WIDTH = 360, 480  # pixels


def array(x: Tensor) -> np.ndarray:
    """x as a NumPy array on the host. The caller may keep it, as nobody writes to x again."""
    return x.cpu().numpy()  # Gymnasium's interface is on the host


def space(view: Column) -> Box:
    """The numbers of a view: any, or those of its type."""
    dtype = torch.empty(0, dtype=view.dtype).numpy().dtype
    whole = torch.iinfo(view.dtype) if not view.dtype.is_floating_point else None
    low, high = (whole.min, whole.max) if whole else (-np.inf, np.inf)
    return Box(low, high, view.shape, dtype.type)


def row(obs: Any, i: int) -> Any:
    """The observation of one world."""
    return {name: x[i] for name, x in obs.items()} if isinstance(obs, dict) else obs[i]


# Why: docs/decisions/code.md
class Worlds(VectorEnv):
    """B worlds of a task, stepped together; of a task with several agents, B agents.

    When `step` returns, a world whose episode ended has already begun its next one. The observation
    (B, no) float32 is the actor's: with the task's noise, in SI units, not normalized. Of a task
    with further views it is a dictionary of `actor` and these by their names. The action
    (B, nu) lies within ± task.clip. `info` holds, each with its mask `_…` as Gymnasium has it:

    - `critic` (B, nc): the critic's observation of the same moment, without noise.
    - `fault` (B,): the world is not finite or exceeded a capacity. Such a step is truncated, with
      reward 0 and final observations of zeros. Leave it out if you can.
    - `final_obs`, `final_info`, where an episode ended: the observation of its last state, without
      noise, and the `critic` and `fault` of that state. Bootstrap time-outs from these.
    """

    metadata: Info = {  # noqa: RUF012
        "autoreset_mode": AutoresetMode.SAME_STEP,
        "render_modes": MODES,
    }

    def __init__(self, cfg: Config, render_mode: str | None = None):
        if render_mode not in (None, *MODES):
            choices = f"None, {', '.join(map(repr, MODES))}"
            raise ValueError(f"render_mode={render_mode!r}: choose one of {choices}")
        self.cfg, self.env, self.render_mode = cfg, common.make_env(cfg), render_mode
        task, views = self.env.task, self.env.views
        self.num_envs = self.env.num_rows
        self.metadata = self.metadata | {"render_fps": round(1 / task.dt)}
        spaces: dict[str, Any] = {name: space(x) for name, x in views.items() if name != "critic"}
        self.single_observation_space = Dict(spaces) if len(spaces) > 1 else spaces["actor"]
        self.single_action_space = Box(-task.clip, task.clip, (task.action_width,), np.float32)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._camera: Camera | None = None
        if render_mode:
            try:
                self._camera = Camera(task.mjm, HEIGHT, WIDTH)
            except ValueError as error:
                raise ValueError(f"render_mode={render_mode!r}: {error}") from None

    @torch.no_grad()
    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        """Begin a new episode in every world.

        The same seed gives the same worlds, episodes and noise, whatever was done before. World i
        does not depend on the number of worlds. Without a seed the random numbers go on; before the
        first one they come from the seed of the configuration.
        """
        if options:
            raise ValueError(f"reset takes no options, not {', '.join(options)}")
        if seed is None:
            self.env.restart()
        else:
            if not 0 <= seed < 2**32:
                raise ValueError(f"seed={seed}: expected 0 ≤ seed < 2³²")
            super().reset(seed=seed)
            self.env = common.reseed(self.env, self.cfg, seed)
        views = {name: x.clone() for name, x in self.env.observation.items()}
        return self._observed(views), self._info(
            array(views["critic"]), np.zeros(self.num_envs, bool)
        )

    def _observed(self, views: Observation) -> Any:
        """The actor's view, or with further ones a dictionary."""
        obs = {name: array(x) for name, x in views.items() if name != "critic"}
        return obs if len(obs) > 1 else obs["actor"]

    @torch.no_grad()
    @torch_threads(1)  # torch's would fight the engine's: a fifth of the speed on two cores
    def step(self, actions: np.ndarray) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, Info]:
        """One control step: observation, reward (B,) float32, terminated (B,), truncated (B,),
        info."""
        action = torch.as_tensor(np.asarray(actions, np.float32), device=self.env.device)
        if action.shape != self.action_space.shape:
            wrong = f"actions of shape {tuple(action.shape)}"
            raise ValueError(f"{wrong}: expected {self.action_space.shape}")
        env, ends = self.env, []

        def keep(s: State) -> None:
            final = {"actor": env.observer.final(s, env.rows())} | env.scheduled_task.views(s)
            ends.append({name: folded(x, env.agents) for name, x in final.items()})

        # Before `step` returns, the worlds whose episode ended have another state and past.
        step = env.step(action, keep)
        end, reward, terminated, truncated, fault = map(array, step[1:])
        obs, critic = self._observed(step.observation), array(step.observation["critic"])
        truncated, info = truncated | fault, self._info(critic, fault)
        done = terminated | truncated
        if done.any():
            final = np.full(self.num_envs, None, object)
            last = {name: x.clone() for name, x in ends[0].items()}
            for x in last.values():
                x[step.fault] = 0
            last = self._observed(last)
            for i in np.flatnonzero(done):
                final[i] = copy.deepcopy(row(last, int(i)))
            info |= {"final_obs": final, "_final_obs": done.copy()}
            info |= {"final_info": self._info(end, fault.copy(), done), "_final_info": done.copy()}
        return obs, reward, terminated, truncated, info

    def _info(self, critic: np.ndarray, fault: np.ndarray, where: np.ndarray | None = None) -> Info:
        """The info of the worlds of a mask (None: of all), in Gymnasium's form."""
        mask = np.ones(self.num_envs, bool) if where is None else where
        return {"critic": critic, "_critic": mask.copy(), "fault": fault, "_fault": mask.copy()}

    def render(self) -> tuple[np.ndarray, ...] | None:
        """A picture (360, 480, 3) uint8 for each row; None unless render_mode is "rgb_array"."""
        if self._camera is None:
            return None
        pictures = [self._camera(qpos) for qpos in array(self.env.sim.qpos)]
        return tuple(x for x in pictures for _ in range(self.env.agents))

    def close_extras(self, **kwargs: object) -> None:
        """Free the OpenGL context."""
        if self._camera:
            self._camera.close()


class World(gymnasium.Env):
    """One world of a task: `Worlds` of one, without the batch's axis. Args are those of `make`.

    When an episode ends, the observation is that of its last state, without noise. `reset` begins
    the next episode.
    """

    metadata: Info = {"render_modes": MODES}  # noqa: RUF012

    def __init__(self, task: str, **keys: Any):
        self.worlds = make(task, 1, **keys)
        if (agents := self.worlds.num_envs) > 1:
            raise ValueError(f"task={task} has {agents} agents in a world: use gymnasium.make_vec")
        self.render_mode = self.worlds.render_mode
        self.metadata = self.metadata | {"render_fps": self.worlds.metadata["render_fps"]}
        self.observation_space = self.worlds.single_observation_space
        self.action_space = self.worlds.single_action_space

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        """As `Worlds.reset`."""
        super().reset(seed=seed)
        obs, info = self.worlds.reset(seed=seed, options=options)
        return row(obs, 0), self._info(info)

    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, Info]:
        """As `Worlds.step`, for action (nu,)."""
        obs, reward, terminated, truncated, info = self.worlds.step(np.asarray(action)[None])
        if terminated[0] or truncated[0]:
            obs, info = info["final_obs"], info["final_info"]
        return (
            row(obs, 0),
            float(reward[0]),
            bool(terminated[0]),
            bool(truncated[0]),
            self._info(info),
        )

    def _info(self, info: Info) -> Info:
        return {"critic": info["critic"][0], "fault": bool(info["fault"][0])}

    def render(self) -> Any:
        """A picture (360, 480, 3) uint8, or None."""
        frames = self.worlds.render()
        return frames[0] if frames else None

    def close(self) -> None:
        self.worlds.close()


def make(
    task: str,
    num_envs: int | None = None,
    *,
    overrides: Sequence[str] = (),
    render_mode: str | None = None,
    **keys: Any,
) -> Worlds:
    """`num_envs` worlds of a task (None: as many as conf/task/<task>.yaml says).

    Args:
        task: its name, as in train.py task=quadruped.
        overrides: KEY=VALUE, as on train.py's command line.
        render_mode: None or "rgb_array".
        keys: the keys of train.py as Python values, which win over words. For example
            `sim="native", device="cpu", seed=3, **{"task.episode": 5.0}`.

    Raises ValueError or FileNotFoundError with the line that train.py would print.
    """
    return Worlds(common.compose_config(task, num_envs, overrides, keys), render_mode)


def register() -> None:
    """Make `gpusim_rl/<task>-v0` known to Gymnasium."""
    for task in compose.choices("task"):
        one, many = f"{__name__}:World", f"{__name__}:make"
        gymnasium.register(
            f"gpusim_rl/{task}-v0", one, vector_entry_point=many, kwargs={"task": task}
        )


register()
