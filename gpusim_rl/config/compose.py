"""Compose a configuration with Hydra, as plain data; a mistake in a word is one clear line.

Files of a group in the folder `conf` of the working directory are found before ours.
"""

import copy
import json
import os
from collections import ChainMap
from contextlib import suppress
from difflib import get_close_matches
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from gpusim_rl.config import check_words, user_files
from gpusim_rl.config.device_overrides import KEYS, without
from gpusim_rl.config.nested_dict import flatten, is_below, leaves, merged
from gpusim_rl.config.recipe import apply_ranges, apply_recipe, apply_section
from gpusim_rl.core.files import Plain
from gpusim_rl.core.paths import CODE, CONF, user_code, user_folder

ALGO = "ppo"  # what a file without algo.name means
# What gate.quick=true makes of the gate: robots of a scenario, and minutes of the endurance
QUICK = {"gate": {"robots": 16, "endurance": {"minutes": 1.0}}}
# What an algorithm of ours takes of a task's numbers for PPO, instead of the discount
FROM_TASK = {"distill": ("hidden", "activation")}  # so that PPO may begin with the student


def words_of(keys: Plain) -> list[str]:
    """Keys with Python values, such as {"seed": 3, "task.history": {"gyro": 3}}, as overrides."""

    def plain(value: Any) -> Any:  # a number of NumPy's is Python's, anything else a word
        return value.item() if hasattr(value, "item") else str(value)

    # JSON's quoted words, lists, true and null are Hydra's too
    return [
        f"{key}={json.dumps(value, default=plain, ensure_ascii=False)}"
        for key, value in leaves(keys).items()
    ]


def parse(overrides: list[str]) -> list[Override]:
    """The overrides of a command line; ValueError at a word that is none."""
    parsed = []
    for word in overrides:
        if "=" not in word and not word.startswith("~"):
            meant = f"onnx={word}" if word.endswith(".onnx") else ""
            meant = meant or "".join(get_close_matches(word, ["demo"]))
            hint = f": did you mean {meant}?" if meant else ""
            raise ValueError(f"{word!r} is not KEY=VALUE{hint}")
        try:
            parsed += OverridesParser.create().parse_overrides([word])
        except (HydraException, ValueError, RecursionError) as error:
            says = str(error).splitlines()[0]
            if "NoViableAlt" in says:
                says = "such characters stand in quotes, KEY=\"'VALUE'\""
            raise ValueError(f"{word!r}: {says}") from None
    return parsed


# Why: docs/decisions/configuration.md
def compose_plain(name: str, overrides: list[str]) -> Plain:
    """conf/<name>.yaml with the overrides of a command line.

    ValueError in one line if the overrides do not fit.
    """
    parsed = parse(overrides)
    try:
        for override in parsed:
            if override.is_sweep_override():
                list_of = f"{override.input_line!r} is a list of values"
                raise ValueError(f"{list_of}: add -m to run each")
            group, value = override.key_or_group, str(override.value())
            if is_group(group) and value not in (names := choices(group)):
                if group in CODE and (code := user_code(group, value)):
                    raise ValueError(
                        f"{group}={value}: beside {code} conf/{group}/{value}.yaml is missing"
                    )
                raise ValueError(f"unknown {group} {value!r}: choose one of {', '.join(names)}")
        groups = group_words(parsed)
        base = build_base(name, groups)
        user_files.check_complete(base, user_choices(name, groups))
        for override in parsed:
            check_key(override, base)
        cfg = build(name, [*choices_of_run(parsed), *overrides])
    except (HydraException, OmegaConfBaseException) as error:
        says = str(error).splitlines()[0]
        word = says.removeprefix("Error merging override ").removeprefix("++")
        says = says if word == says else f"{word}: expected another kind of value"
        raise ValueError(says) from None
    except YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from None
    except RecursionError:
        raise ValueError("these values are nested too deeply") from None
    without_ranges = tuple(word for word in groups if not word.startswith("ranges="))
    # where ranges= has a list, the command line may have a number
    before, after = flatten(base) | flatten(build_base(name, without_ranges)), flatten(cfg)
    for key in [o.key_or_group for o in parsed if not is_group(o.key_or_group)]:
        if key in after:  # a later word may have replaced what it lies below
            check_words.same_kind(key, before.get(key), after[key])
    return cfg


def group_words(overrides: list[Override]) -> tuple[str, ...]:
    """The words that choose a file of a group, first those of the run that resume= continues."""
    chosen = [str(x.input_line) for x in overrides if is_group(x.key_or_group)]
    return (*choices_of_run(overrides), *chosen)


