"""The table of what can be randomized: plain data, without torch."""

from dataclasses import KW_ONLY, dataclass


@dataclass(frozen=True)
class Field:
    """Something that can be randomized; docs/randomisation.md says what it is, and its unit.

    Args:
        when: "world" is drawn once, before training; "episode" at each restart; "push" at random
            times.
        of: what it belongs to, whose names `only` takes: geom, body, joint or actuator; "" for the
            whole world.
        targets: model fields; "geom_friction.0" is component 0 of the last axis.
        hows: what may be done with a number: scale the model's own, be added to it, or set it.
        base: it needs a free base. With `of`, it is of the base unless `only` names others.
        columns: numbers of each thing: 3 for x, y and z.
        signed: the model's own value may become negative.
        positive: the model's own value must stay above 0, not only at 0.
        timed: further keys of a push.
    """

    when: str
    of: str = ""
    targets: tuple[str, ...] = ()
    hows: tuple[str, ...] = ("add",)
    _: KW_ONLY
    base: bool = False
    columns: int = 1
    signed: bool = False
    positive: bool = False
    timed: tuple[str, ...] = ()

    @property
    def each_or_all(self) -> bool:
        """Whether its entry has `each`: one number for each thing, or one for all."""
        return bool(self.of) and not self.base

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of its entry."""
        chosen = {"how": len(self.hows) > 1, "each": self.each_or_all, "only": bool(self.of)}
        return ("kind", "low", "high", *(key for key in chosen if chosen[key]), *self.timed)


ANY, SCALE = ("scale", "add", "set"), ("scale",)
STIFFNESS = ("actuator_gainprm.0", "actuator_biasprm.1")  # of a position servo
# Why: docs/decisions/randomization.md
FIELDS: dict[str, Field] = {
    "friction": Field("episode", "geom", ("geom_friction.0",), ("set", "scale")),
    "mass": Field("world", "body", ("body_mass", "body_inertia"), SCALE, positive=True),
    "inertia": Field("world", "body", ("body_inertia",), SCALE, positive=True),
    "center": Field("world", "body", ("body_ipos",), base=True, columns=3, signed=True),
    "payload": Field("world", "body", ("body_mass",), base=True, positive=True),
    "armature": Field("world", "joint", ("dof_armature",), ANY),
    "damping": Field("episode", "joint", ("dof_damping",), ANY),
    "joint_friction": Field("episode", "joint", ("dof_frictionloss",), ANY),
    "kp": Field("episode", "actuator", STIFFNESS, SCALE, positive=True),
    "kd": Field("episode", "actuator", ("actuator_biasprm.2",), SCALE),
    "strength": Field("episode", "actuator", ("actuator_forcerange",), SCALE),
    "gain": Field("episode", "actuator", ("actuator_gainprm.0",), SCALE),
    "gravity": Field("episode", "", ("opt.gravity",), ("set", "scale")),
    "tilt": Field("episode", "", ("opt.gravity",)),
    "wind": Field("episode", "", ("opt.wind",), ("set",)),
    "encoder": Field("episode", "joint"),
    "start_angle": Field("episode", "joint"),
    "start_speed": Field("episode", "joint"),
    "start_height": Field("episode", base=True),
    "start_velocity": Field("episode", base=True, columns=3),
    "start_spin": Field("episode", base=True, columns=3),
    "push": Field("push", base=True, columns=2, timed=("every",)),
    "force": Field("push", base=True, columns=2, timed=("every", "hold")),
}
BIAS = Field("episode")


def field(name: str) -> Field:
    """The field of a name, `bias.<reading>` included; ValueError if there is none."""
    if name not in FIELDS and not name.startswith("bias."):
        raise ValueError(
            f"task.randomise.{name}: no such field, choose one of {', '.join(FIELDS)}, "
            "bias.<reading>"
        )
    return FIELDS.get(name, BIAS)
