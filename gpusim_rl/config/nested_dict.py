"""Nested dictionaries of values, whose keys are written with dots: `task.weights.action_rate`."""

from gpusim_rl.core.files import Plain


def flatten(tree: Plain, prefix: str = "") -> Plain:
    """{"a": {"b": 1}} → {"a": {…}, "a.b": 1}"""
    flat: Plain = {}
    for key, value in tree.items():
        flat[f"{prefix}{key}"] = value
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{key}.")
    return flat


def leaves(tree: Plain) -> Plain:
    """{"a": {"b": 1}} → {"a.b": 1}"""
    return {key: value for key, value in flatten(tree).items() if not isinstance(value, dict)}


def set_key(tree: Plain, key: str, value: object) -> None:
    """Set the value of a dotted key, in place. What it lies below becomes a tree."""
    *path, last = key.split(".")
    for name in path:
        if not isinstance(tree[name], dict):
            tree[name] = {}
        tree = tree[name]
    tree[last] = value


def is_below(key: str, keys: tuple[str, ...]) -> bool:
    """Whether a dotted key is one of `keys`, or lies below one."""
    return any(key == other or key.startswith(f"{other}.") for other in keys)


def merged(tree: Plain, values: Plain) -> Plain:
    """A tree with other values, and with trees that both have merged in turn."""
    below = {
        key: merged(tree[key], value)
        for key, value in values.items()
        if isinstance(value, dict) and isinstance(tree.get(key), dict)
    }
    return tree | values | below
