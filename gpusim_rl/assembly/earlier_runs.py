"""What a training takes of earlier runs: demonstrations, and a teacher."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from safetensors.torch import save as to_bytes
from torch import Tensor
from torch.nn import Module

from gpusim_rl.algorithms.iteration import Player
from gpusim_rl.assembly.environment import build_env
from gpusim_rl.assembly.joining import RunSpec, find_mirrors, make_spec
from gpusim_rl.assembly.learners import ACTOR, LEARNERS, algorithm_of, load_learner
from gpusim_rl.config import compose, resume
from gpusim_rl.config.sections import Config
from gpusim_rl.core import errors
from gpusim_rl.core.distributed import ProcessGroup
from gpusim_rl.core.files import write_whole
from gpusim_rl.core.paths import CODE
from gpusim_rl.core.record import vector
from gpusim_rl.core.states import check_layout, layout
from gpusim_rl.envs.curriculum import Curriculum
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


def fitting_demos(
    cfg: Config, key: str, name: str, env: Env, episodes: int | None = None
) -> Demonstrations:
    """Demonstrations for an Env, on its device: of a file, or of a run that plays now.

    Args:
        key: of the configuration, with the value `name`.
        episodes: the first ones; None: all of a file, and `RUN_EPISODES` of a run.

    Raises:
        ValueError: they cannot be read, do not fit the Env, or are fewer.
    """
    if not Path(name).is_file():
        demos = record_of(cfg, name, episodes or RUN_EPISODES, env.group)
    else:
        demos = Demonstrations.read(Path(name))
        demos = demos.first(episodes) if episodes else demos
    demos.check(describe_env(cfg.task.name, env), env.task.clip, f"{key}={name}")
    return demos.to(env.device)


def record_of(cfg: Config, name: str, episodes: int, group: ProcessGroup) -> Demonstrations:
    """Episodes of a run, recorded now for a training whose configuration is `cfg`.

    ValueError if the run cannot be played, or if its code may not be imported.
    """
    codes = {group: getattr(cfg, f"{group}_code") for group in CODE}
    config = resume.load_config(Run.open(Path(name)), codes)
    state, _, path = load_last(Path(name), group)
    player = make_player(config)
    player.policy.load(state, str(path))
    return record_run(config, player, episodes)


def load_last(path: Path, group: ProcessGroup) -> tuple[dict[str, Tensor], dict[str, str], Path]:
    """Tensors, metadata and path of a checkpoint, or of a run's last one that is whole.

    It is one choice for all processes, while that run goes on. OSError or ValueError if there is
    none.
    """
    if group.rank == 0 and not path.is_file():
        _, _, path = Run.open(path).checkpoints.restore(errors.warn)
    path = group.broadcast(path)
    return *load(path), path


def make_player(config: Config) -> Player:
    """The policy of a configuration, in one world on the CPU; nothing is learned."""
    on_cpu: dict[str, Any] = {"device": "cpu", "threads": 1}
    on_cpu |= {"sim": {"name": "native", "threads": 1}}
    config = config.replace(on_cpu)
    env = build_env(config, 1, Curriculum(config.curriculum))
    algorithm, settings = algorithm_of(config)
    spec = make_spec(env, RunSpec(num_steps=config.num_steps, graph="off", threads=1))
    return Player(env, algorithm.make_policy(spec, settings))


def record_run(config: Config, player: Player, episodes: int, seed: int = SEED) -> Demonstrations:
    """Episodes of the policy of a run, on the model's own physics."""
    env = demonstration_env(config, player.env.task, episodes, seed)
    return demonstrate(mean_action(player.policy, env.num_rows), env, config.task.name)


def demonstration_env(config: Config, task: Task, episodes: int, seed: int) -> Env:
    """The worlds of an evaluation of a run, for as many episodes."""
    return evaluation_env(
        task, episodes, weights=config.task.weights, noise=config.task.noise, seed=seed
    )


# Why: docs/decisions/teachers.md
def load_teacher(cfg: Config, env: Env) -> Any:
    """The actor of teacher=, a run or a checkpoint, for the unhidden terms of an Env.

    These are the first columns of what the critic observes. It sees views of the task, too. No code
    of the run is imported. OSError or ValueError if there is none, or it is of another task or
    observes something else.
    """
    state, metadata, file = load_last(Path(str(cfg.teacher)), env.group)
    name, numbers = teacher_settings(cfg, metadata, file)
    algorithm, width = load_learner(name), sum(env.term_widths.values())
    views = env.views | {"actor": vector(width)}
    spec = replace(
        make_spec(env, RunSpec(num_steps=cfg.num_steps, graph="off", threads=1)),
        views=views,
        mirrors=partial(find_mirrors, env, {}),
        term_widths=env.observer.view_terms | {"actor": env.term_widths},
    )
    actor: Any = algorithm.make_policy(spec, algorithm.settings(**numbers)).actor
    state = {name.removeprefix(ACTOR): x for name, x in state.items() if name.startswith(ACTOR)}
    check_layout(state, layout(actor.state_dict()), str(file))
    actor.load_state_dict(state)
    if actor.blank_memory(1):
        raise ValueError(f"teacher={cfg.teacher} has a memory: choose one with algo.memory=none")
    actor.requires_grad_(False)
    described = {key: metadata[key] for key in ("iteration", "config")}
    actor.write = partial(write_actor, actor, described)
    return actor


def write_actor(actor: Module, metadata: dict[str, str], path: Path) -> None:
    """Write an actor as a checkpoint of its own."""
    state = {ACTOR + name: x.contiguous() for name, x in actor.state_dict().items()}
    write_whole(path, to_bytes(state, metadata))


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
