"""Numbers that change while a policy is trained: linear in the iteration, or in the success of the last evaluation.

    curriculum: {task.fastest: {from: [0.3, 0.2, 0.3], to: [1.0, 0.5, 1.0], by: success, start: 0.2, stop: 0.8}}

A configuration holds the last values, `to`: evaluations take them from it.
"""

import copy
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import product
from typing import Any

from gpusim_rl import variety

KEYS = ("from", "to", "by", "start", "stop")
BY = ("iteration", "success")
NEAR = 1e-6  # the least from start to stop, so that a share of it is finite
ALGO = ("gamma", "gae_lambda", "clip_coef", "clip_value", "ent_coef", "target_kl", "mirror_coef")
KNOWN = (
    f"task.<number>, task.weights.<term>, task.noise.<term>, task.randomise.<field>.<low|high|every>, algo.<{'|'.join(ALGO)}>"
)
Plan = dict[str, dict[str, Any]]
Number = float | list[float]


def check(plan: Plan | None, cfg: dict[str, Any]) -> None:
    """ValueError in one line if a schedule names what cannot be scheduled, or says what makes no sense; cfg: all of it.

    What the task's class and PPO's settings say of their numbers is checked where those are built.
    """
    if not (plan is None or isinstance(plan, dict)):
        raise ValueError(f"curriculum={plan}: expected KEY: {{from, to, by, start, stop}} for each key, or null")
    for key, entry in (plan or {}).items():
        where = f"curriculum: {key}"
        if not isinstance(key, str):
            raise ValueError(f"{where} cannot be scheduled: choose of {KNOWN}")
        if not isinstance(entry, dict) or set(entry) != set(KEYS):
            raise ValueError(f"{where}: expected {{{', '.join(KEYS)}}}")
        for name in ("start", "stop"):
            variety.number(f"{where}: {name}", entry[name])
        if entry["by"] not in BY:
            raise ValueError(f"{where}: by={entry['by']}: choose one of {', '.join(BY)}")
        if not entry["stop"] - entry["start"] >= NEAR:
            raise ValueError(f"{where}: start={entry['start']} is not before stop={entry['stop']}, by {NEAR} at least")
        now = known(key, cfg)
        width = len(now) if isinstance(now, list | tuple) else 0
        for name in ("from", "to"):
            ends = entry[name] if width and isinstance(entry[name], list) else [entry[name]]
            for end in ends:
                variety.number(f"{where}: {name}", end)
            if len(ends) != max(width, 1):
                raise ValueError(f"{where}: {name}={entry[name]}: expected as many numbers as {key}={now}")
            if key.startswith(("task.weights.", "task.noise.", "algo.")) and min(ends) < 0:
                raise ValueError(f"{where}: expected numbers of at least 0")
    for moment in moments(plan or {}):
        try:
            variety.check(at(plan, cfg, moment)["task"].get("randomise", {}))
        except ValueError as error:
            says = ", ".join(f"{by} {now:g}" for by, now in moment.items())
            raise ValueError(f"curriculum, at {says}: {error}") from None


def known(key: str, cfg: dict[str, Any]) -> Number:
    """The value of a key in a configuration; ValueError unless it can be changed between iterations, and is in use."""
    section, _, rest = key.partition(".")
    part, _, name = rest.partition(".")
    task = cfg["task"]
    if section == "algo" and rest in ALGO:
        if rest == "mirror_coef" and cfg["algo"]["symmetry"] != "loss":
            raise ValueError(f"curriculum: {key} is in use with algo.symmetry=loss alone")
        return cfg["algo"][rest]
    if section == "task" and part in ("weights", "noise"):
        if name not in task[part]:
            raise ValueError(f"curriculum: unknown key {key}: choose one of {', '.join(task[part])}")
        return task[part][name]
    if section == "task" and not name and numeric(task.get(part)):
        return task[part]
    name, _, number = name.rpartition(".")
    if part != "randomise" or section != "task" or number not in variety.NUMBERS:
        raise ValueError(f"curriculum: {key} cannot be scheduled: choose of {KNOWN}")
    entry = variety.flat(task.get("randomise", {})).get(name, {"kind": "off"})
    if entry["kind"] == "off":
        raise ValueError(f"curriculum: {key}: task.randomise.{name} is off, say its kind")
    if variety.field(name).when == "world":
        raise ValueError(f"curriculum: {key}: {name} is drawn once, before training")
    if number not in entry:
        raise ValueError(f"curriculum: unknown key {key}")
    return entry[number]


def numeric(value: Any) -> bool:
    """Whether it is a number or a list of some."""
    values = value if isinstance(value, list | tuple) else [value]
    return bool(values) and all(type(x) in (int, float) for x in values)


