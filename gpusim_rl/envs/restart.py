"""How worlds begin episodes: what is drawn for them, and where it is written."""

from typing import TYPE_CHECKING

from torch import Tensor

from gpusim_rl.envs.state import State

if TYPE_CHECKING:
    from gpusim_rl.envs.env import Env


def first_states(env: "Env", ended: State | None) -> dict[str, Tensor]:
    """What a new episode of each world begins with, by name; pure.

    ended: the last state of the episodes; None if there was none before.
    """
    task, patches = env.scheduled_task, env.task.patches
    start = task.begin(env.num_envs, env.rng, ended)
    start = env.task.randomization.restart(start, env.rng)
    return patches.rub(start) if patches else start


def restart(env: "Env", start: dict[str, Tensor], mask: Tensor) -> None:
    """Begin the episodes that `first_states` returned in the worlds of mask (B,) bool. In place."""
    sim, patches = env.sim, env.task.patches
    qpos, qvel = (start.pop(name).to(sim.qpos.dtype) for name in ("qpos", "qvel"))
    env.write(start, mask)
    if patches:
        patches.write(sim, env.memory["patch"], mask)
    sim.reset(mask, qpos, qvel)
    env.time.masked_fill_(mask, 0)
    env.action.masked_fill_(mask[:, None], 0.0)
    env.previous.masked_fill_(mask[:, None], 0.0)
