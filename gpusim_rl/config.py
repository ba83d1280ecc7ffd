"""From the command line to plain data. A mistake of key or value is answered in one line, before torch is loaded."""

import difflib
import math
import re
import sys
import tempfile
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, ValueType
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

CONF = Path(__file__).resolve().parent.parent / "conf"
CHANGEABLE = ("iterations", "stop_at", "eval_every", "save_every", "log_every", "episodes", "log")  # by resume=
SEEDS = 0x5EED_0000  # training seeds are below; from here on they are evaluation's
HELP = ("--help", "-h", "--hydra-help", "--version")
INFO = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")
CFG = ("job", "hydra", "all")
OPTIONS = {"-m": (), "--multirun": (), "--resolve": (), "--info": INFO, "-i": INFO, "--cfg": CFG, "-c": CFG}


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
    if any(word in HELP for word in argv):
        return
    words, options = split(argv)
    sweep = "-m" in options or "--multirun" in options
    if sweep:
        for o in parse(words):
            if o.key_or_group in ("run_dir", "resume") and not o.is_sweep_override():
                fail(f"{o.input_line}: each run of a multirun needs one of its own")
            if o.value_type is ValueType.GLOB_CHOICE_SWEEP:
                fail(f"{o.input_line}: list the values, as in {o.key_or_group}=a,b")
    cfg = compose_plain(name, words, sweep=sweep)
    if name != "config":
        return
    with one_line():
        for line in lines(words) if sweep else [words]:
            settled(compose_plain(name, line) if sweep else cfg, line)


def split(argv: list[str]) -> tuple[list[str], list[str]]:
    """(overrides, options) of a command line; exits in one line at an option that is none."""
    words, options, values = [], [], ()
    for word in argv:
        option = word.partition("=")[0] if word.startswith("-") else ""
        if option and option not in OPTIONS:
            fail(f"unknown option {option}: choose one of --help, --multirun (-m), --cfg, --info")
        if option:
            options.append(option)
        elif word not in values:
            words.append(word)
        values = OPTIONS[option] if option and "=" not in word else ()
    return words, options


def parse(words: list[str]) -> list[Override]:
    """The overrides; exits in one line at what is none."""
    for word in words:
        if "=" not in word and not word.startswith("~"):
            fail(f"{word!r} is not KEY=VALUE")
    try:
        return OverridesParser.create().parse_overrides(words)
    except HydraException as error:
        fail(str(error).splitlines()[0])


def lines(words: list[str]) -> list[list[str]]:
    """Single command lines in which every value of a sweep comes up, the other keys at their first."""
    parsed = parse(words)
    firsts = [first(o) for o in parsed]
    found = [firsts]
    for i, o in enumerate(parsed):
        if o.is_sweep_override():
            values = list(o.sweep_string_iterator())[1:]
            found += [[*firsts[:i], f"{o.get_key_element()}={value}", *firsts[i + 1 :]] for value in values]
    return found


def compose_plain(name: str, words: list[str], sweep: bool = False) -> dict[str, Any]:
    """conf/<name>.yaml with overrides, as plain data; exits in one line if they do not fit."""
    parsed = parse(words)
    try:
        if any(o.is_sweep_override() for o in parsed) and not sweep:
            fail(f"{next(o.input_line for o in parsed if o.is_sweep_override())!r} is a list of values: add -m to run each")
        groups = [o for o in parsed if is_group(o)]
        for override in groups:
            check_choice(override)
        base = build(name, [first(o) for o in groups])
        for override in parsed:
            check_key(override, base)
        cfg = build(name, [first(o) for o in parsed])
    except (HydraException, OmegaConfBaseException) as error:
        fail(str(error).splitlines()[0])
    before, after = flatten(base), flatten(cfg)
    with one_line():
        for key in [o.key_or_group for o in parsed if not is_group(o) and not o.key_or_group.startswith("hydra")]:
            same_kind(key, before[key], after[key])
    return cfg


def build(name: str, overrides: list[str]) -> dict[str, Any]:
    """Compose to plain data, inside `hydra.main` too."""
    outer = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(config_dir=str(CONF), version_base="1.3"):
            cfg = compose(name, overrides=overrides)
            return OmegaConf.to_container(cfg, resolve=True)  # type: ignore[return-value]
    finally:
        GlobalHydra.instance().hydra = outer


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
    group, _, rest = key.partition(".")
    if rest == "name" and (CONF / group).is_dir():
        fail(f"{override.input_line}: choose with {group}=, one of {', '.join(choices(CONF / group))}")
    flat = flatten(base)
    if key not in flat:
        near = difflib.get_close_matches(key, flat, n=3, cutoff=0.5)
        section = [k for k in flat if k.rpartition(".")[0] == key.rpartition(".")[0]]
        fail(f"unknown key {key!r}: {'did you mean ' + ' or '.join(near) if near else 'choose one of ' + ', '.join(section)}?")


