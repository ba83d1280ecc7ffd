"""From plain data to objects: a configuration becomes a task, a Sim, an Env and a learner."""

from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import is_dataclass, replace
from functools import partial
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any

import mujoco
import torch
from torch import Tensor

from gpusim_rl.algorithms.collector import Collector, choose_columns, step_columns
from gpusim_rl.algorithms.iteration import Iteration
from gpusim_rl.algorithms.learner import RewardModel, Source, Spec
from gpusim_rl.algorithms.load import load_algorithm
from gpusim_rl.config import compose, robot_size, validate
from gpusim_rl.config.sections import Config, RobotSection
from gpusim_rl.core import ranges
from gpusim_rl.core.distributed import SINGLE, ProcessGroup
from gpusim_rl.core.files import read_whole, write_whole
from gpusim_rl.core.graphs import PartTimer
from gpusim_rl.core.memory import check_free, out_of_memory_named
from gpusim_rl.core.paths import ASSETS
from gpusim_rl.core.ranges import Range
from gpusim_rl.core.record import Record, row_bytes
from gpusim_rl.core.sections import arguments, limits, require
from gpusim_rl.core.streams import torch_threads
from gpusim_rl.core.symmetry import ViewMirrors, view_mirrors
from gpusim_rl.envs.check_methods import methods_named
from gpusim_rl.envs.curriculum import Curriculum
from gpusim_rl.envs.env import Env
from gpusim_rl.envs.load_task import load_task
from gpusim_rl.envs.mirror import derive_flips
from gpusim_rl.envs.task import Task
from gpusim_rl.envs.terrain.slots import add_boxes
from gpusim_rl.robots.model_files import copy_model
from gpusim_rl.robots.models import compile_spec, find_mjcf, find_own_mjcf, find_robot_file
from gpusim_rl.robots.visuals import is_urdf, picture_model
from gpusim_rl.sim.actuated import make_actuated
from gpusim_rl.sim.actuator_models import LARGEST
from gpusim_rl.sim.actuator_spec import GAINS
from gpusim_rl.sim.base import Sim
from gpusim_rl.sim.factory import choose

# Name of an algorithm of ours, and of its package and module → its class
LEARNERS = {"ppo": "PPO", "sac": "SAC"}
OPTIONS = {  # of sim, by backend
    "native": ("threads",),
    "warp": ("naconmax", "njmax", "conditional", "deterministic"),
    "mjx": (),
}


def make_task(cfg: Config, device: str) -> Task:
    """The task of a configuration, its constants on `device`."""
    name, code = validate.check_name("task", cfg.task.name), cfg.task_code
    numbers = {k: tuple(v) if isinstance(v, list) else v for k, v in cfg.task.numbers.items()}
    kind = load_task(name, code)
    numbers["mjcf"] = find_own_mjcf(cfg.task.numbers["mjcf"], code)
    numbers |= robot_arguments(kind, cfg.robot) | terrain_arguments(kind, cfg)
    numbers |= {"actuator": cfg.robot.actuator, "device": device}
    return kind(**arguments(kind, numbers, "task", f"task/{name}"))


def robot_arguments(kind: type[Task], robot: RobotSection) -> dict[str, Any]:
    """The arguments of a task that come from robot=: none, or a model and what is known of it.

    Raises:
        ValueError: a key does not apply, in one line.
    """
    keys = [key for key, x in robot.values.items() if x is not None and key != "collide"]
    if keys and not kind.takes_robot:
        raise ValueError(
            f"robot.{keys[0]}: this task has a robot of its own, only quadrupeds and "
            "humanoids that walk, and arms that reach, take another"
        )
    if robot.values["mjcf"] is None:
        if keys:
            raise ValueError(f"robot.{keys[0]} describes a robot: set robot.mjcf=FILE as well")
        return {}
    prepared = robot_size.load(robot.name, robot.values, kind.takes_robot)
    return dict(
        mjcf=prepared.robot.mjcf,
        mjm=compile_spec(add_boxes(prepared.spec)) if kind.takes_terrain else prepared.mjm,
        text=prepared.text,
        **prepared.arguments,
    )


