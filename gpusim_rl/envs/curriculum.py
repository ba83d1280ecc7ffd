"""Numbers that change while a policy is trained.

They are linear in the iteration, or in the success of evaluations (see `Curriculum`).

    curriculum:
      task.sigma: {from: 1.0, to: 0.5, by: success, start: 0.2, stop: 0.8}

With `steps`, a list of [iteration, number], a number changes at once and stays in between: it is
`from` until the first step, and `to` at `stop`.

A configuration holds the last values, `to`: the final evaluation takes them from it.
"""

import copy
from collections.abc import Iterable
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any, cast

from gpusim_rl.envs.randomization import entries, fields
from gpusim_rl.envs.randomization.entries import Entry

if TYPE_CHECKING:  # the command line checks plans without torch
    from torch import Tensor

    from gpusim_rl.envs.task import Task

KEYS = ("from", "to", "by", "start", "stop")
STEPS = "steps"
BY = ("iteration", "success")
LEAST_SPAN = 1e-6  # least distance of start and stop, so that a share of it is finite
SCHEDULABLE = (
    "task.<number>, task.weights.<term>, task.noise.<reading>, "
    "task.randomise.<field>.<low|high|every>, algo.<number>, reward.<number>"
)
SHARE = 0.5  # of an evaluation in the success that schedules follow
Configuration = dict[str, Any]  # the whole of it, as plain data
Plan = dict[str, Entry]
Number = float | list[float]


def check_plan(plan: Plan | None, cfg: Configuration) -> None:
    """Check `task.randomise`, and the schedules against the whole configuration.

    The task and PPO's settings check their own numbers, when they are built. ValueError if an entry
    is wrong, or a schedule names what cannot be scheduled.
    """
    entries.check_entries(cfg["task"].get("randomise", {}))
    if not (plan is None or isinstance(plan, dict)):
        raise ValueError(
            f"curriculum={plan}: expected KEY: {{from, to, by, start, stop}} for each key, or null"
        )
    for key, entry in (plan or {}).items():
        check_interval(key, entry)
        check_ends(key, entry, value_of(key, cfg))
    for moment in range_ends(plan) if plan else ():
        try:
            entries.check_entries(config_at(plan, cfg, moment)["task"].get("randomise", {}))
        except ValueError as error:
            when = ", ".join(f"{by} {now:g}" for by, now in moment.items())
            raise ValueError(f"curriculum, at {when}: {error}") from None


def check_interval(key: str, entry: Any) -> None:
    """ValueError unless an entry has all keys, and begins before it ends."""
    where = f"curriculum: {key}"
    if not isinstance(key, str):
        raise ValueError(f"{where} cannot be scheduled: choose of {SCHEDULABLE}")
    if not isinstance(entry, dict) or {*entry} - {STEPS} != {*KEYS}:
        raise ValueError(f"{where}: expected {{{', '.join(KEYS)}}}")
    for name in ("start", "stop"):
        entries.check_number(f"{where}: {name}", entry[name])
    if entry["by"] not in BY:
        raise ValueError(f"{where}: by={entry['by']}: choose one of {', '.join(BY)}")
    start, stop = entry["start"], entry["stop"]
    if entry["by"] == "success" and stop > 1:
        raise ValueError(f"{where}: stop={stop}: expected at most 1, as no success is larger")
    if not stop - start >= LEAST_SPAN:
        raise ValueError(
            f"{where}: start={start} is not before stop={stop}, by {LEAST_SPAN} at least"
        )
    if STEPS in entry:
        check_steps(where, entry)


def check_steps(where: str, entry: Entry) -> None:
    """ValueError unless `steps` are pairs of an iteration and a number, in order."""
    pairs, expected = entry[STEPS], "expected [iteration, number] of each, in order"
    right = isinstance(pairs, list) and all(isinstance(x, list) and len(x) == 2 for x in pairs)
    if not right or entry["by"] != "iteration":
        raise ValueError(f"{where}: steps={pairs} by {entry['by']}: {expected}, by iteration")
    for number in (x for pair in pairs for x in pair):
        entries.check_number(f"{where}: steps", number)
    moments = [entry["start"], *(moment for moment, _ in pairs), entry["stop"]]
    if moments != sorted(moments):
        raise ValueError(f"{where}: steps={pairs}: {expected}, from start to stop")


