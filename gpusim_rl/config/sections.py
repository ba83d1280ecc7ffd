"""The configuration of a training, made and checked once, in typed sections.

`config.compose` and `config.resume` work on plain data, as YAML has it. What they end in is a
`Config`: `build` and all that trains read its fields, and `plain` is what config.yaml holds.
"""

import copy
import re
from collections import ChainMap
from collections.abc import Mapping
from dataclasses import dataclass, field, is_dataclass
from functools import cache
from importlib import import_module
from typing import Any

from gpusim_rl.config.check_words import check_physics
from gpusim_rl.config.nested_dict import flatten, set_key
from gpusim_rl.config.user_files import our_names
from gpusim_rl.core import ranges
from gpusim_rl.core.file_keys import HOWS, FileKey
from gpusim_rl.core.files import Plain
from gpusim_rl.core.ranges import CAPACITY, CORES, COUNT, RANGES, SEED, SHARE, Range
from gpusim_rl.core.sections import arguments, check, limits, make, number, require, word
from gpusim_rl.envs import curriculum
from gpusim_rl.sim import actuator_spec
from gpusim_rl.sim.actuator_spec import Actuator

SETTINGS = {  # group → the package in which each name has a package with `Settings`
    "algo": "gpusim_rl.algorithms",
    "reward": "gpusim_rl.algorithms.rewards",
}
CLONING = "gpusim_rl.algorithms.cloning"  # its numbers are the section of that name
MODELS = tuple(FileKey(f"{x}.mjcf", "copy", f"model/{x}/model.xml") for x in ("task", "robot"))
LABEL = re.compile("[A-Za-z0-9]([-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?")  # a value, as Ray takes it
OF_ADDRESSES = r"/\#?%:"  # no project at W&B may have them in its name


@dataclass(frozen=True, kw_only=True)
class TaskSection:
    """The section `task`. `numbers` are what the task's class takes, and checks, as arguments."""

    name: str
    weights: dict[str, float]
    noise: dict[str, float]
    numbers: Plain

    @classmethod
    def of(cls, values: Plain) -> "TaskSection":
        """The section of plain values; ValueError names the first wrong one."""
        require(values, ("weights", "noise"), "task", f"task/{values['name']}")
        ranges.check(values, "task")
        low, high = values["observation_delay"]
        if low > high:
            expected = "expected the least and the most control steps"
            raise ValueError(f"task.observation_delay={[low, high]}: {expected}")
        check_physics(values)
        named = ("name", "weights", "noise")
        numbers = {key: x for key, x in values.items() if key not in named}
        return cls(**{key: values[key] for key in named}, numbers=numbers)


@dataclass(frozen=True, kw_only=True)
class ModelSection:
    """The section `algo` or `reward`.

    Attributes:
        settings: the `Settings` of a learner or a reward model, None of reward=none. Of an
            algorithm of the user's own its numbers by name, which `assembly` checks as soon as its
            code may be loaded.
    """

    name: str
    settings: Any

    @classmethod
    def of(cls, group: str, values: Plain, code: str | None = None) -> "ModelSection":
        """The section of plain values; ValueError names the first wrong one.

        code: "here" if the algorithm is one of the working directory.
        """
        name, names = str(values["name"]), our_names(group)
        numbers = {key: x for key, x in values.items() if key != "name"}
        if group == "reward" and name not in names:
            raise ValueError(f"unknown reward {name!r}: choose one of {', '.join(sorted(names))}")
        if code or name not in names:
            return cls(name=name, settings=numbers)
        kind = settings_class(group, name) or (lambda: None)  # reward=none takes no number
        return cls(name=name, settings=make(kind, numbers, group, f"{group}/{name}"))


@dataclass(frozen=True, kw_only=True)
class SimSection:
    """The section `sim`. Which of its keys are there depends on the backend."""

    name: str
    threads: int | None = number(CORES, None)
    naconmax: int | None = number(CAPACITY, None)
    njmax: int | None = number(CAPACITY, None)
    grow: bool | None = None
    conditional: bool | None = None
    deterministic: bool | None = None