def make_picture_model(cfg: Config) -> mujoco.MjModel | None:
    """The model of a task's robot with the visual geometry of its URDF file, for pictures alone.

    None of other robots, whose model has all that can be shown. `visuals.picture_model` says which
    elements it shares with the task's model.
    """
    values = cfg.robot.values
    if values["mjcf"] is None or not is_urdf(file := find_robot_file(values["mjcf"])):
        return None
    kind = load_task(validate.check_name("task", cfg.task.name), cfg.task_code)
    spec = robot_size.load(cfg.robot.name, values, kind.takes_robot).spec
    return picture_model(add_boxes(spec) if kind.takes_terrain else spec, file)


def terrain_arguments(kind: type[Task], cfg: Config) -> dict[str, Any]:
    """The arguments of a task that come from terrain=; ValueError if it is for other tasks."""
    section = cfg.terrain
    if kind.takes_terrain == (section["name"] != "flat"):
        values = {k: tuple(v) if isinstance(v, list) else v for k, v in section.items()}
        values.pop("name")
        return {"terrain": values} if kind.takes_terrain else {}
    remedy = "terrain=rough" if kind.takes_terrain else "terrain=flat, or task=quadruped_rough"
    name = section["name"]
    raise ValueError(f"terrain={name} does not fit task={cfg.task.name}: choose {remedy}")


def keep_models(cfg: Config, folder: Path) -> Config:
    """Copy the user's models into folder/model. Returns the configuration that names the copies."""
    task = cfg.task.numbers["mjcf"]
    task = find_own_mjcf(task, cfg.task_code) if task else None
    copies: dict[str, str] = {}
    for section, mjcf, find_file in (
        ("task", task, find_mjcf),
        ("robot", cfg.robot.values["mjcf"], find_robot_file),
    ):
        file = find_file(mjcf) if mjcf else None
        if file and file.parent != ASSETS:
            copies[f"{section}.mjcf"] = str(copy_model(file, folder / "model" / section))
    learned = cfg.robot.actuator.file
    if learned:
        copy = folder / "model" / "actuator.safetensors"
        copy.parent.mkdir(exist_ok=True)
        write_whole(copy, read_whole(Path(learned), LARGEST))
        copies["robot.actuator.file"] = str(copy)
    return cfg.replace(copies) if copies else cfg


@contextmanager
def model_must_fit(cfg: Config):
    """Turn the errors of a user's model that lacks what the task needs into a ValueError."""
    try:
        yield
    except (KeyError, IndexError, RuntimeError) as error:
        name, mjcf, code = cfg.task.name, cfg.task.numbers["mjcf"], cfg.task_code
        usual = compose.build("config", [f"task={name}"], ours=code is None)["task"]["mjcf"]
        if mjcf == usual:
            raise
        missing = sorted(model_names(usual, code) - model_names(mjcf, code))
        reason = f"it lacks {', '.join(missing)}" if missing else next(iter(error.args), error)
        raise ValueError(f"task.mjcf={mjcf} does not fit task={name}: {reason}") from None


def model_names(mjcf: str, task_code: str | None) -> set[str]:
    """The names of sensors, actuators, joints and bodies; and "a keyframe", if there is one."""
    spec = mujoco.MjSpec.from_file(str(find_mjcf(find_own_mjcf(mjcf, task_code))))
    parts = (*spec.sensors, *spec.actuators, *spec.joints, *spec.bodies)
    names = {f"{part.name!r}" for part in parts if part.name}
    return names | ({"a keyframe"} if spec.keys else set())