def check_ends(key: str, entry: Entry, now: Number) -> None:
    """ValueError unless both ends of an entry are numbers like `now`, the value of its key."""
    where, width = f"curriculum: {key}", len(now) if isinstance(now, list | tuple) else 0
    if width and STEPS in entry:
        raise ValueError(f"{where}: steps are of one number, not of {now}")
    for name in ("from", "to"):
        ends = entry[name] if width and isinstance(entry[name], list) else [entry[name]]
        for end in ends:
            entries.check_number(f"{where}: {name}", end)
        if len(ends) != max(width, 1):
            raise ValueError(
                f"{where}: {name}={entry[name]}: expected as many numbers as {key}={now}"
            )
        if key.startswith(("task.weights.", "task.noise.")) and min(ends) < 0:
            raise ValueError(f"{where}: expected numbers of at least 0")


def value_of(key: str, cfg: Configuration) -> Number:
    """The value of a key in a configuration; ValueError unless it is in use and schedulable."""
    section, _, rest = key.partition(".")
    part, _, name = rest.partition(".")
    task = cfg["task"]
    if section in ("algo", "reward") and type(cfg[section].get(rest)) in (int, float):
        return cfg[section][rest]  # the learner itself says which of its numbers may change
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
        raise ValueError(f"curriculum: {key} cannot be scheduled: choose of {SCHEDULABLE}")
    entry = entries.whole_entries(task.get("randomise", {})).get(name, {"kind": "off"})
    if entry["kind"] == "off":
        raise ValueError(f"curriculum: {key}: task.randomise.{name} is off, set its kind")
    if fields.field(name).when == "world":
        raise ValueError(f"curriculum: {key}: {name} is drawn once, before training")
    if number not in entry:
        raise ValueError(f"curriculum: unknown key {key}")
    return entry[number]


def is_numeric(value: object) -> bool:
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
    plan: Plan | None, cfg: Configuration, moment: dict[str, float] | None = None
) -> Configuration:
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


def number_at(entry: Entry, now: float | None) -> Number:
    """The number of an entry where its iteration or success is `now`; the last one at None."""
    first, last = entry["from"], entry["to"]
    if now is None:
        return copy.copy(last)  # the same list in two places would be a YAML alias in config.yaml
    if STEPS in entry and now < entry["stop"]:
        return [first, *(value for moment, value in entry[STEPS] if moment <= now)][-1]
    done = min(max((now - entry["start"]) / (entry["stop"] - entry["start"]), 0.0), 1.0)
    if isinstance(last, list):
        return [(1 - done) * a + done * b for a, b in zip(first, last, strict=True)]
    return (1 - done) * first + done * last


def check_overrides(cfg: Configuration, overrides: Iterable[str]) -> None:
    """ValueError if a user gave a key, or its section, and a schedule ends at another value."""
    sections = [f"{key}." for key in overrides if "." in key]
    for key, entry in (cfg["curriculum"] or {}).items():
        value = value_of(key, cfg)
        if any(f"{key}.".startswith(section) for section in sections) and value != entry["to"]:
            message = f"{key}={value}, but its curriculum ends at {entry['to']}"
            raise ValueError(f"{message}: leave one out (curriculum=null for none)")


