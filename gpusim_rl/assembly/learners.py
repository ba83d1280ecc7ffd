"""The classes of our learners and reward models, by the name that a configuration has."""

from importlib import import_module
from types import ModuleType
from typing import Any

from gpusim_rl.algorithms.load import load_algorithm
from gpusim_rl.config.sections import Config

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


def world_multiple(cfg: Config) -> int:
    """The number of which a process's worlds must be a multiple, for the learner's sake."""
    rule = getattr(load_learner(cfg.algo.name, cfg.algo_code)[0], "world_multiple", None)
    return rule(cfg.algo.settings) if rule else 1
