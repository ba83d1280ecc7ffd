"""A checker for the part of JSON Schema (draft 2020-12) that our schemas use."""

from collections.abc import Iterator
from typing import Any, cast

KNOWN = {
    *("$schema", "$defs", "$ref", "title", "description", "type", "const", "enum", "oneOf"),
    *("properties", "required", "additionalProperties", "items", "minItems", "maxItems"),
    *("minimum", "exclusiveMinimum", "prefixItems", "minProperties", "maxProperties"),
    *("if", "then", "else"),
}
TYPES = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "null": type(None),
    "integer": int,
    "number": (int, float),
}
Rule = dict[str, Any]


def problems(value: Any, schema: Rule, root: Rule, at: str = "") -> list[str]:
    """One line for each rule that a value breaks, with its place."""
    if set(schema) - KNOWN:
        raise NotImplementedError(f"{at}: {set(schema) - KNOWN}")
    if "$ref" in schema:
        return problems(value, root["$defs"][schema["$ref"].rpartition("/")[2]], root, at)
    if "oneOf" in schema:
        each = [problems(value, choice, root, at) for choice in schema["oneOf"]]
        return [] if each.count([]) == 1 else min(each, key=len)
    names = schema.get("type", [])
    kinds: list[str] = [names] if isinstance(names, str) else names
    kind_of_bool = isinstance(value, bool)
    fits = [isinstance(value, TYPES[k]) and (k == "boolean") == kind_of_bool for k in kinds]
    if kinds and not any(fits):
        return [f"{at}={value!r}: expected {' or '.join(kinds)}"]
    wrong = [*wrong_value(value, schema, at)]
    inside: list[tuple[str, Any, Any]] = []
    if isinstance(value, dict):
        entries = cast(Rule, value)
        wrong += wrong_keys(entries, schema, at)
        own, more = schema.get("properties", {}), schema.get("additionalProperties", {})
        inside = [(f".{key}", x, own.get(key, more)) for key, x in entries.items()]
    elif isinstance(value, list):
        first, rest = schema.get("prefixItems", []), schema.get("items", {})
        rules = [*first, *[rest] * len(value)]  # pyright: ignore
        inside = [(f"[{i}]", x, rules[i]) for i, x in enumerate(value)]  # pyright: ignore
    for place, x, rule in inside:
        wrong += [] if rule is False else problems(x, rule, root, f"{at}{place}".lstrip("."))
    if "if" in schema:
        branch = "else" if problems(value, schema["if"], root, at) else "then"
        wrong += problems(value, schema.get(branch, {}), root, at)
    return wrong


def wrong_value(value: Any, schema: Rule, at: str) -> Iterator[str]:
    """The lines of a value by itself: choices, sizes, and the ends of a range."""
    if "const" in schema and value != schema["const"]:
        yield f"{at}={value!r}: expected {schema['const']!r}"
    if value not in schema.get("enum", [value]):
        yield f"{at}={value!r}: choose one of {', '.join(map(str, schema['enum']))}"
    if isinstance(value, list | dict):
        count = len(value)  # pyright: ignore
        what = "Items" if isinstance(value, list) else "Properties"
        low, high = schema.get(f"min{what}", 0), schema.get(f"max{what}", count)
        if not low <= count <= high:
            yield f"{at}: {count} entries, expected {low if low == high else f'{low} to {high}'}"
    if isinstance(value, int | float):
        low, below = schema.get("minimum"), schema.get("exclusiveMinimum")
        if low is not None and not value >= low:
            yield f"{at}={value}: expected at least {low}"
        if below is not None and not value > below:
            yield f"{at}={value}: expected more than {below}"


def wrong_keys(value: Rule, schema: Rule, at: str) -> Iterator[str]:
    """The lines of keys of a map that are missing or unknown."""
    for key in schema.get("required", []):
        if key not in value:
            yield f"{at}.{key} is missing".lstrip(".")
    own = schema.get("properties", {})
    for key in value if schema.get("additionalProperties", {}) is False else ():
        if key not in own:
            yield f"unknown key {f'{at}.{key}'.lstrip('.')!r}: choose one of {', '.join(own)}"