def moments(plan: Plan) -> list[dict[str, float]]:
    """Where any schedule of a range begins or ends, by each of BY: ranges are sound if they are there, as each is linear."""
    ranges = [entry for key, entry in plan.items() if key.startswith("task.randomise.")]
    bends = [sorted({entry[end] for entry in ranges if entry["by"] == by for end in ("start", "stop")}) for by in BY]
    return [dict(zip(BY, moment, strict=True)) for moment in product(*(bend or [0.0] for bend in bends))]


def at(plan: Plan | None, cfg: dict[str, Any], moment: dict[str, float] | None = None) -> dict[str, Any]:
    """A copy of a configuration with the scheduled numbers at their last values, or, but for lists, as they are at a moment."""
    if not plan:
        return cfg
    cfg = copy.deepcopy(cfg)
    for key, entry in plan.items():
        *path, last = key.split(".")
        tree = cfg
        for name in path:
            tree = tree.setdefault(name, {})
        tree[last] = copy.copy(entry["to"])  # a list in two places of config.yaml would be an alias there
        if moment and not isinstance(entry["to"], list):
            done = (moment[entry["by"]] - entry["start"]) / (entry["stop"] - entry["start"])
            done = min(max(done, 0.0), 1.0)
            tree[last] = (1 - done) * entry["from"] + done * entry["to"]
    return cfg


def clash(cfg: dict[str, Any], said: Iterable[str]) -> None:
    """ValueError if a user has said a key, itself or the section it is in, whose last value a schedule says otherwise."""
    said = [f"{key}." for key in said if "." in key]
    for key, entry in (cfg["curriculum"] or {}).items():
        value = known(key, cfg)
        if any(f"{key}.".startswith(section) for section in said) and value != entry["to"]:
            says = f"{key}={value}, but its curriculum ends at {entry['to']}"
            raise ValueError(f"{says}: leave one out (curriculum=null for none)")


class Curriculum:
    """Writes the numbers of a plan into a PPO and its Env, between two iterations: in place, so that graphs stay valid."""

    def __init__(self, plan: Plan | None = None):
        self.plan = plan or {}
        self._ends: dict[str, tuple[Any, Any]] = {}

    @property
    def judged(self) -> bool:
        """Whether evaluations are needed."""
        return any(entry["by"] == "success" for entry in self.plan.values())

    def begin(self, task: Any) -> None:
        """The numbers of a task before its first worlds start; ValueError if one cannot move, or begins out of range."""
        for key, entry in self.plan.items():
            section, _, rest = key.partition(".")
            if rest.startswith("randomise."):
                name, _, which = rest.removeprefix("randomise.").rpartition(".")
                if name not in task.randomisation.entries:
                    raise ValueError(f"curriculum: {key}: not with this actuator, which has learned its gains")
                if which == "low":
                    task.randomisation.check(name, entry["from"])
                task.randomisation.number(name, which).fill_(entry["from"])
            elif section == "task" and "." not in rest:
                first, last = (tuple(x) if isinstance(x, list) else x for x in (entry["from"], entry["to"]))
                place = task.number(rest)
                if getattr(task, rest) != last:
                    raise ValueError(f"curriculum: {key} ends at {last}, but of this robot it is {getattr(task, rest)}")
                replace(task, **{rest: first})  # its constructor checks it
                place.copy_(task.tensor(first))

    def prepare(self, cfg: Any, tensor: Callable[[Any], Any]) -> dict[str, Any]:
        """Keep what `write` reads, and return those of PPO's settings that move, as tensors () of where they begin.

        `tensor` makes one of a number or a list, on PPO's device. ValueError if a setting begins out of its range.
        """
        self._ends = {key: (tensor(entry["from"]), tensor(entry["to"])) for key, entry in self.plan.items()}
        begin = {key[5:]: entry["from"] for key, entry in self.plan.items() if key.startswith("algo.")}
        replace(cfg, **begin)  # its constructor checks them
        return {name: tensor(value) for name, value in begin.items()}

    def write(self, ppo: Any, iteration: int) -> None:
        """The numbers for the iteration after `iteration` others. Reads nothing on the host."""
        for key, entry in self.plan.items():
            place = ppo.number(key)
            now = ppo.env.success if entry["by"] == "success" else ppo.env.success.new_full((), iteration)
            (first, last), done = self._ends[key], (now - entry["start"]) / (entry["stop"] - entry["start"])
            done = done.clamp(0, 1)
            place.copy_((1 - done) * first + done * last)
        if any(key.startswith("task.noise.") or (key.startswith("task.") and key.count(".") == 1) for key in self.plan):
            ppo.env.see()  # views may show it, and a run that is loaded here sees them anew
