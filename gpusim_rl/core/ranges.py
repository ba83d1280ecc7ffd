"""Ranges of numbers, and those of the keys whose section is no dataclass of `core.sections`.

What a task adds stands in its class, as `Task.ranges`, and so does what an algorithm of the user's
adds; what `task.randomise` draws stands in `envs.randomization.fields`.
"""

# pyright: basic

from collections.abc import Mapping
from typing import NamedTuple

from gpusim_rl.core.seeds import EVALUATION_SEEDS

LARGEST_FLOAT32 = 3.4e38  # of float32
WIDEST = 8192  # of a layer: orthogonal weights take n³ operations
MAX_HISTORY = 64  # control steps of the past that an actor may see


class Range(NamedTuple):
    """The numbers that a key may hold. A list is allowed if each of its numbers is."""

    low: float | None = None  # the least; None: any
    high: float | None = None
    above: bool = False  # `low` itself is not allowed
    below: bool = False  # `high` itself is not allowed
    whole: bool = False
    null: bool = False  # null is allowed
    single: bool = False  # no list is allowed

    def holds(self, value: object) -> bool:
        """Whether a value is a number within the range, null where it is allowed, or a list."""
        if value is None:
            return self.null
        if isinstance(value, list | tuple):
            return not self.single and all(self._number(x) for x in value)
        return self._number(value)

    def check(self, key: str, value: object) -> None:
        """ValueError that names the key unless the range holds its value."""
        if not self.holds(value):
            many = isinstance(value, list | tuple) and not self.single
            value = list(value) if isinstance(value, tuple) else value
            raise ValueError(f"{key}={value!r}: expected {self.words(many)}")

    def _number(self, x: object) -> bool:
        if isinstance(x, bool) or not isinstance(x, int if self.whole else int | float):
            return False
        above_low = self.low is None or (x > self.low if self.above else x >= self.low)
        below_high = self.high is None or (x < self.high if self.below else x <= self.high)
        return above_low and below_high and abs(x) <= LARGEST_FLOAT32

    def words(self, many: bool = False) -> str:
        """Text on the values, as in "a number from 0 to 1"; many: of each number of a list."""
        kind = "whole number" if self.whole else "number"
        kind = f"{kind}s" if many else f"a {kind}"
        if self.low is None:
            limits = "" if self.high is None else f" up to {self.high}"
        elif self.high is None:
            limits = f" above {self.low}" if self.above else f" of at least {self.low}"
        else:
            least = f"above {self.low}, up" if self.above else f"from {self.low}"
            limits = f" {least} to {'below ' if self.below else ''}{self.high}"
        return f"{kind}{limits}{', or null' if self.null else ''}"


COUNT = Range(1, 2**31 - 1, whole=True)
SHARE = Range(0, 1)
CHANCE = Range(0, 1, below=True)
POSITIVE = Range(0, above=True)
AT_LEAST_0 = Range(0)
OF_JOINTS = Range(0, 10**8, above=True, null=True)
CORES = Range(0, 1024, whole=True)
CAPACITY = Range(0, 2**31 - 1, whole=True, null=True, single=True)

SEED = Range(0, EVALUATION_SEEDS - 1, whole=True)
WIDTH = Range(1, WIDEST, whole=True)
FRAMES = Range(2, MAX_HISTORY, whole=True)