def check_worlds(task: Task, cfg: Config, worlds: int, device: torch.device) -> None:
    """Check, before anything is built, that the worlds and the record of an evaluation fit.

    It is a lower bound, so that the system ends no hopeless training by force: `plan=true` measures
    what a training takes. A record of samples is checked when its columns are there.

    Raises:
        OutOfMemory: they do not.
    """
    m, episodes = task.mjm, cfg.episodes
    state = mujoco.mj_stateSize(m, mujoco.mjtState.mjSTATE_INTEGRATION)
    fields = sum(m.nu if name in GAINS else attrgetter(name)(m).size for name in task.fields)
    world = 1000 + 16 * (state + m.nsensordata + fields)  # bytes
    check_free(f"num_envs={worlds}", worlds * world, device)
    # Five measures, twice while they are stacked.
    evaluation = episodes * (world + 40 * task.horizon)
    what = f"episodes={episodes} of task.episode={task.episode} s"
    check_free(what, evaluation, torch.device("cpu"))


def build_env(
    cfg: Config,
    worlds: int,
    schedule: Curriculum | None = None,
    stagger: bool = True,
    group: ProcessGroup = SINGLE,
    first: int | None = None,
    life: int = 0,
    live: Sequence[str] = (),
) -> Env:
    """Task, Sim and Env of a configuration, at the beginning of a schedule.

    Args:
        worlds: of all processes of the group together.
        first: global id of the first world; that of the process in its group unless given.
        life: how often these worlds were begun before.
        live: keys of numbers that somebody else than the schedule writes.

    Raises:
        ValueError: there are too many worlds, or the model does not fit the task.
    """
    sim_name, device = choose(cfg.sim.name, cfg.device)
    if worlds % group.size:
        raise ValueError(f"num_envs={worlds} does not divide into {group.size} ranks")
    device, worlds = group.join(device), worlds // group.size
    with methods_named(), model_must_fit(cfg):
        task = make_task(cfg, device)
    check_worlds(task, cfg, worlds, torch.device(device))
    sim = make_sim(cfg, task, sim_name, worlds, device)
    with methods_named(), model_must_fit(cfg):
        if schedule:
            schedule.set_first_values(task)
        for key in live:
            section, _, name = key.partition(".")
            if section == "task" and "." not in name:
                task.scheduled_number(name)  # before the Env reads it
        env = Env(
            task,
            sim,
            seed=cfg.seed,
            weights=cfg.task.weights,
            noise=cfg.task.noise,
            first=group.rank * worlds if first is None else first,
            life=life,
            stagger=stagger,
            group=group,
        )
        sim.ctrl.copy_(task.control(env.current_state()))
    return env


def make_sim(cfg: Config, task: Task, name: str, worlds: int, device: str) -> Sim:
    """The Sim of a task, with the options of sim= that this backend knows."""
    require(cfg.plain["sim"], OPTIONS[name], "sim", f"sim/{name}")
    options = {key: getattr(cfg.sim, key) for key in OPTIONS[name]}
    if name == "warp":
        options["graph"] = cfg.graph != "off"
    return make_actuated(
        name,
        task.physics,
        worlds,
        device=device,
        fields=task.fields,
        actuator=task.actuator,
        substeps=task.substeps,
        **options,
    )


def make_iteration(
    cfg: Config,
    num_envs: int | None = None,
    *,
    group: ProcessGroup = SINGLE,
    live: Sequence[str] = (),
    first: int | None = None,
    life: int = 0,
) -> Iteration:
    """Task, Sim, Env and learner of a configuration, ready for the first iteration.

    Args:
        num_envs: worlds of all processes of the group together; the configuration's unless given.
        live: keys, such as `algo.ent_coef` or `task.weights.jerk`, which are put in
            `Iteration.numbers` beside those of the curriculum, for somebody else to write.
        first, life: of the worlds, as `build_env` has them.
    """
    worlds = num_envs or cfg.num_envs
    with out_of_memory_named(worlds), torch_threads(cfg.threads):
        return build_iteration(cfg, worlds, group, live, first, life)