def choices_of_run(overrides: list[Override]) -> list[str]:
    """Words that choose the groups of the run that resume= continues.

    Of a group without a word, that is: its keys are then those of the run, not of our default.
    ValueError or OSError in one line if there is no such run.
    """
    words = {x.key_or_group: str(x.value()) for x in overrides if not x.is_sweep_override()}
    groups = {key.partition(".")[0] for key in words if "." in key} - words.keys()
    groups &= {"task", "algo", "reward"}
    if words.get("resume", "None") == "None" or not groups:
        return []
    from gpusim_rl.runs.run import Run  # not for every command

    saved = flatten(Run.open(Path(words["resume"])).config)
    names = {group: saved.get(f"{group}.name") for group in sorted(groups)}
    return [f"{x}={name}" for x, name in names.items() if name in choices(x)]


def check_key(override: Override, base: Plain) -> None:
    """ValueError if an override is of another form than KEY=VALUE, or of a key that base lacks."""
    if override.is_add() or override.is_force_add() or override.is_delete():
        raise ValueError(f"{override.input_line!r}: only KEY=VALUE is understood")
    group, _, rest = override.key_or_group.partition(".")
    if rest == "name" and is_group(group):
        raise ValueError(
            f"{override.input_line}: choose with {group}=, one of {', '.join(choices(group))}"
        )
    if not is_group(override.key_or_group):
        check_words.check_known(override, base)


def user_choices(name: str, groups: tuple[str, ...]) -> dict[str, Path]:
    """Group → the file of the working directory that is chosen, for groups where one is."""
    if not (folder := user_folder("conf")):
        return {}
    defaults = user_files.load(CONF / f"{name}.yaml")["defaults"]
    chosen = dict(ChainMap(*(entry for entry in defaults if isinstance(entry, dict))))
    chosen |= {word.partition("=")[0]: word.partition("=")[2].strip("'\"") for word in groups}
    files = {group: folder / group / f"{choice}.yaml" for group, choice in chosen.items()}
    return {group: file for group, file in files.items() if file.is_file()}


def build(
    name: str, overrides: list[str], builtin: bool = False, but: tuple[str, ...] = ()
) -> Plain:
    """Compose to plain data, inside `hydra.main` too.

    `builtin` leaves out the files of the working directory, except those of the groups `but`.
    The section `algo` of a task's file is for PPO: another algorithm has its own numbers. The file
    of one of the user's may begin with those of one of ours: below its own, it takes the task's.
    """
    outer = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    hidden = tuple(group for group in user_files.GROUPS if builtin and group not in but)
    token = user_files.left_out.set(hidden)
    try:
        with initialize_config_dir(config_dir=str(CONF), version_base="1.3"):
            overrides = [opened(word) for word in overrides]
            plans = [word for word in overrides if word.startswith("curriculum={")]
            plan = compose_words(name, ["curriculum=null", *plans]) if plans else {}
            overrides = [word for word in overrides if word not in plans]
            cfg = compose_words(name, overrides)
            keys = [word.partition("=")[0].lstrip("+") for word in overrides]
            if "algo" not in cfg:
                quick = flatten(cfg).get("gate.quick") is True
                return merged(cfg, without(QUICK, tuple(keys))) if quick else cfg
            check_names(cfg, overrides)
            cfg["algo"] = {"name": ALGO} | cfg["algo"]
            keys = [key for key in keys if not is_group(key)]
            algo = cfg["algo"]["name"]
            if algo != ALGO:
                of_algo = [x for x in overrides if is_below(x.lstrip("+").split("=")[0], ("algo",))]
                own = compose_words(name, [*of_algo, "~task"])["algo"]
                cfg = for_algorithm(cfg, own, keys, *own_numbers(overrides))
            cfg = apply_ranges(apply_recipe(cfg, keys), keys)
            if plans:  # it joins that of the task and of the recipe
                cfg["curriculum"] = (cfg["curriculum"] or {}) | (plan["curriculum"] or {})
            return {key: x for key, x in cfg.items() if key not in user_files.our_names("algo")}
    finally:
        user_files.left_out.reset(token)
        GlobalHydra.instance().hydra = outer


def check_names(cfg: Plain, words: list[str]) -> None:
    """ValueError if the file that a word chose has no section with the name of its group."""
    chosen = dict(word.split("=", 1) for word in words if "=" in word)
    for group in ("task", "ranges"):
        if "name" not in (cfg.get(group) or {}):
            raise ValueError(f"conf/{group}/{chosen.get(group)}.yaml lacks the key {group}.name")


def own_numbers(words: list[str]) -> tuple[str, tuple[str, ...]]:
    """The algorithm of ours with whose numbers a user's file begins, by its `defaults`, or none;
    and the keys that no task changes: those of the file beside them, else all."""
    names = [ALGO, *(x[5:].strip("'\"") for x in words if x.startswith("algo="))]
    file = (user_folder("conf") or CONF) / "algo" / f"{names[-1]}.yaml"
    values = user_files.load(file) if file.is_file() else {}
    for base in values.get("defaults", []):
        if base in user_files.our_names("algo"):
            return base, tuple(f"algo.{key}" for key in values.get("algo", values))
    return "", ("algo",)


