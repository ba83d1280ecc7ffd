"""Small real environments for the tests: every task of `tasks/`, with the numbers of its `conf/task` file."""

from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

import tasks
from gpusim_rl.curriculum import Curriculum
from gpusim_rl.env import Env
from gpusim_rl.loss import Settings
from gpusim_rl.policy import Policy
from gpusim_rl.ppo import PPO
from gpusim_rl.sim.driven import drive
from gpusim_rl.task import Task
from gpusim_rl.variety import FIELDS

ROOT = Path(__file__).parent.parent
TASKS = sorted(path.stem for path in (ROOT / "tasks").glob("*.py") if path.stem != "__init__")
SIMS = ("native", "warp")


def numbers(name: str) -> dict[str, Any]:
    """The `task` section of conf/task/<name>.yaml as plain data."""
    return OmegaConf.to_container(OmegaConf.load(ROOT / "conf" / "task" / f"{name}.yaml"))["task"]


def everything(kind: str = "uniform") -> dict[str, Any]:
    """`task.randomise` of the quadruped with every field on, those that share a model field on bodies of their own."""
    ranges = {"add": {"low": 0.005, "high": 0.045}, "scale": {"low": 0.2, "high": 1.8}, "set": {"low": 0.2, "high": 1.8}}
    found: dict[str, Any] = {name: {"kind": kind} | ranges[field.hows[0]] for name, field in FIELDS.items()}
    found |= {"bias": {term: {"kind": kind, "low": 0.005, "high": 0.045} for term in ("gyro", "joints")}}
    for name, bodies in (("mass", ["trunk"]), ("inertia", ["FL_hip", "RR_hip"]), ("payload", ["FR_hip"])):
        found[name]["only"] = bodies
    return found


def make_task(name: str = "quadruped", **settings: Any) -> Task:
    """The task of tasks/<name>.py with its YAML's numbers; `settings` win."""
    values = {k: v for k, v in numbers(name).items() if k not in ("name", "weights", "noise")}
    return tasks.load(name)(**{k: tuple(v) if isinstance(v, list) else v for k, v in (values | settings).items()})


def make_env(
    name: str = "quadruped",
    num_envs: int = 16,
    *,
    sim: str = "native",
    seed: int = 1,
    first: int = 0,
    stagger: bool = True,
    compiled: bool = False,
    fields: tuple[str, ...] = (),
    **settings: Any,
) -> Env:
    """num_envs worlds of a task. `fields` adds model fields with a value per world, `settings` changes the task's numbers."""
    task = make_task(name, **settings)
    options: dict[str, Any] = {"threads": 1} if sim == "native" else {}
    options |= dict(device="cpu", fields=(*task.fields, *fields), actuator=task.actuator, substeps=task.substeps)
    engine = drive(sim, task.mjm, num_envs, **options)
    yaml = numbers(name)
    weights, noise = yaml["weights"], yaml["noise"]
    return Env(task, engine, seed=seed, weights=weights, noise=noise, first=first, stagger=stagger, compiled=compiled)


def make_ppo(
    env: Env,
    *,
    num_steps: int = 8,
    seed: int = 1,
    hidden: tuple[int, ...] = (32, 32),
    schedule: Curriculum | None = None,
    **numbers: Any,
) -> PPO:
    """PPO with a small policy over env; `numbers` are those of `Settings`."""
    policy = Policy(*env.sizes, hidden=hidden, seed=seed)
    return PPO(env, policy, num_steps=num_steps, cfg=Settings(**numbers), schedule=schedule)
