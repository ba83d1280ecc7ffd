"""Robots that nobody here chose: quadrupeds drawn from a seed, some with a fault.

`draw` varies what files of strangers vary: format, size and mass, order and names of legs and
joints, axes and their signs, kinds of feet, servos, units, flags, bodies around the base and
a ground of their own. A fault makes the file something else than a quadruped that
stands, and the generator knows what must be said of it.
"""

import random
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

LEGS = ("FL", "FR", "RL", "RR")
FRONT = {"FL": 1, "FR": 1, "RL": -1, "RR": -1}
LEFT = {"FL": 1, "FR": -1, "RL": 1, "RR": -1}
FEET = ("sphere", "body", "site", "capsule", "box")
SERVOS = ("none", "motor", "position", "general")
WORDS = "hip thigh calf knie bras 腿 j link a0 Motor.x kfe haa".split()


class Stranger(NamedTuple):
    """A robot's file, and what must become of it."""

    text: str
    suffix: str  # .xml or .urdf
    says: str  # what must be in the refusal; empty for a good robot


class Shape:
    """What a good robot is drawn from.

    Args:
        pick: the source of all choices.
    """

    def __init__(self, pick: random.Random):
        self.pick = pick
        self.mass = 10 ** pick.uniform(-0.5, 2.17)  # kg: 0.3 to 150
        self.upper = 0.2 * (self.mass / 12) ** (1 / 3)  # m: as heavy robots are larger
        self.lower = self.upper * pick.uniform(0.85, 1.15)
        self.length, self.width = 2 * self.upper * pick.uniform(0.8, 1.2), 0.9 * self.upper
        self.order = pick.sample(LEGS, 4)
        self.names = {leg: self.word(f"{i}") for i, leg in enumerate(self.order)}
        self.signs = [pick.choice((-1, 1)) for _ in range(3)]
        self.bent = {leg: pick.choice((1, -1)) if pick.random() < 0.2 else 1 for leg in LEGS}
        self.foot, self.servo = pick.choice(FEET), pick.choice(SERVOS)
        self.degrees, self.nested = pick.random() < 0.3, pick.random() < 0.3
        self.free = pick.random() < 0.6
        self.ground, self.gravcomp = pick.random() < 0.5, pick.random() < 0.1
        self.flags = pick.choice(("", "", "gravity", "contact", "actuation"))
        self.radius = 0.1 * self.upper

    def word(self, end: str) -> str:
        """A name that says nothing about what it names."""
        return f"{self.pick.choice(WORDS)}_{end}"

    def angle(self, x: float) -> str:
        """An angle [rad] in the unit of the file."""
        return f"{x * 57.29577951308232 if self.degrees else x:.5g}"

    def place(self, leg: str) -> tuple[float, float]:
        """(x, y) of a hip [m]."""
        return FRONT[leg] * self.length / 2, LEFT[leg] * self.width / 2

    def limits(self, leg: str) -> list[tuple[float, float]]:
        """The least and largest angle of each joint [rad]."""
        knee = (-2.5, -0.3) if self.bent[leg] > 0 else (0.3, 2.5)
        ranges = [(-0.8, 0.8), (-1.2, 2.2) if self.bent[leg] > 0 else (-2.2, 1.2), knee]
        return [
            (low, high) if sign > 0 else (-high, -low)
            for (low, high), sign in zip(ranges, self.signs, strict=True)
        ]


