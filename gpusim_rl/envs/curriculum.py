"""Numbers that change while a policy is trained.

They are linear in the iteration, or in the success of evaluations (see `schedule.Curriculum`).

    curriculum:
      task.sigma: {from: 1.0, to: 0.5, by: success, start: 0.2, stop: 0.8}

A configuration holds the last values, `to`: the final evaluation takes them from it.
"""

import copy
from collections.abc import Iterable
from itertools import product
from typing import Any

from gpusim_rl.envs.randomization import entries, fields

KEYS = ("from", "to", "by", "start", "stop")
BY = ("iteration", "success")
NEAR = 1e-6  # least distance of start and stop, so that a share of it is finite
ALGO = ("gamma", "gae_lambda", "clip_coef", "clip_value", "ent_coef", "target_kl", "mirror_coef")
KNOWN = (
    "task.<number>, task.weights.<term>, task.noise.<reading>, "
    f"task.randomise.<field>.<low|high|every>, algo.<{'|'.join(ALGO)}>"
)
Plan = dict[str, dict[str, Any]]
Number = float | list[float]


def check_plan(plan: Plan | None, cfg: dict[str, Any]) -> None:
    """Check the schedules against the whole configuration.

    The task and PPO's settings check their own numbers, when they are built.

    Raises:
        ValueError: a schedule names what cannot be scheduled, or makes no sense.
    """
    if not (plan is None or isinstance(plan, dict)):
        raise ValueError(
            f"curriculum={plan}: expected KEY: {{from, to, by, start, stop}} for each key, or null"
        )
    for key, entry in (plan or {}).items():
        check_interval(key, entry)
        check_ends(key, entry, value_of(key, cfg))
    for moment in range_ends(plan or {}):
        try:
            entries.check_entries(config_at(plan, cfg, moment)["task"].get("randomise", {}))
        except ValueError as error:
            when = ", ".join(f"{by} {now:g}" for by, now in moment.items())
            raise ValueError(f"curriculum, at {when}: {error}") from None


def check_interval(key: str, entry: Any) -> None:
    """ValueError unless an entry has all keys, and begins before it ends."""
    where = f"curriculum: {key}"
    if not isinstance(key, str):
        raise ValueError(f"{where} cannot be scheduled: choose of {KNOWN}")
    if not isinstance(entry, dict) or set(entry) != set(KEYS):
        raise ValueError(f"{where}: expected {{{', '.join(KEYS)}}}")
    for name in ("start", "stop"):
        entries.check_number(f"{where}: {name}", entry[name])
    if entry["by"] not in BY:
        raise ValueError(f"{where}: by={entry['by']}: choose one of {', '.join(BY)}")
    start, stop = entry["start"], entry["stop"]
    if entry["by"] == "success" and stop > 1:
        raise ValueError(f"{where}: stop={stop}: expected at most 1, as no success is larger")
    if not stop - start >= NEAR:
        raise ValueError(f"{where}: start={start} is not before stop={stop}, by {NEAR} at least")


def check_ends(key: str, entry: dict[str, Any], now: Number) -> None:
    """ValueError unless both ends of an entry are numbers like `now`, the value of its key."""
    where, width = f"curriculum: {key}", len(now) if isinstance(now, list | tuple) else 0
    for name in ("from", "to"):
        ends = entry[name] if width and isinstance(entry[name], list) else [entry[name]]
        for end in ends:
            entries.check_number(f"{where}: {name}", end)
        if len(ends) != max(width, 1):
            raise ValueError(
                f"{where}: {name}={entry[name]}: expected as many numbers as {key}={now}"
            )
        if key.startswith(("task.weights.", "task.noise.", "algo.")) and min(ends) < 0:
            raise ValueError(f"{where}: expected numbers of at least 0")


