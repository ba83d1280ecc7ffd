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
from safetensors.torch import save as to_bytes
from torch import Tensor

from gpusim_rl.algorithms.cloning.cloning import Cloning
from gpusim_rl.algorithms.collector import Collector, choose_columns, step_columns
from gpusim_rl.algorithms.iteration import Iteration
from gpusim_rl.algorithms.learner import RewardModel, Source, Spec
from gpusim_rl.algorithms.load import load_algorithm
from gpusim_rl.config import compose, resume, robot_size, validate
from gpusim_rl.config.sections import Config, RobotSection
from gpusim_rl.core import errors, ranges
from gpusim_rl.core.distributed import SINGLE, ProcessGroup
from gpusim_rl.core.files import read_whole, write_whole
from gpusim_rl.core.graphs import PartTimer
from gpusim_rl.core.memory import check_free, out_of_memory_named
from gpusim_rl.core.paths import ASSETS, CODE
from gpusim_rl.core.ranges import Range
from gpusim_rl.core.record import Record, row_bytes
from gpusim_rl.core.sections import arguments, limits, require
from gpusim_rl.core.states import check_layout, layout
from gpusim_rl.core.streams import torch_threads
from gpusim_rl.core.symmetry import ViewMirrors, view_mirrors
from gpusim_rl.envs.check_methods import methods_named
from gpusim_rl.envs.curriculum import Curriculum
from gpusim_rl.envs.env import Env
from gpusim_rl.envs.load_task import load_task
from gpusim_rl.envs.mirror import derive_flips
from gpusim_rl.envs.task import Task
from gpusim_rl.envs.terrain.slots import add_boxes
from gpusim_rl.evaluation.demonstrate import (
    RUN_EPISODES,
    SEED,
    demonstrate,
    describe_env,
    mean_action,
)
from gpusim_rl.evaluation.evaluate import evaluation_env
from gpusim_rl.robots.model_files import copy_model
from gpusim_rl.robots.models import compile_spec, find_mjcf, find_own_mjcf, find_robot_file
from gpusim_rl.robots.visuals import is_urdf, picture_model
from gpusim_rl.runs.checkpoints import load
from gpusim_rl.runs.demonstrations import Demonstrations
from gpusim_rl.runs.run import Run
from gpusim_rl.sim.actuated import make_actuated
from gpusim_rl.sim.actuator_models import LARGEST
from gpusim_rl.sim.actuator_spec import DELAY, GAINS
from gpusim_rl.sim.base import Sim
from gpusim_rl.sim.factory import choose

# Name of an algorithm of ours, or of a reward model, and of its package and module → its class
LEARNERS = {"ppo": "PPO", "sac": "SAC", "distill": "Distill"}
REWARDS = {"rnd": "RND", "amp": "AMP"}
ACTOR = "policy/actor."  # begins the names of an actor's tensors in a checkpoint
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


def keep_models(cfg: Config, folder: Path, teacher: Any = None) -> Config:
    """Copy the user's models into folder/model. Returns the configuration that names the copies.

    teacher: the actor of teacher=, which is copied as a checkpoint of its own.
    """
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
    if teacher:
        copies["teacher"] = str(copy := folder / "model" / "teacher.safetensors")
        copy.parent.mkdir(exist_ok=True)
        state = {ACTOR + name: x.contiguous() for name, x in teacher.state_dict().items()}
        write_whole(copy, to_bytes(state, teacher.metadata))
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
    ours = dict.fromkeys(GAINS, m.nu) | {DELAY: 1}
    fields = sum(ours.get(x) or attrgetter(x)(m).size for x in task.fields)
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
    how |= {"wrap": clone_of(cfg, env)} if cfg.demos else {}
    makers = {name: getattr(module, name, None) for name in ("make_source", "make_rewards")}
    how |= {"schedule": schedule, "live": live, "reward": load_reward(cfg, env)}
    if cfg.teacher:
        how["make_teacher"] = partial(load_teacher, cfg, env)
    return join(env, kind, cfg.algo.settings, **makers, **how)


