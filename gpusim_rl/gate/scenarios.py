"""Scenarios of the gate: each writes the course of its own robots, second by second."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from itertools import product
from typing import Any

import mujoco
import numpy as np
import torch

from gpusim_rl.core import maths
from gpusim_rl.envs.command_columns import plain_columns, rotations
from gpusim_rl.gate.robot import Robot, with_options

Array = np.ndarray
Settings = Mapping[str, Any]  # the section `gate` of a configuration
SHARES = 0.1, 0.25, 0.5, 0.75, 1.0  # of a number's range, of commands that are held
STANDING = 0.1  # share of robots that are told to stand, where velocities are commanded
CYCLE = 5  # s between two commands that are drawn
CONTACT = "contact"
ELLIPTIC = int(mujoco.mjtCone.mjCONE_ELLIPTIC)


class Plan:
    """The course of B robots through one scenario. All is zero that the scenario does not write.

    Args:
        count, seconds: B, S.
        settings: the section `gate` of a configuration.
        seed: of every draw.

    Attributes:
        command: (S, B, n) of each second; n is 0 if the policy follows none.
        push: (S, B, 2) changes of the base's horizontal velocity when a second begins [m/s].
        delay: control steps by which readings are late.
        late: (B,) seconds by which targets act late.
        dropout: chance that a reading is not delivered in a control step.
        bias, noise: shares of the settings' errors that the readings have.
        friction: (B,) sliding friction; NaN is the model's.
        solref: (B,) factors on the time constant of contacts.
        options: which options of contact the robots have; empty for the file's own.
        payload: (B,) share of the robot's mass, added to its base.
        slope, towards: (B,) slope of the ground, and its direction upwards [rad].
        joints, heading: (B, nu) and (B,) of the start [rad].
    """

    def __init__(
        self, robot: Robot, scenario: str, count: int, seconds: int, settings: Settings, seed: int
    ):
        self.robot, self.scenario, self.settings, self.seed = robot, scenario, settings, seed
        self.count, self.seconds = count, seconds
        self.push = np.zeros((seconds, count, 2))
        self.friction, self.solref, self.options = np.full(count, np.nan), np.ones(count), ""
        self.payload, self.slope, self.towards = np.zeros((3, count))
        self.delay, self.dropout, self.bias, self.noise = 0, 0.0, 0.0, 0.0
        spread = settings["start"]
        self.joints = self.rng("joints").uniform(-spread, spread, (count, robot.model.nu))
        self.heading = self.draw("heading", -np.pi, np.pi)
        self.late = self.draw("late", *settings["late"])
        self.command = self.drawn_commands()
        write, _ = SCENARIOS[scenario]
        write(self)

    def rng(self, quantity: str) -> np.random.Generator:
        """A generator whose numbers depend on seed, scenario and quantity, and on nothing else.

        So two policies meet the same robots, commands and disturbances, whatever they read.
        """
        return np.random.default_rng([self.seed, *f"{self.scenario}/{quantity}".encode()])

    def draw(self, quantity: str, low: float, high: float) -> Array:
        """(B,) uniform numbers of a quantity."""
        return self.rng(quantity).uniform(low, high, self.count)

    def drawn_commands(self) -> Array:
        """(S, B, n) commands that are drawn anew every few seconds, within the trained ranges."""
        rng, cycles = self.rng("command"), -(-self.seconds // CYCLE)
        values = self.commands(rng.uniform(-1, 1, (cycles, self.count, self.width)))
        if self.robot.follows == "velocity":
            values *= (self.draw("stands", 0, 1) >= STANDING)[:, None]
        return np.repeat(values, CYCLE, 0)[: self.seconds]

    @property
    def steps(self) -> int:
        """Control steps of all seconds."""
        return round(self.seconds / self.robot.policy.dt)

    @property
    def width(self) -> int:
        return len(self.robot.policy.command["names"]) if self.robot.policy.command else 0

    def commands(self, share: Array) -> Array:
        """(…, n) commands at a share of -1 to 1 (…, n) of their ranges.

        The shares of a rotation's first three numbers are those of its turn, of its lean, and of
        the direction of this.
        """
        description = self.robot.policy.command
        if not description:
            return share
        low, high = (np.array(description["trained"][end], float) for end in ("low", "high"))
        values = (low + high) / 2 + share * (high - low) / 2
        for columns, lean, spin in rotations(description):
            angles = torch.from_numpy(share[..., columns][..., :3] * [spin, lean, math.pi])
            turn, tilt, towards = angles.unbind(-1)
            axis = torch.stack([towards.cos(), towards.sin(), 0 * towards], -1)
            turned = maths.from_axis_angle(UP.expand_as(axis), turn)
            leaning = maths.product(maths.from_axis_angle(axis, tilt), turned)
            center = torch.tensor(description["center"][columns], dtype=UP.dtype).expand_as(leaning)
            values[..., columns] = maths.product(center, leaning)
        return values


UP = torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64)  # of the world


def joined(plans: list[Plan], name: str, axis: int = 0) -> Array:
    """An attribute of plans, whose robots stand side by side."""
    return np.concatenate([getattr(plan, name) for plan in plans], axis)


def normal(plan: Plan) -> None:
    """Nothing but commands."""


def pushes(plan: Plan) -> None:
    """The base's velocity changes at once, in any horizontal direction, every few seconds."""
    every, rng = plan.settings["push"]["every"], plan.rng("push")
    for second in range(every, plan.seconds, every):
        angle = rng.uniform(-np.pi, np.pi, plan.count)
        direction = np.stack([np.cos(angle), np.sin(angle)], -1)
        plan.push[second] = plan.settings["push"]["speed"] * direction


