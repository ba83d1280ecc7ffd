"""Drive B robots through their plan with the policy of a file, and note what they do."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from gpusim_rl.gate.robot import HINGE, Robot
from gpusim_rl.gate.scenarios import Plan
from gpusim_rl.gate.worlds import Worlds

Array = np.ndarray


class Driven(NamedTuple):
    """What B robots did until they fell, or to the end. Errors are NaN where nothing is followed.

    Attributes:
        fell, fault: (B,) whether a robot fell; whether a number of it was not finite.
        lived: (B,) control steps.
        error, turn: (B,) root mean squares of the error of velocity [m/s] or position [m], and of
            the yaw rate [rad/s].
        torque, joint, speed: (B,) shares of steps and actuators at or beyond the limit of the
            torque, of the joint's range, of the speed.
        power: (B,) mean mechanical power [W].
        transport: (B,) power over weight times speed, of robots that walk; else NaN.
        change: (B,) root mean square of the targets' change in a control step, as a share of the
            range of the control or of the joint; NaN if no actuator has one.
    """

    fell: Array
    fault: Array
    lived: Array
    error: Array
    turn: Array
    torque: Array
    joint: Array
    speed: Array
    power: Array
    transport: Array
    change: Array


def drive(plan: Plan, count: Callable[[int], Iterable[int]] = range) -> Driven:
    """Step the worlds of a plan, and stop those that fell. `count` counts the steps."""
    robot, settings = plan.robot, plan.settings
    worlds = Worlds(robot, plan.count)
    worlds.set_friction(plan.friction)
    if robot.base and plan.payload.any():
        worlds.add_payload(plan.payload)
    worlds.turn_ground(plan.slope, plan.towards)
    worlds.begin(plan.joints, plan.heading)
    robot.policy.reset(plan.count)
    fall = settings["fall"]
    tilt = np.deg2rad(fall["tilt"] if robot.height else fall["flying"])
    senses, notes = Senses(plan), Notes(plan)
    alive, fell, fault = (np.full(plan.count, x) for x in (True, False, False))
    second = -1
    for t in count(round(plan.seconds / robot.policy.dt)):
        before, second = second, min(int(t * robot.policy.dt + 1e-9), plan.seconds - 1)
        if second != before:
            notes.command(plan.command[second], t)
            if robot.free:
                push(worlds, plan.push[second])
        command = plan.command[second] if plan.width else None
        targets = robot.policy.act(senses(worlds.readings()), command)
        worlds.live["ctrl"][:] = targets
        fault |= alive & (robot.policy.fault | worlds.step(alive))
        fell |= alive & worlds.fallen(tilt, fall["height"])
        alive &= ~(fell | fault)
        notes.add(worlds, targets, alive, t)
        if not alive.any():
            break
    return notes.driven(fell, fault)


def push(worlds: Worlds, change: Array) -> None:
    """Change the horizontal velocity (B, 2) of free bases. In place."""
    robot = worlds.robot
    first = robot.model.jnt_dofadr[robot.model.body_jntadr[robot.base]]
    worlds.live["qvel"][:, first : first + 2] += change


class Senses:
    """The errors, the delay and the drop-out of the readings of B robots."""

    def __init__(self, plan: Plan):
        self.plan, self.rng, robot, units = plan, plan.rng, plan.robot, {}
        for entry in robot.policy.about["inputs"]:
            units[entry["name"]] = entry.get("units", [])
        error, noise = plan.settings["bias"], plan.settings["noise"]
        self.bias, self.noise = {}, {}
        for name, width in robot.policy.needs.items():
            most = np.array([error.get(unit, 0.0) for unit in units[name]] or [0.0] * width)
            drawn = self.rng.uniform(-most, most, (plan.count, width))
            self.bias[name] = plan.bias[:, None] * drawn
            most = np.array([noise.get(unit, 0.0) for unit in units[name]] or [0.0] * width)
            self.noise[name] = plan.noise[:, None] * most
        self.past: dict[str, list[Array]] = {}
        self.deepest = int(plan.delay.max())

    def __call__(self, readings: dict[str, Array]) -> dict[str, Array]:
        """What the policy is given, of what is true: (B, width) by name."""
        return {name: self.one(name, x) for name, x in readings.items()}

    def one(self, name: str, x: Array) -> Array:
        """(B, width) of one reading."""
        x = x + self.bias[name]
        if self.noise[name].any():
            x += self.noise[name] * self.rng.uniform(-1, 1, x.shape)
        past = self.past.setdefault(name, [x] * (self.deepest + 1))  # the newest first
        lost = self.rng.uniform(size=len(x)) < self.plan.dropout
        past.insert(0, np.where(lost[:, None], past[0], x))
        past.pop()
        if not self.deepest:
            return past[0]
        return np.stack(past)[self.plan.delay, np.arange(len(x))]


class Notes:
    """Sums of what B robots do, over the control steps of those that stand."""

    def __init__(self, plan: Plan):
        self.robot, self.plan, self.settings = plan.robot, plan, plan.settings
        robot, count, model = plan.robot, plan.count, plan.robot.model
        names = ("error", "turn", "torque", "joint", "speed", "power", "path", "change")
        self.sums = {name: np.zeros(count) for name in names}
        self.lived, self.settled = np.zeros(count, int), np.zeros(count, int)
        self.since, self.asked = np.zeros(count, int), plan.command[0]
        self.last: Array | None = None
        self.driven_joints = robot.joints[robot.joints >= 0]
        limited = model.jnt_limited[self.driven_joints] > 0
        low, high = model.jnt_range[self.driven_joints].T
        self.low, self.high = np.where(limited, low, -np.inf), np.where(limited, high, np.inf)
        self.hinges = model.jnt_type[self.driven_joints] == HINGE
        self.width = widths(robot)
        self.ranged = np.isfinite(self.width).sum()

    def command(self, wanted: Array, t: int) -> None:
        """What is commanded from control step t on; `since` counts from a change."""
        changed = (wanted != self.asked).any(1) | (t == 0)
        self.since = np.where(changed, 0, self.since)
        self.asked = wanted

    def add(self, worlds: Worlds, targets: Array, alive: Array, t: int) -> None:
        """Add a control step of the robots that are alive (B,)."""
        live, model, s = worlds.live, self.robot.model, {}
        force = live["actuator_force"]
        s["power"] = np.abs(force * live["actuator_velocity"]).sum(1)
        s["torque"] = (np.abs(force) >= 0.999 * self.robot.torque).mean(1)
        if len(joints := self.driven_joints):
            angle, slack = live["qpos"][:, model.jnt_qposadr[joints]], self.settings["slack"]
            s["joint"] = ((angle < self.low - slack) | (angle > self.high + slack)).mean(1)
            fast = np.abs(live["qvel"][:, model.jnt_dofadr[joints]]) > self.settings["fastest"]
            s["speed"] = (fast & self.hinges).mean(1)
        if self.last is not None:
            s["change"] = (((targets - self.last) / self.width) ** 2).sum(1)
        self.last = targets
        self.since += 1
        settled = self.since * self.robot.policy.dt > self.settings["settle"].get(
            self.robot.follows, 0.0
        )
        if self.robot.follows == "velocity":
            velocity, spin = worlds.sensors["velocity"], worlds.sensors["gyro"]
            s["error"] = settled * ((velocity[:, :2] - self.asked[:, :2]) ** 2).sum(1)
            s["turn"] = settled * (spin[:, 2] - self.asked[:, 2]) ** 2
            s["path"] = np.hypot(velocity[:, 0], velocity[:, 1])
        elif self.robot.follows == "position":
            place = worlds.sensors[self.robot.place]
            s["error"] = settled * ((place - self.asked[:, :3]) ** 2).sum(1)
        for name, x in s.items():
            self.sums[name] += np.where(alive, x, 0.0)
        self.lived += alive
        self.settled += alive & settled

    def driven(self, fell: Array, fault: Array) -> Driven:
        """What the sums say of each robot."""
        n, follows = np.maximum(self.lived, 1), self.robot.follows
        mean = {name: x / n for name, x in self.sums.items()}
        counted = np.where(self.settled > 0, self.settled, np.nan)
        rms = {name: np.sqrt(self.sums[name] / counted) for name in ("error", "turn")}
        nothing = np.full(len(fell), np.nan)
        moved = mean["path"] > self.settings["walks"]
        weight = 9.81 * self.robot.model.body_mass.sum() * (1 + self.plan.payload)
        transport = np.where(moved, mean["power"] / weight / np.maximum(mean["path"], 1e-9), np.nan)
        return Driven(
            fell=fell,
            fault=fault,
            lived=self.lived,
            error=nothing if follows == "nothing" else rms["error"],
            turn=rms["turn"] if follows == "velocity" else nothing,
            power=mean["power"],
            transport=transport,
            change=np.sqrt(mean["change"] / self.ranged) if self.ranged else nothing,
            **{name: mean[name] for name in ("torque", "joint", "speed")},
        )


def widths(robot: Robot) -> Array:
    """(nu,) the width of each actuator's range of controls, or of its joint; inf without one."""
    about = robot.policy.outputs
    ranges = zip(about["control_range"], about["joint_range"], strict=True)
    pairs = [control or joint for control, joint in ranges]
    return np.array([pair[1] - pair[0] if pair else np.inf for pair in pairs])
