"""Sections of the configuration: dataclasses whose fields say what they may hold.

    @dataclass(frozen=True, kw_only=True)
    class Wheel:
        radius: float = number(POSITIVE)  # [m]
        kind: str = word("plain", "mecanum")

    wheel = make(Wheel, {"radius": 0.1, "kind": "plain"}, "wheel", "robot/own")

The checks and the table of `--help numbers` are made from these fields.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, field, fields
from inspect import signature
from typing import Any, cast

from gpusim_rl.core import ranges
from gpusim_rl.core.files import Plain
from gpusim_rl.core.ranges import Range


def number(allowed: Range, default: Any = MISSING) -> Any:
    """A field that holds a number of a range, or a list of them where the range allows one."""
    return field(default=default, metadata={"range": allowed})


def word(*choices: str) -> Any:
    """A field that holds one of some words."""
    return field(metadata={"choices": choices})


def limits(kind: Any, section: str) -> dict[str, Range]:
    """Dotted key → what it may hold, of the fields of a dataclass that are numbers."""
    start = f"{section}." if section else ""
    return {f"{start}{x.name}": x.metadata["range"] for x in fields(kind) if "range" in x.metadata}


def check(section: Any, name: str) -> None:
    """ValueError for the first field of a section that holds what it may not.

    Numbers that are live tensors were checked before they became such.
    """
    entries = vars(cast(object, section)).items()
    values = {key: x for key, x in entries if not hasattr(x, "device")}
    ranges.check(values, name, limits(section, name))
    for entry in fields(section):
        words, value = entry.metadata.get("choices"), values.get(entry.name)
        if words and value not in words:
            key = f"{name}.{entry.name}" if name else entry.name
            raise ValueError(f"{key}={value}: choose one of {', '.join(words)}")


def require(values: Mapping[str, object], keys: Iterable[str], section: str, file: str) -> None:
    """ValueError that names the first of the keys that conf/<file>.yaml lacks in a section."""
    missing = [key for key in keys if key not in values]
    if missing:
        name = f"{section}.{missing[0]}" if section else missing[0]
        raise ValueError(f"{name} is missing in conf/{file}.yaml")


def arguments(kind: Callable[..., Any], values: Plain, section: str, file: str) -> Plain:
    """The values, if they are the keyword arguments that a constructor takes.

    ValueError names the first one that conf/<file>.yaml lacks, or that is unknown.
    """
    takes = [p for p in signature(kind).parameters.values() if p.kind is p.KEYWORD_ONLY]
    require(values, [p.name for p in takes if p.default is p.empty], section, file)
    unknown = [key for key in values if key not in [p.name for p in takes]]
    if unknown:
        names = ", ".join(p.name for p in takes)
        key = f"{section}.{unknown[0]}"
        raise ValueError(f"unknown key {key!r} in conf/{file}.yaml: choose one of {names}")
    return values


def make(kind: Callable[..., Any], values: Plain, section: str, file: str) -> Any:
    """What a constructor makes of the values of conf/<file>.yaml; errors as `arguments`."""
    return kind(**arguments(kind, values, section, file))
