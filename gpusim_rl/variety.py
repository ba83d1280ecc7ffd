"""What can be randomised: a table of fields, the entry of each in `task.randomise`, and their checks. Plain data, no torch."""

import copy
from dataclasses import dataclass
from typing import Any

KINDS = ("off", "uniform", "log_uniform", "normal")
SMALLEST = 1e-18  # of a float32 that can be squared and inverted
NUMBERS = ("low", "high", "every")  # of an entry, that a curriculum may move
Entry = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Field:
    """Something that can be randomised.

    Args:
        means: what it is, for the docs; unit: of low and high where it is added or set.
        when: it is drawn: world (once, before training), episode (at each restart), push (at random times).
        low, high: what its entry says unless told.
        of: what it belongs to, whose names `only` takes: geom, body, joint, actuator; "" for the whole world.
        targets: model fields, "geom_friction.0" being component 0 of the last axis.
        hows: what may be done with the number: scale the model's own, be added to it, or set it; the first is the default.
        each: a number for each of what it is of, or one for all; None: not to be chosen.
        base: without `only` it is of the free base alone; otherwise of all.
        positive: what it scales must stay above 0, not only at 0.
        timed: further keys of a push.
    """

    means: str
    unit: str
    when: str
    low: float
    high: float
    of: str = ""
    targets: tuple[str, ...] = ()
    hows: tuple[str, ...] = ("add",)
    each: bool | None = None
    base: bool = False
    positive: bool = False
    timed: Entry | None = None

    def entry(self) -> Entry:
        """The whole entry, off."""
        entry: Entry = {"kind": "off", "low": self.low, "high": self.high}
        entry |= {"how": self.hows[0]} if len(self.hows) > 1 else {}
        entry |= {"each": self.each} if self.each is not None else {}
        entry |= {"only": None} if self.of else {}
        return entry | (self.timed or {})


ANY = ("scale", "add", "set")
FIELDS: dict[str, Field] = {
    "friction": Field(
        means="sliding friction of geoms", unit="1", when="episode", low=0.5, high=1.25,
        of="geom", targets=("geom_friction.0",), hows=("set", "scale"), each=False,
    ),
    "mass": Field(
        means="mass and inertia of bodies, together", unit="1", when="world", low=0.9, high=1.1,
        of="body", targets=("body_mass", "body_inertia"), hows=("scale",), each=True, positive=True,
    ),
    "inertia": Field(
        means="inertia of bodies alone", unit="1", when="world", low=0.9, high=1.1,
        of="body", targets=("body_inertia",), hows=("scale",), each=True, positive=True,
    ),
    "centre": Field(
        means="centre of mass of the base, x, y and z each", unit="m", when="world", low=-0.03, high=0.03,
        of="body", targets=("body_ipos",), base=True,
    ),
    "payload": Field(
        means="extra mass at the base's centre of mass", unit="kg", when="world", low=0.0, high=2.0,
        of="body", targets=("body_mass",), base=True,
    ),
    "armature": Field(
        means="rotor inertia of joints", unit="kg m², kg", when="world", low=0.8, high=1.2,
        of="joint", targets=("dof_armature",), hows=ANY, each=True,
    ),
    "damping": Field(
        means="viscous damping of joints", unit="N m s/rad, N s/m", when="episode", low=0.5, high=1.5,
        of="joint", targets=("dof_damping",), hows=ANY, each=True,
    ),
    "joint_friction": Field(
        means="dry friction of joints", unit="N m, N", when="episode", low=0.5, high=1.5,
        of="joint", targets=("dof_frictionloss",), hows=ANY, each=True,
    ),
    "kp": Field(
        means="stiffness of position servos", unit="1", when="episode", low=0.9, high=1.1,
        of="actuator", targets=("actuator_gainprm.0", "actuator_biasprm.1"), hows=("scale",), each=False, positive=True,
    ),
    "kd": Field(
        means="damping of position servos", unit="1", when="episode", low=0.9, high=1.1,
        of="actuator", targets=("actuator_biasprm.2",), hows=("scale",), each=False,
    ),
    "strength": Field(
        means="force limit of actuators", unit="1", when="episode", low=0.8, high=1.0,
        of="actuator", targets=("actuator_forcerange",), hows=("scale",), each=False,
    ),
    "gravity": Field(
        means="magnitude of gravity", unit="m/s²", when="episode", low=9.7, high=9.9,
        targets=("opt.gravity",), hows=("set", "scale"),
    ),
    "tilt": Field(
        means="angle of gravity from the model's own, in any direction", unit="rad", when="episode", low=0.0, high=0.05,
        targets=("opt.gravity",),
    ),
    "encoder": Field(
        means="offset of joint encoders: of what the actor sees, and of what a position servo acts on", unit="rad, m",
        when="episode", low=-0.02, high=0.02, of="joint", each=True,
    ),
    "start_angle": Field(
        means="joint angle at the start, beside the task's, within the joint's range", unit="rad, m",
        when="episode", low=-0.1, high=0.1, of="joint", each=True,
    ),
    "start_speed": Field(
        means="joint speed at the start, beside the task's", unit="rad/s, m/s",
        when="episode", low=-0.1, high=0.1, of="joint", each=True,
    ),
    "start_height": Field(
        means="height of the base at the start, beside the task's", unit="m", when="episode", low=0.0, high=0.02,
    ),
    "start_velocity": Field(
        means="velocity of the base at the start, x, y and z each, beside the task's", unit="m/s",
        when="episode", low=-0.3, high=0.3,
    ),
    "start_spin": Field(
        means="angular velocity of the base at the start, x, y and z each, beside the task's", unit="rad/s",
        when="episode", low=-0.3, high=0.3,
    ),
    "push": Field(
        means="change of the base's velocity, x and y each, in the world; `every`: mean seconds between two", unit="m/s",
        when="push", low=-0.5, high=0.5, timed={"every": 8.0},
    ),
    "force": Field(
        means="force on the base, x and y each, in the world; `every`: mean seconds between two, `hold`: it lasts, uniform",
        unit="N", when="push", low=-50.0, high=50.0, timed={"every": 8.0, "hold": [0.1, 0.5]},
    ),
}  # fmt: skip
BIAS = Field(means="constant of an observation term that the actor sees, each of its entries", unit="the term's",
             when="episode", low=0.0, high=0.0)  # fmt: skip


