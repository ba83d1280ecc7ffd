"""From a configuration to a task, a Sim and an Env."""

# MuJoCo has no types:
# pyright: reportMissingTypeStubs=false, reportAttributeAccessIssue=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from collections.abc import Sequence
from dataclasses import fields
from operator import attrgetter

import mujoco
import torch

from gpusim_rl.assembly.models import model_must_fit
from gpusim_rl.config import robot_size, validate
from gpusim_rl.config.sections import Config, RobotSection
from gpusim_rl.core.distributed import SINGLE, ProcessGroup
from gpusim_rl.core.errors import warn_once
from gpusim_rl.core.files import Plain
from gpusim_rl.core.memory import check_free
from gpusim_rl.core.sections import make, require
from gpusim_rl.envs.check_methods import methods_named
from gpusim_rl.envs.curriculum import Curriculum
from gpusim_rl.envs.env import Env
from gpusim_rl.envs.load_task import load_task
from gpusim_rl.envs.task import Task
from gpusim_rl.envs.terrain.slots import add_boxes
from gpusim_rl.robots.models import compile_spec, find_own_mjcf
from gpusim_rl.sim.actuated import make_actuated
from gpusim_rl.sim.actuator_spec import DELAY, GAINS
from gpusim_rl.sim.base import Sim
from gpusim_rl.sim.factory import choose

OPTIONS = {  # of sim, by backend
    "native": ("threads",),
    "warp": ("naconmax", "njmax", "conditional", "deterministic"),
    "mjx": (),
}

# key of robot= that describes no model → the argument of a task that it gives
DESCRIBED = {"mirror": "signs", "height": "base_height", "scale": "scale"}


def make_task(cfg: Config, device: str) -> Task:
    """The task of a configuration, its constants on `device`."""
    name, code = validate.check_name("task", cfg.task.name), cfg.task_code
    numbers = {k: tuple(v) if isinstance(v, list) else v for k, v in cfg.task.numbers.items()}
    kind = load_task(name, code)
    numbers["mjcf"] = find_own_mjcf(cfg.task.numbers["mjcf"], code)
    numbers |= robot_arguments(kind, cfg.robot) | terrain_arguments(kind, cfg.terrain, name)
    numbers |= {"actuator": cfg.robot.actuator, "device": device}
    return make(kind, numbers, "task", f"task/{name}")


def robot_arguments(kind: type[Task], robot: RobotSection) -> Plain:
    """The arguments of a task that come from robot=: none, or a model and what is known of it.

    ValueError in one line if a key does not apply.
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
    taken = {field.name for field in fields(kind)}
    for key, argument in DESCRIBED.items():
        if robot.values[key] is not None and argument not in taken:
            warn_once(f"robot.{key} has no effect: {kind.__name__} does not use it")
    return dict(
        mjcf=prepared.robot.mjcf,
        mjm=compile_spec(add_boxes(prepared.spec)) if kind.takes_terrain else prepared.mjm,
        text=prepared.text,
        **{key: x for key, x in prepared.arguments.items() if key in taken},
    )


def terrain_arguments(kind: type[Task], section: Plain, task: str) -> Plain:
    """The arguments of a task that come from terrain=; ValueError if it is for other tasks."""
    if kind.takes_terrain == (section["name"] != "flat"):
        values = {k: tuple(v) if isinstance(v, list) else v for k, v in section.items()}
        values.pop("name")
        return {"terrain": values} if kind.takes_terrain else {}
    remedy = "terrain=rough" if kind.takes_terrain else "terrain=flat, or task=quadruped_rough"
    raise ValueError(f"terrain={section['name']} does not fit task={task}: choose {remedy}")


def check_worlds(task: Task, worlds: int, episodes: int, device: torch.device) -> None:
    """OutOfMemory, before anything is built, if the worlds or an evaluation do not fit.

    It is a lower bound, so that the system ends no hopeless training by force: `plan=true` measures
    what a training takes. A record of samples is checked when its columns are there.
    """
    m = task.mjm
    state = mujoco.mj_stateSize(m, mujoco.mjtState.mjSTATE_INTEGRATION)
    actuator_fields = dict.fromkeys(GAINS, m.nu) | {DELAY: 1}
    fields = sum(actuator_fields.get(x) or attrgetter(x)(m).size for x in task.fields)
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
    changeable: Sequence[str] = (),
) -> Env:
    """Task, Sim and Env of a configuration, at the beginning of a schedule.

    Args:
        worlds: of all processes of the group together.
        first: global id of the first world; that of the process in its group unless given.
        life: how often these worlds were begun before.
        changeable: keys of numbers that somebody else than the schedule writes.
    ValueError if there are too many worlds, or the model does not fit the task.
    """
    sim_name, device = choose(cfg.sim.name, cfg.device)
    if worlds % group.size:
        raise ValueError(f"num_envs={worlds} does not divide into {group.size} ranks")
    device, worlds = group.join(device), worlds // group.size
    with methods_named(), model_must_fit(cfg.task, cfg.task_code):
        task = make_task(cfg, device)
    check_worlds(task, worlds, cfg.episodes, torch.device(device))
    sim = make_sim(cfg, task, sim_name, worlds, device)
    with methods_named(), model_must_fit(cfg.task, cfg.task_code):
        if schedule:
            schedule.set_first_values(task)
        for key in changeable:
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
    options |= {"device": device, "fields": task.fields, "actuator": task.actuator}
    return make_actuated(name, task.physics, worlds, **options)
