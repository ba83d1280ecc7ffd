"""Hydra's composition as plain data: overrides, groups, and one clear line for each mistake of a key or a kind."""

import difflib
import sys
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from gpusim_rl.variety import SMALLEST

CONF = Path(__file__).resolve().parent.parent / "conf"
LARGEST = 3.4e38  # of float32


def fail(message: str, code: int = 2) -> NoReturn:
    """Say what is wrong in one line on stderr and exit: with 2 for a mistake of the user's."""
    line = " ".join(message.split())
    print(f"error: {line if len(line) < 1000 else f'{line[:500]} … {line[-400:]}'}", file=sys.stderr)
    raise SystemExit(code)


@contextmanager
def one_line(code: int = 2):
    """Turn what a user can get wrong (ValueError, OSError) into one line. For building, not for running."""
    try:
        yield
    except (ValueError, OSError) as error:
        fail(str(error), code)


def parse(words: list[str]) -> list[Override]:
    """The overrides; ValueError at what is none."""
    found = []
    for word in words:
        if "=" not in word and not word.startswith("~"):
            raise ValueError(f"{word!r} is not KEY=VALUE")
        try:
            found += OverridesParser.create().parse_overrides([word])
        except (HydraException, ValueError, RecursionError) as error:
            says = str(error).splitlines()[0]
            if "NoViableAlt" in says:
                says = "such characters stand in quotes, KEY=\"'VALUE'\""
            raise ValueError(f"{word!r}: {says}") from None
    return found


def compose_plain(name: str, words: list[str], sweep: bool = False) -> dict[str, Any]:
    """conf/<name>.yaml with overrides, as plain data; ValueError in one line if they do not fit."""
    parsed = parse(words)
    try:
        if any(o.is_sweep_override() for o in parsed) and not sweep:
            swept = next(o.input_line for o in parsed if o.is_sweep_override())
            raise ValueError(f"{swept!r} is a list of values: add -m to run each")
        groups = [o for o in parsed if is_group(o)]
        for override in groups:
            check_choice(override)
        base = build_base(name, tuple(first(o) for o in groups))
        for override in parsed:
            check_key(override, base)
        cfg = build(name, [first(o) for o in parsed])
    except (HydraException, OmegaConfBaseException) as error:
        raise ValueError(str(error).splitlines()[0]) from None
    except RecursionError:
        raise ValueError("these values are nested too deeply") from None
    before, after = flatten(base), flatten(cfg)
    for key in [o.key_or_group for o in parsed if not is_group(o)]:
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


@cache
def build_base(name: str, groups: tuple[str, ...]) -> dict[str, Any]:
    """`build`, kept: the lines of a multirun share it. Not to be changed."""
    return build(name, list(groups))


def first(override: Override) -> str:
    """The override with one value: a sweep's first."""
    if override.is_sweep_override():
        value = next(iter(override.sweep_string_iterator()))
        return f"{override.get_key_element()}={value}"
    return override.input_line or ""


def is_group(override: Override) -> bool:
    """Whether it chooses a file of a group, such as task=quadruped."""
    return override.key_or_group in [path.name for path in CONF.iterdir() if path.is_dir()]


def choices(folder: Path) -> list[str]:
    """Names of a group's files."""
    return sorted(path.stem for path in folder.glob("*.yaml"))


def check_choice(override: Override) -> None:
    """ValueError if a group has no such file."""
    group = override.key_or_group
    known = choices(CONF / group)
    for value in override.sweep_string_iterator() if override.is_sweep_override() else [str(override.value())]:
        if value not in known:
            raise ValueError(f"unknown {group} {value!r}: choose one of {', '.join(known)}")


def check_key(override: Override, base: dict[str, Any]) -> None:
    """ValueError if the key of an override does not exist."""
    key = override.key_or_group
    if override.is_add() or override.is_force_add() or override.is_delete():
        raise ValueError(f"{override.input_line!r}: only KEY=VALUE is understood")
    if is_group(override):
        return
    group, _, rest = key.partition(".")
    if rest == "name" and (CONF / group).is_dir():
        raise ValueError(f"{override.input_line}: choose with {group}=, one of {', '.join(choices(CONF / group))}")
    flat = flatten(base)
    if key == "curriculum" and flat.get(key) and isinstance(override.value(), dict):
        raise ValueError("curriculum: the task's file has one: change it there, or say curriculum=null for none")
    if key not in flat:
        near = difflib.get_close_matches(key, flat, n=3, cutoff=0.5)
        section = [k for k in flat if k.rpartition(".")[0] == key.rpartition(".")[0]] or base
        says = "did you mean " + " or ".join(near) if near else "choose one of " + ", ".join(section)
        raise ValueError(f"unknown key {key!r}: {says}?")


def same_kind(key: str, old: Any, new: Any) -> None:
    """ValueError if a value is of another kind than the one it replaces (a null may become anything)."""
    if key == "curriculum":
        return  # `curriculum.check` looks at it, whole
    wanted = {int: "a whole number", float: "a number", str: "a word", list: "a list", bool: "true or false"}
    if isinstance(new, float) and not abs(new) <= LARGEST:
        raise ValueError(f"{key}={new}: expected a finite number{'' if old is None else f', such as {old}'}")
    if isinstance(new, float) and 0 < abs(new) < SMALLEST:
        raise ValueError(f"{key}={new}: expected 0 or a number of at least {SMALLEST}")
    if isinstance(new, int) and not abs(new) < 2**63:
        raise ValueError(f"{key}={new}: expected a number below 2**63")
    if old is None or (isinstance(old, float) and type(new) is int):
        return
    if type(old) is not type(new):
        raise ValueError(f"{key}={new!r}: expected {wanted.get(type(old), 'keys with values')}, such as {old!r}")
    if isinstance(old, list) and isinstance(new, list) and old:
        if key.startswith("task.") and not key.endswith(".only") and len(new) != len(old):
            raise ValueError(f"{key}={new}: expected {len(old)} numbers, such as {old}")
        for entry in new:
            same_kind(key, old[0], entry)


def flatten(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"a": {"b": 1}} → {"a": {…}, "a.b": 1}"""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat[f"{prefix}{key}"] = value
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{key}.")
    return flat


def merge(base: dict[str, Any], found: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """base with the values of found; ValueError at a key that base lacks or a value of another kind.

    Reward and noise terms and a curriculum are taken as they are: they must agree with the task, not with its file of today.
    """
    for key, value in found.items():
        if key not in base:
            raise ValueError(f"unknown key {prefix}{key}")
        same_kind(f"{prefix}{key}", base[key], value)
    deep = {
        key: value
        for key, value in found.items()
        if isinstance(base[key], dict) and key not in ("weights", "noise", "curriculum")
    }
    return base | found | {key: merge(base[key], value, f"{prefix}{key}.") for key, value in deep.items()}


def put(tree: dict[str, Any], key: str, value: Any) -> None:
    """Set the entry of a dotted key. In place."""
    *path, last = key.split(".")
    for name in path:
        tree = tree[name]
    tree[last] = value


def within(key: str, keys: tuple[str, ...]) -> bool:
    """Whether a dotted key is one of keys, or lies below one."""
    return any(key == other or key.startswith(f"{other}.") for other in keys)
