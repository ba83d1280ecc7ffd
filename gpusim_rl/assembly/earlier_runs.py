"""What a training takes of earlier runs: demonstrations, and a teacher."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gpusim_rl.algorithms.iteration import Iteration
from gpusim_rl.algorithms.learner import Spec
from gpusim_rl.assembly.joining import find_mirrors
from gpusim_rl.assembly.learners import ACTOR, LEARNERS
from gpusim_rl.config import compose, resume
from gpusim_rl.config.sections import Config
from gpusim_rl.core import errors
from gpusim_rl.core.distributed import SINGLE, ProcessGroup
from gpusim_rl.core.paths import CODE
from gpusim_rl.core.record import vector
from gpusim_rl.core.states import check_layout, layout
from gpusim_rl.envs.env import Env
from gpusim_rl.envs.task import Task
from gpusim_rl.evaluation.demonstrate import (
    RUN_EPISODES,
    SEED,
    demonstrate,
    describe_env,
    mean_action,
)
from gpusim_rl.evaluation.evaluate import evaluation_env
from gpusim_rl.runs.checkpoints import load
from gpusim_rl.runs.demonstrations import Demonstrations
from gpusim_rl.runs.run import Run

Maker = Callable[..., Iteration]  # (configuration, num_envs=…)


def fitting_demos(
    cfg: Config, key: str, name: str, env: Env, make: Maker, episodes: int | None = None
) -> Demonstrations:
    """Demonstrations for an Env, on its device: of a file, or of a run that `make` lets play.

    Args:
        key: of the configuration, with the value `name`.
        episodes: the first ones; None: all of a file, and `RUN_EPISODES` of a run.

    Raises:
        ValueError: they cannot be read, do not fit the Env, or are fewer.
    """
    if not Path(name).is_file():
        demos = record_of(cfg, name, episodes or RUN_EPISODES, env.group, make)
    else:
        demos = Demonstrations.read(Path(name))
        demos = demos.first(episodes) if episodes else demos
    demos.check(describe_env(cfg.task.name, env), env.task.clip, f"{key}={name}")
    return demos.to(env.device)


def record_of(
    cfg: Config, name: str, episodes: int, group: ProcessGroup, make: Maker
) -> Demonstrations:
    """Episodes of a run, recorded now for a training whose configuration is `cfg`.

    ValueError if the run cannot be played, or if its code may not be imported.
    """
    codes = {group: getattr(cfg, f"{group}_code") for group in CODE}
    config = resume.load_config(Run.open(Path(name)), codes)
    state, _, path = load_last(Path(name), group)
    iteration = make(for_playing(config), num_envs=1)
    iteration.policy.load(state, str(path))
    return record_run(config, iteration, episodes)


def load_last(path: Path, group: ProcessGroup) -> tuple[dict[str, Tensor], dict[str, str], Path]:
    """Tensors, metadata and path of a checkpoint, or of a run's last one that is whole.

    It is one choice for all processes, while that run goes on. OSError or ValueError if there is
    none.
    """
    if group.rank == 0 and not path.is_file():
        _, _, path = Run.open(path).checkpoints.restore(errors.warn)
    path = group.broadcast(path)
    return *load(path), path


def for_playing(config: Config) -> Config:
    """The configuration of a run for one world on the CPU, in which nothing is learned."""
    on_cpu: dict[str, Any] = {"device": "cpu", "threads": 1, "demos": None}
    on_cpu |= {"sim": {"name": "native", "threads": 1}, "reward": {"name": "none"}}
    plan = {key: x for key, x in (config.curriculum or {}).items() if key[:7] != "reward."}
    on_cpu |= {"curriculum": plan or None}
    if config.algo_code is None:  # it is not trained here; an own algorithm may need its numbers
        on_cpu["num_steps"] = 1
        algo = config.plain["algo"]
        on_cpu |= {"algo.num_minibatches": 1} if "num_minibatches" in algo else {}
        on_cpu |= {"algo.updates": algo["policy_delay"]} if "policy_delay" in algo else {}
    return config.replace(on_cpu)


def record_run(
    config: Config, iteration: Iteration, episodes: int, seed: int = SEED
) -> Demonstrations:
    """Episodes of the policy of a run, on the model's own physics."""
    env = demonstration_env(config, iteration.env.task, episodes, seed)
    return demonstrate(mean_action(iteration.policy, episodes), env, config.task.name)