def clone_of(cfg: Config, env: Env) -> Callable[[Any, Spec], Any]:
    """What makes a learner one that begins with demos=: as a clone, or with them in its ring.

    Raises:
        ValueError: the demonstrations do not fit the Env.
    """
    demos = fitting_demos(cfg, "demos", str(cfg.demos), env, cfg.cloning.episodes)

    def begin(learner: Any, spec: Spec) -> Any:
        if not hasattr(learner, "begin_ring"):
            return Cloning(learner, demos, cfg.cloning, spec)
        learner.demos = demos
        return learner

    return begin


def fitting_demos(
    cfg: Config, key: str, name: str, env: Env, episodes: int | None = None
) -> Demonstrations:
    """Demonstrations for an Env, on its device: of a file, or of a run.

    Args:
        cfg: of the training; key: that names them, with the value `name`.
        episodes: how many, the first ones; None: all of a file, and `RUN_EPISODES` of a run.

    Raises:
        ValueError: they cannot be read, do not fit the Env, or are fewer.
    """
    if not Path(name).is_file():
        demos = record_of(cfg, name, episodes or RUN_EPISODES, env.group)
    else:
        demos = Demonstrations.read(Path(name))
        demos = demos.first(episodes) if episodes else demos
    demos.check(describe_env(cfg.task.name, env), f"{key}={name}")
    return demos.to(env.device)


def record_of(cfg: Config, name: str, episodes: int, group: ProcessGroup) -> Demonstrations:
    """Episodes of a run, recorded now for a training whose configuration is `cfg`.

    ValueError if the run cannot be played, or if its code may not be imported.
    """
    run = Run.open(Path(name))
    config = resume.load_config(run, {group: getattr(cfg, f"{group}_code") for group in CODE})
    path = Path()
    if group.rank == 0:
        _, _, path = run.checkpoints.restore(errors.warn)
    path = group.broadcast(path)  # one choice for all, while that run goes on
    state, _ = load(path)
    iteration = make_iteration(for_playing(config), num_envs=1)
    iteration.policy.load(state, str(path))
    return record_run(config, iteration, episodes)


def for_playing(config: Config) -> Config:
    """The configuration of a run for one world on the CPU, in which nothing is learned."""
    on_cpu: dict[str, Any] = {
        "sim": {"name": "native", "threads": 1},
        "device": "cpu",
        "threads": 1,
        "demos": None,
        "reward": {"name": "none"},
    }
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
    how: dict[str, Any] = dict(weights=config.task.weights, noise=config.task.noise, seed=seed)
    return evaluation_env(task, episodes, **how)


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
        shown = {"demos": fitting_demos(cfg, "reward.demos", path, env)}
    return getattr(module, REWARDS[name]), settings, shown