@dataclass(frozen=True, kw_only=True)
class LogSection:
    """The section `log`: where metrics go, and names at Weights & Biases and MLflow."""

    name: str
    project: str
    run: str | None
    group: str | None
    tags: list[str]
    registry: str | None

    def __post_init__(self) -> None:
        names = {key: getattr(self, key) for key in ("project", "run", "group", "registry")}
        words = {f"log.{key}": ["-" if name is None else name] for key, name in names.items()}
        for key, values in (words | {"log.tags": self.tags}).items():
            length = 64 if key == "log.tags" else 128
            for value in values:
                if not isinstance(value, str) or not 0 < len(value.strip()) <= length:
                    expected = f"expected a word of at most {length} characters"
                    raise ValueError(f"{key}: {value!r}: {expected}")
        if set(self.project) & set(OF_ADDRESSES):
            raise ValueError(f"log.project={self.project!r}: expected none of {OF_ADDRESSES}")


@dataclass(frozen=True, kw_only=True)
class ClusterSection:
    """The section `cluster`, of conf/cluster/none.yaml: processes that step the worlds."""

    name: str = word("none", "ray")
    actors: int = number(Range(1, 4096, whole=True))
    sync: bool
    max_lag: int = number(Range(0, 1024, whole=True))
    spread: float = number(Range(1, 10))
    inference: str = word("local", "central")
    device: str
    address: str | None
    labels: dict[str, str]

    def __post_init__(self) -> None:
        check(self, "cluster")
        for label, value in self.labels.items():
            if not (isinstance(label, str) and isinstance(value, str) and LABEL.fullmatch(value)):
                said = f"cluster.labels: {label}: {value!r}"
                raise ValueError(f"{said}: expected a word of Ray's, such as {{market: spot}}")
        if self.labels and not self.address:
            raise ValueError("cluster.labels choose machines of cluster.address, which is null")
        if self.inference == "central" and (self.address or self.device != "cpu"):
            says = "cluster.address=null and cluster.device=cpu"
            raise ValueError(
                f"cluster.inference=central is of one machine's processors: set {says}"
            )

    @property
    def lag_limit(self) -> int:
        """Updates that the policy of an actor may be behind: 0 without actors, and in step."""
        return 0 if self.name == "none" or self.sync else self.max_lag


@dataclass(frozen=True, kw_only=True)
class SearchSection:
    """The section `search`, of conf/search/none.yaml: how several trainings find numbers."""

    name: str = word("none", "grid", "random", "asha", "pbt", "optuna")
    trials: int = number(Range(1, 200, whole=True))
    space: Plain | None
    goal: str
    every: int | None = number(Range(1, 2**31 - 1, whole=True, null=True, single=True))
    eta: int = number(Range(2, 16, whole=True))
    quantile: float = number(Range(0, 0.5, above=True))
    resample: float = number(SHARE)

    def __post_init__(self) -> None:
        check(self, "search")


@dataclass(frozen=True, kw_only=True)
class RobotSection:
    """The section `robot`. `values` are those of `robots.robot_config.Robot`."""

    name: str
    actuator: Actuator
    values: Plain

    @classmethod
    def of(cls, values: Plain) -> "RobotSection":
        """The section of plain values; ValueError names the first wrong one."""
        file = f"robot/{values['name']}"
        require(values, ("mjcf",), "robot", file)
        ranges.check(values, "robot")
        actuator = make(Actuator, values["actuator"], "robot.actuator", file)
        rest = {key: x for key, x in values.items() if key not in ("name", "actuator")}
        return cls(name=values["name"], actuator=actuator, values=rest)