def demonstration_env(config: Config, task: Task, episodes: int, seed: int) -> Env:
    """The worlds of an evaluation of a run, for as many episodes."""
    return evaluation_env(
        task, episodes, weights=config.task.weights, noise=config.task.noise, seed=seed
    )


# Why: docs/decisions/teachers.md
def load_teacher(cfg: Config, env: Env, spec: Spec) -> Any:
    """The actor of teacher=, a run or a checkpoint, for the unhidden terms of an Env.

    These are the first columns of what the critic observes. No code of the run is imported. OSError
    or ValueError if there is none, or it is of another task or observes something else.
    """
    state, metadata, file = load_last(Path(str(cfg.teacher)), spec.group)
    name, settings = teacher_settings(cfg, metadata, file)
    kind = getattr(import_module(f"gpusim_rl.algorithms.{name}.{name}"), LEARNERS[name])
    views = spec.views | {"actor": vector(sum(env.term_widths.values()))}
    n = settings.get("num_minibatches", 1)
    few = {"num_envs": n, "num_steps": n, "worlds": torch.zeros_like(spec.worlds[:1]).repeat(n)}
    own = {"views": views, "mirrors": partial(find_mirrors, env, {}), "group": SINGLE}
    if delay := settings.get("policy_delay"):
        settings |= {"updates": delay}  # nothing is learned, in one step
    made = kind(replace(spec, **few, **own, captured=False), kind.Settings(**settings))
    actor = made.policy.actor
    state = {name.removeprefix(ACTOR): x for name, x in state.items() if name.startswith(ACTOR)}
    check_layout(state, layout(actor.state_dict()), str(file))
    actor.load_state_dict(state)
    if actor.blank_memory(1):
        raise ValueError(f"teacher={cfg.teacher} has a memory: choose one with algo.memory=none")
    if actor.views:
        raise ValueError(f"teacher={cfg.teacher} has encoders: choose one with algo.encoders={{}}")
    actor.requires_grad_(False)
    actor.metadata = {key: metadata[key] for key in ("iteration", "config")}
    return actor


def teacher_settings(
    cfg: Config, metadata: dict[str, str], file: Path
) -> tuple[str, dict[str, Any]]:
    """The algorithm of a teacher's checkpoint, and its numbers.

    ValueError if it is of another task or no algorithm of ours, or does not see each term once.
    """
    trained = resume.read_trained(metadata, file)
    try:
        task, algo = dict(trained["task"]), dict(trained["algo"])
        name = algo["name"]
    except (KeyError, TypeError, ValueError):
        raise ValueError(f"teacher={file} does not say what it was trained with") from None
    if task.get("name") != cfg.task.name:
        says = f"was trained with task={task.get('name')}, not {cfg.task.name}"
        raise ValueError(f"teacher={cfg.teacher} {says}")
    if name not in LEARNERS or name == cfg.algo.name:
        others = ", ".join(key for key in LEARNERS if key != cfg.algo.name)
        raise ValueError(f"teacher={cfg.teacher}: its algo={name} is none of {others}")
    for key in ("hide", "history"):
        if task.get(key):
            says = f"task.{key}={task[key]}: a teacher observes each term once"
            raise ValueError(f"teacher={cfg.teacher} was trained with {says}")
    base = compose.build("config", [f"algo={name}"], builtin=True)["algo"]
    numbers = base | algo
    return name, {key: numbers[key] for key in base if key != "name"}