def build_iteration(
    cfg: Config,
    worlds: int,
    group: ProcessGroup,
    live: Sequence[str],
    first: int | None,
    life: int,
) -> Iteration:
    """`make_iteration` with as many worlds."""
    schedule = Curriculum(cfg.curriculum)
    env = build_env(cfg, worlds, schedule, group=group, live=live, first=first, life=life)
    kind, module = load_learner(cfg)
    how = {key: getattr(cfg, key) for key in ("num_steps", "graph", "threads", "fuse")}
    makers = {name: getattr(module, name, None) for name in ("make_source", "make_rewards")}
    return join(env, kind, cfg.algo.settings, schedule=schedule, live=live, **makers, **how)


def load_learner(cfg: Config) -> tuple[Any, ModuleType | None]:
    """The class of a learner, and the module of a user's own.

    The module may define `make_source` and `make_rewards`, as `join` has them.

    Raises:
        ValueError: there is no such algorithm, or its file cannot be used.
    """
    name = cfg.algo.name
    if cfg.algo_code == "here":
        return load_algorithm(name)
    if name not in LEARNERS:
        raise ValueError(f"unknown algorithm {name!r}: choose one of {', '.join(LEARNERS)}")
    return getattr(import_module(f"gpusim_rl.algorithms.{name}.{name}"), LEARNERS[name]), None


def join(
    env: Env,
    kind: Any,
    settings: Any,
    *,
    num_steps: int,
    schedule: Curriculum | None = None,
    live: Sequence[str] = (),
    graph: str,
    threads: int,
    fuse: str = "off",
    make_source: Callable[..., Source] | None = None,
    make_rewards: Callable[[Spec], Sequence[RewardModel]] | None = None,
    num_envs: int | None = None,
    kind_of_iteration: type[Iteration] = Iteration,
) -> Iteration:
    """An Env, a learner and what carries steps from the one to the other.

    Args:
        kind: the class of the learner; settings: its `Settings`, or its numbers by name.
        num_steps: T, control steps of each world in an iteration.
        schedule: numbers of the task and of the settings that change; live: keys of others.
        graph: parts, whole or off; threads: of an update on the CPU, as `Spec` has them.
        make_source: (env, learner, record) → what fills the record; a `Collector` unless given.
        make_rewards: spec → reward models, which add to the reward before the update.
        num_envs: worlds of the record, if others than `env` are stepped.

    Raises:
        ValueError: a number is wrong, or cannot change.
    """
    schedule = schedule or Curriculum()
    schedule.prepare(env.success)
    keys = list(dict.fromkeys([*schedule.plan, *live]))
    settings, allowed = check_settings(kind, settings)
    changing = live_settings(kind, settings, allowed, schedule, keys, env)
    spec = make_spec(env, num_steps, graph, threads, num_envs)
    if not isinstance(settings, dict):
        learner = kind(spec, replace(settings, **changing))
    else:
        learner = kind(spec, **settings | changing)
    check_learner(learner)
    rewards = make_rewards(spec) if make_rewards else ()
    if rewards and learner.length != num_steps:  # they would pay for older steps again
        raise ValueError(f"reward models need a record of {num_steps} steps, not {learner.length}")
    columns = dict(learner.columns)
    for model in rewards:
        columns |= model.columns
    if not make_source or num_envs:  # a source of the user's own gives what it likes
        columns = choose_columns(columns, step_columns(env.dims, learner.policy))
    worlds = spec.num_envs
    what = f"num_envs={worlds} × a record of {learner.length} steps"
    check_free(what, learner.length * worlds * row_bytes(columns), env.device)
    record = Record.zeros(columns, learner.length, worlds, device=env.device)
    if make_source:
        source = make_source(env, learner, record)
    else:
        how = {
            "graph": graph,
            "fuse": fuse,
            "timer": spec.timer,
            "ring": learner.length != num_steps and getattr(learner, "keeps_record", True),
        }
        source = Collector(env, learner.policy, record, **how)
    numbers = {f"algo.{key}": x for key, x in changing.items()}
    numbers |= {key: env.scheduled_number(key) for key in keys if not key.startswith("algo.")}
    more = {"schedule": schedule, "numbers": numbers, "rewards": rewards, "graph": graph}
    return kind_of_iteration(env, source, learner, spec, **more)