# Key → what it may be, of sections whose classes are found by name and load torch. `*` is any name
# of its section. The fields of the other sections say it themselves: see `core.sections`.
RANGES: dict[str, Range] = {
    "task.dt": POSITIVE,
    "task.episode": POSITIVE,
    "task.clip": POSITIVE,
    "task.training.timestep": Range(0, above=True, null=True),
    "task.observation_delay": Range(0, MAX_HISTORY, whole=True),
    "task.share_at_ends": CHANCE,
    "task.drive_limits.*": POSITIVE,
    "task.weights.*": AT_LEAST_0,
    "task.noise.*": AT_LEAST_0,
    "task.dropout.*": CHANCE,
    "task.history.*": Range(1, MAX_HISTORY, whole=True),
    "algo.encoders.*": WIDTH,
    "terrain.levels": Range(1, MAX_HISTORY, whole=True),
    "terrain.variants": Range(1, MAX_HISTORY, whole=True),
    "terrain.seed": SEED,
    "terrain.friction": POSITIVE,
    "terrain.first_level": Range(0, MAX_HISTORY, whole=True),
    "terrain.up": SHARE,
    "terrain.down": SHARE,
    **{f"robot.{x}": OF_JOINTS for x in ("kp", "kd", "torque", "armature", "scale", "height")},
}
SECONDS = Range(1, 86400, whole=True)
PLAY = {
    "seed": SEED,
    "threads": CORES,
    "episodes": COUNT,
    "seconds": SECONDS,
    "worlds": Range(1, 64, whole=True, null=True, single=True),
    "size": Range(16, 4096, whole=True, null=True),
    "port": Range(0, 65535, whole=True, null=True, single=True),
    "alarm": Range(0, above=True, null=True, single=True),
    "fps": Range(0, 1000, above=True, null=True, single=True),
    "level": Range(0, MAX_HISTORY, whole=True, null=True, single=True),
}
GATE = {  # of mode=gate and mode=ab
    "gate.robots": Range(2, 65536, whole=True),
    "gate.seconds": SECONDS,
    "gate.endurance.robots": Range(1, 4096, whole=True),
    "gate.endurance.minutes": Range(0, 1440, above=True),
    "gate.late": CHANCE,
    "gate.start": SHARE,
    "gate.push.speed": AT_LEAST_0,
    "gate.push.every": SECONDS,
    "gate.slope": Range(0, 60),
    "gate.friction": Range(0, 10, above=True),
    "gate.payload": Range(-0.9, 10),
    "gate.contact.impratio": POSITIVE,
    "gate.contact.solref": Range(0, 10, above=True),
    "gate.contact.timestep": Range(1e-4, 0.1),
    "gate.dropout": CHANCE,
    "gate.bias.*": AT_LEAST_0,
    "gate.noise.*": AT_LEAST_0,
    "gate.jump": SECONDS,
    "gate.settle.*": AT_LEAST_0,
    "gate.fall.tilt": Range(0, 180, above=True),
    "gate.fall.flying": Range(0, 180, above=True),
    "gate.fall.height": CHANCE,
    "gate.slack": AT_LEAST_0,
    "gate.fastest": POSITIVE,
    "gate.tracking.*": POSITIVE,
    "gate.walks": AT_LEAST_0,
    "gate.limits.*": AT_LEAST_0,
    "gate.limits.success": CHANCE,
    "gate.limits.tracking": CHANCE,
    "gate.kinds.biped.*": AT_LEAST_0,
    "gate.kinds.arm.*": AT_LEAST_0,
    "gate.variant": SHARE,
    "ab.robots": Range(1, 4096, whole=True),
    "ab.pairs": COUNT,
    "ab.margin": Range(0, 1, above=True, below=True),
    "ab.error": Range(0, 1, above=True, below=True),
}

SERVE = {  # of mode=serve
    "serve.batch_ms": Range(0, 1000),
    "serve.sessions": Range(1, 65536, whole=True, single=True),
    "serve.message_bytes": Range(256, 1 << 26, whole=True, single=True),
    "serve.poll": Range(0.05, 3600),
}


def check(
    tree: Mapping[str, object], section: str = "", table: Mapping[str, Range] = RANGES
) -> None:
    """ValueError for the first number of a section that is not what a table allows.

    Args:
        tree: keys of the section, with nested ones. What it lacks is not looked at.
        section: its dotted name in the table; "" for a whole configuration.
    """
    start = f"{section}." if section else ""
    for key, allowed in table.items():
        if not key.startswith(start):
            continue
        for name, value in values_of(tree, key[len(start) :].split("."), start):
            allowed.check(name, value)


def values_of(tree: object, parts: list[str], start: str) -> list[tuple[str, object]]:
    """(dotted key, value) of what a key names in a tree; `*` names all of a section.

    ValueError if such a section is none. `start` is the section's name, with a dot at its end.
    """
    if parts[0] == "*" and not isinstance(tree, Mapping):
        raise ValueError(f"{start[:-1]}={tree!r}: expected keys with values")
    if not isinstance(tree, Mapping):
        return []
    names = [*tree] if parts[0] == "*" else [name for name in parts[:1] if name in tree]
    if len(parts) == 1:
        return [(f"{start}{name}", tree[name]) for name in names]
    return [pair for name in names for pair in values_of(tree[name], parts[1:], f"{start}{name}.")]


def allowed(key: str, table: Mapping[str, Range] = RANGES) -> str:
    """Text on the values of a dotted key, as in "a number from 0 to 1"; "" for others."""
    entry = table.get(key) or table.get(f"{key.rpartition('.')[0]}.*")
    return entry.words() if entry else ""
