"""Estimates with their intervals, and the file of ranges that they become."""

from datetime import date
from typing import NamedTuple

CERTAIN = 1.96  # standard deviations of an interval of 95 %
LEAST_HALF_WIDTH = 0.05  # of a range, as a share of its center: the model has other errors
UNITS = {"friction": "", "payload": "of the mass", "delay": "s"}  # others are factors

HOW = {"friction": ", how: set"} | dict.fromkeys(("armature", "joint_friction"), ", how: scale")


class Estimate(NamedTuple):
    """A number, and the half-width of its interval of 95 %."""

    value: float
    margin: float

    @property
    def range(self) -> tuple[float, float]:
        """Low and high of the interval, at least 5 % to each side."""
        wide = max(self.margin, LEAST_HALF_WIDTH * abs(self.value))
        return self.value - wide, self.value + wide


class Source(NamedTuple):
    """A log, the digest of the controller in it, and what is to be said of it."""

    file: str
    digest: str
    lines: list[str]


def table(estimates: dict[str, Estimate]) -> str:
    """Estimates as a table for people."""
    lines = [f"{'':16}{'estimate':>10}{'± (95 %)':>10}   range"]
    for name, x in estimates.items():
        low, high = x.range
        unit = UNITS.get(name, "of the model's")
        numbers = f"{x.value:10.4f}{x.margin:10.4f}   {low:.4f} to {high:.4f} {unit}"
        lines.append(f"{name:16}{numbers}".rstrip())
    return "\n".join(lines)


def as_yaml(name: str, estimates: dict[str, Estimate], sources: list[Source], mass: float) -> str:
    """The text of conf/ranges/<name>.yaml; `mass` of the whole robot [kg] makes kg of a payload."""
    lines = [f"# Identified on {date.today()} from"]
    for source in sources:
        lines.append(f"#   {source.file}, of the controller {source.digest}")
        lines += [f"#   {line}" for line in source.lines]
    lines += ["# Each range is an interval of 95 %, and at least ±5 %.", f"name: {name}"]
    task, entries = list[str](), list[str]()
    if "delay" in estimates:
        low, high = (max(end, 0) for end in estimates["delay"].range)
        lines += ["robot:", "  actuator:", f"    delay: [{low:.4f}, {high:.4f}] # s"]
        task += ["  observation_delay: [0, 0] # the delay has the age of readings, too"]
    for what, x in estimates.items():
        if what == "delay":
            continue
        low, high = (end * mass if what == "payload" else max(end, 0.01) for end in x.range)
        ends = f"kind: uniform, low: {low:.4f}, high: {high:.4f}"
        entries.append(f"    {what}: {{{ends}{HOW.get(what, '')}}}")
    task += ["  randomise:", *entries] if entries else []
    lines += ["task:", *task] if task else []
    return "\n".join([*lines, ""])