def flat(randomise: Entry) -> dict[str, Entry]:
    """task.randomise with bias.<term> beside the other fields, each entry whole; those that are off too."""
    given = {name: entry for name, entry in randomise.items() if name != "bias"}
    given |= {f"bias.{term}": entry for term, entry in (randomise.get("bias") or {}).items()}
    whole = {}
    for name, entry in given.items():
        default = field(name).entry()
        strange = [key for key in entry or {} if key not in default] if isinstance(entry, dict) else [entry]
        if strange:
            raise ValueError(f"task.randomise.{name}: unknown key {strange[0]!r}, choose one of {', '.join(default)}")
        whole[name] = default | entry
        if whole[name]["kind"] is False:  # YAML's off
            whole[name]["kind"] = "off"
    order = [name for name in (*FIELDS, *whole) if name in whole]
    return {name: whole[name] for name in dict.fromkeys(order)}


def field(name: str) -> Field:
    """The field of a name, bias.<term> included; ValueError for one that is none."""
    if name not in FIELDS and not name.startswith("bias."):
        raise ValueError(f"task.randomise.{name}: no such field, choose one of {', '.join(FIELDS)}, bias.<term>")
    return FIELDS.get(name, BIAS)


def active(randomise: Entry) -> dict[str, Entry]:
    """The whole entries that are on, in the table's order; ValueError in one line for one that makes no sense."""
    check(randomise)
    return {name: entry for name, entry in flat(randomise).items() if entry["kind"] != "off"}


def check(randomise: Entry) -> None:
    """ValueError in one line for the first entry that makes no sense, whatever the model."""
    for name, entry in flat(randomise).items():
        key, known = f"task.randomise.{name}", field(name)
        if entry["kind"] not in KINDS:
            raise ValueError(f"{key}.kind={entry['kind']}: choose one of {', '.join(KINDS)}")
        low, high = (number(f"{key}.{end}", entry[end]) for end in ("low", "high"))
        if low > high:
            raise ValueError(f"{key}: low={low} is above high={high}")
        if entry["kind"] == "log_uniform" and low <= 0:
            raise ValueError(f"{key}.low={low}: a log_uniform draw needs more than 0")
        how = entry.get("how", known.hows[0])
        if how not in known.hows:
            raise ValueError(f"{key}.how={how}: choose one of {', '.join(known.hows)}")
        if how != "add" and (low < 0 or (known.positive and low == 0)):
            raise ValueError(f"{key}.low={low}: expected {'more than 0' if known.positive else 'at least 0'}")
        if known.each is not None and type(entry["each"]) is not bool:
            raise ValueError(f"{key}.each={entry['each']}: expected true or false")
        only = entry.get("only")
        if not (only is None or (isinstance(only, list) and only and all(isinstance(x, str) for x in only))):
            raise ValueError(f"{key}.only={entry['only']}: expected a list of names, such as [NAME], or null")
        if "every" in entry and number(f"{key}.every", entry["every"]) <= 0:
            raise ValueError(f"{key}.every={entry['every']}: expected more than 0 s")
        hold = entry.get("hold", [0.1, 0.1])
        if len(hold) != 2 or not 0 < number(f"{key}.hold", hold[0]) <= number(f"{key}.hold", hold[1]):
            raise ValueError(f"{key}.hold={hold}: expected the shortest and the longest [s], such as [0.1, 0.5]")


def number(key: str, value: Any) -> float:
    """value, if it is a finite number."""
    if type(value) not in (int, float) or not abs(value) < 1e30:
        raise ValueError(f"{key}={value!r}: expected a number")
    if 0 < abs(value) < SMALLEST:
        raise ValueError(f"{key}={value}: expected 0 or a number of at least {SMALLEST}")
    return float(value)


def calm(randomise: Entry) -> Entry:
    """A copy without pushes: what an evaluation takes."""
    quiet = copy.deepcopy(randomise)
    for name in quiet.keys() & {name for name, field in FIELDS.items() if field.when == "push"}:
        quiet[name]["kind"] = "off"
    return quiet


def rows() -> list[str]:
    """The rows of the table in docs/randomisation.md."""
    draws = {"world": "once per world", "episode": "at each restart", "push": "at random times"}
    found = []
    for name, known in {**FIELDS, "bias.<term>": BIAS}.items():
        keys = [key for key in known.entry() if key not in ("kind", "low", "high")]
        hows = ", ".join((f"**{known.hows[0]}**", *known.hows[1:]))
        default = f"{known.low} to {known.high}" if known is not BIAS else "the task's"
        cells = [f"`{name}`", known.means, known.unit, hows, draws[known.when], default, " ".join(f"`{key}`" for key in keys)]
        found.append(f"| {' | '.join(cells)} |")
    return found
