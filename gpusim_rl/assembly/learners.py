"""The algorithms and reward models that a configuration names."""

from importlib import import_module

from gpusim_rl.algorithms.learner import LearnerSpec, RewardSpec
from gpusim_rl.algorithms.load import load_algorithm
from gpusim_rl.config.sections import Config

LEARNERS = ("ppo", "sac", "distill")
ACTOR = "policy/actor."  # begins the names of an actor's tensors in a checkpoint


def load_learner(name: str, code: str | None = None) -> LearnerSpec:
    """An algorithm of ours, or with code=here one of the working directory.

    ValueError if there is none, or its file cannot be used.
    """
    if code == "here":
        return load_algorithm(name)
    if name not in LEARNERS:
        raise ValueError(f"unknown algorithm {name!r}: choose one of {', '.join(LEARNERS)}")
    return import_module(f"gpusim_rl.algorithms.{name}.spec").SPEC


def load_reward(name: str) -> RewardSpec:
    """A reward model of ours."""
    return import_module(f"gpusim_rl.algorithms.rewards.{name}.spec").SPEC


def world_multiple(cfg: Config) -> int:
    """The number of which a process's worlds must be a multiple, for the learner's sake."""
    rule = load_learner(cfg.algo.name, cfg.algo_code).world_multiple
    return rule(cfg.algo.settings) if rule else 1
