"""The classes of our learners and reward models, by the name that a configuration has."""

from collections.abc import Iterable
from importlib import import_module
from types import ModuleType
from typing import Any

from gpusim_rl.algorithms.load import load_algorithm
from gpusim_rl.config.nested_dict import flatten
from gpusim_rl.config.run_files import check_file
from gpusim_rl.config.sections import Config
from gpusim_rl.core.file_keys import FileKey, Given

# Name of an algorithm of ours, or of a reward model, and of its package and module → its class
LEARNERS = {"ppo": "PPO", "sac": "SAC", "distill": "Distill"}
REWARDS = {"rnd": "RND", "amp": "AMP"}
ACTOR = "policy/actor."  # begins the names of an actor's tensors in a checkpoint


def load_learner(name: str, code: str | None) -> tuple[Any, ModuleType | None]:
    """The class of a learner, and the module of a user's own.

    The module may define `make_source` and `make_rewards`, as `join` has them. ValueError if there
    is no such algorithm, or its file cannot be used.
    """
    if code == "here":
        return load_algorithm(name)
    if name not in LEARNERS:
        raise ValueError(f"unknown algorithm {name!r}: choose one of {', '.join(LEARNERS)}")
    return getattr(import_module(f"gpusim_rl.algorithms.{name}.{name}"), LEARNERS[name]), None


def own_files(cfg: Config) -> tuple[FileKey, ...]:
    """The file keys of a learner of the user's own; ValueError if it has no such setting."""
    files = getattr(load_learner(cfg.algo.name, cfg.algo_code)[1], "FILES", ())
    known = [f"algo.{name}" for name in cfg.plain["algo"]]
    for file in files:
        if file.key not in known:
            choices = ", ".join(known[1:]) or "none"
            raise ValueError(f"unknown file key {file.key!r}: choose one of {choices}")
        if file.how == "keep" and not file.read:
            raise ValueError(f"file key {file.key}: keep needs read, which reads the file")
    return files


def read_files(files: Iterable[FileKey], cfg: Config) -> Given:
    """Key → what a learner of the user's own is given of its file: a path, or what was read.

    ValueError or OSError if there is no such file.
    """
    names = {file: flatten(cfg.plain)[file.key] for file in files}
    paths = {file: check_file(file.key, name) for file, name in names.items() if name is not None}
    return {file.key: file.read(path) if file.read else path for file, path in paths.items()}


def world_multiple(cfg: Config) -> int:
    """The number of which a process's worlds must be a multiple, for the learner's sake."""
    rule = getattr(load_learner(cfg.algo.name, cfg.algo_code)[0], "world_multiple", None)
    return rule(cfg.algo.settings) if rule else 1