@dataclass(frozen=True, kw_only=True)
class Config:
    """The configuration of a training; conf/config.yaml says what each key means.

    ValueError names the first key that is missing or holds what it may not.
    """

    seed: int = number(SEED)
    device: str
    threads: int = number(CORES)
    num_envs: int = number(COUNT)
    num_steps: int = number(COUNT)
    iterations: int = number(COUNT)
    stop_at: float | None = number(Range(0, 1, above=True, null=True, single=True))
    stop_when: str | None
    eval_every: int = number(COUNT)
    episodes: int = number(COUNT)
    save_every: int = number(COUNT)
    log_every: int = number(COUNT)
    jobs: int = number(COUNT)
    film_every: int | None = number(Range(1, 2**31 - 1, whole=True, null=True, single=True))
    rollbacks: int = number(Range(0, 1024, whole=True))
    graph: str = word("parts", "whole", "off")
    export: str = word("controller", "none")
    fuse: str = word("on", "off", "show")
    gate: bool
    report: bool
    plan: bool
    auto_resume: bool
    run_dir: str | None
    resume: str | None
    start: str | None
    teacher: str | None
    demos: str | None
    task_code: str | None = None
    algo_code: str | None = None
    gpu: Plain
    recipe: Plain
    ranges: Plain
    curriculum: dict[str, Plain] | None
    task: TaskSection
    algo: ModelSection
    reward: ModelSection
    sim: SimSection
    log: LogSection
    cloning: Any  # a `Settings`, of algorithms/cloning
    cluster: ClusterSection
    search: SearchSection
    robot: RobotSection
    terrain: Plain
    plain: Plain = field(repr=False, compare=False)

    @classmethod
    def of(cls, plain: Plain) -> "Config":
        """The configuration of plain data, which is composed, or read from a run.

        Numbers that a curriculum changes have their last values.
        """
        values = {key: x for key, x in plain.items() if key in cls.__dataclass_fields__}
        arguments(cls, values | {"plain": plain}, "", "config")
        curriculum.check_plan(plain["curriculum"], plain)
        plain = curriculum.config_at(plain["curriculum"], plain)
        ranges.check(plain["terrain"], "terrain")
        ranges.check(plain["sim"], "sim", limits(SimSection, "sim"))
        made = {
            "task": TaskSection.of(plain["task"]),
            "algo": ModelSection.of("algo", plain["algo"], plain.get("algo_code")),
            "reward": ModelSection.of("reward", plain["reward"]),
            "sim": make(SimSection, plain["sim"], "sim", f"sim/{plain['sim']['name']}"),
            "log": make(LogSection, plain["log"], "log", "config"),
            "cloning": make(settings_in(CLONING), plain["cloning"], "cloning", "config"),
            "cluster": make(ClusterSection, plain["cluster"], "cluster", "config"),
            "search": make(SearchSection, plain["search"], "search", "config"),
            "robot": RobotSection.of(plain["robot"]),
        }
        return cls(**values | made, plain=plain)

    def __post_init__(self) -> None:
        check(self, "")
        flat, files = flatten(self.plain), [file.key for file in file_keys(self.plain)]
        for key in ("run_dir", "resume", "start", *files):
            if not isinstance(path := flat.get(key), str | None):
                raise ValueError(f"{key}={path!r}: expected a path")
        self.check_stop()
        self.check_reward()
        if self.gate and self.export == "none":
            raise ValueError("gate=true judges the exported file: not with export=none")
        if self.gate and self.plain["algo"].get("encoders"):
            raise ValueError("gate=true drives the model alone, without views: not with encoders")
        algo, taught = self.algo.name, learners_of("teacher")
        if algo in taught and self.teacher is None:
            raise ValueError(f"algo={algo} imitates the policy of a run: name it with teacher=RUN")
        if self.teacher is not None and algo not in taught and not self.algo_code:
            choices = " or ".join(taught)
            raise ValueError(f"teacher={self.teacher} is for algo={choices}, not {algo}")
        for name in SETTINGS:
            settings = getattr(self, name).settings
            allowed = limits(settings, name) if is_dataclass(settings) else {}
            for key, entry in (self.curriculum or {}).items():
                if key in allowed:
                    allowed[key].check(f"curriculum: {key}: from", entry["from"])

    def check_reward(self) -> None:
        """ValueError unless a policy that is tuned is there, in worlds of this process."""
        if self.reward.name == "preference" and self.start is None:
            raise ValueError("reward=preference tunes a policy that is trained: name start=RUN")
        if self.reward.name == "preference" and self.cluster.name != "none":
            raise ValueError("reward=preference looks at its own worlds: set cluster=none")

    def check_stop(self) -> None:
        """ValueError unless what gives a training up is known, and can see a success."""
        if self.stop_when not in (None, "hopeless"):
            raise ValueError(f"stop_when={self.stop_when}: choose hopeless, or null")
        if self.stop_when and not self.stop_at:
            raise ValueError("stop_when=hopeless needs stop_at=, whose evaluations show a success")

    def replace(self, values: Mapping[str, object]) -> "Config":
        """The configuration with other values, such as {"sim.njmax": 60}, checked again."""
        plain = copy.deepcopy(self.plain)
        for key, value in values.items():
            if key.partition(".")[0] not in plain:
                raise ValueError(f"unknown key {key!r}")
            set_key(plain, key, value)
        return Config.of(plain)


