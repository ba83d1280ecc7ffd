"""From plain data to objects: a configuration becomes a task, a Sim, an Env, a policy and PPO."""

import sys
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import mujoco
import torch

from gpusim_rl.algorithms.collector import Collector, step_widths
from gpusim_rl.algorithms.iteration import Iteration
from gpusim_rl.algorithms.ppo.ppo import PPO
from gpusim_rl.algorithms.ppo.settings import Settings
from gpusim_rl.config import compose, robot_size, terrain, validate
from gpusim_rl.core.distributed import SINGLE, ProcessGroup
from gpusim_rl.core.files import read_whole, write_whole
from gpusim_rl.core.memory import check_rollout, check_worlds, out_of_memory_named
from gpusim_rl.core.paths import ASSETS
from gpusim_rl.core.record import Record
from gpusim_rl.core.streams import torch_threads
from gpusim_rl.core.symmetry import Mirrors, mirrors
from gpusim_rl.envs.curriculum import config_at
from gpusim_rl.envs.env import Env
from gpusim_rl.envs.load_task import load_task
from gpusim_rl.envs.mirror import derive_flips
from gpusim_rl.envs.schedule import Curriculum
from gpusim_rl.envs.task import Task
from gpusim_rl.envs.terrain.slots import add_boxes
from gpusim_rl.networks.actor_critic import Policy
from gpusim_rl.robots.model_files import copy_model
from gpusim_rl.robots.models import find_mjcf, find_own_mjcf, find_robot_file
from gpusim_rl.sim.actuated import make_actuated
from gpusim_rl.sim.actuator_models import LARGEST
from gpusim_rl.sim.actuator_spec import Actuator
from gpusim_rl.sim.base import Sim
from gpusim_rl.sim.factory import choose

# Of algo, for Policy
NETWORK = ("hidden", "activation", "std", "floor", "amp", "symmetry", "memory", "memory_size")
OPTIONS = {  # of sim, by backend
    "native": ("threads",),
    "warp": ("naconmax", "njmax", "conditional", "deterministic"),
    "mjx": (),
}


def make_task(cfg: dict[str, Any], device: str) -> Task:
    """The task of a configuration, its constants on `device`."""
    numbers = {k: v for k, v in cfg["task"].items() if k not in ("name", "weights", "noise")}
    numbers = {k: tuple(v) if isinstance(v, list) else v for k, v in numbers.items()}
    kind = load_task(validate.check_name("task", cfg["task"]["name"]), cfg.get("task_code"))
    numbers["mjcf"] = find_own_mjcf(cfg["task"]["mjcf"], cfg.get("task_code"))
    numbers |= robot_arguments(kind, cfg["robot"]) | terrain.arguments(kind, cfg)
    numbers |= dict(actuator=Actuator(**cfg["robot"]["actuator"]), device=device)
    return kind(**validate.arguments(kind, numbers, "task", f"task/{cfg['task']['name']}"))


