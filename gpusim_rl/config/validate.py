"""Checks of values that no constructor makes. They load neither torch nor a robot."""

import re
import tempfile
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from inspect import signature
from pathlib import Path
from typing import Any

from gpusim_rl.config.check_words import check_physics
from gpusim_rl.config.compose import choices
from gpusim_rl.config.trees import flatten
from gpusim_rl.core import ranges
from gpusim_rl.core.paths import CODE, user_code
from gpusim_rl.envs import curriculum
from gpusim_rl.envs.randomization import entries
from gpusim_rl.sim.actuator_spec import Actuator

SYMMETRIES = ("auto", "none", "augment", "net")  # of algo.symmetry
MEMORIES = ("none", "gru")  # of algo.memory
EXPORTS = ("controller", "none")
KEYS = (  # of config.yaml and common.yaml
    *("seed", "device", "threads", "num_envs", "num_steps", "iterations", "stop_at", "eval_every"),
    *("episodes", "save_every", "log_every", "graph", "compile", "run_dir", "plan", "resume"),
    *("auto_resume", "rollbacks", "export", "report", "gpu", "task", "curriculum", "sim", "algo"),
    *("log", "robot", "terrain", "gate", "start"),
)
OF_ADDRESSES = r"/\#?%:"  # no project at W&B may have them in its name
TASK_CODE = "task_code=here"  # how a user allows code of the working directory
WORDS = {"task": "task", "algo": "algorithm"}  # of messages


def check_values(cfg: dict[str, Any]) -> None:
    """Check a whole configuration of train.py; ValueError names the first wrong value."""
    require(cfg, KEYS, "", "config")
    require(cfg["task"], ("weights", "noise"), "task", f"task/{cfg['task']['name']}")
    ranges.check(cfg)
    robot = f"robot/{cfg['robot']['name']}"
    Actuator(**arguments(Actuator, cfg["robot"]["actuator"], "robot.actuator", robot))
    check_paths(cfg)
    check_task_code(cfg)
    check_choices(cfg)
    check_log(cfg["log"])
    if cfg["gate"] and cfg["export"] == "none":
        raise ValueError("gate=true judges the exported file: not with export=none")
    check_delay(cfg["task"])
    check_physics(cfg["task"])
    entries.check_entries(cfg["task"]["randomise"])
    curriculum.check_plan(cfg["curriculum"], cfg)


def check_choices(cfg: dict[str, Any]) -> None:
    """ValueError if a word is none of its choices. An algorithm of the user's checks its own."""
    words, ours = {"export": EXPORTS}, cfg["algo"]["name"] in choices("algo", ours=True)
    words |= {"algo.symmetry": SYMMETRIES, "algo.memory": MEMORIES} if ours else {}
    values = flatten(cfg)
    for key in words.keys() & values.keys():
        if values[key] not in words[key]:
            raise ValueError(f"{key}={values[key]}: choose one of {', '.join(words[key])}")


def check_extras(cfg: dict[str, Any]) -> None:
    """ValueError if a training needs a package that is not installed.

    A run that was made with it can be opened all the same.
    """
    if cfg["log"]["name"] == "tensorboard" and not find_spec("tensorboard"):
        raise ValueError("log=tensorboard needs tensorboard: pip install 'gpusim_rl[tensorboard]'")
    if cfg["sim"]["name"] == "mjx" and not find_spec("jax"):
        raise ValueError("sim=mjx needs JAX: pip install 'gpusim_rl[mjx]'")


def check_log(log: dict[str, Any]) -> None:
    """ValueError unless the names at W&B are words that it takes."""
    names = {
        f"log.{key}": ["-" if log[key] is None else log[key]] for key in ("project", "run", "group")
    }
    for key, words in (names | {"log.tags": log["tags"]}).items():
        most = 64 if key == "log.tags" else 128
        for value in words:
            if not isinstance(value, str) or not 0 < len(value.strip()) <= most:
                raise ValueError(f"{key}: {value!r}: expected a word of at most {most} characters")
    if set(log["project"]) & set(OF_ADDRESSES):
        raise ValueError(f"log.project={log['project']!r}: expected none of {OF_ADDRESSES}")


def check_paths(cfg: dict[str, Any]) -> None:
    """ValueError unless the directories of runs and the files of models are words."""
    values = flatten(cfg)
    for key in ("run_dir", "resume", "start", "task.mjcf", "robot.mjcf"):
        if not isinstance(values.get(key), str | None):
            raise ValueError(f"{key}={values[key]!r}: expected a path")


def check_task_code(cfg: dict[str, Any]) -> None:
    """ValueError unless task_code is null or `here`."""
    if cfg["task_code"] not in (None, "here"):
        raise ValueError(f"task_code={cfg['task_code']!r}: expected here, or null for our code")


def check_delay(task: dict[str, Any]) -> None:
    """ValueError unless task.observation_delay is the least and the most control steps."""
    low, high = task["observation_delay"]
    if low > high:
        expected = "expected the least and the most control steps"
        raise ValueError(f"task.observation_delay={[low, high]}: {expected}")


