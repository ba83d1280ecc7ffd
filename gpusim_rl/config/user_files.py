"""YAML files of the working directory. Hydra finds those of a group before ours.

They are data. Each file is checked before Hydra uses it, so that none of them can run code.
"""

from collections.abc import Iterator
from contextvars import ContextVar
from functools import cache
from pathlib import Path

from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import OmegaConf

from gpusim_rl.config.check_words import same_kind
from gpusim_rl.config.nested_dict import flatten
from gpusim_rl.core.files import Plain
from gpusim_rl.core.paths import CONF, user_code, user_folder

GROUPS = ("task", "terrain", "algo", "reward", "robot", "sim", "log", "recipe", "ranges")
GROUPS += ("cluster", "search")
left_out: ContextVar[tuple[str, ...]] = ContextVar("left_out", default=())  # groups of ours alone
TASK_KEYS = ("name", "mjcf", "weights", "noise")  # every task has these
# that have a value of each key of their groups
EXAMPLES = ("algo/ppo", "robot/own", "log/auto", "terrain/rough", "cluster/none", "reward/rnd")
EXAMPLES += ("sim/native", "sim/warp", "search/none")
CODE = ("_target_", "()")  # keys with which Hydra and Python's logging call functions


class UserSource(FileConfigSource):
    """The folder `conf` of the working directory, of which only files of a group are found."""

    @staticmethod
    def scheme() -> str:
        """The beginning of such a folder's name in Hydra's search path."""
        return "working-directory"

    def is_group(self, config_path: str) -> bool:
        """Whether a path names the folder of a group."""
        return config_path in ("", *searched()) and super().is_group(config_path)

    def is_config(self, config_path: str) -> bool:
        group, _, name = config_path.partition("/")
        return group in searched() and "/" not in name and super().is_config(config_path)

    def load_config(self, config_path: str) -> ConfigResult:
        """The content of a file; ValueError in one line if it is refused."""
        file = Path(self.path) / self._normalize_file_name(config_path)
        try:
            result = super().load_config(config_path)
            values = OmegaConf.to_container(result.config, resolve=False)
            check_file(config_path.partition("/")[0], values, result.header.get("package"))
        except ValueError as error:
            raise ValueError(f"{file}: {error}") from None
        return result


class UserConf(SearchPathPlugin):
    """Let Hydra search the `conf` of the working directory first."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Put the user's folder before all others, in place."""
        folder = user_folder("conf") if searched() else None
        if folder:
            search_path.prepend("working directory", f"{UserSource.scheme()}://{folder}")


def searched() -> list[str]:
    """The groups whose files of the working directory are found."""
    return [group for group in GROUPS if group not in left_out.get()]


def our_names(group: str) -> set[str]:
    """The names of a group that have a file of ours."""
    return {file.stem for file in (CONF / group).glob("*.yaml")}


Plugins.instance().register(UserSource)
Plugins.instance().register(UserConf)


def check_file(group: str, values: object, package: str | None) -> None:
    """ValueError if a file of a group could run code, or has a value of the wrong kind.

    package: of its line `# @package`; None if it has no such line.
    """
    if not isinstance(values, dict):
        raise ValueError("expected keys with values")
    if package not in (None, "_global_"):
        raise ValueError(f"@package {package} is not allowed: choose _global_, or leave it out")
    for entry in values.get("defaults") or []:
        if not (isinstance(entry, str) and entry.replace("-", "_").isidentifier()):
            raise ValueError(f"defaults: expected names of files in its folder, not {entry}")
    values = {key: value for key, value in values.items() if key != "defaults"}
    tree = values if package else {group: values}
    flat, kinds_by_key = flatten(tree), kinds()
    check_without_code(values, flat)
    if group != "algo" and "algo.name" in flat:
        raise ValueError("the key algo.name is allowed only in a file of the folder algo")
    builtin = str(flat.get("algo.name", "ppo")) in our_names("algo")
    for key, value in flat.items():
        # what its numbers are, an algorithm of the user's says itself
        other = key.startswith("algo.") and key != "algo.name" and not builtin
        if key in kinds_by_key and not other and "${" not in str(value):
            same_kind(key, kinds_by_key[key], value)


def check_without_code(values: Plain, flat: Plain) -> None:
    """ValueError if a file could run code, or allow it; `flat` is its whole tree."""
    for key in nested_keys(values):
        if key in CODE:
            raise ValueError(f"the key {key} is not allowed: a configuration cannot run code")
    for key in ("hydra", "task_code", "algo_code"):
        if key in flat:
            raise ValueError(f"the key {key} is not allowed in a file of the working directory")


def nested_keys(tree: Plain | list[object]) -> Iterator[object]:
    if isinstance(tree, dict):
        yield from tree
    for value in tree.values() if isinstance(tree, dict) else tree:
        if isinstance(value, dict | list):
            yield from nested_keys(value)


@cache
def kinds() -> Plain:
    """Dotted key → a value of the right kind; keys that only some tasks have are left out.

    So is the kind of a random number, which YAML reads as false where it is off.
    """
    examples: Plain = {group: {} for group in GROUPS}
    examples |= flatten(load(CONF / "common.yaml")) | flatten(load(CONF / "config.yaml"))
    for file in EXAMPLES:
        examples |= flatten(load(CONF / f"{file}.yaml"), f"{file.partition('/')[0]}.")
    task = load(CONF / "task" / "cartpole.yaml")["task"]
    for key in (*TASK_KEYS, "dt", "episode", "clip"):
        examples[f"task.{key}"] = task[key]
    return {key: value for key, value in examples.items() if not key.endswith(".kind")}


def check_complete(base: Plain, files: dict[str, Path]) -> None:
    """ValueError if a file of the working directory lacks a key that ours have.

    `base` is composed from these files, group → the one that was chosen.
    """
    required = {"log": "auto", "robot": "own"}
    if base.get("algo", {}).get("name") in our_names("algo"):
        required["algo"] = base["algo"]["name"]
    for group in sorted(files.keys() & base.keys()):
        if group == "task":
            keys = {f"task.{key}" for key in TASK_KEYS}
        elif group in required:
            keys = set(flatten(load(CONF / group / f"{required[group]}.yaml"), f"{group}."))
        else:
            keys = {f"{group}.name"}
        missing = sorted(keys - flatten(base).keys())
        if missing and group == "algo" and user_code("algo", files[group].stem):
            missing = ["algo.name"]  # without it the file would be of PPO
        if missing:
            raise ValueError(f"{files[group]} lacks the key {missing[0]}")


def load(file: Path) -> Plain:
    """A YAML file, as it is."""
    return OmegaConf.to_container(OmegaConf.load(file))  # type: ignore[return-value]