def settings_class(group: str, name: str) -> Any:
    """The dataclass of the numbers of an algorithm or a reward model of ours; None of others.

    It stands in a module that loads no torch, so that a mistake is answered at once.
    """
    if name not in our_names(group) or name == "none":
        return None
    return settings_in(f"{SETTINGS[group]}.{name}")


def settings_in(package: str) -> Any:
    """The dataclass of the numbers of a package, in a module that loads no torch."""
    return import_module(f"{package}.settings").Settings


def files_in(package: str) -> tuple[FileKey, ...]:
    """The keys of a package that name files."""
    return vars(import_module(f"{package}.settings")).get("FILES", ())


def learners_of(key: str) -> list[str]:
    """The algorithms of ours that have a key that names a file."""
    names = sorted(our_names("algo"))
    return [x for x in names if key in (file.key for file in files_in(f"{SETTINGS['algo']}.{x}"))]


@cache
def our_file_keys() -> tuple[FileKey, ...]:
    """The keys of tasks, robots, learners and reward models of ours that name files."""
    packages = [f"{SETTINGS[x]}.{y}" for x in SETTINGS for y in sorted(our_names(x) - {"none"})]
    found = [file for package in (CLONING, *packages) for file in files_in(package)]
    return (*MODELS, *actuator_spec.FILES, *found)


def file_keys(plain: Plain) -> tuple[FileKey, ...]:
    """The keys of a configuration that name files: ours, and a run's of a learner of its own.

    So are keys of the task that end in `_file`, also of a task of the user's.
    """
    return (*our_file_keys(), *task_file_keys(plain), *own_file_keys(plain))


def task_file_keys(plain: Plain) -> list[FileKey]:
    """The keys of a task that name its data, such as `task.clip_file`, and keys below these."""
    values = flatten(task).items() if isinstance(task := plain.get("task"), dict) else ()
    files = [x for x, y in values if x.split(".")[0].endswith("_file") and isinstance(y, str)]
    return [FileKey(f"task.{key}", "copy") for key in files]


def own_file_keys(plain: Plain) -> list[FileKey]:
    """Those of a learner of the user's own, which a run has in its entry `files`."""
    entries = plain.get("files", {}).items()
    return [FileKey(key, how if how in HOWS else "hash") for key, how in entries]


def table(algo: str = "ppo", reward: str = "none") -> dict[str, Range]:
    """Dotted key → what it may hold, of all numbers of train.py, and of what is chosen of ours."""
    kinds = {
        "": Config,
        "sim": SimSection,
        "cluster": ClusterSection,
        "search": SearchSection,
        "cloning": settings_in(CLONING),
    }
    kinds |= {"algo": settings_class("algo", algo), "reward": settings_class("reward", reward)}
    parts = [limits(kind, section) for section, kind in kinds.items() if kind]
    return dict(ChainMap(limits(Actuator, "robot.actuator"), RANGES, *parts[::-1]))
