"""Checks of the section `gate` of a configuration."""

from typing import Any

from gpusim_rl.core import ranges

PAIRS = ("slope", "friction", "payload")  # ranges: least and greatest
VARIANTS = ("fp16", "int8")


def check_settings(cfg: dict[str, Any]) -> None:
    """ValueError for the first value of the section `gate` that is not allowed."""
    ranges.check(cfg, table=ranges.GATE)
    for key in PAIRS:
        pair = cfg["gate"][key]
        if not isinstance(pair, list) or len(pair) != 2 or pair[0] > pair[1]:
            raise ValueError(f"gate.{key}={pair}: expected [least, greatest]")
    names = cfg["gate"]["reported"]
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"gate.reported={names!r}: expected names of scenarios, as a list")


def check_variants(names: Any) -> None:
    """ValueError unless the variants that are asked for exist, each once; null is well."""
    expected = f"expected a list of {' and '.join(VARIANTS)}"
    if names is None:
        return
    if not isinstance(names, list) or not names or [x for x in names if x not in VARIANTS]:
        raise ValueError(f"variants={names}: {expected}")
    if len({*names}) < len(names):
        raise ValueError(f"variants={names}: {expected}, each once")
