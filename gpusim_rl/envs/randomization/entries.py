"""The entries of `task.randomise`: what they are, and their checks without a model."""

import copy
from typing import Any

from gpusim_rl.envs.randomization.fields import FIELDS, field

KINDS = ("off", "uniform", "log_uniform", "normal")
SMALLEST_FLOAT32 = 1e-18  # of a float32 that can be squared and inverted
NUMBERS = ("low", "high", "every")  # of an entry, that a curriculum may change
Entry = dict[str, Any]


def whole_entries(randomise: Entry) -> dict[str, Entry]:
    """The entries of `task.randomise` by name, in the order of the table, also those that are off.

    The entries of `bias` are named `bias.<reading>`. ValueError if an entry lacks a key, or has one
    that its field does not have.
    """
    entries = {name: entry for name, entry in randomise.items() if name != "bias"}
    entries |= {
        f"bias.{reading}": entry for reading, entry in (randomise.get("bias") or {}).items()
    }
    whole = {}
    for name, entry in entries.items():
        keys = field(name).keys
        strange = [key for key in entry if key not in keys] if isinstance(entry, dict) else [entry]
        if strange:
            message = f"unknown key {strange[0]!r}, choose one of {', '.join(keys)}"
            raise ValueError(f"task.randomise.{name}: {message}")
        missing = [key for key in keys if key not in entry]
        if missing:
            raise ValueError(f"task.randomise.{name}.{missing[0]} is missing")
        whole[name] = dict(entry)
        if whole[name]["kind"] is False:  # YAML's off
            whole[name]["kind"] = "off"
    return {name: whole[name] for name in dict.fromkeys((*FIELDS, *whole)) if name in whole}


def active_entries(randomise: Entry) -> dict[str, Entry]:
    """The entries that are on, in the order of the table; ValueError as of `check_entries`."""
    check_entries(randomise)
    return {
        name: entry for name, entry in whole_entries(randomise).items() if entry["kind"] != "off"
    }


def check_entries(randomise: Entry) -> None:
    """ValueError for the first entry that makes no sense, whatever the model."""
    for name, entry in whole_entries(randomise).items():
        check_range(name, entry)
        check_choice(name, entry)
        check_times(name, entry)


def check_range(name: str, entry: Entry) -> None:
    """ValueError unless an entry draws numbers that may do what `how` says."""
    key, properties = f"task.randomise.{name}", field(name)
    if entry["kind"] not in KINDS:
        raise ValueError(f"{key}.kind={entry['kind']}: choose one of {', '.join(KINDS)}")
    low, high = (check_number(f"{key}.{end}", entry[end]) for end in ("low", "high"))
    if low > high:
        raise ValueError(f"{key}: low={low} is above high={high}")
    if entry["kind"] == "log_uniform" and low <= 0:
        raise ValueError(f"{key}.low={low}: a log_uniform draw needs more than 0")
    how = entry.get("how", properties.hows[0])
    if how not in properties.hows:
        raise ValueError(f"{key}.how={how}: choose one of {', '.join(properties.hows)}")
    if how != "add" and (low < 0 or (properties.positive and low == 0)):
        least = "more than 0" if properties.positive else "at least 0"
        raise ValueError(f"{key}.low={low}: expected {least}")


def check_choice(name: str, entry: Entry) -> None:
    """ValueError unless `each` is a bool, and `only` is null or a list of names."""
    key = f"task.randomise.{name}"
    if field(name).each_or_all and type(entry["each"]) is not bool:
        raise ValueError(f"{key}.each={entry['each']}: expected true or false")
    only = entry.get("only")
    if only is None or (isinstance(only, list) and only and all(isinstance(x, str) for x in only)):
        return
    raise ValueError(f"{key}.only={only}: expected a list of names, such as [NAME], or null")


def check_times(name: str, entry: Entry) -> None:
    """ValueError unless the times of a push are more than 0, and in order."""
    key = f"task.randomise.{name}"
    if "every" in entry and check_number(f"{key}.every", entry["every"]) <= 0:
        raise ValueError(f"{key}.every={entry['every']}: expected more than 0 s")
    hold = entry.get("hold", [0.1, 0.1])
    if len(hold) == 2:
        shortest = check_number(f"{key}.hold", hold[0])
        if 0 < shortest <= check_number(f"{key}.hold", hold[1]):
            return
    raise ValueError(
        f"{key}.hold={hold}: expected the shortest and the longest [s], such as [0.1, 0.5]"
    )


def check_number(key: str, value: Any) -> float:
    """The value as a float; ValueError unless it is a finite number, and 0 or not too small."""
    if type(value) not in (int, float) or not abs(value) < 1e30:
        raise ValueError(f"{key}={value!r}: expected a number")
    if 0 < abs(value) < SMALLEST_FLOAT32:
        raise ValueError(f"{key}={value}: expected 0 or a number of at least {SMALLEST_FLOAT32}")
    return float(value)


def without_pushes(randomise: Entry) -> Entry:
    """A copy whose pushes are off, for evaluations."""
    quiet = copy.deepcopy(randomise)
    for name in quiet.keys() & {name for name in FIELDS if FIELDS[name].when == "push"}:
        quiet[name]["kind"] = "off"
    return quiet
