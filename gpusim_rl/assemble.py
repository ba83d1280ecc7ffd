"""From plain data to objects: a configuration becomes a task, a Sim, an Env, a policy and PPO; a PPO becomes a file."""

from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mujoco
import torch

from gpusim_rl import config
from gpusim_rl.env import Env
from gpusim_rl.evaluate import observe
from gpusim_rl.export import export
from gpusim_rl.loss import Settings
from gpusim_rl.policy import Policy
from gpusim_rl.ppo import PPO
from gpusim_rl.robot import bring
from gpusim_rl.sim import choose, make
from gpusim_rl.task import Task, find_mjcf
from tasks import load


def make_task(cfg: dict[str, Any], device: str) -> Task:
    """The task of a configuration, its constants on `device`."""
    numbers = {k: v for k, v in cfg["task"].items() if k not in ("name", "weights", "noise")}
    numbers = {k: tuple(v) if isinstance(v, list) else v for k, v in numbers.items()}
    kind = load(config.task_name(cfg["task"]["name"]))
    return kind(**(numbers | robot_numbers(kind, cfg["robot"])), device=device)


def robot_numbers(kind: type, robot: dict[str, Any]) -> dict[str, Any]:
    """What the robot= section of a configuration changes of a task: nothing, or its model and what is known of it."""
    robot = {key: value for key, value in robot.items() if key != "name"}
    said = [f"robot.{key}" for key, value in robot.items() if value is not None and key != "collide"]
    if said and "balls" not in kind.__dataclass_fields__:
        raise ValueError(f"{said[0]}: this task has a robot of its own, only task=quadruped takes another")
    if robot["mjcf"] is None:
        if said:
            raise ValueError(f"{said[0]} describes a robot: say which with robot.mjcf=FILE")
        return {}
    found = bring(**robot)
    known = found.robot
    numbers = dict(mjcf=known.mjcf, mjm=found.mjm, text=found.text, base=known.base, height=known.height)
    return numbers | dict(balls=found.balls, flex=found.flex, scale=tuple(known.scale or ()))


@contextmanager
def fitting(task: dict[str, Any]):
    """ValueError for a model, other than the task's own, that lacks what the task takes from it by name or by number."""
    try:
        yield
    except (KeyError, IndexError, RuntimeError) as error:
        own = config.build("config", [f"task={config.task_name(task['name'])}"])["task"]["mjcf"]
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


def make_ppo(cfg: dict[str, Any], num_envs: int | None = None) -> PPO:
    """Task, Sim, Env, policy and PPO of a configuration, ready for its first iteration."""
    sim_name, device = choose(cfg["sim"]["name"], cfg["device"])
    with fitting(cfg["task"]):
        task = make_task(cfg, device)
    known = {"native": ("threads",), "warp": ("naconmax", "njmax", "conditional"), "mjx": ()}[sim_name]
    options = {key: cfg["sim"][key] for key in known if key in cfg["sim"]}
    if sim_name == "warp":
        options["graph"] = cfg["graph"] != "off"
    sim = make(sim_name, task.mjm, num_envs or cfg["num_envs"], device=device, fields=task.fields, **options)
    with fitting(cfg["task"]):
        weights, noise = cfg["task"]["weights"], cfg["task"]["noise"]
        env = Env(task, sim, seed=cfg["seed"], weights=weights, noise=noise, compiled=cfg["compile"])
        sim.ctrl.copy_(task.control(env.now))  # as many as the model has
    algo = dict(cfg["algo"])
    network = {key: algo.pop(key) for key in ("hidden", "activation", "std", "floor", "amp")}
    if algo.pop("tf32") and device != "cpu":
        torch.set_float32_matmul_precision("high")
    policy = Policy(*env.sizes, **network, seed=cfg["seed"]).to(device)
    return PPO(env, policy, num_steps=cfg["num_steps"], cfg=Settings(**algo), graph=cfg["graph"])


def export_policy(ppo: PPO, cfg: dict[str, Any], path: Path) -> float:
    """Export a PPO's actor, checked on observations of its own task; the largest difference from torch."""
    name, weights, noise = (cfg["task"][key] for key in ("name", "weights", "noise"))
    seen = observe(ppo.act, ppo.env.task, weights=weights, noise=noise)
    return export(ppo.policy.actor, ppo.env.task, path, name=name, noise=noise, widths=ppo.env.widths, observations=seen)
