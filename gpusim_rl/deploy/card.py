"""The card of a policy that others trained: what goes into its network, and what comes out."""

import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from gpusim_rl.core.files import Plain, read_text
from gpusim_rl.core.schema import problems
from gpusim_rl.runs.config_file import MISTAKES, Untagged, is_plain, read_plain

SCHEMA = Path(__file__).with_name("card.schema.json")
WIDTHS = {  # of the terms that have the same for every robot
    **dict.fromkeys(("gyro", "gravity", "up", "velocity", "euler", "command"), 3),
    **{"command_move": 2, "command_turn": 1},
}
OF_JOINTS = ("joint_pos_rel", "joint_pos", "joint_vel", "action")
READINGS = {  # → the terms that need it
    **{"gyro": ("gyro",), "up": ("up", "gravity"), "velocity": ("velocity",), "quat": ("euler",)},
    **{"joint_pos": ("joint_pos", "joint_pos_rel"), "joint_vel": ("joint_vel",)},
}
UNMEASURED = ("velocity",)  # readings that no robot has
LISTS = ("scale", "kp", "kd", "torque", "armature", "pose")
LARGEST = 1e6  # of a number of a card
Array = np.ndarray
Reader = Callable[[Path, Plain, list[str]], Plain | None]


@dataclass(frozen=True)
class Card:
    """A card whose keys were checked: docs/adopt.md, and the texts of card.schema.json.

    Attributes:
        values: the keys, as the schema has them.
        sha256: of the file.
    """

    values: Plain
    sha256: str

    @property
    def joints(self) -> list[str]:
        """Names of the driven joints, in the order of the network."""
        return self.values["joints"]

    @property
    def terms(self) -> list[tuple[str, Array]]:
        """Each term of the observation, and its scale: () or (width,)."""
        entries = [{x: 1.0} if isinstance(x, str) else x for x in self.values["observe"]]
        return [(name, np.array(x, np.float32)) for one in entries for name, x in one.items()]

    def width(self, term: str) -> int:
        """How many numbers a term has in one step."""
        if term in OF_JOINTS:
            return len(self.joints)
        return WIDTHS.get(term) or len(self.values["clock"]["start"])

    @property
    def step_width(self) -> int:
        """The width of the observation of one step."""
        return sum(self.width(name) for name, _ in self.terms)

    @property
    def steps(self) -> int:
        """How many steps the network sees."""
        return self.values.get("history", {}).get("steps", 1)

    @property
    def readings(self) -> dict[str, int]:
        """The readings that the terms need, and their widths."""
        names = {name for name, _ in self.terms}
        return {
            reading: 4 if reading == "quat" else self.width(reading)
            for reading, terms in READINGS.items()
            if names & {*terms}
        }

    @property
    def unmeasured(self) -> list[str]:
        """The readings that no robot has."""
        return [name for name in self.readings if name in UNMEASURED]

    def vector(self, key: str) -> Array:
        """(n,) the numbers of a key for the joints, in the order of the network."""
        return np.broadcast_to(np.array(self.values[key], np.float64), (len(self.joints),)).copy()


@cache
def schema() -> Plain:
    """The schema of a card."""
    return json.loads(read_text(SCHEMA))


def read_card(path: Path, names: list[str], readers: tuple[Reader, ...] = ()) -> Card:
    """The card in a file, or what one of the readers makes of a file of other programs.

    names: the joints of the robot's file, in the order of its actuators. ValueError, which names
    the file and the key, if a card is wrong.
    """
    text = read_text(path)
    values = read_plain(path, Untagged)
    if not isinstance(values, dict) or not is_plain(values):
        raise ValueError(f"{path} is no card: expected keys with numbers, words and lists")
    try:
        made = [read(path, values, names) for read in readers]
        check(values := next(filter(None, made), values))
    except ValueError as error:
        raise ValueError(f"{path}: {' '.join(str(error).split())}") from None
    except MISTAKES as error:
        why = " ".join(f"{type(error).__name__} {error}".split())
        raise ValueError(f"{path} is not as its makers' program writes it: {why}") from None
    return Card(values, hashlib.sha256(text.encode()).hexdigest())


