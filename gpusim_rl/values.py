"""Checks of the values in a configuration that no constructor makes, before torch is loaded."""

import re
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gpusim_rl import curriculum, variety
from gpusim_rl.actuator import Actuator
from gpusim_rl.config import CONF, LARGEST, choices

SEEDS = 0x5EED_0000  # training seeds are below; from here on they are evaluation's
KINDS = ("none", "augment", "loss", "net")  # of algo.symmetry
PAST = 64  # control steps of the past that an actor may see


def settle(cfg: dict[str, Any]) -> None:
    """Check the values that no constructor sees; ValueError names the first wrong one."""
    positive(cfg, "num_envs", "num_steps", "iterations", "eval_every", "save_every", "log_every", "episodes")
    if type(cfg["rollbacks"]) is not int or cfg["rollbacks"] < 0:
        raise ValueError(f"rollbacks={cfg['rollbacks']!r}: expected a whole number of at least 0")
    positive(cfg["algo"], "update_epochs", "num_minibatches", section="algo.")
    if not 0 <= cfg["seed"] < SEEDS:
        raise ValueError(f"seed={cfg['seed']}: expected 0 ≤ seed < {SEEDS}")
    Actuator(**cfg["robot"]["actuator"])
    stop = cfg["stop_at"]
    if stop is not None and (isinstance(stop, bool) or not isinstance(stop, int | float) or not 0 < stop <= 1):
        raise ValueError(f"stop_at={stop!r}: expected a share of successes, such as 0.95")
    for key in ("run_dir", "resume"):
        if cfg[key] is not None and not isinstance(cfg[key], str):
            raise ValueError(f"{key}={cfg[key]!r}: expected a directory")
    for key in ("threads", "naconmax", "njmax"):
        value = cfg["sim"].get(key)
        if value is not None and (type(value) is not int or not 0 <= value < 2**31):
            raise ValueError(f"sim.{key}={value!r}: expected a whole number from 0 to {2**31 - 1}")
    for section in ("weights", "noise"):
        for term, value in cfg["task"][section].items():
            if type(value) not in (int, float) or not 0 <= value <= LARGEST:
                raise ValueError(f"task.{section}.{term}={value!r}: expected a number of at least 0, signs live in the task")
    if cfg["algo"]["symmetry"] not in KINDS:
        raise ValueError(f"algo.symmetry={cfg['algo']['symmetry']}: choose one of {', '.join(KINDS)}")
    for term, steps in cfg["task"].get("history", {}).items():
        if type(steps) is not int or not 1 <= steps <= PAST:
            raise ValueError(f"task.history.{term}={steps!r}: expected control steps, from 1 to {PAST}")
    low, high = cfg["task"].get("observation_delay", (0, 0))
    if not 0 <= low <= high <= PAST:
        raise ValueError(f"task.observation_delay={[low, high]}: expected the least and the most control steps, up to {PAST}")
    variety.check(cfg["task"]["randomise"])
    curriculum.check(cfg["curriculum"], cfg)
    if cfg["log"]["name"] == "tensorboard" and not find_spec("tensorboard"):
        raise ValueError("log=tensorboard needs tensorboard: pip install 'gpusim_rl[tensorboard]'")


def positive(cfg: dict[str, Any], *keys: str, section: str = "") -> None:
    """ValueError unless each key holds a whole number of at least one, which 32 bits hold."""
    for key in keys:
        if type(cfg[key]) is not int or cfg[key] < 1:
            raise ValueError(f"{section}{key}={cfg[key]!r}: expected a whole number of at least 1")
        if cfg[key] >= 2**31:
            raise ValueError(f"{section}{key}={cfg[key]}: expected a whole number below {2**31}")


def writable(key: str, value: str | None, suffixes: tuple[str, ...] = ()) -> None:
    """ValueError or OSError in one line unless a file can be written there: said before the work, not after it."""
    if value is None:
        return
    if not isinstance(value, str):
        raise ValueError(f"{key}={value!r}: expected a file to write")
    path = Path(value)
    if suffixes and path.suffix not in suffixes:
        raise ValueError(f"{key}={value}: expected a name that ends in {', '.join(suffixes)}")
    if path.is_dir() or not path.parent.is_dir():
        raise OSError(f"{key}={value} is a directory" if path.is_dir() else f"{key}={value}: no directory {path.parent}")
    probe(key, value, path.parent)


def probe(key: str, value: str, folder: Path) -> None:
    """OSError in one line unless files can be made in a folder: tried, because permissions do not tell it all."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise OSError(f"{key}={value} cannot be written: {error.strerror}") from None


def task_name(name: str) -> str:
    """The name, if it is that of a task's file; a run's config.yaml may come from a stranger."""
    known = choices(CONF / "task")
    if not re.fullmatch(r"[A-Za-z_]\w*", str(name)) or name not in known:
        raise ValueError(f"unknown task {name!r}: choose one of {', '.join(known)}")
    return name
