"""Common parts of the adapters to other trainers: an Env made from a task's name and the words of
train.py's command line."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from gpusim_rl.assembly.environment import build_env
from gpusim_rl.config import check_words, compose, nested_dict, resume, robot_size, validate
from gpusim_rl.config.sections import Config
from gpusim_rl.core.memory import out_of_memory_named
from gpusim_rl.core.paths import install
from gpusim_rl.envs import curriculum
from gpusim_rl.envs.env import Env

EXACT = f"task.training={check_words.EXACT}"
# Keys of a training, which is the other trainer's business.
TRAINING = (*resume.CHANGEABLE, "threads", "num_steps", "algo", "curriculum")


def compose_config(
    task: str, num_envs: int | None, overrides: Sequence[str], keys: dict[str, object]
) -> Config:
    """train.py's configuration; ValueError in the same one line for the same mistakes.

    Args:
        num_envs: worlds; None for the task's own number.
        overrides: KEY=VALUE, as on the command line.
        keys: the same as Python values, such as {"seed": 3, "task.history": {"gyro": 3}}; they win
            over overrides.
    """
    if isinstance(overrides, str):
        raise ValueError(
            f"overrides={overrides!r}: expected a list of KEY=VALUE, such as {overrides.split()}"
        )
    keys = {"task": task} | keys | ({} if num_envs is None else {"num_envs": num_envs})
    from_keys = compose.words_of(keys)
    changed = tuple(word.partition("=")[0].strip() for word in [*overrides, *from_keys])
    for key in changed:
        if nested_dict.is_below(key, TRAINING):
            where = "belongs to the training, not to the environment"
            raise ValueError(f"{key} {where}: set it in your trainer")
    # Whatever learns with another trainer is judged in the same worlds, so they are exact.
    exact = [] if any(nested_dict.is_below(key, ("task.training",)) for key in changed) else [EXACT]
    cfg = compose.compose_plain("config", [*overrides, *from_keys, *exact])
    Config.of(cfg)
    cfg |= validate.find_codes(cfg, named={"task": str(keys["task"])})
    plan = {
        key: entry
        for key, entry in (cfg["curriculum"] or {}).items()
        if not nested_dict.is_below(key, changed)
    }
    # No schedule runs here. It only gives the numbers that the caller did not.
    cfg = curriculum.config_at(plan, cfg) | {"curriculum": None}
    return Config.of(robot_size.fit_to_robot(cfg, changed))


@contextmanager
def needs(adapter: str, package: str, extra: str) -> Iterator[None]:
    """An ImportError within says how to install what an adapter needs."""
    try:
        yield
    except ImportError:
        raise ImportError(f"{adapter} needs {package}: {install(extra)}") from None


def make_env(cfg: Config) -> Env:
    """The Env of a configuration; every first episode begins at time zero."""
    with out_of_memory_named(cfg.num_envs):
        return build_env(cfg, cfg.num_envs, stagger=False)


def reseed(env: Env, cfg: Config, seed: int) -> Env:
    """The Env of another seed in the same Sim, which is reset: worlds, episodes and noise are what
    a new one would draw."""
    weights, noise = cfg.task.weights, cfg.task.noise
    return Env(env.task, env.sim, seed=seed, weights=weights, noise=noise, stagger=False)
