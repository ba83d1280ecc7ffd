"""From plain data to objects: a configuration becomes a task, a Sim, an Env, a policy and PPO; a PPO becomes a file."""

from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path
from typing import Any

import mujoco
import torch

from gpusim_rl import config, values
from gpusim_rl.actuator import GAINS, Actuator
from gpusim_rl.bundle import keep
from gpusim_rl.curriculum import Curriculum, at
from gpusim_rl.disk import read_whole, write_whole
from gpusim_rl.env import Env
from gpusim_rl.evaluate import observe
from gpusim_rl.export import export
from gpusim_rl.loss import Settings
from gpusim_rl.mirror import Mirrors, mirrors
from gpusim_rl.motor import LARGEST
from gpusim_rl.plan import room
from gpusim_rl.policy import Policy
from gpusim_rl.ppo import PPO
from gpusim_rl.ranks import join, rank, ranks
from gpusim_rl.robot import bring, find
from gpusim_rl.sim import choose
from gpusim_rl.sim.driven import drive
from gpusim_rl.task import ASSETS, Task, find_mjcf
from tasks import load


def make_task(cfg: dict[str, Any], device: str) -> Task:
    """The task of a configuration, its constants on `device`."""
    numbers = {k: v for k, v in cfg["task"].items() if k not in ("name", "weights", "noise")}
    numbers = {k: tuple(v) if isinstance(v, list) else v for k, v in numbers.items()}
    kind = load(values.task_name(cfg["task"]["name"]))
    actuator = Actuator(**cfg["robot"]["actuator"])
    return kind(**(numbers | robot_numbers(kind, cfg["robot"])), actuator=actuator, device=device)


def robot_numbers(kind: type, robot: dict[str, Any]) -> dict[str, Any]:
    """What the robot= section of a configuration changes of a task: nothing, or its model and what is known of it."""
    robot = {key: value for key, value in robot.items() if key not in ("name", "actuator")}
    said = [f"robot.{key}" for key, value in robot.items() if value is not None and key != "collide"]
    if said and "balls" not in kind.__dataclass_fields__:
        raise ValueError(f"{said[0]}: this task has a robot of its own, only task=quadruped takes another")
    if robot["mjcf"] is None:
        if said:
            raise ValueError(f"{said[0]} describes a robot: say which with robot.mjcf=FILE")
        return {}
    found = bring(**robot)
    known = found.robot
    numbers = dict(mjcf=known.mjcf, mjm=found.mjm, text=found.text, height=known.height)
    numbers |= dict(balls=found.balls, flex=found.flex, scale=tuple(known.scale or ()))
    return numbers | dict(signs=tuple(known.mirror or ()))