def robot_arguments(kind: type[Task], robot: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a task that come from robot=: none, or a model and what is known of it.

    Raises:
        ValueError: a key does not apply, in one line.
    """
    validate.require(robot, ("mjcf",), "robot", f"robot/{robot['name']}")
    free = ("name", "actuator", "collide")
    given = [key for key, value in robot.items() if value is not None and key not in free]
    if given and not kind.takes_robot:
        raise ValueError(
            f"robot.{given[0]}: this task has a robot of its own, only quadrupeds and "
            "humanoids that walk, and arms that reach, take another"
        )
    if robot["mjcf"] is None:
        if given:
            raise ValueError(f"robot.{given[0]} describes a robot: set robot.mjcf=FILE as well")
        return {}
    prepared = robot_size.load(robot, kind.takes_robot)
    return dict(
        mjcf=prepared.robot.mjcf,
        mjm=add_boxes(prepared.spec).compile() if kind.takes_terrain else prepared.mjm,
        text=prepared.text,
        **prepared.arguments,
    )


def keep_models(cfg: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Copy the user's models into folder/model. Returns the configuration that names the copies."""
    for section, find_file in (("task", find_mjcf), ("robot", find_robot_file)):
        mjcf = cfg[section]["mjcf"]
        if section == "task":
            mjcf = find_own_mjcf(mjcf, cfg.get("task_code"))
        file = find_file(mjcf) if mjcf else None
        if file and file.parent != ASSETS:
            cfg = cfg | {
                section: cfg[section] | {"mjcf": str(copy_model(file, folder / "model" / section))}
            }
    learned = cfg["robot"]["actuator"]["file"]
    if learned:
        copy = folder / "model" / "actuator.safetensors"
        copy.parent.mkdir(exist_ok=True)
        write_whole(copy, read_whole(Path(learned), LARGEST))
        cfg = cfg | {
            "robot": cfg["robot"] | {"actuator": cfg["robot"]["actuator"] | {"file": str(copy)}}
        }
    return cfg


@contextmanager
def model_must_fit(cfg: dict[str, Any]):
    """Turn the errors of a user's model that lacks what the task needs into a ValueError."""
    try:
        yield
    except (KeyError, IndexError, RuntimeError) as error:
        task, code = cfg["task"], cfg.get("task_code")
        name = validate.check_name("task", task["name"])
        own = compose.build("config", [f"task={name}"], ours=code is None)["task"]["mjcf"]
        if task["mjcf"] == own:
            raise
        missing = sorted(model_names(own, code) - model_names(task["mjcf"], code))
        reason = f"it lacks {', '.join(missing)}" if missing else next(iter(error.args), error)
        raise ValueError(
            f"task.mjcf={task['mjcf']} does not fit task={task['name']}: {reason}"
        ) from None


def model_names(mjcf: str, task_code: str | None) -> set[str]:
    """The names of sensors, actuators, joints and bodies; and "a keyframe", if there is one."""
    spec = mujoco.MjSpec.from_file(str(find_mjcf(find_own_mjcf(mjcf, task_code))))
    parts = (*spec.sensors, *spec.actuators, *spec.joints, *spec.bodies)
    names = {f"{part.name!r}" for part in parts if part.name}
    return names | ({"a keyframe"} if spec.keys else set())


def make_ppo(
    cfg: dict[str, Any], num_envs: int | None = None, *, group: ProcessGroup = SINGLE
) -> Iteration:
    """Task, Sim, Env, policy and PPO of a configuration, ready for its first iteration."""
    worlds = num_envs or cfg["num_envs"]
    with out_of_memory_named(worlds), torch_threads(cfg["threads"]):
        return build_ppo(cfg, worlds, group)


def build_env(
    cfg: dict[str, Any],
    worlds: int,
    schedule: Curriculum | None = None,
    stagger: bool = True,
    group: ProcessGroup = SINGLE,
) -> Env:
    """Task, Sim and Env of a configuration, at the beginning of a schedule.

    Raises:
        ValueError: there are too many worlds, or the model does not fit the task.
    """
    sim_name, device = choose(cfg["sim"]["name"], cfg["device"])
    if worlds % group.size:
        raise ValueError(f"num_envs={worlds} does not divide into {group.size} ranks")
    device, worlds = group.join(device), worlds // group.size
    with model_must_fit(cfg):
        task = make_task(cfg, device)
    check_worlds(task, cfg, worlds, torch.device(device))
    sim = make_sim(cfg, task, sim_name, worlds, device)
    with model_must_fit(cfg):
        if schedule:
            schedule.set_first_values(task)
        env = Env(
            task,
            sim,
            seed=cfg["seed"],
            weights=cfg["task"]["weights"],
            noise=cfg["task"]["noise"],
            first=group.rank * worlds,
            stagger=stagger,
            compiled=cfg["compile"],
            group=group,
        )
        sim.ctrl.copy_(task.control(env.current_state()))  # fails unless the model has as many
    return env


def make_sim(cfg: dict[str, Any], task: Task, name: str, worlds: int, device: str) -> Sim:
    """The Sim of a task, with the options of sim= that this backend knows."""
    validate.require(cfg["sim"], OPTIONS[name], "sim", f"sim/{name}")
    options = {key: cfg["sim"][key] for key in OPTIONS[name]}
    if name == "warp":
        options["graph"] = cfg["graph"] != "off"
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


def build_ppo(cfg: dict[str, Any], worlds: int, group: ProcessGroup = SINGLE) -> Iteration:
    """`make_ppo` with as many worlds, on all processes of a group together."""
    schedule, cfg = Curriculum(cfg["curriculum"]), config_at(cfg["curriculum"], cfg)
    env = build_env(cfg, worlds, schedule, group=group)
    algo = {key: value for key, value in cfg["algo"].items() if key != "name"}
    validate.require(algo, (*NETWORK, "tf32"), "algo", "algo/ppo")
    network = {key: algo.pop(key) for key in NETWORK}
    if algo.pop("tf32") and env.device.type != "cpu":
        torch.set_float32_matmul_precision("high")
    network["symmetry"], images = choose_symmetry(env, network, cfg["task"]["name"])
    policy = Policy(*env.dims, **network, mirrors=images, seed=cfg["seed"]).to(env.device)
    check_rollout(env, policy, cfg)
    settings = Settings(**validate.arguments(Settings, algo, "algo", "algo/ppo"))
    new = partial(torch.tensor, dtype=torch.float32, device=env.device)
    graph = cfg["graph"]
    shape = cfg["num_steps"], env.num_envs
    record = Record.zeros(step_widths(env, policy), *shape, device=env.device)
    collector = Collector(env, policy, record, graph=graph)
    whole = graph == "whole" and env.sim.capturable
    ppo = PPO(
        policy,
        record,
        collector.first,
        settings,
        numbers=schedule.prepare(settings, new),
        horizon=env.task.horizon,
        rng=env.rng,
        group=env.group,
        captured=graph != "off" and not whole,
        threads=cfg["threads"],
    )
    return Iteration(collector, ppo, schedule, graph)


def choose_symmetry(env: Env, network: dict[str, Any], name: str) -> tuple[str, Mirrors | None]:
    """What `algo.symmetry` is for the task of a name, and the mirrors of its views and action.

    `auto` is net where the task has a mirror image and the networks can commute with it, else none.

    Raises:
        ValueError: the task has no mirror image, and another symmetry than auto or none is asked.
    """
    symmetry, task = network["symmetry"], env.task
    can = network["memory"] == "none" and not any(n % 2 for n in network["hidden"])
    if symmetry == "none" or (symmetry == "auto" and not can):
        return "none", None
    try:
        flips = derive_flips(task) if task.mirror else None
    except ValueError as error:
        if symmetry != "auto":
            raise
        flips = None
        print(f"warning: {error}; algo.symmetry is none", file=sys.stderr, flush=True)
    if flips:
        images = mirrors(flips, env.term_widths, task.history)
        return "net" if symmetry == "auto" else symmetry, images
    if symmetry == "auto":
        return "none", None
    raise ValueError(
        f"algo.symmetry={symmetry}: task={name} defines no mirror image: set algo.symmetry=none"
    )
