"""Stand a robot up, let a policy drive it within limits, and stop it softly if something is wrong.

    guard = Guard(Policy("policy.onnx"), task="quadruped", robot="quadruped")
    while guard.phase != "off":  # once every policy.dt seconds
        targets = guard.act(readings, command, age)
        robot.send(targets, guard.gain)  # the servos' kp is that of the file times the gain

The folder of this file can be copied to the robot, beside runtime.py. It needs NumPy alone.
"""

import re
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np

from . import checks
from .checks import Bounds, Policy, Readings, Values
from .limits import Limits
from .rate import late_readings, seconds, wrong_rate
from .verdict import Json

CHECKS = ("refuse", "clamp", "warn")
# Why: docs/decisions/guard.md
PERIODS = 50  # control steps whose median period is compared with dt
NEAR = 0.5  # [rad, m] a joint's largest distance from its target as the robot stands up
SETTLE = 0.5  # [s] in the stance before the policy begins, and in the crouch
# Why: docs/decisions/guard.md
CROUCH = 0.6  # of the way to the lying pose; from 1 m/s a quadruped falls over with less than 0.4
HEALS = 0.25  # of a fault, that a good step makes up for
# Why: docs/decisions/guard.md
FROZEN, MOVED = 10, 0.05  # control steps; [rad, m] that a target moves in the first half of them
KIND = re.compile(r" is | has | of type | \[|: ")  # what stands before these in a line
Array = np.ndarray