def keep_models(cfg: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Copy the models of a configuration that are not ours into folder/model; the configuration that names the copies."""
    for section, look in (("task", find_mjcf), ("robot", find)):
        mjcf = cfg[section]["mjcf"]
        file = look(mjcf) if mjcf else None
        if file and file.parent != ASSETS:
            cfg = cfg | {section: cfg[section] | {"mjcf": str(keep(file, folder / "model" / section))}}
    learned = cfg["robot"]["actuator"]["file"]
    if learned:
        copy = folder / "model" / "actuator.safetensors"
        copy.parent.mkdir(exist_ok=True)
        write_whole(copy, read_whole(Path(learned), LARGEST))
        cfg = cfg | {"robot": cfg["robot"] | {"actuator": cfg["robot"]["actuator"] | {"file": str(copy)}}}
    return cfg


@contextmanager
def fitting(task: dict[str, Any]):
    """ValueError for a model, other than the task's own, that lacks what the task takes from it by name or by number."""
    try:
        yield
    except (KeyError, IndexError, RuntimeError) as error:
        own = config.build("config", [f"task={values.task_name(task['name'])}"])["task"]["mjcf"]
        if task["mjcf"] == own:
            raise
        missing = sorted(names(own) - names(task["mjcf"]))
        says = f"it lacks {', '.join(missing)}" if missing else error.args[0] if error.args else error
        raise ValueError(f"task.mjcf={task['mjcf']} does not fit task={task['name']}: {says}") from None


def names(mjcf: str) -> set[str]:
    """Of a model's sensors, actuators, joints and bodies, and whether it has a keyframe."""
    spec = mujoco.MjSpec.from_file(str(find_mjcf(mjcf)))
    found = {f"{x.name!r}" for x in (*spec.sensors, *spec.actuators, *spec.joints, *spec.bodies) if x.name}
    return found | ({"a keyframe"} if spec.keys else set())


@contextmanager
def remembered(worlds: int):
    """ValueError where memory runs out."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError | torch.OutOfMemoryError) and "alloc" not in str(error):
            raise
        raise ValueError(f"out of memory with num_envs={worlds}: plan=true says how many worlds fit") from None


def check_worlds(task: Task, cfg: dict[str, Any], worlds: int, device: torch.device) -> None:
    """ValueError if so many worlds do not fit, nor the record of an evaluation; about what `plan.measure` finds, at once."""
    m, episodes = task.mjm, cfg["episodes"]
    state = mujoco.mj_stateSize(m, mujoco.mjtState.mjSTATE_INTEGRATION)
    sizes = [m.nu if name in GAINS else attrgetter(name)(m).size for name in task.fields]
    waits = m.nu * (task.actuator.delay * task.substeps + task.actuator.lag)  # targets: live, of an incident, and as they move
    world = 1000 + 16 * (state + m.nsensordata + sum(sizes)) + 24 * waits  # bytes
    sample = 40 * (m.nq + m.nv + m.nu)  # of a rollout, at least
    room(f"num_envs={worlds} × num_steps={cfg['num_steps']}", worlds * (world + cfg["num_steps"] * sample), device)
    lasts = f"episodes={episodes} of task.episode={task.episode} s"
    room(lasts, episodes * (world + 40 * task.horizon), torch.device("cpu"))  # five measures, twice while they are stacked


def check_rollout(env: Env, cfg: dict[str, Any], worlds: int) -> None:
    """ValueError if a rollout and its update do not fit: record, packed record with two copies, order and activations."""
    (no, nc, nu), samples, algo = env.sizes, worlds * cfg["num_steps"], cfg["algo"]
    record, packed = 4 * (no + 2 * nc + 2 * nu + 4), 4 * (no + nc + 2 * nu + 5)
    twice = 1 + (algo["symmetry"] != "none")  # images, too
    size = record + 3 * packed + 8 * algo["update_epochs"] + 16 * twice * sum(algo["hidden"]) / algo["num_minibatches"]  # bytes
    says = f"num_envs={worlds} × num_steps={cfg['num_steps']}, with algo.update_epochs={algo['update_epochs']},"
    room(says, samples * size, env.device)


def make_ppo(cfg: dict[str, Any], num_envs: int | None = None) -> PPO:
    """Task, Sim, Env, policy and PPO of a configuration, ready for its first iteration."""
    worlds = num_envs or cfg["num_envs"]
    with remembered(worlds):
        return build_ppo(cfg, worlds)


def build_env(cfg: dict[str, Any], worlds: int, schedule: Curriculum | None = None, stagger: bool = True) -> Env:
    """Task, Sim and Env of a configuration, with as many worlds, where a schedule begins; ValueError if they are too many."""
    sim_name, device = choose(cfg["sim"]["name"], cfg["device"])
    if worlds % ranks():
        raise ValueError(f"num_envs={worlds} does not divide into {ranks()} ranks")
    device, worlds = join(device), worlds // ranks()
    with fitting(cfg["task"]):
        task = make_task(cfg, device)
    check_worlds(task, cfg, worlds, torch.device(device))
    known = {"native": ("threads",), "warp": ("naconmax", "njmax", "conditional", "deterministic"), "mjx": ()}[sim_name]
    options = {key: cfg["sim"][key] for key in known if key in cfg["sim"]}
    if sim_name == "warp":
        options["graph"] = cfg["graph"] != "off"
    options |= dict(device=device, fields=task.fields, actuator=task.actuator, substeps=task.substeps)
    sim = drive(sim_name, task.mjm, worlds, **options)
    with fitting(cfg["task"]):
        if schedule:
            schedule.begin(task)
        weights, noise = cfg["task"]["weights"], cfg["task"]["noise"]
        first = rank() * worlds
        compiled = cfg["compile"]
        env = Env(task, sim, seed=cfg["seed"], weights=weights, noise=noise, first=first, stagger=stagger, compiled=compiled)
        sim.ctrl.copy_(task.control(env.now))  # as many as the model has
    return env


def build_ppo(cfg: dict[str, Any], worlds: int) -> PPO:
    """`make_ppo`, with as many worlds; ValueError if they are too many."""
    schedule, cfg = Curriculum(cfg["curriculum"]), at(cfg["curriculum"], cfg)
    env = build_env(cfg, worlds, schedule)
    check_rollout(env, cfg, env.num_envs)
    algo = dict(cfg["algo"])
    network = {key: algo.pop(key) for key in ("hidden", "activation", "std", "floor", "amp", "symmetry")}
    if algo.pop("tf32") and env.device.type != "cpu":
        torch.set_float32_matmul_precision("high")
    images = find_mirrors(env, cfg) if network["symmetry"] != "none" else None
    policy = Policy(*env.sizes, **network, mirrors=images, seed=cfg["seed"]).to(env.device)
    return PPO(env, policy, num_steps=cfg["num_steps"], cfg=Settings(**algo), graph=cfg["graph"], schedule=schedule)


def find_mirrors(env: Env, cfg: dict[str, Any]) -> Mirrors:
    """How the views and the action of a task look in a mirror; ValueError if it has no symmetry."""
    wanted, flips = f"algo.symmetry={cfg['algo']['symmetry']}", env.task.mirror
    if flips is None:
        raise ValueError(f"{wanted}: task={cfg['task']['name']} does not say how it looks in a mirror")
    return mirrors(flips, env.widths, env.task.history)


def export_policy(ppo: PPO, cfg: dict[str, Any], path: Path) -> float:
    """Export a PPO's actor, checked on observations of its own task; the largest difference from torch."""
    name, weights, noise = (cfg["task"][key] for key in ("name", "weights", "noise"))
    seen = observe(ppo.act, ppo.env.task, weights=weights, noise=noise)
    return export(ppo.policy.actor, ppo.env.task, path, name=name, noise=noise, widths=ppo.env.widths, observations=seen)
