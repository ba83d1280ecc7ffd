"""From a configuration to an iteration: its Env, its learner and its reward models."""

from collections.abc import Sequence
from typing import Any

from gpusim_rl.algorithms.iteration import Iteration
from gpusim_rl.assembly.earlier_runs import fitting_demos, load_teacher
from gpusim_rl.assembly.environment import build_env
from gpusim_rl.assembly.joining import RunSpec, assemble
from gpusim_rl.assembly.learners import algorithm_of, load_reward, own_files, read_files
from gpusim_rl.config.sections import Config
from gpusim_rl.core.distributed import SINGLE, ProcessGroup
from gpusim_rl.core.file_keys import Given
from gpusim_rl.core.memory import out_of_memory_named
from gpusim_rl.core.streams import torch_threads
from gpusim_rl.envs.curriculum import Curriculum
from gpusim_rl.envs.env import Env


def make_iteration(
    cfg: Config,
    num_envs: int | None = None,
    *,
    group: ProcessGroup = SINGLE,
    changeable: Sequence[str] = (),
    first: int | None = None,
    life: int = 0,
) -> Iteration:
    """Task, Sim, Env and learner of a configuration, ready for the first iteration.

    Args:
        num_envs: worlds of all processes of the group together; the configuration's unless given.
        changeable: keys, such as `algo.ent_coef` or `task.weights.action_rate`, which are put in
            `Iteration.numbers` beside those of the curriculum, for somebody else to write.
        first, life: of the worlds, as `build_env` has them.
    """
    worlds, schedule = num_envs or cfg.num_envs, Curriculum(cfg.curriculum)
    more: dict[str, Any] = {"group": group, "changeable": changeable, "first": first, "life": life}
    algorithm_of(cfg)  # its module has kernels, which are compiled beside those of the physics
    with out_of_memory_named(worlds), torch_threads(cfg.threads):
        return join_learner(cfg, build_env(cfg, worlds, schedule, **more), changeable=changeable)


def join_learner(cfg: Config, env: Env, **more: Any) -> Iteration:
    """An Env and the learner of a configuration, with its reward models, as one.

    more: fields of `RunSpec`, instead of what the configuration says.
    """
    algorithm, settings = algorithm_of(cfg)
    reward = None if cfg.reward.name == "none" else load_reward(cfg.reward.name)
    options: dict[str, Any] = {
        **{key: getattr(cfg, key) for key in ("num_steps", "graph", "threads", "fuse")},
        "schedule": Curriculum(cfg.curriculum),
        "reward": (reward, cfg.reward.settings) if reward else None,
        "given": read_all_files(cfg, env),
    }
    return assemble(env, algorithm, settings, RunSpec(**options | more))


def read_all_files(cfg: Config, env: Env) -> Given:
    """What the files of a configuration hold, as `Spec.given` has it; ValueError if one does not
    fit the Env."""
    given = read_files(own_files(cfg), cfg)
    if cfg.demos:
        demos = fitting_demos(cfg, "demos", cfg.demos, env, cfg.cloning.episodes)
        given |= {"demos": demos, "cloning": cfg.cloning}
    if path := cfg.plain["reward"].get("demos"):
        given["reward.demos"] = fitting_demos(cfg, "reward.demos", path, env)
    if cfg.teacher:
        given["teacher"] = load_teacher(cfg, env)
    return given