def require(values: dict[str, Any], keys: Iterable[str], section: str, file: str) -> None:
    """ValueError that names the first of the keys that conf/<file>.yaml lacks in a section."""
    missing = [key for key in keys if key not in values]
    if missing:
        name = f"{section}.{missing[0]}" if section else missing[0]
        raise ValueError(f"{name} is missing in conf/{file}.yaml")


def arguments(
    kind: Callable[..., Any], values: dict[str, Any], section: str, file: str
) -> dict[str, Any]:
    """The values, if they are the keyword arguments that a constructor takes.

    ValueError names the first one that conf/<file>.yaml lacks, or that is unknown.
    """
    known = [p for p in signature(kind).parameters.values() if p.kind is p.KEYWORD_ONLY]
    require(values, [p.name for p in known if p.default is p.empty], section, file)
    unknown = [key for key in values if key not in [p.name for p in known]]
    if unknown:
        names = ", ".join(p.name for p in known)
        key = f"{section}.{unknown[0]}"
        raise ValueError(f"unknown key {key!r} in conf/{file}.yaml: choose one of {names}")
    return values


def settings(kind: Any, takes: Callable[..., Any], algo: dict[str, Any]) -> dict[str, Any]:
    """The section algo without its name, which `takes` has as keyword arguments.

    ValueError names a key that is missing or unknown, or that the `ranges` of the learner's class,
    `kind`, do not allow.
    """
    values = {key: value for key, value in algo.items() if key != "name"}
    arguments(takes, values, "algo", f"algo/{algo['name']}")
    own = getattr(kind, "ranges", {})
    ranges.check(values, "algo", {f"algo.{key}": entry for key, entry in own.items()})
    return values


def writable(key: str, value: str | None, suffixes: tuple[str, ...] = ()) -> None:
    """ValueError or OSError in one line unless a file can be written there; null is well."""
    if value is None:
        return
    if not isinstance(value, str):
        raise ValueError(f"{key}={value!r}: expected a file to write")
    path = Path(value)
    if suffixes and path.suffix not in suffixes:
        raise ValueError(f"{key}={value}: expected a name that ends in {', '.join(suffixes)}")
    if path.is_dir():
        raise OSError(f"{key}={value} is a directory")
    if not path.parent.is_dir():
        raise OSError(f"{key}={value}: no directory {path.parent}")
    probe(key, value, path.parent)


def probe(key: str, value: str, folder: Path) -> None:
    """OSError in one line unless files can be made in a folder.

    It is tried, because permissions do not tell all.
    """
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise OSError(f"{key}={value} cannot be written: {error.strerror}") from None


def check_name(group: str, name: str) -> str:
    """The name of a task or an algorithm, if conf/ has such a file; ValueError if not.

    A run's config.yaml may come from a stranger.
    """
    known = choices(group)
    if not re.fullmatch(r"[A-Za-z_]\w*", str(name)) or name not in known:
        raise ValueError(f"unknown {WORDS[group]} {name!r}: choose one of {', '.join(known)}")
    return name


def find_codes(cfg: dict[str, Any], named: dict[str, str]) -> dict[str, str | None]:
    """task_code and algo_code of a new training; `named` are those of the command line."""
    return {f"{group}_code": find_code(group, cfg, named.get(group)) for group in CODE}


def find_code(group: str, cfg: dict[str, Any], named: str | None) -> str | None:
    """Where the code of a new training's task or algorithm comes from: "here", or null for ours.

    A file in the working directory is imported only if it is `named` on the command line. It wins
    over a task of ours, but not over an algorithm: a file ppo.py may belong to another program.
    ValueError if it is not named, or if there is no file.
    """
    name, folder = str(cfg[group]["name"]), CODE[group]
    ours = name in choices(group, ours=True)
    file = None if ours and group == "algo" else user_code(group, name)
    if file is None and not ours:
        raise ValueError(f"{group}={name}: no file {name}.py in {folder}/, here or among ours")
    if file is None:
        return None
    if named == name or cfg["task_code"] == "here":
        return "here"
    raise ValueError(f"{file} is imported only if you name it: say {group}={name}")


def saved_code(group: str, name: str, saved: str | None, allowed: str | None) -> str | None:
    """Where the code of a run's task or algorithm comes from: "here", or null if it is ours.

    A run that was made with code of ours stays with it.

    Args:
        group: task or algo.
        name: of the task or algorithm.
        saved: what the configuration of the run says, which may come from a stranger.
        allowed: task_code on the command line.
    ValueError unless it is ours or the command line allows code of the working directory.
    """
    ours, folder = choices(group, ours=True), CODE[group]
    if name in ours and saved != "here":
        return None
    if allowed != "here":
        raise ValueError(
            f"unknown {WORDS[group]} {name[:99]!r}: choose one of {', '.join(ours)}; "
            f"or give {TASK_CODE}, which imports it from {folder}/ of the working directory"
        )
    if user_code(group, name) is None:
        raise ValueError(f"{TASK_CODE}: {folder}/ of the working directory has no file {name}.py")
    return "here"


def code_word(cfg: dict[str, Any]) -> str | None:
    """The task_code that the command line of another process needs for a run's code."""
    return "here" if "here" in (cfg["task_code"], cfg.get("algo_code")) else None
