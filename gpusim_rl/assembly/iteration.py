"""From a configuration to an iteration: its Env, its learner and its reward models."""

from collections.abc import Sequence
from functools import partial
from importlib import import_module
from typing import Any

from gpusim_rl.algorithms.iteration import Iteration
from gpusim_rl.assembly.earlier_runs import fitting_demos, load_teacher
from gpusim_rl.assembly.environment import build_env
from gpusim_rl.assembly.joining import join
from gpusim_rl.assembly.learners import REWARDS, load_learner, own_files, read_files
from gpusim_rl.config.sections import Config
from gpusim_rl.core.distributed import SINGLE, ProcessGroup
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
    more = {"group": group, "changeable": changeable, "first": first, "life": life}
    with out_of_memory_named(worlds), torch_threads(cfg.threads):
        return join_learner(cfg, build_env(cfg, worlds, schedule, **more), changeable=changeable)


def join_learner(cfg: Config, env: Env, **more: Any) -> Iteration:
    """An Env and the learner of a configuration, with its reward models, as one.

    more: arguments of `join`, instead of what the configuration says.
    """
    kind, module = load_learner(cfg.algo.name, cfg.algo_code)
    options = {key: getattr(cfg, key) for key in ("num_steps", "graph", "threads", "fuse")}
    given = read_files(own_files(cfg), cfg)
    if cfg.demos:
        episodes = cfg.cloning.episodes
        demos = fitting_demos(cfg, "demos", cfg.demos, env, make_iteration, episodes)
        options["demos"] = demos, cfg.cloning
        given["demos"] = demos
    options |= {name: getattr(module, name, None) for name in ("make_source", "make_rewards")}
    reward = load_reward(cfg, env)
    given |= {f"reward.{key}": x for key, x in reward[2].items()} if reward else {}
    options |= {"reward": reward, "schedule": Curriculum(cfg.curriculum), "given": given}
    if cfg.teacher:
        options["make_teacher"] = partial(load_teacher, cfg, env)
    return join(env, kind, cfg.algo.settings, **options | more)


def load_reward(cfg: Config, env: Env) -> tuple[Any, Any, dict[str, Any]] | None:
    """The class of the reward model of reward=, its settings and its other arguments.

    None of reward=none. ValueError if its demonstrations do not fit the Env.
    """
    name = cfg.reward.name
    if name not in REWARDS:
        return None
    module = import_module(f"gpusim_rl.algorithms.rewards.{name}.{name}")
    shown, settings = {}, cfg.reward.settings
    if path := getattr(settings, "demos", None):
        shown = {"demos": fitting_demos(cfg, "reward.demos", path, env, make_iteration)}
    return getattr(module, REWARDS[name]), settings, shown