@dataclass
class Guard:
    """A policy between checks of what goes in and limits on what comes out, for one robot.

    Phases: `rise` moves the joints from where they are to the stance, `run` is the policy's. `stop`
    lets a robot that runs crouch at once: more than half of the way to the file's lying pose. From
    there, or from where it has risen to, it lies down slowly. The gain falls to 0, and damping
    stays. A robot with a fixed base goes slowly to the stance, and keeps it. The end is `off`.

    A fault is a reading or command that is missing, of a wrong width or not finite. It is also one
    that is late or outside of its range, or a joint that does not follow as the robot stands up. A
    whole reading of joints or IMU is one, too, if it is equal in ten steps in which targets move.
    A step with a fault repeats the last targets; `patience` faults stop the robot, where four good
    steps make up for one. Before anything has moved a fault raises ValueError.

    Args:
        policy: a `Policy` of runtime.py whose targets are positions of joints.
        task, robot, joints: what the program expects the file to be of; None is not checked.
        gate: whether a file that failed the release gate is refused, and one that was never judged
            said.
        checks: what is done with a reading outside of its range. `refuse`: it is a fault. `clamp`:
            it is cut to the range. `warn`: it is only said, as are late readings and a wrong rate.
        margin: how far readings may leave the range of training, in widths of that range.
        late: greatest age of readings, and time between two calls of `act` [control steps].
        rate: greatest difference of the median period from dt, as a share; else the robot stops.
        patience: faults that stop the robot, less a quarter of the good steps since.
        speed: of a joint as the robot stands up and stops [rad/s, m/s].
        change: greatest change of a target in a step, in multiples of the file's `change`.
        lower: how long the gain falls after the robot has lain down [s].
        clock: the time [s]; it never goes back.
        say: gets one line for each phase, and one for each kind of problem.
        record: gets each step, as `Log` of log.py takes it. If it fails, the robot goes on without.

    Attributes:
        phase, gain, why: rise | run | stop | off; the share of kp; why it stopped.
        limits: `limits.cut` (nu,) tells which of the last targets were changed.
    """

    policy: Policy
    _: KW_ONLY
    task: str | None = None
    robot: str | None = None
    joints: Iterable[str] | None = None
    gate: bool | None = None
    checks: str = "refuse"
    margin: float = 1.0
    late: float = 3.0
    rate: float = 0.25
    patience: int = 5
    speed: float = 0.8
    change: float = 1.5
    lower: float = 2.0
    clock: Callable[[], float] = time.monotonic
    say: Callable[[str], object] = print
    record: Callable[[Json], object] | None = None

    def __post_init__(self) -> None:
        if self.checks not in CHECKS:
            raise ValueError(f"checks={self.checks!r}: choose {', '.join(CHECKS)}")
        for key in ("margin", "late", "rate", "patience", "speed", "change", "lower"):
            if not 0 < getattr(self, key) < np.inf:
                raise ValueError(f"{key}={getattr(self, key)!r}: expected a number above 0")
        checks.check_functions(clock=self.clock, say=self.say, record=self.record or print)
        if not isinstance(self.gate, bool | None):
            raise ValueError(f"gate={self.gate!r}: expected True or False")
        checks.check_file(self.policy, self.task, self.robot, self.joints)
        self.stance = np.array(self.policy.outputs["safe_pose"], float)
        lying = self.policy.description["standing"].get("lying")
        self.lying = None if lying is None else np.array(lying, float)
        self.limits = Limits(self.policy.outputs, self.change, self.speed * self.policy.dt)
        self.trained, self.anyhow = checks.reading_bounds(self.policy, self.margin)
        self.moving = checks.moving(self.policy)
        self.reset()
        for line in checks.judgement(self.policy) if self.gate else ():
            self._say(line)

    def reset(self) -> None:
        """Begin again: stand up from the measured pose."""
        self.phase, self.gain, self.why = "rise", 1.0, ""
        self.sent: Array | None = None
        self.begin, self.steps, self.faults = self.stance, 0, 0.0
        self.past = list[tuple[Values, Array]]()
        self.times, self.lines_said = list[float](), set[str]()
        self.now = 0.0

    def stop(self, why: str = "asked to") -> None:
        """Crouch and lie down, or go to the stance; see above."""
        if self.phase in ("rise", "run"):
            ran, self.why = self.phase == "run", why
            self.goals = [self.stance if self.lying is None else self.lying]
            self._enter("stop", f"stops: {why}")
            if ran and self.lying is not None:
                self.begin = self.stance + CROUCH * (self.lying - self.stance)
                self.goals = [self.begin, self.lying]

    def act(self, readings: Readings | None, command: Any = None, age: float = 0.0) -> Array:
        """(nu,) the targets for the next dt seconds; ValueError before anything has moved.

        Args:
            readings: as `Policy.act` takes them; None if there are none.
            command: it is cut to the range of training.
            age: time since the readings were measured [s].
        """
        values, faults = checks.read(self.policy, readings)
        if self.sent is None and not faults:  # the first targets are these angles
            faults = checks.outside(self.policy, values, {"joint_pos": self.anyhow["joint_pos"]})
        sound = None if faults else {**values}  # a copy, which may be cut
        self.views = {x: readings[x] for x in self.policy.views if readings and not faults}
        phase, runs = self.phase, self.phase == "run"
        restart = runs and self.steps == 0
        command, cut, wrong = checks.ask(self.policy, command) if runs else (None, [], [])
        self._tell(cut)
        faults += wrong + self._react(late_readings(age, self.policy.dt, self.late))
        bounds = self.trained if runs else self.anyhow
        joints = checks.sound_joints(self.policy, sound, bounds)
        for phases, test, borne in LIMITS.values():
            if sound is not None and phase in phases:
                faults += self._react(test(self, sound, bounds), borne)
        if self.sent is None:
            if faults or sound is None:
                raise ValueError(faults[0])
            self.sent = self.begin = sound["joint_pos"]
            if phase == "rise":
                self._say("stands up")
        faults += self._timing()
        targets = self._targets(sound, command, faults, self.sent)
        self.faults = self.faults + 1 if faults else max(0.0, self.faults - HEALS)
        self._tell(faults)
        if faults and self.faults >= self.patience:
            self.stop(faults[0])
        self.sent = self.limits(targets, self.sent, *((None, None) if faults else joints))
        if self.record:
            step = {"time": self.now, "age": seconds(age), "readings": values, "command": command}
            step |= {"targets": self.sent, "gain": self.gain, "phase": phase, "restart": restart}
            self._record(step | {"faults": faults})
        return self.sent

    # -- phases ------------------------------------------------------------------------------------

    def _enter(self, phase: str, line: str) -> None:
        self.phase, self.steps, self.faults = phase, 0, 0.0
        self.begin = self.stance if self.sent is None else self.sent
        self._say(line)

    def _targets(
        self, values: Values | None, command: Array | None, faults: list[str], last: Array
    ) -> Array:
        """Targets (nu,) of this phase, not yet limited, or the last; adds faults of the policy."""
        if self.phase in ("stop", "off"):
            return self._lie_down()
        if faults or values is None:
            return last
        if self.phase == "rise":
            targets, after = self._ramp(self.stance)
            if after >= SETTLE:
                self.policy.reset()
                self._enter("run", "stands")
            return targets
        self._tell(["the policy begins"])
        try:
            targets = self.policy.act({**values, **self.views}, command)
        except checks.NO_NUMBERS as error:
            faults.append(str(error))
            return last
        if self.policy.fault.any():
            faults.append("a result of the policy is not finite")
        self.steps += not faults
        return targets

    def _ramp(self, goal: Array) -> tuple[Array, float]:
        """Targets on the way to a pose; seconds since they have reached it."""
        self.steps += 1
        needed = float(np.abs(goal - self.begin).max()) / self.speed + self.policy.dt  # [s]
        done = self.steps * self.policy.dt
        return self.begin + min(1.0, done / needed) * (goal - self.begin), done - needed

    def _lie_down(self) -> Array:
        """Targets on the way to the ground, or to the stance."""
        targets, after = self._ramp(self.goals[0])
        if after < (0 if len(self.goals) == 1 else SETTLE) or self.phase == "off":
            return targets
        if len(self.goals) > 1:
            self.goals, self.begin, self.steps = self.goals[1:], targets, 0
        elif self.lying is None or after >= self.lower:
            self.gain = 1.0 if self.lying is None else 0.0
            self._enter("off", "keeps the stance" if self.gain else "lies: the servos only damp")
        else:
            self.gain = 1 - after / self.lower
        return targets

    # -- checks ------------------------------------------------------------------------------------

    def _tell(self, lines: list[str]) -> None:
        """Say lines, unless one of their kind was said: the words before what is wrong."""
        for line in lines:
            kind = KIND.split(line)[0]
            if kind not in self.lines_said:
                self.lines_said.add(kind)
                self._say(line)

    def _say(self, line: str) -> None:
        """Say a line. A terminal that is gone is no reason to leave a robot in mid-step."""
        with suppress(OSError, ValueError):
            self.say(line)

    def _record(self, step: Json) -> None:
        """Hand a step to the log. A full disk, as a terminal that is gone, stops no robot."""
        try:
            self.record(step)  # pyright: ignore
        except Exception as error:
            self.record = None
            self._say(f"the log ends: {' '.join(str(error).split()) or type(error).__name__}")

    def _range(self, values: Values, bounds: Bounds) -> list[str]:
        """Lines of readings outside of their range, to which checks=clamp cuts them in place."""
        lines = checks.outside(self.policy, values, bounds)
        if lines and self.checks == "clamp":
            values |= {name: np.clip(values[name], *bounds[name]) for name in bounds}
        return lines

    def _frozen(self, values: Values) -> list[str]:
        """Lines of readings that stay equal as the targets move. Call it once in each step."""
        sent = self.stance if self.sent is None else self.sent
        self.past = [*self.past, ({**values}, sent)][-FROZEN - 1 :]
        ways = np.ptp([sent for _, sent in self.past[: FROZEN // 2 + 1]], 0)
        if len(self.past) <= FROZEN or ways.max() < MOVED:
            return []
        rows = [row for row, _ in self.past]
        return [
            f"{name} is equal in {FROZEN} steps in which the targets move: is its sensor frozen?"
            for name in self.moving
            if all(np.array_equal(row[name], rows[0][name]) for row in rows)
        ]

    def _follows(self, values: Values) -> list[str]:
        """The line of a joint that is far from its target as the robot stands up."""
        if self.sent is None:
            return []
        away = np.abs(values["joint_pos"] - self.sent)
        name, far = self.policy.joints[int(away.argmax())], away.max()
        line = f"{name} is {far:.2g} from its target: it does not follow as the robot stands up"
        return [line] if far > NEAR else []

    def _timing(self) -> list[str]:
        """The fault of a call that comes late. Stops the robot if the median period is wrong."""
        now = self.now = seconds(self.clock())
        if not np.isfinite(now):
            return self._react([f"the time is {now}: the clock is none"])
        dt, self.times = self.policy.dt, [*self.times, now]
        if self.phase not in ("rise", "run"):
            self.times = []
        gap = self.times[-1] - self.times[-2] if len(self.times) > 1 else 0.0
        if len(self.times) > PERIODS:
            period, self.times = float(np.median(np.diff(self.times))), self.times[-1:]
            for line in self._react(wrong_rate(period, dt, self.rate)):
                self.stop(line)
        line = f"the time since the last step is {gap:.3g} s: the loop hangs"
        lines = self._react([line] if gap > self.late * dt else [])
        self.faults += len(lines) * (round(gap / dt) - 1)  # one for each step that was missed
        return lines

    def _react(self, lines: list[str], borne: tuple[str, ...] = ("warn",)) -> list[str]:
        """The lines, if what they say is a fault; with `checks` among `borne` it is only said."""
        if self.checks not in borne:
            return lines
        self._tell(lines)
        return []


Test = Callable[[Guard, Values, Bounds], list[str]]
# What is measured: name → phases in which it is tested, in this order; the test, which gives lines
# of what is wrong; and the values of `checks` with which that is only said, and no fault.
LIMITS: dict[str, tuple[tuple[str, ...], Test, tuple[str, ...]]] = {
    "frozen": (("run",), lambda guard, values, _: guard._frozen(values), ("warn",)),
    "range": (("rise", "run"), Guard._range, ("clamp", "warn")),
    "follows": (("rise",), lambda guard, values, _: guard._follows(values), ()),
}