def same_kind(key: str, old: Any, new: Any) -> None:
    """ValueError if a value is of another kind than the one it replaces (a null may become anything)."""
    wanted = {int: "a whole number", float: "a number", str: "a word", list: "a list", bool: "true or false"}
    if old is None or (isinstance(old, float) and type(new) is int):
        return
    if type(old) is not type(new):
        raise ValueError(f"{key}={new!r}: expected {wanted.get(type(old), 'keys with values')}, such as {old!r}")
    if isinstance(new, float) and not math.isfinite(new):
        raise ValueError(f"{key}={new}: expected a finite number, such as {old}")
    if isinstance(old, list) and isinstance(new, list) and old:
        if key.startswith("task.") and len(new) != len(old):
            raise ValueError(f"{key}={new}: expected {len(old)} numbers, such as {old}")
        for entry in new:
            same_kind(key, old[0], entry)


def flatten(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"a": {"b": 1}} → {"a": {…}, "a.b": 1}"""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat[prefix + key] = value
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{key}.")
    return flat


def positive(cfg: dict[str, Any], *keys: str, section: str = "") -> None:
    """ValueError unless each key holds a whole number of at least one."""
    for key in keys:
        if type(cfg[key]) is not int or cfg[key] < 1:
            raise ValueError(f"{section}{key}={cfg[key]!r}: expected a whole number of at least 1")


def writable(key: str, value: str | None, suffixes: tuple[str, ...] = ()) -> None:
    """ValueError or OSError in one line unless a file can be written there: said before the work, not after it."""
    if value is None:
        return
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


def settle(cfg: dict[str, Any]) -> None:
    """Check the values that no constructor sees; ValueError names the first wrong one."""
    positive(cfg, "num_envs", "num_steps", "iterations", "eval_every", "save_every", "log_every", "episodes")
    positive(cfg["algo"], "update_epochs", "num_minibatches", section="algo.")
    if not 0 <= cfg["seed"] < SEEDS:
        raise ValueError(f"seed={cfg['seed']}: expected 0 ≤ seed < {SEEDS}")
    stop = cfg["stop_at"]
    if stop is not None and (isinstance(stop, bool) or not isinstance(stop, int | float) or not 0 < stop <= 1):
        raise ValueError(f"stop_at={stop!r}: expected a share of successes, such as 0.95")
    for key in ("run_dir", "resume"):
        if cfg[key] is not None and not isinstance(cfg[key], str):
            raise ValueError(f"{key}={cfg[key]!r}: expected a directory")
    for section in ("weights", "noise"):
        for term, value in cfg["task"][section].items():
            if type(value) not in (int, float) or not 0 <= value < math.inf:
                raise ValueError(f"task.{section}.{term}={value!r}: expected a number of at least 0, signs live in the task")
    if cfg["log"]["name"] == "tensorboard" and not find_spec("tensorboard"):
        raise ValueError("log=tensorboard needs tensorboard: pip install 'gpusim_rl[tensorboard]'")


def settled(cfg: dict[str, Any], words: list[str]) -> dict[str, Any]:
    """cfg of train.py, checked; with resume=, the configuration of that run and what of it `words` change."""
    if cfg["resume"] is not None:
        cfg = resumed(cfg, [o.key_or_group for o in parse(words)])
    settle(cfg)
    if cfg["sim"]["name"] == "mjx" and not find_spec("jax"):
        raise ValueError("sim=mjx needs JAX: pip install 'gpusim_rl[mjx]'")
    if cfg["run_dir"] and cfg["resume"] is None:
        path = Path(cfg["run_dir"])
        if path.is_dir() and any(path.iterdir()):
            raise ValueError(f"run_dir={path} is not empty: name another, or continue it with resume={path}")
        probe("run_dir", str(path), next(p for p in (path, *path.parents) if p.exists()))
    return cfg


def resumed(cfg: dict[str, Any], keys: list[str]) -> dict[str, Any]:
    """The configuration of the run cfg["resume"], with cfg's values of `keys`; ValueError if one may not change."""
    from gpusim_rl.run import Run

    fixed = [key for key in keys if key.split(".")[0] not in ("resume", "hydra", *CHANGEABLE)]
    if fixed:
        raise ValueError(f"resume= continues a run as it was: not {', '.join(fixed)}, only {', '.join(CHANGEABLE)} may change")
    before = trained(Run.open(Path(str(cfg["resume"]))))
    for key in keys:
        group, _, rest = key.partition(".")
        if group != "hydra":
            before[group] = before[group] | {rest: cfg[group][rest]} if rest else cfg[group]
    return before


def trained(run: Any) -> dict[str, Any]:
    """The configuration of a run, checked against this version's keys; a key that is newer than the run has its default."""
    found, where = run.config, run.path / "config.yaml"
    task_name(found["task"].get("name"))
    chosen = {
        group: found[group].get("name") for group in ("task", "sim", "log", "robot") if isinstance(found.get(group), dict)
    }
    base = build("config", [f"{group}={name}" for group, name in chosen.items() if name in choices(CONF / group)])
    try:
        cfg = merge(base, found)
        settle(cfg)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    return cfg


def merge(base: dict[str, Any], found: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """base with the values of found; ValueError at a key that base lacks or a value of another kind.

    Reward and noise terms are taken as they are: they must agree with the task, not with its file of today.
    """
    for key, value in found.items():
        if key not in base:
            raise ValueError(f"unknown key {prefix}{key}")
        same_kind(f"{prefix}{key}", base[key], value)
    deep = {key: value for key, value in found.items() if isinstance(base[key], dict) and key not in ("weights", "noise")}
    return base | found | {key: merge(base[key], value, f"{prefix}{key}.") for key, value in deep.items()}
