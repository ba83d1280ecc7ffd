"""From the command line to plain data. A mistake is answered in one line, before torch is loaded."""

import difflib
import re
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

CONF = Path(__file__).resolve().parent.parent / "conf"
CHANGEABLE = ("iterations", "stop_at", "eval_every", "save_every", "log_every", "log")  # by resume=


def fail(message: str) -> NoReturn:
    """Say what is wrong in one line on stderr and exit with 2."""
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    raise SystemExit(2)


@contextmanager
def one_line():
    """Turn what a user can get wrong (ValueError, OSError) into one line. For building, not for running."""
    try:
        yield
    except (ValueError, OSError) as error:
        fail(str(error))


def check(name: str, argv: list[str]) -> None:
    """Exit in one line if the command line does not compose with conf/<name>.yaml; say nothing if it does.

    Hydra then composes the same line itself, with its multirun, `--help` and `--cfg`.
    """
    words = [word for word in argv if not word.startswith("-")]
    if any(word in ("--help", "-h", "--hydra-help", "--version", "--shell-completion", "-sc") for word in argv):
        return
    compose_plain(name, words, sweep="-m" in argv or "--multirun" in argv)


def compose_plain(name: str, words: list[str], sweep: bool = False) -> dict[str, Any]:
    """conf/<name>.yaml with overrides, as plain data; exits in one line if they do not fit."""
    for word in words:
        if "=" not in word and not word.startswith("~"):
            fail(f"{word!r} is not KEY=VALUE")
    try:
        parsed = OverridesParser.create().parse_overrides(words)
        if any(o.is_sweep_override() for o in parsed) and not sweep:
            fail(f"{next(o.input_line for o in parsed if o.is_sweep_override())!r} is a list of values: add -m to run each")
        groups = [o for o in parsed if is_group(o)]
        for override in groups:
            check_choice(override)
        fixed = [first(o) for o in parsed]
        base = build(name, [first(o) for o in groups])
        for override in parsed:
            check_key(override, base)
        cfg = build(name, fixed)
    except HydraException as error:
        fail(str(error).splitlines()[0])
    except OmegaConfBaseException as error:
        fail(str(error).splitlines()[0])
    for override in parsed:
        check_type(override, base, cfg)
    return cfg


def build(name: str, overrides: list[str]) -> dict[str, Any]:
    """Compose to plain data."""
    with initialize_config_dir(config_dir=str(CONF), version_base="1.3"):
        cfg = compose(name, overrides=overrides)
        return OmegaConf.to_container(cfg, resolve=True)  # type: ignore[return-value]


def first(override: Override) -> str:
    """The override with one value: a sweep's first."""
    if override.is_sweep_override():
        value = next(iter(override.sweep_string_iterator()))
        return f"{override.get_key_element()}={value}"
    return override.input_line or ""


def is_group(override: Override) -> bool:
    """Whether it chooses a file of a group, such as task=quadruped."""
    return (CONF / override.key_or_group).is_dir()


def choices(folder: Path) -> list[str]:
    """Names of a group's files."""
    return sorted(path.stem for path in folder.glob("*.yaml"))


def check_choice(override: Override) -> None:
    """Exit if a group has no such file."""
    group = override.key_or_group
    known = choices(CONF / group)
    for value in override.sweep_string_iterator() if override.is_sweep_override() else [str(override.value())]:
        if value not in known:
            fail(f"unknown {group} {value!r}: choose one of {', '.join(known)}")


def check_key(override: Override, base: dict[str, Any]) -> None:
    """Exit if the key of an override does not exist."""
    key = override.key_or_group
    if override.is_add() or override.is_delete():
        fail(f"{override.input_line!r}: only KEY=VALUE is understood")
    if key == "hydra" or key.startswith("hydra."):
        return
    if is_group(override):
        return
    flat = flatten(base)
    if key not in flat:
        near = difflib.get_close_matches(key, flat, n=3, cutoff=0.5)
        section = [k for k in flat if k.rpartition(".")[0] == key.rpartition(".")[0]]
        fail(f"unknown key {key!r}: {'did you mean ' + ' or '.join(near) if near else 'choose one of ' + ', '.join(section)}?")