def check_learner(learner: Any) -> None:
    """ValueError that names what a learner of the user's own lacks."""
    needs = ("policy", "columns", "length", "rates", "metrics", "update", "measures", "tensors")
    missing = [name for name in needs if not hasattr(learner, name)]
    if missing:
        raise ValueError(f"the learner {type(learner).__name__} lacks {', '.join(missing)}")


def make_spec(
    env: Env, num_steps: int, graph: str, threads: int, num_envs: int | None = None
) -> Spec:
    """The specification of a learner for an Env, or for as many worlds like its."""
    whole = graph == "whole" and env.sim.capturable
    worlds = torch.arange(num_envs, device=env.device) if num_envs else env.rng.worlds
    return Spec(
        dims=env.dims,
        num_envs=len(worlds),
        num_steps=num_steps,
        horizon=env.task.horizon,
        worlds=worlds,
        iteration=torch.zeros((), dtype=torch.int64, device=env.device),
        seed=env.seed,
        mirrors=partial(find_mirrors, env),
        group=env.group,
        captured=graph != "off" and not whole,
        threads=threads,
        timer=PartTimer(env.device),
    )


def check_settings(kind: Any, settings: Any) -> tuple[Any, dict[str, Range]]:
    """The settings that a learner takes, and key → what each of its numbers may be.

    Numbers by name, which are those of an algorithm of the user's own, are checked here.

    Raises:
        ValueError: one is missing, unknown or out of its range.
    """
    allowed = {f"algo.{key}": entry for key, entry in getattr(kind, "ranges", {}).items()}
    if isinstance(settings, dict):
        takes = getattr(kind, "Settings", kind)
        arguments(takes, settings, "algo", f"algo/{kind.__module__.rpartition('.')[2]}")
        ranges.check(settings, "algo", allowed)
        settings = takes(**settings) if takes is not kind else settings
    if is_dataclass(settings):
        allowed |= limits(settings, "algo")
    return settings, allowed


# Why: docs/decisions/0024-numbers-that-change.md
def live_settings(
    kind: Any,
    settings: Any,
    allowed: dict[str, Range],
    schedule: Curriculum,
    keys: list[str],
    env: Env,
) -> dict[str, Tensor]:
    """The first values of those settings of a learner that keys name, each a live tensor ().

    Raises:
        ValueError: a number cannot change, or begins out of its range.
    """
    now = settings if isinstance(settings, dict) else vars(settings)
    names = [key.removeprefix("algo.") for key in keys if key.startswith("algo.")]
    can = getattr(kind, "live", ())
    for name in names:
        if name not in can:
            choices = ", ".join(f"algo.{x}" for x in can) or "none"
            raise ValueError(f"curriculum: algo.{name} cannot be scheduled: choose of {choices}")
    plan = schedule.plan
    first = {x: plan[f"algo.{x}"]["from"] if f"algo.{x}" in plan else now[x] for x in names}
    ranges.check(first, "algo", allowed)
    return {key: env.success.new_tensor(value) for key, value in first.items()}


def find_mirrors(env: Env) -> ViewMirrors | None:
    """The mirrors of an Env's observations and action; None for a task without a mirror image."""
    task = env.task
    flips = derive_flips(task) if task.mirror else None
    return view_mirrors(flips, env.term_widths, task.history) if flips else None


def world_multiple(cfg: Config) -> int:
    """The number of which a process's worlds must be a multiple, for the learner's sake."""
    rule = getattr(load_learner(cfg)[0], "world_multiple", None)
    return rule(cfg.algo.settings) if rule else 1
