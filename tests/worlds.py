"""Small real environments: every task of `tasks/` with the numbers of its YAML."""

import copy
from collections.abc import Callable
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from torch import Tensor

from gpusim_rl.algorithms.iteration import Iteration
from gpusim_rl.algorithms.learner import LearnerSpec
from gpusim_rl.algorithms.ppo.settings import Settings
from gpusim_rl.algorithms.ppo.spec import SPEC as PPO
from gpusim_rl.assembly.environment import OPTIONS, terrain_arguments
from gpusim_rl.assembly.joining import RunSpec, assemble
from gpusim_rl.commands.train import configure as check_words
from gpusim_rl.commands.train import make_trainer
from gpusim_rl.config import compose
from gpusim_rl.config.sections import Config
from gpusim_rl.core.record import vector
from gpusim_rl.core.symmetry import ViewMirrors
from gpusim_rl.envs.curriculum import Curriculum
from gpusim_rl.envs.env import Env
from gpusim_rl.envs.load_task import load_task
from gpusim_rl.envs.randomization.fields import FIELDS
from gpusim_rl.envs.task import Task
from gpusim_rl.networks.policy import ActorCritic, Views
from gpusim_rl.networks.settings import NetworkSettings
from gpusim_rl.robots.load import Loaded, load_as
from gpusim_rl.sim.actuated import make_actuated
from gpusim_rl.sim.actuator_spec import Actuator
from gpusim_rl.sim.factory import make

ROOT = Path(__file__).parent.parent
TASKS = sorted(path.stem for path in (ROOT / "conf" / "task").glob("*.yaml"))
SIMS = ("native", "warp")
# every task on both engines; all but MuJoCo C is for `make matrix-test`
MATRIX = [
    pytest.param(task, sim, marks=[pytest.mark.matrix] * (sim != "native"))
    for sim in SIMS
    for task in TASKS
]
ROTORS = ("gain", "wind")  # fields of `task.randomise` that need motors, or air


def copies(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copies of the tensors, which later writes to them do not change."""
    return {name: x.detach().clone() for name, x in tensors.items()}


def differing(a: dict[str, Tensor], b: dict[str, Tensor]) -> list[str]:
    """Names of the tensors that are not bit for bit the same in both, or that only one has."""
    return [
        x for x in a.keys() | b.keys() if x not in a or x not in b or not torch.equal(a[x], b[x])
    ]


def goes_on(first: Iteration, second: Iteration, iterations: int = 1) -> dict[str, Tensor]:
    """The state of both, after the second has loaded the first's and gone on exactly as it does."""
    second.load(first.state(), "the first")
    for each in (first, second):
        for _ in range(iterations):
            each.iteration()
    state = first.state()
    assert differing(state, second.state()) == []
    return state


class Stateless:
    """A function of observations (B, no) that gives actions, as a policy that remembers nothing."""

    def __init__(self, action: Callable[[Tensor], Tensor]):
        self.action = action

    def blank_memory(self, worlds: int) -> dict[str, Tensor]:
        return {}

    def act(self, views: Views, memory: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        return self.action(views["actor"]), memory


def read(path: str) -> dict[str, Any]:
    """conf/<path>.yaml alone, as plain data."""
    return copy.deepcopy(read_once(path))


@cache
def read_once(path: str) -> Any:
    """As `read`, once for each file. Not to be changed."""
    return OmegaConf.to_container(OmegaConf.load(ROOT / "conf" / f"{path}.yaml"))


def write_files(folder: Path, texts: dict[str, str]) -> None:
    """Files of a working directory, by their paths."""
    for path, text in texts.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)


def composed(*words: str) -> dict[str, Any]:
    """What train.py composes of a command line, as plain data."""
    return copy.deepcopy(compose.build_base("config", words))


def make_config(*words: str) -> Config:
    """The checked configuration of a command line, which starts no run."""
    return Config.of(composed(*words))


def refusal(*words: str) -> str:
    """The one line with which train.py refuses a command line, within this process."""
    with pytest.raises((ValueError, OSError)) as error:
        make_trainer(check_words(*words, "threads=1"))
    assert "\n" not in str(error.value)
    return str(error.value)


def numbers(name: str) -> dict[str, Any]:
    """The `task` section of task=<name>."""
    return composed(f"task={name}")["task"]


def with_ranges(randomise: dict[str, Any]) -> dict[str, Any]:
    """`task.randomise` with what conf/config.yaml has of each entry, where it does not say it."""
    listed = read("config")["task"]["randomise"] | {"bias": {}}
    return {
        name: listed.get(name, {}) | entry if isinstance(entry, dict) else entry
        for name, entry in randomise.items()
    }


def everything(kind: str = "uniform") -> dict[str, Any]:
    """`task.randomise` of the quadruped with every field on that fits its servos, without air.
    Those that share a model field are on bodies of their own."""
    ranges = {
        "add": {"low": 0.005, "high": 0.045},
        "scale": {"low": 0.2, "high": 1.8},
        "set": {"low": 0.2, "high": 1.8},
    }
    entries: dict[str, Any] = {
        name: {"kind": kind} | ranges[field.hows[0]]
        for name, field in FIELDS.items()
        if name not in ROTORS
    }
    bias = {"kind": kind, "low": 0.005, "high": 0.045}
    entries |= {"bias": {"gyro": dict(bias), "joint_pos": dict(bias)}}
    for name, bodies in (
        ("mass", ["trunk"]),
        ("inertia", ["FL_hip", "RR_hip"]),
        ("payload", ["FR_hip"]),
    ):
        entries[name]["only"] = bodies
    return entries


def make_actuator(**keys: Any) -> Actuator:
    """The actuator of conf/robot/own.yaml with other values of these keys."""
    return Actuator(**(read("robot/own")["actuator"] | keys))


def robot_keys(**keys: Any) -> dict[str, Any]:
    """What conf/robot/own.yaml says of a robot, but its name and actuator; `keys` win."""
    section = read("robot/own") | keys
    return {key: section[key] for key in section if key not in ("name", "actuator")}


def make_robot(**keys: Any) -> Loaded:
    """The quadruped that conf/robot/own.yaml describes with other values of these keys."""
    return load_as("quadruped", **robot_keys(**keys))


def same_model(a: mujoco.MjModel, b: mujoco.MjModel) -> bool:
    """Whether two models are bit for bit the same."""
    sizes = mujoco.mj_sizeModel(a), mujoco.mj_sizeModel(b)
    images = [np.zeros(size, np.uint8) for size in sizes]
    for model, image in zip((a, b), images, strict=True):
        mujoco.mj_saveModel(model, None, image)
    return np.array_equal(images[0], images[1])


def make_settings(**numbers: Any) -> Settings:
    """PPO's settings in conf/algo/ppo.yaml, but no symmetry; `numbers` win."""
    return Settings(**algo(**numbers))


def algo(**numbers: Any) -> dict[str, Any]:
    """The settings in conf/algo/ppo.yaml by name, but no symmetry; `numbers` win."""
    values = read("algo/ppo") | {"symmetry": "none"} | numbers
    return {key: value for key, value in values.items() if key != "name"}


def widths(env: Env) -> tuple[int, int, int]:
    """Widths of the actor's view, of the critic's and of the action: no, nc, nu."""
    views = env.views
    return *views["actor"].shape, *views["critic"].shape, env.task.action_width


def make_policy(
    no: int,
    nc: int,
    nu: int,
    *,
    seed: int = 0,
    symmetry: str = "none",
    mirrors: ViewMirrors | None = None,
    **keys: Any,
) -> ActorCritic:
    """A policy with the network of conf/algo/ppo.yaml, but no symmetry; `keys` win."""
    network = {field.name: algo()[field.name] for field in fields(NetworkSettings)} | keys
    cfg, views = NetworkSettings(**network), dict(actor=vector(no), critic=vector(nc))
    return ActorCritic(views, nu, cfg, symmetry=symmetry, mirrors=mirrors, seed=seed)


def sim_options(name: str) -> dict[str, Any]:
    """A backend's options in conf/sim/<name>.yaml."""
    section = read(f"sim/{name}")
    return {key: section[key] for key in OPTIONS[name]}


def make_sim(name: str, mjm: mujoco.MjModel, num_envs: int, **options: Any) -> Any:
    """`factory.make` on the CPU with the options of conf/sim/<name>.yaml; `options` win."""
    return make(name, mjm, num_envs, **({"device": "cpu"} | sim_options(name) | options))


def make_task(name: str = "quadruped", kind: type[Task] | None = None, **settings: Any) -> Task:
    """A task with its YAML's numbers and exact physics, or of another kind; `settings` win."""
    kind = kind or load_task(name)
    values = {k: v for k, v in numbers(name).items() if k not in ("name", "weights", "noise")}
    values |= {"actuator": make_actuator(), "training": "exact"} | settings
    values["randomise"] = with_ranges(values["randomise"])
    if kind.takes_terrain:  # with a patch of each kind and level, not eight
        values |= terrain_arguments(
            kind, make_config(f"task={name}", "terrain.variants=1").terrain, name
        )
    return kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in values.items()})


