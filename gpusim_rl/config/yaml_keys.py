"""Keys of a YAML file with their values and comments, as the file has them."""

import re
from typing import NamedTuple

import yaml


class Key(NamedTuple):
    """A key of a YAML file."""

    name: str  # dotted
    value: str  # as the file has it
    comment: str


def keys(text: str) -> list[Key]:
    """The keys of a YAML file, without Hydra's own, in order.

    A comment stands at the end of the key's line or on the lines above it. A key without one has
    that of the mapping it belongs to. A mapping in braces is one value.
    """
    return walk(yaml.compose(text), "", "", text.splitlines())


def walk(node: yaml.MappingNode, prefix: str, inherited: str, lines: list[str]) -> list[Key]:
    """The keys of a mapping and of the mappings below it."""
    result = []
    for key, value in node.value:
        name = f"{prefix}{key.value}"
        if name in ("defaults", "hydra"):
            continue
        if isinstance(value, yaml.MappingNode) and not value.flow_style:
            said = trailing(key.start_mark.line, key.end_mark.column, lines)
            result += walk(value, f"{name}.", said, lines)
        else:
            said = comment(key, value, lines) or inherited
            result.append(Key(name, source(value), said))
    return result


def source(node: yaml.Node) -> str:
    """A value as it stands in the file, on one line."""
    if isinstance(node, yaml.SequenceNode) and not node.flow_style:
        return f"[{', '.join(map(source, node.value))}]"
    start, end = node.start_mark, node.end_mark
    text = str(start.buffer)[start.pointer : end.pointer]
    return " ".join(filter(None, (re.sub(r"\s#.*", "", x).strip() for x in text.split("\n"))))


def comment(key: yaml.Node, value: yaml.Node, lines: list[str]) -> str:
    """The comment of a key: on the lines above, then at the end of its line and of its value."""
    said, above = [], key.start_mark.line - 1
    while above >= 0 and lines[above].lstrip().startswith("#"):
        said.insert(0, lines[above].strip().lstrip("# "))
        above -= 1
    if above < 0:
        said = []  # the comment at the top is the file's
    ends = {key.start_mark.line: key.end_mark.column}
    if isinstance(value, yaml.ScalarNode) or value.flow_style:
        ends[value.end_mark.line] = value.end_mark.column
    said += [trailing(line, column, lines) for line, column in ends.items()]
    return " ".join(part for part in said if part)


def trailing(line: int, column: int, lines: list[str]) -> str:
    """The comment at the end of a line, behind a column."""
    match = re.search(r"\s#\s?(.*)$", lines[line][column:]) if line < len(lines) else None
    return match[1] if match else ""