def join(
    env: Env,
    kind: Any,
    settings: Any,
    *,
    num_steps: int,
    schedule: Curriculum | None = None,
    live: Sequence[str] = (),
    reward: tuple[Any, Any, dict[str, Any]] | None = None,
    graph: str,
    threads: int,
    fuse: str = "off",
    make_source: Callable[..., Source] | None = None,
    make_rewards: Callable[[Spec], Sequence[RewardModel]] | None = None,
    make_teacher: Callable[[Spec], Any] | None = None,
    wrap: Callable[[Any, Spec], Any] = lambda learner, spec: learner,
    num_envs: int | None = None,
    kind_of_iteration: type[Iteration] = Iteration,
) -> Iteration:
    """An Env, a learner and what carries steps from the one to the other.

    Args:
        kind: the class of the learner; settings: its `Settings`, or its numbers by name.
        num_steps: T, control steps of each world in an iteration.
        schedule: numbers of the task and of the settings that change; live: keys of others.
        reward: the class of a reward model of ours, its `Settings`, and its other arguments.
        graph: parts, whole or off; threads: of an update on the CPU, as `Spec` has them.
        make_source: (env, learner, record) → what fills the record; a `Collector` unless given.
        make_rewards: spec → reward models, which add to the reward before the update.
        make_teacher: spec → the actor that the learner imitates.
        wrap: (learner, spec) → the learner that takes its place.
        num_envs: worlds of the record, if others than `env` are stepped.

    Raises:
        ValueError: a number is wrong, or cannot change.
    """
    schedule = schedule or Curriculum()
    schedule.prepare(env.success)
    keys = list(dict.fromkeys([*schedule.plan, *live]))
    settings, allowed = check_settings(kind, settings)
    changing = live_settings("algo", kind, settings, allowed, schedule, keys, env)
    model, numbers, shown = reward or (None, None, {})
    paid = live_settings("reward", model, numbers or {}, {}, schedule, keys, env)
    spec = make_spec(env, num_steps, graph, threads, num_envs)
    if make_teacher:
        spec = replace(spec, teacher=make_teacher(spec))
    learner = (
        kind(spec, **settings | changing)
        if isinstance(settings, dict)
        else kind(spec, replace(settings, **changing))
    )
    check_learner(learner)
    learner = wrap(learner, spec)
    rewards = [*make_rewards(spec)] if make_rewards else []
    rewards += [model(spec, replace(numbers, **paid), **shown)] if model and numbers else []
    ring = learner.length != num_steps
    if rewards and (learner.length < num_steps or (ring and make_source)):
        raise ValueError(f"reward models need a record of {num_steps} steps, not {learner.length}")
    known = not make_source or bool(num_envs)  # a source of the user's own gives what it likes
    record = make_record(env, learner, rewards, spec.num_envs, known)
    if make_source:
        source = make_source(env, learner, record)
    else:
        how = {
            "graph": graph,
            "fuse": fuse,
            "timer": spec.timer,
            "ring": ring and getattr(learner, "keeps_record", True),
            "newest": num_steps if rewards and ring else 0,
        }
        source = Collector(env, learner.policy, record, **how)
        if hasattr(learner, "begin_ring"):
            source.row.fill_(learner.begin_ring(record))
    registry = {f"algo.{x}": changing[x] for x in changing} | {f"reward.{x}": paid[x] for x in paid}
    registry |= {key: env.scheduled_number(key) for key in keys if key not in registry}
    more = {"schedule": schedule, "numbers": registry, "rewards": rewards, "graph": graph}
    return kind_of_iteration(env, source, learner, spec, **more)


def make_record(env: Env, learner: Any, rewards: list[Any], worlds: int, known: bool) -> Record:
    """The record that a learner and reward models learn from, of zeros.

    Args:
        worlds: of the record.
        known: its columns are those of a control step. A source of the user's own gives others.

    Raises:
        ValueError: no control step gives a column. OutOfMemory: there is no room.
    """
    columns = dict(learner.columns)
    for model in rewards:
        columns |= model.columns
    if known:
        columns = choose_columns(columns, step_columns(env.dims, learner.policy))
    what = f"num_envs={worlds} × a record of {learner.length} steps"
    check_free(what, learner.length * worlds * row_bytes(columns), env.device)
    return Record.zeros(columns, learner.length, worlds, device=env.device)


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
        dt=env.task.dt,
        worlds=worlds,
        iteration=torch.zeros((), dtype=torch.int64, device=env.device),
        seed=env.seed,
        clip=env.task.clip,
        mirrors=partial(find_mirrors, env, env.task.history),
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
    section: str,
    kind: Any,
    settings: Any,
    allowed: dict[str, Range],
    schedule: Curriculum,
    keys: list[str],
    env: Env,
) -> dict[str, Tensor]:
    """The first values of those settings that keys name, each a live tensor ().

    section: algo, whose settings are a learner's, or reward, whose are a reward model's.

    Raises:
        ValueError: a number cannot change, or begins out of its range.
    """
    now = settings if isinstance(settings, dict) else vars(settings)
    start = f"{section}."
    names = [key.removeprefix(start) for key in keys if key.startswith(start)]
    can = getattr(kind, "live", ())
    for name in names:
        if name not in can:
            choices = ", ".join(f"{start}{x}" for x in can) or "none"
            raise ValueError(f"curriculum: {start}{name} cannot be scheduled: choose of {choices}")
    plan = schedule.plan
    first = {x: plan[start + x]["from"] if start + x in plan else now[x] for x in names}
    ranges.check(first, section, allowed)
    return {key: env.success.new_tensor(value) for key, value in first.items()}


