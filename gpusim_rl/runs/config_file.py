"""Reads the config.yaml of a run, which may come from a stranger, as plain data."""

from pathlib import Path
from typing import Any

import yaml

from gpusim_rl.core.files import Plain, read_text

# What PyYAML raises for a value that is not of the kind that its tag says.
MISTAKES = (LookupError, ArithmeticError, AttributeError, TypeError)


class Loader(yaml.SafeLoader):
    """YAML without what a short file could expand for minutes, or to billions of values.

    That is aliases to aliases, and numbers to the base of 60, such as 1:1:1:1.
    """

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases are not supported")
        return super().compose_node(parent, index)

    def construct_scalar(self, node: Any) -> Any:
        value = super().construct_scalar(node)
        if node.tag.endswith((":int", ":float")) and ":" in value:
            raise yaml.YAMLError("numbers with a colon are not supported")
        return value


class Untagged(Loader):
    """The same, where a value with a tag, of which others make an object, is null."""


Untagged.add_multi_constructor("", lambda loader, suffix, node: None)


def is_plain(value: object) -> bool:
    """Whether a value is of strings, numbers, lists and mappings; YAML also has dates and sets."""
    if isinstance(value, dict):
        return all(isinstance(key, str) and is_plain(entry) for key, entry in value.items())
    if isinstance(value, list):
        return all(map(is_plain, value))
    return value is None or isinstance(value, str | int | float)


def read_plain(file: Path, loader: type[Loader] = Loader) -> Any:
    """What a YAML file says. No object is made from it. ValueError if it is not YAML."""
    try:
        return yaml.load(read_text(file), loader)  # a SafeLoader
    except (yaml.YAMLError, RecursionError, *MISTAKES) as error:
        raise ValueError(f"{file} is not YAML: {' '.join(str(error).split())}") from None
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None


def read_config(file: Path) -> Plain:
    """The composed configuration in a file; ValueError if it is not that of a run."""
    config = read_plain(file)
    task = config.get("task") if isinstance(config, dict) else None
    if not isinstance(task, dict) or not is_plain(config):
        raise ValueError(f"{file} is not the configuration of a run")
    return config
