"""Numbers that change while a policy is trained: linear in the iteration, or in the success of the last evaluation.

    curriculum: {task.randomise.push.high: {from: 0.0, to: 0.5, by: iteration, start: 0, stop: 100}}

A configuration holds the last values, `to`: evaluations take them from it.
"""

import copy
from typing import Any

from gpusim_rl import variety

KEYS = ("from", "to", "by", "start", "stop")
BY = ("iteration", "success")
KNOWN = "task.weights.<term>, task.noise.<term>, task.randomise.<field>.<low|high|every>"
Plan = dict[str, dict[str, Any]]


def check(plan: Plan | None, task: dict[str, Any]) -> None:
    """ValueError in one line if a schedule names what cannot be scheduled, or says what makes no sense.

    `task` is that section of the configuration.
    """
    if not (plan is None or isinstance(plan, dict)):
        raise ValueError(f"curriculum={plan}: expected KEY: {{from, to, by, start, stop}} for each key, or null")
    for key, entry in (plan or {}).items():
        where = f"curriculum: {key}"
        if not isinstance(key, str):
            raise ValueError(f"{where} cannot be scheduled: choose of {KNOWN}")
        if not isinstance(entry, dict) or set(entry) != set(KEYS):
            raise ValueError(f"{where}: expected {{{', '.join(KEYS)}}}")
        for name in ("from", "to", "start", "stop"):
            variety.number(f"{where}: {name}", entry[name])
        if entry["by"] not in BY:
            raise ValueError(f"{where}: by={entry['by']}: choose one of {', '.join(BY)}")
        if not entry["start"] < entry["stop"]:
            raise ValueError(f"{where}: start={entry['start']} is not before stop={entry['stop']}")
        known(key, task)
        if not key.startswith("task.randomise.") and min(entry["from"], entry["to"]) < 0:
            raise ValueError(f"{where}: expected numbers of at least 0")
    for end in ("from", "to"):
        try:
            variety.check(at(plan, {"task": task}, end)["task"].get("randomise", {}))
        except ValueError as error:
            raise ValueError(f"curriculum, at its {end}: {error}") from None


def known(key: str, task: dict[str, Any]) -> None:
    """ValueError unless a number of that key lives where it can be changed between iterations, and is in use."""
    part, _, rest = key.removeprefix("task.").partition(".")
    if part in ("weights", "noise") and key.startswith("task."):
        if rest not in task[part]:
            raise ValueError(f"curriculum: unknown key {key}: choose one of {', '.join(task[part])}")
        return
    name, _, number = rest.rpartition(".")
    if part != "randomise" or not key.startswith("task.") or number not in variety.NUMBERS:
        raise ValueError(f"curriculum: {key} cannot be scheduled: choose of {KNOWN}")
    entry = variety.flat(task.get("randomise", {})).get(name, {"kind": "off"})
    if entry["kind"] == "off":
        raise ValueError(f"curriculum: {key}: task.randomise.{name} is off, say its kind")
    if variety.field(name).when == "world":
        raise ValueError(f"curriculum: {key}: {name} is drawn once, before training")
    if number not in entry:
        raise ValueError(f"curriculum: unknown key {key}")


def at(plan: Plan | None, cfg: dict[str, Any], end: str) -> dict[str, Any]:
    """A copy of a configuration with the scheduled numbers at their `from` or `to`."""
    if not plan:
        return cfg
    cfg = copy.deepcopy(cfg)
    for key, entry in plan.items():
        *path, last = key.split(".")
        tree = cfg
        for name in path:
            tree = tree.setdefault(name, {})
        tree[last] = entry[end]
    return cfg


class Curriculum:
    """Writes the numbers of a plan into an Env, between two iterations: in place, so that graphs stay valid."""

    def __init__(self, plan: Plan | None = None):
        self.plan = plan or {}

    @property
    def judged(self) -> bool:
        """Whether evaluations are needed."""
        return any(entry["by"] == "success" for entry in self.plan.values())

    def begin(self, task: Any) -> None:
        """The ranges of a task before its first worlds start."""
        for key, entry in self.plan.items():
            name, _, which = key.removeprefix("task.randomise.").rpartition(".")
            if key.startswith("task.randomise."):
                if which == "low":
                    task.randomisation.check(name, entry["from"])
                task.randomisation.number(name, which).fill_(entry["from"])

    def write(self, env: Any, iteration: int) -> None:
        """The numbers for the iteration after `iteration` others. Reads nothing on the host."""
        for key, entry in self.plan.items():
            place = env.number(key)
            now = env.success if entry["by"] == "success" else place.new_full((), iteration)
            done = ((now - entry["start"]) / (entry["stop"] - entry["start"])).clamp(0, 1)
            place.copy_((1 - done) * entry["from"] + done * entry["to"])
        if any(key.startswith("task.noise.") for key in self.plan):
            env.look_again()  # as a run that is loaded here will