class Curriculum:
    """Writes the numbers of a plan into live tensors, in place, between two iterations.

    Schedules `by: success` follow a mean of the evaluations, `Env.success`, which begins at 0. Each
    evaluation moves it half of the way to what was measured with `task_now`. It settles where the
    success equals the mean.
    """

    def __init__(self, plan: Plan | None = None):
        self.plan = plan or {}
        self._ends: dict[str, tuple[Tensor, Tensor]] = {}

    @property
    def needs_evaluation(self) -> bool:
        """Whether a schedule follows the success of evaluations."""
        return any(entry["by"] == "success" for entry in self.plan.values())

    # Why: docs/decisions/curricula.md
    def follow(self, success: float, mean: "Tensor") -> None:
        """Move the mean () of evaluations towards the success of a new one. In place."""
        mean += SHARE * (success - mean)
        mean.masked_fill_(mean < LEAST_SPAN, 0.0)  # half of half of a number is never 0

    def is_over(self, mean: float) -> bool:
        """Whether every schedule by success is at its end where the evaluations have this mean."""
        return all(
            mean >= x["stop"] - LEAST_SPAN for x in self.plan.values() if x["by"] == "success"
        )

    def task_now(
        self, task: "Task", cfg: Configuration, mean: float
    ) -> "tuple[Task, Configuration]":
        """A task, and its section of a configuration, with numbers by success as they are now.

        Numbers by iteration are at their ends. No file is read again.
        """
        section = config_at(self.plan, cfg, {"success": mean})["task"]
        names = [key.removeprefix("task.") for key in self.plan if key.startswith("task.")]
        numbers = {name: section[name] for name in names if "." not in name}
        numbers = {name: tuple(x) if isinstance(x, list) else x for name, x in numbers.items()}
        return replace(task, randomise=section["randomise"], **numbers), section

    def set_first_values(self, task: "Task") -> None:
        """Give a task the numbers with which its first worlds start.

        ValueError if a number cannot be scheduled, or begins out of its range.
        """
        for key, entry in self.plan.items():
            section, _, rest = key.partition(".")
            if rest.startswith("randomise."):
                name, _, which = rest.removeprefix("randomise.").rpartition(".")
                if name not in task.randomization.entries:
                    raise ValueError(
                        f"curriculum: {key}: cannot be scheduled, "
                        "since this actuator has learned its gains"
                    )
                if which == "low":
                    task.randomization.check_low(name, entry["from"])
                task.randomization.scheduled_number(name, which).fill_(entry["from"])
            elif section == "task" and "." not in rest:
                first, last = (
                    tuple(x) if isinstance(x, list) else x for x in (entry["from"], entry["to"])
                )
                place = task.scheduled_number(rest)
                now = getattr(task, rest)
                if now != last:
                    raise ValueError(f"curriculum: {key} ends at {last}, but this robot has {now}")
                replace(task, **{rest: first})  # its constructor checks it
                place.copy_(task.tensor(first))

    def prepare(self, success: "Tensor") -> None:
        """Make what `write` reads, on the device and of the type of `success`."""
        for key, entry in self.plan.items():
            first, last = (success.new_tensor(entry[end]) for end in ("from", "to"))
            self._ends[key] = first, last

    def write(self, numbers: "dict[str, Tensor]", success: "Tensor", iteration: int) -> bool:
        """Write the numbers for an iteration, counted from 0. In place, without a host read.

        numbers: key → the live tensor that holds it. success: () mean of the evaluations. Returns
        whether a number changes that the critic may observe. A run that is loaded here observes it
        anew.
        """
        import torch

        for key, entry in self.plan.items():
            place = numbers[key]
            if STEPS in entry:
                place.fill_(cast(float, number_at(entry, iteration)))  # of one number alone
                continue
            first, last = (end.expand_as(place) for end in self._ends[key])
            start, length = entry["start"], entry["stop"] - entry["start"]
            if entry["by"] == "iteration":  # one kernel
                done = min(max((iteration - start) / length, 0.0), 1.0)
            else:
                done = ((success - start) / length).clamp(0, 1)
            torch.lerp(first, last, done, out=place)
        return any(
            key.startswith("task.noise.") or (key.startswith("task.") and key.count(".") == 1)
            for key in self.plan
        )

    def columns(self, numbers: "dict[str, Tensor]") -> "dict[str, Tensor]":
        """Scheduled numbers now: `schedule/KEY` → (), or `schedule/KEY.i` for a list."""
        columns = {}
        for key, entry in self.plan.items():
            place = numbers[key].flatten()
            if isinstance(entry["to"], list):
                columns |= {f"schedule/{key}.{i}": x for i, x in enumerate(place)}
            else:  # the noise of a reading is one number in each of its columns
                columns[f"schedule/{key}"] = place[0]
        return columns