def mjcf(shape: Shape, joints: int = 3, slides: bool = False) -> str:
    """The MJCF of a shape, with so many joints in each leg. `slides`: the knee does not turn."""
    legs = "".join(mjcf_leg(shape, leg, joints, slides) for leg in shape.order)
    joined = [f"{shape.names[leg]}_{i}" for leg in shape.order for i in range(joints)]
    shape.pick.shuffle(joined)
    limit = 1.2 * shape.mass * 9.81 * shape.upper
    servos = {
        "none": "",
        "motor": '<motor joint="{}" ctrlrange="-{t:.4g} {t:.4g}"/>',
        "position": '<position joint="{}" kp="{k:.4g}" kv="{d:.4g}" {force}/>',
        "general": '<general joint="{}" gainprm="1" {force}/>',
    }[shape.servo]
    force = f'forcerange="-{limit:.4g} {limit:.4g}"'
    gains = dict(t=limit, k=limit, d=limit / 20, force=force)
    actuators = "".join(servos.format(name, **gains) for name in joined) if servos else ""
    body = f"""<body name="{shape.word("base")}" pos="0 0 {2.2 * shape.upper:.5g}">
      {"<freejoint/>" if shape.free else ""}{inertial(shape, 0.5, shape.length)}
      <geom type="box" size="{shape.length / 2:.5g} {shape.width / 3:.5g} {shape.radius:.5g}"/>
      {legs}</body>"""
    if shape.nested and not shape.free:
        body = f'<body name="{shape.word("mount")}"><body>{body}</body></body>'
    flag = f'<flag {shape.flags}="disable"/>' if shape.flags else ""
    floor = '<geom type="plane" size="0 0 1"/>' if shape.ground else ""
    unit = "degree" if shape.degrees else "radian"
    return f"""<mujoco model="{shape.word("m")}"><compiler angle="{unit}" autolimits="true"/>
    <option timestep="{shape.pick.choice((0.001, 0.002, 0.005))}">{flag}</option>
    <worldbody>{floor}{body}</worldbody><actuator>{actuators}</actuator></mujoco>"""


def inertial(shape: Shape, share: float, size: float) -> str:
    """The inertia of a share of the mass, as a ball of a size [m] has it."""
    mass = share * shape.mass
    moment = 0.1 * mass * size**2
    moments = numbers([moment] * 3)
    return f'<inertial pos="0 0 0" mass="{mass:.5g}" diaginertia="{moments}"/>'


def mjcf_leg(shape: Shape, leg: str, joints: int, slides: bool) -> str:
    """The bodies of a leg."""
    (x, y), name, up, low = shape.place(leg), shape.names[leg], shape.upper, shape.lower
    axes = [("1 0 0", "0 1 0", "0 1 0")[i].replace("1", str(shape.signs[i])) for i in range(3)]
    comp = ' gravcomp="1"' if shape.gravcomp else ""
    hinge = []
    for i, (least, most) in enumerate(shape.limits(leg)):
        kind = ' type="slide"' if slides and i == 2 else ""
        bounds = f"{least:.4g} {most:.4g}" if kind else f"{shape.angle(least)} {shape.angle(most)}"
        one = f'<joint name="{name}_{i}" axis="{axes[i]}" range="{bounds}"{kind}/>'
        hinge.append(one if i < joints else "")
    r = shape.radius
    end = f'pos="0 0 {-low:.5g}"'
    ball = f'type="sphere" size="{r:.5g}"'
    foot = {
        "sphere": f"<geom {ball} {end}/>",
        "body": f'<body name="{name}_f" {end}><geom {ball} mass="0.001"/></body>',
        "site": f'<site name="{name}_s" {end}/>',
        "capsule": "",
        "box": f'<geom type="box" size="{numbers([r] * 3)}" {end}/>',
    }[shape.foot]
    return f"""
    <body name="{name}_a" pos="{x:.5g} {y:.5g} 0"{comp}>{inertial(shape, 0.04, up)}{hinge[0]}
      <body name="{name}_b" pos="0 {LEFT[leg] * 0.3 * up:.5g} 0">
        {inertial(shape, 0.06, up)}{hinge[1]}
        <geom type="capsule" size="{0.6 * r:.5g}" fromto="0 0 0 0 0 {-up:.5g}"/>
        <body name="{name}_c" pos="0 0 {-up:.5g}">{inertial(shape, 0.025, low)}{hinge[2]}
          <geom type="capsule" size="{0.5 * r:.5g}" fromto="0 0 0 0 0 {-low:.5g}"/>{foot}
        </body></body></body>"""


def urdf(shape: Shape) -> str:
    """The URDF of a shape; its angles are always in radians."""
    parts = [urdf_link(shape, "base", 0.5, shape.length, box=(shape.length, 0.6 * shape.width))]
    for leg in shape.order:
        (x, y), name = shape.place(leg), shape.names[leg]
        at = [(x, y, 0), (0, LEFT[leg] * 0.3 * shape.upper, 0), (0, 0, -shape.upper)]
        parent = "base"
        for i, (low, high) in enumerate(shape.limits(leg)):
            axis = [0.0, 0.0, 0.0]
            axis[min(i, 1)] = shape.signs[i]
            limit = 1.2 * shape.mass * 9.81 * shape.upper
            parts.append(
                f'<joint name="{name}_{i}" type="revolute"><parent link="{parent}"/>'
                f'<child link="{name}_l{i}"/><origin xyz="{numbers(at[i])}"/>'
                f'<axis xyz="{numbers(axis)}"/>'
                f'<limit lower="{low}" upper="{high}" effort="{limit:.4g}" velocity="20"/></joint>'
            )
            reach = (0.0, shape.upper, shape.lower)[i]
            share = (0.04, 0.06, 0.025)[i]
            parts.append(urdf_link(shape, f"{name}_l{i}", share, shape.upper, reach=reach))
            parent = f"{name}_l{i}"
    return f'<robot name="{shape.word("r")}">{"".join(parts)}</robot>'


