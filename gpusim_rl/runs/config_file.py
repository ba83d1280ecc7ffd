"""Reads the config.yaml of a run, which may come from a stranger, as plain data."""

from pathlib import Path
from typing import Any

import yaml

from gpusim_rl.core.files import read_text


class NoAliases(yaml.SafeLoader):
    """YAML without aliases: a short file of aliases to aliases would expand to billions."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases are not supported")
        return super().compose_node(parent, index)


def is_plain(value: Any) -> bool:
    """Whether a value is of strings, numbers, lists and mappings; YAML also has dates and sets."""
    if isinstance(value, dict):
        return all(isinstance(key, str) and is_plain(entry) for key, entry in value.items())
    if isinstance(value, list):
        return all(map(is_plain, value))
    return value is None or isinstance(value, str | int | float)


def read_config(file: Path) -> dict[str, Any]:
    """The composed configuration in a file. No object is made from what the file says.

    Raises:
        ValueError: the file is not the configuration of a run.
    """
    try:
        config = yaml.load(read_text(file), NoAliases)  # a SafeLoader
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"{file} is not YAML: {error}") from None
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None
    task = config.get("task") if isinstance(config, dict) else None
    if not isinstance(task, dict) or not is_plain(config):
        raise ValueError(f"{file} is not the configuration of a run")
    return config