def for_algorithm(
    cfg: Plain, own: Plain, keys: list[str], base: str, kept: tuple[str, ...]
) -> Plain:
    """A composed configuration for another algorithm than PPO, whose numbers a task's file has.

    An algorithm of ours takes the discount of the task, or the numbers of `FROM_TASK`, and those of
    the section that has its name. That section may have what `gpu` may; ValueError if it has more.
    So does one of the user's whose file begins with its numbers, but for those that it has itself.
    Of PPO's numbers no schedule is left.

    own: the section `algo`, with the algorithm's numbers alone; keys: those of the command line,
    which stay as they are; base, kept: as `own_numbers` has them.
    """
    if not base and own["name"] in user_files.our_names("algo"):
        base, kept = own["name"], ()
    ours = base not in ("", ALGO)
    takes = [x for x in (FROM_TASK.get(base, ("gamma",)) if ours else own) if x in own]
    takes = [x for x in takes if not is_below(f"algo.{x}", kept)]
    cfg["algo"] = own | {x: cfg["algo"][x] for x in takes}
    scheduled = kept if base == ALGO else ("algo",)  # numbers of PPO that schedules change
    if isinstance(cfg["curriculum"], dict):
        cfg["curriculum"] = without(cfg["curriculum"], scheduled) or None
    lost = (*KEYS, "gpu") if ours else (*kept, *(f"curriculum.{key}" for key in scheduled))
    for tree, name in ((cfg, "gpu"), *((cfg["recipe"], name) for name in cfg["recipe"])):
        if isinstance(tree[name], dict):  # what it is else is said later
            tree[name] = without(tree[name], lost)
    if not ours:
        return cfg
    if not isinstance(section := cfg.get(base) or {}, dict):
        raise ValueError(f"{base}={section!r}: expected keys with values")
    keys = [*keys, *kept, *(f"gpu.{key}" for key in kept)]
    return apply_section(cfg, base, section, (*KEYS, "gpu"), keys)


def opened(word: str) -> str:
    """A word as Hydra takes it, also where it adds a key to a section of `check_words.OPEN`."""
    return f"++{word}" if is_below(word.partition("=")[0], check_words.OPEN) else word


def compose_words(name: str, words: list[str]) -> Plain:
    """What Hydra's `compose` gives of words that `compose_plain` takes, as dictionaries and lists.

    It takes 0.15 s. So it is done once for the same files, and words with values are then applied
    to a copy, as Hydra applies them.
    """
    groups, values = [], []
    for override in OverridesParser.create().parse_overrides(words):
        (groups if is_group(override.key_or_group) else values).append(override)
    groups.sort(key=lambda override: override.key_or_group)  # their order changes nothing
    chosen = tuple(str(override.input_line) for override in groups)
    cfg = copy.deepcopy(compose_files(name, chosen, tuple(user_files.searched()), files_now()))
    ConfigLoaderImpl._apply_overrides_to_config(values, cfg)
    return OmegaConf.to_container(cfg, resolve=True)  # type: ignore[return-value]


@lru_cache(maxsize=64)
def compose_files(name: str, groups: tuple[str, ...], *_files: object) -> DictConfig:
    """The files of a configuration, as Hydra composes them. Not to be changed.

    _files: by which an earlier result is known to hold still.
    """
    return compose(name, overrides=[*groups])


def files_now() -> tuple[tuple[str, int, int], ...]:
    """Path, time of change [ns] and size of each YAML file that may be read."""
    files = []
    for folder in filter(None, (CONF, user_folder("conf"))):
        for place in (folder, *(folder / group for group in user_files.GROUPS)):
            for entry in os.scandir(place) if place.is_dir() else ():
                if entry.name.endswith(".yaml"):
                    with suppress(OSError):  # it has gone, or is a link to nowhere
                        status = entry.stat()
                        files.append((entry.path, status.st_mtime_ns, status.st_size))
    return tuple(sorted(files))


def build_base(name: str, groups: tuple[str, ...]) -> Plain:
    """`build` with choices of groups alone, kept: the lines of a multirun share it. Not to be
    changed."""
    return build_cached(name, groups, user_folder("conf"))


@cache
def build_cached(name: str, groups: tuple[str, ...], _user: Path | None) -> Plain:
    return build(name, list(groups))


def is_group(key: str) -> bool:
    """Whether a key chooses a file of a group, as task=quadruped does."""
    return key in user_files.GROUPS


def choices(group: str, builtin: bool = False) -> list[str]:
    """The names that a group may be given; `builtin` leaves out those of the working directory."""
    user = None if builtin else user_folder("conf")
    users = {file.stem for file in user.glob(f"{group}/*.yaml")} if user else set()
    return sorted(users | user_files.our_names(group))


def named(overrides: list[str]) -> dict[str, str]:
    """The task and the algorithm that the overrides of a command line name, by their groups."""
    return {o.key_or_group: str(o.value()) for o in parse(overrides) if o.key_or_group in CODE}
