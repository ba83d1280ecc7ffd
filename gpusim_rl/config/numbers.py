"""The table of `--help numbers`: each number that is checked, with its range, unit and default."""

import re

from gpusim_rl.config.nested_dict import flatten
from gpusim_rl.config.sections import table
from gpusim_rl.config.yaml_keys import keys
from gpusim_rl.core.files import Plain
from gpusim_rl.core.paths import CONF
from gpusim_rl.core.ranges import GATE, PLAY, SERVE, Range
from gpusim_rl.envs.load_task import load_task

HEADING = ("key", "default", "unit", "range")
# a unit in a comment, such as [rad/s]
UNIT = re.compile(r"\[([^]]+)\]")
LONGEST_TEXT = 22  # characters of a default or a unit


def lines(name: str, cfg: Plain, code: str | None = None) -> list[str]:
    """The table of a program, config or play, under its heading.

    code: where the class of the configuration's task comes from, as `load_task` takes it.
    """
    ranges = ranges_of(name, cfg, code)
    values, units = flatten(cfg), units_of(cfg)
    rows: dict[str, tuple[str, ...]] = {"key": HEADING}
    for key, entry in ranges.items():
        start = key.removesuffix("*")
        below = [x for x in values if x.startswith(start) and "." not in x[len(start) :]]
        for number in [key] if start == key else below or [key]:  # a later range is narrower
            value = text_of(values[number]) if number in values else ""
            rows[number] = (number, value, units.get(number, ""), entry.words())
    sizes = [max(map(len, column)) + 2 for column in zip(*rows.values(), strict=True)]
    return ["".join(map(str.ljust, row, sizes)).rstrip() for row in rows.values()]


def ranges_of(name: str, cfg: Plain, code: str | None) -> dict[str, Range]:
    """Dotted key → what it may hold, with what the task's class adds."""
    if name == "play":
        return PLAY | GATE | SERVE
    own = load_task(cfg["task"]["name"], code).ranges
    common = table(cfg["algo"]["name"], cfg["reward"]["name"])
    return common | {f"task.{key}": entry for key, entry in own.items()}


def text_of(value: object) -> str:
    text = "null" if value is None else str(value)
    return text if len(text) <= LONGEST_TEXT else f"{text[: LONGEST_TEXT - 1]}…"


def units_of(cfg: Plain) -> dict[str, str]:
    """Dotted key → its unit, of the comments of the files of a configuration.

    A section in braces has its units in the order of its keys, with semicolons between them.
    """
    files = ["common.yaml", "config.yaml", "play.yaml", "gate.yaml", "serve.yaml"]
    files += ["terrain/rough.yaml"]
    groups = {"algo": "ppo", "robot": "own"} | {
        group: cfg[group]["name"] for group in ("task", "sim", "algo", "reward") if group in cfg
    }
    files += [f"{group}/{choice}.yaml" for group, choice in groups.items()]
    values, units = flatten(cfg), dict[str, str]()
    for file in files:
        path = CONF / file
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        whole = "/" not in file or text.startswith("# @package _global_")
        prefix = "" if whole else f"{file.partition('/')[0]}."
        for key in keys(text) if text else []:
            if not (match := UNIT.search(key.comment)):
                continue
            name, section = f"{prefix}{key.name}", values.get(f"{prefix}{key.name}")
            parts = [part.strip() for part in match[1].split(";")]
            if not isinstance(section, dict):
                units[name] = match[1]
            elif len(parts) == len(section):
                units |= {f"{name}.{x}": part for x, part in zip(section, parts, strict=True)}
    return units
