"""Drive robots through their plans with the policy of a file, and sum up what they do."""

from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from gpusim_rl.core.streams import torch_threads
from gpusim_rl.gate.robot import HINGE, Robot
from gpusim_rl.gate.scenarios import Plan, joined
from gpusim_rl.gate.worlds import Worlds

Array = np.ndarray


class DriveResult(NamedTuple):
    """Results (B,) of robots until they fell, or to the end. Errors are NaN if nothing is followed.

    `torque`, `joint` and `speed` are shares of steps and actuators at or beyond the limit.
    """

    fell: Array  # bool
    fault: Array  # bool, whether a number was not finite
    lived: Array  # control steps
    error: Array  # root mean square of the error of velocity [m/s] or position [m]
    turn: Array  # the same of the yaw rate [rad/s]
    # mean error of the velocity along its worst axis, over what `tracking` allows of the last goal
    offset: Array
    torque: Array
    joint: Array  # of its range
    speed: Array
    power: Array  # mean mechanical power [W]
    transport: Array  # power over weight times speed, of robots that walk; else NaN
    # root mean square of the targets' change in a control step, as a share of the range of the
    # control or of the joint; NaN if no actuator has one
    change: Array
    # (B, nu) mean squares of the targets' change in a control step, and of the change of that
    first: Array
    second: Array


@torch_threads(1)  # torch's would fight the engine's
def drive(plans: list[Plan], count: Callable[[int], Iterable[int]] = range) -> list[DriveResult]:
    """The results of plans of one robot and length, driven side by side. Robots that fell stop.

    `count` counts the steps.
    """
    robot, settings, seconds = plans[0].robot, plans[0].settings, plans[0].seconds
    worlds, totals = Worlds(plans), Totals(plans)
    ends = np.cumsum([plan.count for plan in plans])
    rows = [slice(end - plan.count, end) for plan, end in zip(plans, ends, strict=True)]
    sensing = [ReadingErrors(plan) for plan in plans]
    commands, pushes = joined(plans, "command", 1), joined(plans, "push", 1)
    robot.policy.reset(worlds.count)
    tilt = np.deg2rad(settings["fall"]["tilt" if robot.height else "flying"])
    alive, fell, fault = (np.full(worlds.count, x) for x in (True, False, False))
    second = -1
    for t in count(plans[0].steps):
        before, second = second, min(int(t * robot.policy.dt + 1e-9), seconds - 1)
        if second != before:
            totals.command(commands[second], t)
            if robot.free:
                worlds.qvel[:, robot.free.qvel][:, :2] += pushes[second]
        readings = {
            name: np.concatenate([one(name, x[i]) for one, i in zip(sensing, rows, strict=True)])
            for name, x in worlds.readings().items()
        }
        targets = robot.policy.act(readings, commands[second] if robot.policy.command else None)
        worlds.ctrl[:] = targets
        fault |= alive & (robot.policy.fault | worlds.step(alive))
        fell |= alive & worlds.fallen(tilt, settings["fall"]["height"])
        alive &= ~(fell | fault)
        totals.add(worlds, targets, alive)
        if not alive.any():
            break
    result = totals.result(fell, fault)
    return [DriveResult(*(x[i] for x in result)) for i in rows]


class ReadingErrors:
    """The errors, the delay and the drop-out of the readings of a plan's robots."""

    def __init__(self, plan: Plan):
        self.plan, self.past = plan, dict[str, deque[Array]]()
        self.bias, self.noise, self.rng = {}, {}, {}
        units = {x["name"]: x.get("units", []) for x in plan.robot.policy.description["inputs"]}
        for name, width in plan.robot.policy.needs.items():
            names = units[name] or [""] * width
            errors = [plan.settings[key] for key in ("bias", "noise")]
            bias, noise = (np.array([x.get(unit, 0.0) for unit in names]) for x in errors)
            offset = plan.rng(f"{name} bias").uniform(-bias, bias, (plan.count, width))
            self.bias[name], self.noise[name] = plan.bias * offset, plan.noise * noise
            self.rng[name] = plan.rng(f"{name} noise"), plan.rng(f"{name} dropout")

    def __call__(self, name: str, x: Array) -> Array:
        """A reading (B, width) as the policy gets it, of the true one."""
        noise, dropout = self.rng[name]
        x = x + self.bias[name]
        if self.noise[name].any():
            x += self.noise[name] * noise.uniform(-1, 1, x.shape)
        length = self.plan.delay + 1
        past = self.past.setdefault(name, deque([x] * length, length))  # the newest first
        if self.plan.dropout:
            lost = dropout.uniform(size=len(x)) < self.plan.dropout
            x = np.where(lost[:, None], past[0], x)
        past.appendleft(x)
        return past[-1]


