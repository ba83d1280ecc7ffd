"""The table of what can be randomized: plain data, without torch."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Field:
    """Something that can be randomized.

    Args:
        means: what it is, for the docs.
        unit: of `low` and `high` where they are added or set.
        when: "world" is drawn once, before training; "episode" at each restart; "push" at random
            times.
        of: what it belongs to, whose names `only` takes: geom, body, joint or actuator; "" for the
            whole world.
        targets: model fields; "geom_friction.0" is component 0 of the last axis.
        hows: what may be done with a number: scale the model's own, be added to it, or set it.
        each_or_all: whether its entry has `each`: one number for each thing, or one for all.
        base: it needs a free base. With `of`, it is of the base unless `only` names others.
        columns: numbers of each thing: 3 for x, y and z.
        signed: the model's own value may become negative.
        positive: the model's own value must stay above 0, not only at 0.
        timed: further keys of a push.
    """

    means: str
    unit: str
    when: str
    of: str = ""
    targets: tuple[str, ...] = ()
    hows: tuple[str, ...] = ("add",)
    each_or_all: bool = False
    base: bool = False
    columns: int = 1
    signed: bool = False
    positive: bool = False
    timed: tuple[str, ...] = ()

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of its entry."""
        chosen = {"how": len(self.hows) > 1, "each": self.each_or_all, "only": bool(self.of)}
        return ("kind", "low", "high", *(key for key in chosen if chosen[key]), *self.timed)


ANY = ("scale", "add", "set")
# Why: docs/decisions/randomization.md
FIELDS: dict[str, Field] = {
    "friction": Field(
        means="sliding friction of geoms", unit="1", when="episode",
        of="geom", targets=("geom_friction.0",), hows=("set", "scale"), each_or_all=True,
    ),
    "mass": Field(
        means="mass and inertia of bodies, together", unit="1", when="world",
        of="body", targets=("body_mass", "body_inertia"), hows=("scale",), each_or_all=True,
        positive=True,
    ),
    "inertia": Field(
        means="inertia of bodies alone", unit="1", when="world",
        of="body", targets=("body_inertia",), hows=("scale",), each_or_all=True, positive=True,
    ),
    "center": Field(
        means="center of mass of the base, x, y and z each", unit="m", when="world",
        of="body", targets=("body_ipos",), base=True, columns=3, signed=True,
    ),
    "payload": Field(
        means="extra mass at the base's center of mass", unit="kg", when="world",
        of="body", targets=("body_mass",), base=True, positive=True,
    ),
    "armature": Field(
        means="rotor inertia of joints", unit="kg m², kg", when="world",
        of="joint", targets=("dof_armature",), hows=ANY, each_or_all=True,
    ),
    "damping": Field(
        means="viscous damping of joints", unit="N m s/rad, N s/m", when="episode",
        of="joint", targets=("dof_damping",), hows=ANY, each_or_all=True,
    ),
    "joint_friction": Field(
        means="dry friction of joints", unit="N m, N", when="episode",
        of="joint", targets=("dof_frictionloss",), hows=ANY, each_or_all=True,
    ),
    "kp": Field(
        means="stiffness of position servos", unit="1", when="episode",
        of="actuator", targets=("actuator_gainprm.0", "actuator_biasprm.1"), hows=("scale",),
        each_or_all=True, positive=True,
    ),
    "kd": Field(
        means="damping of position servos", unit="1", when="episode",
        of="actuator", targets=("actuator_biasprm.2",), hows=("scale",), each_or_all=True,
    ),
    "strength": Field(
        means="force limit of actuators", unit="1", when="episode",
        of="actuator", targets=("actuator_forcerange",), hows=("scale",), each_or_all=True,
    ),
    "gain": Field(
        means="force of motors and rotors for what they are told", unit="1", when="episode",
        of="actuator", targets=("actuator_gainprm.0",), hows=("scale",), each_or_all=True,
    ),
    "gravity": Field(
        means="magnitude of gravity", unit="m/s²", when="episode",
        targets=("opt.gravity",), hows=("set", "scale"),
    ),
    "tilt": Field(
        means="angle of gravity from the model's own, in any direction", unit="rad", when="episode",
        targets=("opt.gravity",),
    ),
    "wind": Field(
        means="speed of the wind, in any horizontal direction", unit="m/s", when="episode",
        targets=("opt.wind",), hows=("set",),
    ),
    "encoder": Field(
        means="offset of joint encoders: of what the actor sees, and of what a position servo "
              "acts on", unit="rad, m",
        when="episode", of="joint", each_or_all=True,
    ),
    "start_angle": Field(
        means="joint angle at the start, beside the task's, within the joint's range",
        unit="rad, m", when="episode", of="joint", each_or_all=True,
    ),
    "start_speed": Field(
        means="joint speed at the start, beside the task's", unit="rad/s, m/s",
        when="episode", of="joint", each_or_all=True,
    ),
    "start_height": Field(
        means="height of the base at the start, beside the task's", unit="m", when="episode",
        base=True,
    ),
    "start_velocity": Field(
        means="velocity of the base at the start, x, y and z each, beside the task's", unit="m/s",
        when="episode", base=True, columns=3,
    ),
    "start_spin": Field(
        means="angular velocity of the base at the start, x, y and z each, beside the task's",
        unit="rad/s", when="episode", base=True, columns=3,
    ),
    "push": Field(
        means="change of the base's velocity, x and y each, in the world; `every`: mean seconds "
              "between two", unit="m/s",
        when="push", base=True, columns=2, timed=("every",),
    ),
    "force": Field(
        means="force on the base, x and y each, in the world; `every`: mean seconds between two, "
              "`hold`: it lasts, uniform",
        unit="N", when="push", base=True, columns=2, timed=("every", "hold"),
    ),
}  # fmt: skip
BIAS = Field(
    means="constant error of a reading of the robot, each of its entries",
    unit="the reading's", when="episode",
)  # fmt: skip


def field(name: str) -> Field:
    """The field of a name, `bias.<reading>` included; ValueError if there is none."""
    if name not in FIELDS and not name.startswith("bias."):
        raise ValueError(
            f"task.randomise.{name}: no such field, choose one of {', '.join(FIELDS)}, "
            "bias.<reading>"
        )
    return FIELDS.get(name, BIAS)