def slopes(plan: Plan) -> None:
    """The ground is an inclined plane, upwards in any direction."""
    plan.slope = np.deg2rad(plan.draw("slope", *plan.settings["slope"]))
    plan.towards = plan.draw("towards", -np.pi, np.pi)


def friction(plan: Plan) -> None:
    """All that touches has the same sliding friction."""
    plan.friction = plan.draw("friction", *plan.settings["friction"])


def payload(plan: Plan) -> None:
    """The base is heavier or lighter by a share of the robot's mass."""
    plan.payload = plan.draw("payload", *plan.settings["payload"])


def delay(plan: Plan, steps: int) -> None:
    """Readings are late by whole control steps."""
    plan.delay = steps


def sensors(plan: Plan) -> None:
    """Readings have a constant error and noise, and some are not delivered."""
    plan.bias, plan.noise, plan.dropout = 1.0, 1.0, plan.settings["dropout"]


def commands(plan: Plan) -> None:
    """One number of the command jumps from one end of its range to the other, and back.

    A rotation stays in the center of its range, unless it is all there is: `corners` turns it.
    """
    numbers = np.array(plain_columns(plan.robot.policy.command or {"names": []}) or [0])
    jump(plan, np.eye(plan.width)[plan.rng("number").choice(numbers, plan.count)])


def corners(plan: Plan) -> None:
    """All numbers of the command jump at once, from one corner of the ranges to its opposite."""
    jump(plan, plan.rng("corner").choice([-1.0, 1.0], (plan.count, plan.width)))


def constant(plan: Plan) -> None:
    """One command, held to the end: one number alone at shares of its range, or two at half."""
    alone = [sign * x * axis for axis, x, sign in product(np.eye(plan.width), SHARES, (1, -1))]
    both = [x for x in product((0.0, 0.5, -0.5), repeat=plan.width) if np.count_nonzero(x) == 2]
    shares = np.array([*alone, *both, np.zeros(plan.width)])
    # each eleventh: few robots have commands of every kind, too
    order = np.arange(plan.count) * 11 % len(shares)
    plan.command[:] = plan.commands(shares[order])


def jump(plan: Plan, end: Array) -> None:
    """Command a share (B, n) of the ranges, and its opposite, in turn.

    Each is held for a second longer than what does not count of it, at least.
    """
    settle = plan.settings["settle"].get(plan.robot.follows, 0)
    every = max(plan.settings["jump"], math.ceil(settle) + 1)
    ends = plan.commands(np.stack([end, -end]))
    plan.command = ends[np.arange(plan.seconds) // every % 2]


def contact(plan: Plan) -> None:
    """Nothing but commands: what differs are options of MuJoCo, as `contact_plans` has them."""


def contact_plans(robot: Robot, settings: Settings, seed: int) -> list[Plan]:
    """The plans of `contact`: the same quarter of the robots under four sets of options.

    Those are the file's own, elliptic cones with an `impratio`, softer or harder contacts of each
    robot, and another timestep, or the nearest one that divides the control period.
    """
    numbers, dt = settings[CONTACT], robot.policy.dt
    timestep = dt / max(1, round(dt / numbers["timestep"]))
    sets = {
        "the file's own": robot,
        "solref": robot,
        "elliptic": with_options(robot, cone=ELLIPTIC, impratio=numbers["impratio"]),
        f"{1000 * timestep:.3g} ms": with_options(robot, timestep=timestep),
    }
    count, seconds, plans = max(1, settings["robots"] // len(sets)), settings["seconds"], []
    for options, of in sets.items():
        plans.append(plan := Plan(of, CONTACT, count, seconds, settings, seed))
        plan.options = options
        if options == "solref":
            plan.solref = plan.draw("solref", *numbers["solref"])
    return plans


def endurance(plan: Plan) -> None:
    """Minutes on end: commands, and noise of the readings."""
    plan.noise = 1.0


# A scenario writes a plan. The second is what a robot must have so that it applies: see `lacks`.
SCENARIOS: dict[str, tuple[Callable[[Plan], None], str]] = {
    "normal": (normal, ""),
    "pushes": (pushes, "a free base"),
    "slopes": (slopes, "ground that can slope"),
    "friction": (friction, "ground under it"),
    "payload": (payload, "a base"),
    "delay 1": (partial(delay, steps=1), ""),
    "delay 2": (partial(delay, steps=2), ""),
    "delay 3": (partial(delay, steps=3), ""),
    "sensors": (sensors, ""),
    "commands": (commands, "a command"),
    "corners": (corners, "a command"),
    "constant": (constant, "a commanded velocity"),
    CONTACT: (contact, "ground under it, in MuJoCo C"),
    "endurance": (endurance, ""),
}


def lacks(robot: Robot, engine: str = "native") -> dict[str, str]:
    """The scenarios that do not apply to a robot in an engine, and what it lacks for each."""
    stands = bool(robot.free) and robot.height > 0
    has = {
        "": True,
        "a base": bool(robot.base),
        "a free base": bool(robot.free),
        "ground under it": stands,
        "ground that can slope": stands and engine != "mjx",
        "ground under it, in MuJoCo C": stands and engine == "native",
        "a command": bool(robot.policy.command),
        "a commanded velocity": robot.follows == "velocity",
    }
    return {name: needs for name, (_, needs) in SCENARIOS.items() if not has[needs]}