def value_of(key: str, cfg: dict[str, Any]) -> Number:
    """The value of a key in a configuration; ValueError unless it is in use and schedulable."""
    section, _, rest = key.partition(".")
    part, _, name = rest.partition(".")
    task = cfg["task"]
    if section == "algo" and rest in ALGO:
        if rest == "mirror_coef" and cfg["algo"]["symmetry"] != "loss":
            raise ValueError(f"curriculum: {key} is used only with algo.symmetry=loss")
        return cfg["algo"][rest]
    if section == "task" and part in ("weights", "noise"):
        if name not in task[part]:
            raise ValueError(
                f"curriculum: unknown key {key}: choose one of {', '.join(task[part])}"
            )
        return task[part][name]
    if section == "task" and not name and is_numeric(task.get(part)):
        return task[part]
    name, _, number = name.rpartition(".")
    if part != "randomise" or section != "task" or number not in entries.NUMBERS:
        raise ValueError(f"curriculum: {key} cannot be scheduled: choose of {KNOWN}")
    entry = entries.whole_entries(task.get("randomise", {})).get(name, {"kind": "off"})
    if entry["kind"] == "off":
        raise ValueError(f"curriculum: {key}: task.randomise.{name} is off, set its kind")
    if fields.field(name).when == "world":
        raise ValueError(f"curriculum: {key}: {name} is drawn once, before training")
    if number not in entry:
        raise ValueError(f"curriculum: unknown key {key}")
    return entry[number]


def is_numeric(value: Any) -> bool:
    """Whether a value is a number, or a list of numbers."""
    values = value if isinstance(value, list | tuple) else [value]
    return bool(values) and all(type(x) in (int, float) for x in values)


def range_ends(plan: Plan) -> list[dict[str, float]]:
    """The moments at which a schedule of a range begins or ends, by each of BY.

    A schedule is linear, so ranges that are sound at these moments are sound between them.
    """
    ranges = [entry for key, entry in plan.items() if key.startswith("task.randomise.")]
    bends = [
        sorted({entry[end] for entry in ranges if entry["by"] == by for end in ("start", "stop")})
        for by in BY
    ]
    return [
        dict(zip(BY, moment, strict=True)) for moment in product(*(bend or [0.0] for bend in bends))
    ]


def config_at(
    plan: Plan | None, cfg: dict[str, Any], moment: dict[str, float] | None = None
) -> dict[str, Any]:
    """A copy of a configuration with the scheduled numbers at their last values.

    moment: BY → its value, for the entries that follow it; those of a missing BY are at `to`.
    """
    if not plan:
        return cfg
    cfg = copy.deepcopy(cfg)
    for key, entry in plan.items():
        *path, last = key.split(".")
        tree = cfg
        for name in path:
            tree = tree.setdefault(name, {})
        tree[last] = number_at(entry, (moment or {}).get(entry["by"]))
    return cfg


def number_at(entry: dict[str, Any], now: float | None) -> Number:
    """The number of an entry where its iteration or success is `now`; the last one at None."""
    first, last = entry["from"], entry["to"]
    if now is None:
        return copy.copy(last)  # the same list in two places would be a YAML alias in config.yaml
    done = min(max((now - entry["start"]) / (entry["stop"] - entry["start"]), 0.0), 1.0)
    if isinstance(last, list):
        return [(1 - done) * a + done * b for a, b in zip(first, last, strict=True)]
    return (1 - done) * first + done * last


def check_overrides(cfg: dict[str, Any], overrides: Iterable[str]) -> None:
    """ValueError if a user gave a key, or its section, and a schedule ends at another value."""
    sections = [f"{key}." for key in overrides if "." in key]
    for key, entry in (cfg["curriculum"] or {}).items():
        value = value_of(key, cfg)
        if any(f"{key}.".startswith(section) for section in sections) and value != entry["to"]:
            message = f"{key}={value}, but its curriculum ends at {entry['to']}"
            raise ValueError(f"{message}: leave one out (curriculum=null for none)")
