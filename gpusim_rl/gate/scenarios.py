"""What robots go through: a plan of B robots, into which each scenario writes its part."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from gpusim_rl.gate.robot import Robot
from gpusim_rl.viewer.target import leaning, plain_columns, rotations

Array = np.ndarray
Settings = Mapping[str, Any]  # the section `gate` of a configuration
STILL = 0.1  # share of robots that are told to stand, where velocities are commanded
CYCLE = 5  # s between two commands that are drawn


class Plan:
    """What happens to B robots, second by second. Nothing does until a scenario writes it.

    Attributes:
        command: (S, B, n) of each second; n is 0 if the policy follows none.
        push: (S, B, 2) changes of the base's horizontal velocity when a second begins [m/s].
        delay: (B,) control steps by which readings are late.
        dropout: (B,) chance that a reading is not delivered in a control step.
        bias, noise: (B,) shares of the settings' errors that the readings have.
        friction: (B,) sliding friction; NaN is the model's.
        payload: (B,) share of the robot's mass, added to its base.
        slope, towards: (B,) slope of the ground, and its direction upwards [rad].
        joints, heading: (B, nu) and (B,) of the start [rad].
    """

    def __init__(self, robot: Robot, count: int, seconds: int, settings: Settings, seed: int):
        self.robot, self.count, self.seconds = robot, count, seconds
        self.settings, self.rng = settings, np.random.default_rng(seed)
        rng = self.rng
        self.push = np.zeros((seconds, count, 2))
        self.friction = np.full(count, np.nan)
        self.payload, self.slope, self.towards = (np.zeros(count) for _ in range(3))
        self.dropout, self.bias, self.noise = (np.zeros(count) for _ in range(3))
        self.delay = np.zeros(count, int)
        spread = settings["start"]
        self.joints = rng.uniform(-spread, spread, (count, robot.model.nu))
        self.heading = rng.uniform(-np.pi, np.pi, count)
        self.command = self.drawn_commands()

    def drawn_commands(self) -> Array:
        """(S, B, n) commands that are drawn anew every few seconds, within the trained ranges."""
        cycles = -(-self.seconds // CYCLE)
        drawn = self.commands(self.rng.uniform(-1, 1, (cycles, self.count, self.width)))
        if self.robot.follows == "velocity":
            drawn *= self.rng.uniform(size=(1, self.count, 1)) >= STILL
        return np.repeat(drawn, CYCLE, 0)[: self.seconds]

    @property
    def width(self) -> int:
        """How many numbers the command has."""
        return len(self.robot.policy.command["names"]) if self.robot.policy.command else 0

    def commands(self, share: Array) -> Array:
        """(…, n) commands at a share of -1 to 1 (…, n) of their ranges.

        The shares of a rotation's first three numbers are those of its turn, of its lean, and of
        the direction of this.
        """
        about = self.robot.policy.command
        if not about:
            return share
        low, high = (np.array(about["trained"][end], float) for end in ("low", "high"))
        values = (low + high) / 2 + share * (high - low) / 2
        for columns, lean, spin in rotations(about):
            center = np.array(about["center"][columns], float)
            most = np.array([spin, lean, math.pi])
            for place in np.ndindex(share.shape[:-1]):
                values[place][columns] = leaning(center, *share[place][columns][:3] * most)
        return values


def normal(plan: Plan, which: slice) -> None:
    """Nothing but commands."""


def pushes(plan: Plan, which: slice) -> None:
    """The base's velocity changes at once, in any horizontal direction, every few seconds."""
    every = plan.settings["push"]["every"]
    for second in range(every, plan.seconds, every):
        angle = plan.rng.uniform(-np.pi, np.pi, plan.count)[which]
        change = plan.settings["push"]["speed"] * np.stack([np.cos(angle), np.sin(angle)], -1)
        plan.push[second, which] = change


def slopes(plan: Plan, which: slice) -> None:
    """The ground is an inclined plane, upwards in any direction."""
    plan.slope[which] = np.deg2rad(drawn(plan, "slope"))[which]
    plan.towards[which] = plan.rng.uniform(-np.pi, np.pi, plan.count)[which]


def friction(plan: Plan, which: slice) -> None:
    """All that touches has the same sliding friction."""
    plan.friction[which] = drawn(plan, "friction")[which]


def payload(plan: Plan, which: slice) -> None:
    """The base is heavier or lighter by a share of the robot's mass."""
    plan.payload[which] = drawn(plan, "payload")[which]


def delay(plan: Plan, which: slice, steps: int) -> None:
    """Readings are late by whole control steps."""
    plan.delay[which] = steps


def sensors(plan: Plan, which: slice) -> None:
    """Readings have a constant error and noise, and some are not delivered."""
    plan.bias[which], plan.noise[which] = 1.0, 1.0
    plan.dropout[which] = plan.settings["dropout"]


def commands(plan: Plan, which: slice) -> None:
    """One number of the command jumps from one end of its range to the other, and back.

    A rotation stays in the middle of its range, unless it is all there is: `corners` turns it.
    """
    numbers = np.array(plain_columns(plan.robot.policy.command or {"names": []}) or [0])
    one = np.eye(plan.width)[numbers[plan.rng.integers(0, len(numbers), plan.count)]]
    jump(plan, which, one)


def corners(plan: Plan, which: slice) -> None:
    """All numbers of the command jump at once, from one corner of the ranges to its opposite."""
    jump(plan, which, plan.rng.choice([-1.0, 1.0], (plan.count, plan.width)))


def jump(plan: Plan, which: slice, end: Array) -> None:
    """Command a share (B, n) of the ranges, and its opposite, in turn.

    Each is held for a second longer than what does not count of it, at least.
    """
    settle = plan.settings["settle"].get(plan.robot.follows, 0)
    every = max(plan.settings["jump"], math.ceil(settle) + 1)
    for second in range(plan.seconds):
        sign = -1 if second // every % 2 else 1
        plan.command[second, which] = plan.commands(sign * end)[which]


def endurance(plan: Plan, which: slice) -> None:
    """Minutes on end: commands, and noise of the readings."""
    plan.noise[which] = 1.0


class Scenario(NamedTuple):
    """A scenario, and what a robot must have so that it applies: see `lacks`."""

    write: Callable[[Plan, slice], None]
    needs: str = ""


SCENARIOS = {
    "normal": Scenario(normal),
    "pushes": Scenario(pushes, "a free base"),
    "slopes": Scenario(slopes, "ground under it"),
    "friction": Scenario(friction, "ground under it"),
    "payload": Scenario(payload, "a base"),
    "delay 1": Scenario(partial(delay, steps=1)),
    "delay 2": Scenario(partial(delay, steps=2)),
    "delay 3": Scenario(partial(delay, steps=3)),
    "sensors": Scenario(sensors),
    "commands": Scenario(commands, "a command"),
    "corners": Scenario(corners, "a command"),
    "endurance": Scenario(endurance),
}


def lacks(robot: Robot) -> dict[str, str]:
    """The scenarios that do not apply to a robot, and what it lacks for each."""
    has = {
        "": True,
        "a base": bool(robot.base),
        "a free base": robot.free,
        "ground under it": robot.free and robot.height > 0,
        "a command": bool(robot.policy.command),
    }
    return {name: x.needs for name, x in SCENARIOS.items() if not has[x.needs]}


def drawn(plan: Plan, key: str) -> Array:
    """(B,) uniform numbers within a range of the settings."""
    low, high = plan.settings[key]
    return plan.rng.uniform(low, high, plan.count)