def urdf_link(
    shape: Shape,
    name: str,
    share: float,
    size: float,
    *,
    reach: float = 0.0,
    box: Sequence[float] = (),
) -> str:
    """A link with a share of the mass: a box, or a leg's part that reaches down [m]."""
    mass = share * shape.mass
    moment, r = 0.1 * mass * size**2, shape.radius
    form = f'<box size="{numbers(box)} {2 * r:.5g}"/>' if box else ""
    form = form or f'<box size="{r:.5g} {r:.5g} {max(reach, r):.5g}"/>'
    return (
        f'<link name="{name}"><inertial><mass value="{mass:.5g}"/><inertia ixx="{moment:.5g}"'
        f' iyy="{moment:.5g}" izz="{moment:.5g}" ixy="0" ixz="0" iyz="0"/></inertial>'
        f'<collision><origin xyz="0 0 {-reach / 2:.5g}"/><geometry>{form}</geometry></collision>'
        "</link>"
    )


def numbers(values: Sequence[float]) -> str:
    """Numbers as an attribute."""
    return " ".join(f"{x:.5g}" for x in values)


# -- faults: what is done to a shape, and what must be said of it ----------------------------------


def broken(shape: Shape) -> str:
    """A file that ends early."""
    text = mjcf(shape)
    return text[: shape.pick.randrange(len(text) // 3, len(text) - 20)]


def two_robots(shape: Shape) -> str:
    """A ball that floats beside the robot."""
    shape.free = True
    ball = '<body name="ball"><freejoint/><geom size="0.1"/></body></worldbody>'
    return mjcf(shape).replace("</worldbody>", ball)


def same_names(shape: Shape) -> str:
    """Two legs with the same names."""
    text, one, other = mjcf(shape), *(shape.names[leg] for leg in LEGS[:2])
    return text.replace(f'"{one}_', f'"{other}_')


def sideways(shape: Shape) -> str:
    """A robot that looks along y."""

    def turned(attribute: re.Match[str]) -> str:
        x, y, z = map(float, attribute[2].split())
        return f'{attribute[1]}="{-y + 0.0:.5g} {x:.5g} {z:.5g}"'

    return re.sub(r'\b(pos|axis)="([^"]+)"', turned, mjcf(shape))


def low_origin(shape: Shape) -> str:
    """A trunk that is fixed to a plate on the ground, which is the base."""
    shape.free = shape.nested = False
    start, trunk, rest = mjcf(shape).partition("<body")
    plate = f"{start}<body><geom size='0.01'/>{trunk}{rest}"
    return plate.replace("</worldbody>", "</body></worldbody>")


THREE = "expected four legs of three hinges"
FAULTS: dict[str, tuple[Callable[[Shape], str], str]] = {
    "two joints": (lambda shape: mjcf(shape, joints=2), THREE),
    "sliding knees": (lambda shape: mjcf(shape, slides=True), THREE),
    "broken": (broken, "XML"),
    "not a number": (
        lambda x: mjcf(x).replace('mass="', 'mass="nan', 1),
        "bad format in attribute",
    ),
    "two robots": (two_robots, "have a free joint each"),
    "same names": (same_names, "repeated name"),
    "sideways": (sideways, "looks along y"),
    "low origin": (low_origin, "the origin of its base is only"),
}


def draw(pick: random.Random, faulty: float = 0.3) -> Stranger:
    """A robot. `faulty` is the share of those with a fault."""
    shape = Shape(pick)
    if pick.random() < faulty:
        make, says = FAULTS[pick.choice([*FAULTS])]
        return Stranger(make(shape), ".xml", says)
    if pick.random() < 0.3:
        return Stranger(urdf(shape), ".urdf", "")
    return Stranger(mjcf(shape), ".xml", "")