def find_mirrors(env: Env, history: dict[str, int]) -> ViewMirrors | None:
    """The mirrors of observations, with so many steps of each term, and of the action.

    None for a task without a mirror image.
    """
    task = env.task
    flips = derive_flips(task) if task.mirror else None
    return view_mirrors(flips, env.term_widths, history) if flips else None


# Why: docs/decisions/0088-a-teacher-sees-the-critics-view.md
def load_teacher(cfg: Config, env: Env, spec: Spec) -> Any:
    """The actor of teacher=, a run or a checkpoint, for the unhidden terms of an Env.

    These are the first columns of what the critic observes. No code of the run is imported.

    Raises:
        OSError, ValueError: there is none, or it is of another task or observes something else.
    """
    file = Path(str(cfg.teacher))
    if spec.group.rank == 0 and not file.is_file():
        _, _, file = Run.open(file).checkpoints.restore(errors.warn)
    file = spec.group.broadcast(file)  # one choice for all, while that run goes on
    state, metadata = load(file)
    name, settings = teacher_settings(cfg, metadata, file)
    kind = getattr(import_module(f"gpusim_rl.algorithms.{name}.{name}"), LEARNERS[name])
    dims, n = (sum(env.term_widths.values()), *spec.dims[1:]), settings.get("num_minibatches", 1)
    few = {"num_envs": n, "num_steps": n, "worlds": torch.zeros_like(spec.worlds[:1]).repeat(n)}
    own = {"dims": dims, "mirrors": partial(find_mirrors, env, {}), "group": SINGLE}
    if delay := settings.get("policy_delay"):
        settings |= {"updates": delay}  # nothing is learned, in one step
    made = kind(replace(spec, **few, **own, captured=False), kind.Settings(**settings))
    actor = made.policy.actor
    state = {name.removeprefix(ACTOR): x for name, x in state.items() if name.startswith(ACTOR)}
    check_layout(state, layout(actor.state_dict()), str(file))
    actor.load_state_dict(state)
    if actor.blank_memory(1):
        raise ValueError(f"teacher={cfg.teacher} has a memory: choose one with algo.memory=none")
    actor.requires_grad_(False)
    actor.metadata = {key: metadata[key] for key in ("iteration", "config")}
    return actor


def teacher_settings(
    cfg: Config, metadata: dict[str, str], file: Path
) -> tuple[str, dict[str, Any]]:
    """The algorithm of a teacher's checkpoint, and its numbers.

    Raises:
        ValueError: it is of another task or no algorithm of ours, or does not see each term once.
    """
    trained = resume.read_trained(metadata, cfg.plain, file)
    try:
        task, algo = dict(trained["task"]), dict(trained["algo"])
        name = algo.get("name", compose.ALGO)
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
    base = compose.build("config", [f"algo={name}"], ours=True)["algo"]
    numbers = base | algo
    return name, {key: numbers[key] for key in base if key != "name"}


def world_multiple(cfg: Config) -> int:
    """The number of which a process's worlds must be a multiple, for the learner's sake."""
    rule = getattr(load_learner(cfg)[0], "world_multiple", None)
    return rule(cfg.algo.settings) if rule else 1
