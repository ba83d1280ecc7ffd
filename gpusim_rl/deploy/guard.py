"""Stand a robot up, let a policy drive it within limits, and stop it softly if something is wrong.

This file can be copied to the robot beside runtime.py; it needs NumPy alone.

    guard = Guard(Policy("policy.onnx"), task="quadruped", robot="quadruped")
    while guard.phase != "off":  # once every policy.dt seconds
        targets = guard.act(readings, command, age)
        robot.send(targets, guard.gain)  # the servos' kp is that of the file times the gain
"""

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np

CHECKS = ("refuse", "clamp", "warn")
PERIODS = 11  # control steps whose median period is compared with dt
SETTLE = 0.5  # [s] in the stance before the policy begins
NEAR = 0.5  # [rad, m] a joint's largest distance from its target while it stands up
BEYOND = 0.2  # [rad, m] a joint may be measured outside of its range
Array = np.ndarray


@dataclass
class Guard:
    """A policy between checks of what goes in and limits on what comes out, for one robot.

    Phases: `rise` moves the joints from where they are to the stance, `run` is the policy's. `stop`
    moves them to the stance, then lowers the robot: the gain falls to 0, damping stays. Then `off`.

    A step with a fault repeats the last targets. `patience` faults in a row stop the robot. The
    first step raises ValueError instead, as nothing has moved yet. A fault is a reading or command
    that is missing, of a wrong width or not finite; one that is late, or outside of its range.

    Args:
        policy: a `Policy` of runtime.py whose targets are positions of joints.
        task, robot, joints: what the program expects; the file must be of it. None: not checked.
        checks: what is done with a reading outside of its range. `refuse`: it is a fault. `clamp`:
            it is cut to the range. `warn`: it is said; so are late readings and a wrong rate.
        margin: how far readings may leave the range of training, in widths of that range.
        late: greatest age of readings [control steps].
        rate: greatest difference of the median period from dt, as a share; else the robot stops.
        patience: faults in a row that stop the robot.
        speed: of a joint as the robot stands up and stops [rad/s, m/s].
        change: greatest change of a target in a step, in multiples of training's greatest.
        lower: how long the gain falls [s].
        clock: the time [s]; it never goes back.
        say: gets one line, once for each kind of problem, and for each phase.

    Attributes:
        phase, gain, why: rise | run | stop | off; the share of kp [0, 1]; why it stopped.
        limited: (nu,) bool, whether a limit has changed the target of the last step.
    """

    policy: Any
    _: KW_ONLY
    task: str | None = None
    robot: str | None = None
    joints: Iterable[str] | None = None
    checks: str = "refuse"
    margin: float = 1.0
    late: float = 3.0
    rate: float = 0.2
    patience: int = 5
    speed: float = 0.8
    change: float = 1.5
    lower: float = 2.0
    clock: Callable[[], float] = time.monotonic
    say: Callable[[str], Any] = print

    def __post_init__(self) -> None:
        check_numbers(self)
        check_file(self.policy, self.task, self.robot, self.joints)
        out: dict[str, Any] = self.policy.outputs
        self.stance, self.kp, self.kd = (np.array(out[k]) for k in ("safe_pose", "kp", "kd"))
        self.torque = np.array([np.inf if x is None else x for x in out["torque_limit"]])
        pairs = zip(out["control_range"], out["joint_range"], strict=True)
        ends = np.array([control or joint or (-np.inf, np.inf) for control, joint in pairs])
        self.least, self.greatest = ends.T
        self.step = np.maximum(self.change * np.array(out["change"]), self.speed * self.policy.dt)
        self.inputs = {x["name"]: x for x in self.policy.about["inputs"]}
        self.bounds = {name: self._bounds(name) for name in self.policy.needs}
        self.reset()

    def _bounds(self, name: str) -> tuple[Array, Array]:
        """The least and greatest values of a reading that are taken."""
        seen = self.inputs[name]["seen"]
        least, greatest = np.array(seen["least"]), np.array(seen["greatest"])
        wide = self.margin * (greatest - least)
        return least - wide, greatest + wide

    def reset(self) -> None:
        """Begin again: stand up from the measured pose."""
        self.phase, self.gain, self.why = "rise", 1.0, ""
        self.sent: Array | None = None
        self.limited = np.zeros(len(self.stance), bool)
        self.faults, self.done, self.begin = 0, 0, self.stance
        self.times, self.told = deque[float](maxlen=PERIODS), set[str]()

    def stop(self, why: str = "asked to") -> None:
        """Go to the stance, then lower the robot."""
        if self.phase in ("rise", "run"):
            self._enter("stop", f"stops: {why}")
            self.why = why

    def act(
        self, readings: Mapping[str, Any] | None, command: Any = None, age: float = 0.0
    ) -> Array:
        """(nu,) the targets for the next dt seconds.

        Args:
            readings: as `Policy.act` takes them; None if there are none.
            command: cut to the range of training.
            age: time since the readings were measured [s].

        Raises:
            ValueError: in the first step, instead of a fault.
        """
        faults = self._timing(age)
        values, wrong = self._values(readings)
        asked, refused = self._asked(command)
        faults += wrong + refused
        if self.phase == "rise" and self.sent is not None and not wrong:
            faults += self._not_following(values, self.sent)
        if self.sent is None:
            if faults:
                raise ValueError(faults[0])
            self.sent = self.begin = values["joint_pos"]
            self.say("stands up")
        targets = getattr(self, f"_{self.phase}")(values, asked, faults)
        self.faults = self.faults + 1 if faults else 0
        for fault in faults[:1]:
            self._tell(fault.split(" is ")[0], fault)
        if self.faults >= self.patience:
            self.stop(faults[0])
        self.sent = self._limit(targets, self.sent, None if wrong else values)
        return self.sent

    # -- phases ------------------------------------------------------------------------------------

    def _enter(self, phase: str, line: str) -> None:
        self.phase, self.done, self.begin = phase, 0, self.sent
        self.say(line)

    def _ramp(self) -> tuple[Array, float]:
        """Targets on the way from where the phase began to the stance; seconds since the end."""
        self.done += 1
        begin = self.stance if self.begin is None else self.begin
        needed = np.abs(self.stance - begin).max() / self.speed  # [s]
        share = min(1.0, self.done * self.policy.dt / max(needed, self.policy.dt))
        return begin + share * (self.stance - begin), self.done * self.policy.dt - needed

    def _rise(self, values: dict[str, Array], asked: Any, faults: list[str]) -> Array:
        if faults:
            return self.sent  # pyright: ignore
        targets, after = self._ramp()
        if after >= SETTLE:
            self.policy.reset()
            self._enter("run", "the policy runs")
        return targets

    def _run(self, values: dict[str, Array], asked: Any, faults: list[str]) -> Array:
        if faults:
            return self.sent  # pyright: ignore
        targets = self.policy.act(values, asked)
        if self.policy.fault.any():
            faults.append("a result of the policy is not finite")
        return targets

    def _stop(self, values: dict[str, Array], asked: Any, faults: list[str]) -> Array:
        targets, after = self._ramp()
        self.gain = float(np.clip(1 - after / self.lower, 0, 1))
        if self.gain == 0:
            self._enter("off", "off: the servos only damp")
        return targets

    def _off(self, values: dict[str, Array], asked: Any, faults: list[str]) -> Array:
        return self.stance

    # -- checks ------------------------------------------------------------------------------------

    def _tell(self, kind: str, line: str) -> None:
        """Say a line, unless one of its kind was said."""
        if kind not in self.told:
            self.told.add(kind)
            self.say(line)

    def _timing(self, age: float) -> list[str]:
        """The fault of readings that are late. A wrong rate stops the robot."""
        self.times.append(self.clock())
        dt, faults = self.policy.dt, []
        if not age <= self.late * dt:  # NaN is late, too
            faults = [f"the age of the readings is {age:.3f} s, more than {self.late * dt:.3f} s"]
        if len(self.times) == PERIODS:
            period = float(np.median(np.diff(self.times)))
            if abs(period / dt - 1) > self.rate:
                line = f"the period is {period:.4f} s: this policy runs each {dt:g} s"
                self._tell("period", line) if self.checks == "warn" else self.stop(line)
        if faults and self.checks == "warn":
            self._tell("age", faults[0])
            return []
        return faults