def make_sim_of(task: Task, num_envs: int, sim: str = "native", **options: Any) -> Any:
    """The Sim of a task on the CPU, on one thread; `options` win."""
    threads = {"threads": 1} if sim == "native" else {}
    own = dict(device="cpu", fields=task.fields, actuator=task.actuator)
    return make_actuated(sim, task.physics, num_envs, **sim_options(sim) | threads | own | options)


def make_env(
    name: str = "quadruped",
    num_envs: int = 16,
    *,
    sim: str = "native",
    seed: int = 1,
    first: int = 0,
    stagger: bool = True,
    fields: tuple[str, ...] = (),
    **settings: Any,
) -> Env:
    """Worlds of a task; `fields` have a value per world, `settings` change its numbers."""
    task = make_task(name, **settings)
    engine = make_sim_of(task, num_envs, sim, fields=(*task.fields, *fields))
    yaml = numbers(name)
    weights, noise = yaml["weights"], yaml["noise"]
    return Env(
        task,
        engine,
        seed=seed,
        weights=weights,
        noise=noise,
        first=first,
        stagger=stagger,
    )


def join(env: Env, algorithm: LearnerSpec, numbers: dict[str, Any], **run: Any) -> Iteration:
    """An iteration of an algorithm over an Env; `run` are fields of `RunSpec`."""
    return assemble(
        env,
        algorithm,
        algorithm.settings(**numbers),
        RunSpec(**{"graph": "parts", "threads": 0} | run),
    )


def make_ppo(
    env: Env,
    *,
    num_steps: int = 8,
    seed: int | None = None,
    hidden: tuple[int, ...] = (32, 32),
    memory: str = "none",
    schedule: Curriculum | None = None,
    **numbers: Any,
) -> Iteration:
    """An iteration of PPO with a small policy over env; `numbers` are those of `Settings`.

    seed: of the first weights; the Env's unless given.
    """
    settings = algo(hidden=hidden, memory=memory, memory_size=12, **numbers)
    ppo = join(env, PPO, settings, num_steps=num_steps, schedule=schedule or Curriculum())
    if seed is not None:
        network = {"hidden": hidden, "memory": memory, "memory_size": 12, "seed": seed}
        ppo.policy.load_state_dict(make_policy(*widths(env), **network).state_dict())
    return ppo