class Totals:
    """Sums over the control steps of the robots that stand."""

    def __init__(self, plans: list[Plan]):
        robot = self.robot = plans[0].robot
        self.settings, self.payload = plans[0].settings, joined(plans, "payload")
        count, model = len(self.payload), robot.model
        names = ("error", "turn", "torque", "joint", "speed", "power", "path", "change")
        self.sums = {name: np.zeros(count) for name in names}
        self.offsets = np.zeros((count, 3))  # of the velocity: forward, left, turn
        self.lived, self.settled, self.since = np.zeros((3, count), int)
        self.goal = np.zeros((count, 0))  # the command of now
        self.last: Array | None = None
        self.step: Array | None = None  # the last change of the targets
        self.first, self.second = np.zeros((2, count, model.nu))
        self.driven_joints = robot.joints[robot.joints >= 0]
        limited = model.jnt_limited[self.driven_joints] > 0
        low, high = model.jnt_range[self.driven_joints].T
        self.low, self.high = np.where(limited, low, -np.inf), np.where(limited, high, np.inf)
        self.hinges = model.jnt_type[self.driven_joints] == HINGE
        self.width = widths(robot)
        self.ranged = np.isfinite(self.width).sum()

    def command(self, goal: Array, t: int) -> None:
        """Take the command from control step t on; `since` counts from a change."""
        self.since[(goal != self.goal).any(1) if t else slice(None)] = 0
        self.goal = goal

    def add(self, worlds: Worlds, targets: Array, alive: Array) -> None:
        """Add a control step of the robots that are alive (B,)."""
        model, settings, s = self.robot.model, self.settings, {}
        force = worlds.data["actuator_force"]
        s["power"] = np.abs(force * worlds.data["actuator_velocity"]).sum(1)
        s["torque"] = (np.abs(force) >= 0.999 * self.robot.torque).mean(1)
        if len(joints := self.driven_joints):
            angle, slack = worlds.qpos[:, model.jnt_qposadr[joints]], settings["slack"]
            s["joint"] = ((angle < self.low - slack) | (angle > self.high + slack)).mean(1)
            fast = np.abs(worlds.qvel[:, model.jnt_dofadr[joints]]) > settings["fastest"]
            s["speed"] = (fast & self.hinges).mean(1)
        if self.last is not None:
            step = targets - self.last
            s["change"] = ((step / self.width) ** 2).sum(1)
            if self.step is not None:
                self.first += np.where(alive[:, None], step, 0.0) ** 2
                self.second += np.where(alive[:, None], step - self.step, 0.0) ** 2
            self.step = step
        self.last = targets
        self.since += 1
        wait = settings["settle"].get(self.robot.follows, 0.0)
        settled = self.since * self.robot.policy.dt > wait
        if self.robot.follows == "velocity":
            velocity, spin = worlds.sensors["velocity"], worlds.sensors["gyro"]
            errors = np.column_stack([velocity[:, :2], spin[:, 2]]) - self.goal[:, :3]
            self.offsets += np.where((alive & settled)[:, None], errors, 0.0)
            s["error"] = settled * (errors[:, :2] ** 2).sum(1)
            s["turn"] = settled * errors[:, 2] ** 2
            s["path"] = np.hypot(velocity[:, 0], velocity[:, 1])
        elif self.robot.follows == "position":
            place = worlds.sensors[self.robot.place]
            s["error"] = settled * ((place - self.goal[:, :3]) ** 2).sum(1)
        for name, x in s.items():
            self.sums[name] += np.where(alive, x, 0.0)
        self.lived += alive
        self.settled += alive & settled

    def result(self, fell: Array, fault: Array) -> DriveResult:
        """The sums as means and shares of each robot."""
        n, follows = np.maximum(self.lived, 1), self.robot.follows
        mean = {name: x / n for name, x in self.sums.items()}
        counted = np.where(self.settled > 0, self.settled, np.nan)
        rms = {name: np.sqrt(self.sums[name] / counted) for name in ("error", "turn")}
        nothing, offset = np.full(len(fell), np.nan), np.full(len(fell), np.nan)
        if follows == "velocity":
            tracking = self.settings["tracking"]
            allowed = np.maximum(tracking["least"], tracking["relative"] * np.abs(self.goal[:, :3]))
            offset = (np.abs(self.offsets / counted[:, None]) / allowed).max(1)
        moved = mean["path"] > self.settings["walks"]
        weight = 9.81 * self.robot.model.body_mass.sum() * (1 + self.payload)
        transport = np.where(moved, mean["power"] / weight / np.maximum(mean["path"], 1e-9), np.nan)
        return DriveResult(
            fell=fell,
            fault=fault,
            lived=self.lived,
            error=nothing if follows == "nothing" else rms["error"],
            turn=rms["turn"] if follows == "velocity" else nothing,
            offset=offset,
            transport=transport,
            change=np.sqrt(mean["change"] / self.ranged) if self.ranged else nothing,
            first=self.first / n[:, None],
            second=self.second / n[:, None],
            **{name: mean[name] for name in ("torque", "joint", "speed", "power")},
        )


def widths(robot: Robot) -> Array:
    """(nu,) the width of each actuator's range of controls, or of its joint; inf without one."""
    outputs = robot.policy.outputs
    ranges = zip(outputs["control_range"], outputs["joint_range"], strict=True)
    pairs = [control or joint for control, joint in ranges]
    return np.array([pair[1] - pair[0] if pair else np.inf for pair in pairs])