def check(values: Plain) -> None:
    """ValueError for the first key of a card that is missing, unknown or wrong."""
    for line in problems(values, schema(), schema()):
        key = line.replace("=", " ").replace("[", " ").replace(".", " ").split()[0]
        text = schema()["properties"].get(key, {}).get("description", "")
        raise ValueError(f"{line}; {key}: {text}" if text else line)
    if not all(abs(x) <= LARGEST for x in leaves(values)):
        raise ValueError(f"a number is above {LARGEST:g}, or none")
    card = Card(values, "")
    if len({*card.joints}) != len(card.joints):
        raise ValueError("joints: one of them is named twice")
    for key in LISTS:
        check_length(key, values.get(key), len(card.joints))
    low, high = values.get("clip_action", (0, 0))
    for end in (low, high):
        check_length("clip_action", end, len(card.joints))
    if np.any(np.array(low) > np.array(high)):
        raise ValueError("clip_action: a least action is above the greatest")
    for name, scale in card.terms:
        check_term(card, name, scale)
    check_together(values, [name for name, _ in card.terms])


def leaves(value: object) -> list[float]:
    """All numbers of lists and maps; NaN counts as infinite."""
    if isinstance(value, dict | list):
        inner = value.values() if isinstance(value, dict) else value
        return [x for one in inner for x in leaves(one)]
    return [math.inf if value != value else value] if isinstance(value, int | float) else []


def check_length(key: str, value: object, count: int) -> None:
    """ValueError unless a list has a number for each joint."""
    if isinstance(value, list) and len(value) != count:
        raise ValueError(f"{key}: {len(value)} numbers for {count} joints")


def check_term(card: Card, name: str, scale: Array) -> None:
    """ValueError unless a term is known, its clock is there, and its scale has its width."""
    names = [x["const"] for x in schema()["$defs"]["term"]["oneOf"]]
    if name not in names:
        raise ValueError(f"observe: unknown term {name!r}: choose one of {', '.join(names)}")
    if name in ("sin", "cos") and "clock" not in card.values:
        raise ValueError(f"observe: {name} needs `clock`")
    if scale.shape not in ((), (card.width(name),)):
        raise ValueError(f"observe.{name}: {scale.size} scales for {card.width(name)} numbers")


def check_together(values: Plain, terms: list[str]) -> None:
    """ValueError for keys that need one another, or ranges that end before they begin."""
    clock = values.get("clock", {})
    pairs = [(key, "kp", values) for key in ("kd", "torque", "armature")]
    pairs += [("kp", "kd", values), ("stand", "least", clock), ("least", "stand", clock)]
    for key, other, where in pairs:
        if key in where and other not in where:
            raise ValueError(f"{key} needs {other}")
    if "kp" in values and values["integrator"] in ("Euler", "RK4"):
        raise ValueError(f"integrator={values['integrator']}: kp needs implicitfast")
    dt, timestep = values["dt"], values["timestep"]
    if abs(math.remainder(dt, timestep)) > 1e-6 * timestep:
        raise ValueError(f"dt={dt} is no multiple of timestep={timestep}")
    if isinstance(clock.get("hz"), list) and not (len(clock["hz"]) == 2 and "full" in clock):
        raise ValueError("clock.hz: expected a number, or two and `full`")
    if not ("pose" in values or "keyframe" in values):
        raise ValueError("pose or keyframe is needed: the angles for action 0")
    for name, (low, high) in values["command"].items():
        if low > high:
            raise ValueError(f"command.{name}: {low} is above {high}")
    if unknown := [x for x in values.get("hide", ()) if x not in values["joints"]]:
        raise ValueError(f"hide: {unknown[0]!r} is not among joints")
    if not {*OF_JOINTS} & {*terms}:
        raise ValueError("observe: no term of joints")
