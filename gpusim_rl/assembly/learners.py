"""The algorithms and reward models that a configuration names."""

from collections.abc import Iterable
from importlib import import_module
from typing import Any, cast

from gpusim_rl.algorithms.learner import Learner, LearnerSpec, RewardSpec
from gpusim_rl.assembly.joining import make_settings
from gpusim_rl.config.nested_dict import flatten
from gpusim_rl.config.run_files import check_file
from gpusim_rl.config.sections import Config, our_file_keys
from gpusim_rl.core.file_keys import FileKey, Given
from gpusim_rl.core.paths import user_code
from gpusim_rl.core.user_code import import_user_file

LEARNERS = ("ppo", "sac", "distill", "dream")
ACTOR = "policy/actor."  # begins the names of an actor's tensors in a checkpoint


def load_learner(name: str, code: str | None = None) -> LearnerSpec[Learner]:
    """An algorithm of ours, or with code=here one of the working directory.

    ValueError if there is none, or its file cannot be used.
    """
    if code == "here":
        return load_algorithm(name)
    if name not in LEARNERS:
        raise ValueError(f"unknown algorithm {name!r}: choose one of {', '.join(LEARNERS)}")
    return import_module(f"gpusim_rl.algorithms.{name}.spec").SPEC


def load_algorithm(name: str) -> LearnerSpec[Learner]:
    """The `SPEC` of `algorithms/**/<name>.py` in the working directory.

    ValueError if there is no such file, or it cannot be used.
    """
    file = user_code("algo", name)
    if file is None:
        raise ValueError(f"algo={name}: algorithms/ of the working directory has no {name}.py")
    spec = vars(import_user_file(file, "algorithms")).get("SPEC")
    if not isinstance(spec, LearnerSpec):
        raise ValueError(f"{file}: SPEC is {type(spec).__name__}, expected a LearnerSpec")
    return cast(LearnerSpec[Learner], spec)


def load_reward(name: str) -> RewardSpec:
    """A reward model of ours."""
    return import_module(f"gpusim_rl.algorithms.rewards.{name}.spec").SPEC


def own_files(cfg: Config) -> tuple[FileKey, ...]:
    """The file keys of a learner of the user's own, without ours, such as `teacher`.

    ValueError if it has no such setting.
    """
    files = load_learner(cfg.algo.name, "here").files if cfg.algo_code else ()
    ours = [file.key for file in our_file_keys()]
    files = tuple(file for file in files if file.key not in ours)
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
    algorithm, settings = algorithm_of(cfg)
    return algorithm.world_multiple(settings) if algorithm.world_multiple else 1


def algorithm_of(cfg: Config) -> tuple[LearnerSpec[Learner], Any]:
    """The algorithm of a configuration, and its settings; ValueError if a user's own is wrong."""
    algorithm, settings = load_learner(cfg.algo.name, cfg.algo_code), cfg.algo.settings
    return algorithm, make_settings(
        algorithm, settings, cfg.algo.name
    ) if cfg.algo_code else settings
