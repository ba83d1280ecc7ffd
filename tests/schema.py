"""A checker for the part of JSON Schema (draft 2020-12) that docs/policy.schema.json uses."""

from typing import Any

KNOWN = {
    *("$schema", "$defs", "$ref", "title", "description", "type", "const", "enum", "oneOf"),
    *("properties", "required", "additionalProperties", "items", "minItems", "maxItems"),
    *("minimum", "exclusiveMinimum", "prefixItems"),
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


def problems(value: Any, schema: dict[str, Any], root: dict[str, Any], at: str = "") -> list[str]:
    """One line for each rule that a value breaks, with its place."""
    if set(schema) - KNOWN:
        raise NotImplementedError(f"{at}: {set(schema) - KNOWN}")
    if "$ref" in schema:
        return problems(value, root["$defs"][schema["$ref"].rpartition("/")[2]], root, at)
    if "oneOf" in schema:
        each = [problems(value, choice, root, at) for choice in schema["oneOf"]]
        return [] if each.count([]) == 1 else min(each, key=len)
    names = schema.get("type", [])
    kinds = [names] if isinstance(names, str) else names
    fits = [isinstance(value, TYPES[k]) and (k == "boolean" or value is not True) for k in kinds]
    wrong = [f"{at}: {value!r} is no {kinds}"] if kinds and not any(fits) else []
    if ("const" in schema and value != schema["const"]) or value not in schema.get("enum", [value]):
        wrong.append(f"{at}: {value!r}")
    if isinstance(value, dict):
        own, more = schema.get("properties", {}), schema.get("additionalProperties", {})
        wrong += [f"{at} lacks {key}" for key in schema.get("required", []) if key not in value]
        for key, x in value.items():
            rule = own.get(key, more)
            wrong += (
                problems(x, rule, root, f"{at}/{key}") if rule is not False else [f"{at}/{key}"]
            )
    if isinstance(value, list):
        if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)):
            wrong.append(f"{at}: {len(value)} items")
        first, rest = schema.get("prefixItems", []), schema.get("items", {})
        for i, x in enumerate(value):
            wrong += problems(x, first[i] if i < len(first) else rest, root, f"{at}/{i}")
    if isinstance(value, int | float):
        low, below = schema.get("minimum", value), schema.get("exclusiveMinimum", value - 1)
        wrong += [] if value >= low and value > below else [f"{at}: {value} is too small"]
    return wrong