def check_type(override: Override, base: dict[str, Any], cfg: dict[str, Any]) -> None:
    """Exit if a value is of another kind than the one it replaces (a null may become anything)."""
    key = override.key_or_group
    if is_group(override) or key.startswith("hydra"):
        return
    old, new = flatten(base)[key], flatten(cfg)[key]
    if isinstance(old, float) and isinstance(new, int) and not isinstance(new, bool):
        return
    if old is not None and (type(old) is not type(new)):
        kind = {
            "int": "a whole number",
            "float": "a number",
            "str": "a word",
            "list": "a list",
            "bool": "true or false",
        }
        wanted = kind.get(type(old).__name__, f"a {type(old).__name__} with keys")
        fail(f"{key}={new!r}: expected {wanted}, such as {old!r}")


def flatten(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"a": {"b": 1}} → {"a": {…}, "a.b": 1}"""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat[prefix + key] = value
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{key}.")
    return flat


def positive(cfg: dict[str, Any], *keys: str) -> None:
    """Exit-worthy ValueError unless each key holds a whole number of at least one."""
    for key in keys:
        if not isinstance(cfg[key], int) or isinstance(cfg[key], bool) or cfg[key] < 1:
            raise ValueError(f"{key}={cfg[key]!r}: expected a whole number of at least 1")


def task_name(name: str) -> str:
    """The name, if it is that of a task's file; a run's config.yaml may come from a stranger."""
    known = choices(CONF / "task")
    if not re.fullmatch(r"[A-Za-z_]\w*", str(name)) or name not in known:
        raise ValueError(f"unknown task {name!r}: choose one of {', '.join(known)}")
    return name


def settle(cfg: dict[str, Any]) -> None:
    """Check the values that no constructor sees; ValueError names the first wrong one."""
    positive(cfg, "num_envs", "num_steps", "iterations", "eval_every", "save_every", "log_every")
    if not 0 <= cfg["seed"] < 2**32:
        raise ValueError(f"seed={cfg['seed']}: expected 0 ≤ seed < 2³²")
    stop = cfg["stop_at"]
    if stop is not None and (isinstance(stop, bool) or not isinstance(stop, int | float) or not 0 < stop <= 1):
        raise ValueError(f"stop_at={stop!r}: expected a share of successes, such as 0.95")
    for key in ("run_dir", "resume"):
        if cfg[key] is not None and not isinstance(cfg[key], str):
            raise ValueError(f"{key}={cfg[key]!r}: expected a directory")


def make_task(cfg: dict[str, Any], device: str = "cpu", mjm: Any = None):
    """The task of a configuration, its constants on `device`."""
    from tasks import load

    numbers = {k: v for k, v in cfg["task"].items() if k not in ("name", "weights", "noise")}
    numbers = {k: tuple(v) if isinstance(v, list) else v for k, v in numbers.items()}
    return load(task_name(cfg["task"]["name"]))(**numbers, device=device, mjm=mjm)


def make_ppo(cfg: dict[str, Any], num_envs: int | None = None):
    """Task, Sim, Env, policy and PPO of a configuration, ready for its first iteration."""
    from gpusim_rl.env import Env
    from gpusim_rl.policy import Policy
    from gpusim_rl.ppo import PPO, Settings
    from gpusim_rl.sim import choose, make

    sim_name, device = choose(cfg["sim"]["name"], cfg["device"])
    task = make_task(cfg, device)
    known = {"native": ("threads",), "warp": ("naconmax", "njmax")}[sim_name]
    options = {key: cfg["sim"][key] for key in known if key in cfg["sim"]}
    sim = make(sim_name, task.mjm, num_envs or cfg["num_envs"], device=device, fields=task.fields, **options)
    env = Env(task, sim, seed=cfg["seed"], weights=cfg["task"]["weights"], noise=cfg["task"]["noise"])
    algo = dict(cfg["algo"])
    network = {key: algo.pop(key) for key in ("hidden", "activation", "std", "floor")}
    policy = Policy(*env.sizes, **network, seed=cfg["seed"]).to(device)
    return PPO(env, policy, num_steps=cfg["num_steps"], cfg=Settings(**algo))


def export_policy(ppo: Any, cfg: dict[str, Any], path: Path) -> float:
    """Export a PPO's actor, checked on observations of its own task; the largest difference from torch."""
    from gpusim_rl.evaluate import observe
    from gpusim_rl.export import export

    name, weights, noise = (cfg["task"][key] for key in ("name", "weights", "noise"))
    seen = observe(ppo.act, ppo.env.task, weights=weights, noise=noise)
    return export(ppo.policy.actor, ppo.env.task, path, name=name, noise=noise, observations=seen)
