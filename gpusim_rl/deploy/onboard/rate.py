"""The clock of a robot's loop, which also ends it softly, and what is late. Python alone."""

import math
import signal
import time
from collections.abc import Callable
from typing import Any


class Rate:
    """The rate of control steps, as ROS has it: `sleep` returns when the next one begins.

    Args:
        dt: control period [s].
        stop: called at each step after the program got SIGINT (Ctrl-C) or SIGTERM, such as
            `Guard.stop`. It is never called in the middle of a step. None leaves these signals as
            they are; with it, only the main thread can make a Rate.
    """

    def __init__(self, dt: float, stop: Callable[[], object] | None = None):
        self.dt, self.stop, self.stopping = dt, stop, False
        self.next = time.monotonic() + dt
        for number in (signal.SIGINT, signal.SIGTERM) if stop else ():
            signal.signal(number, self._ask)

    def sleep(self) -> None:
        """Until the next control step begins."""
        time.sleep(max(0.0, self.next - time.monotonic()))
        # a late step is not made up for: two steps at once would be a jump
        self.next = max(self.next + self.dt, time.monotonic())
        if self.stopping and self.stop:
            self.stop()

    def _ask(self, *_: object) -> None:
        self.stopping = True


def seconds(value: Any) -> float:
    """A time that a robot's program gives [s]; NaN if it is no number."""
    try:
        return float(0.0 + value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def late_readings(age: object, dt: float, steps: float) -> list[str]:
    """The fault of readings that are older than some control steps of dt [s], or of the future.

    An age [s] that is no number is late, too. Two clocks may differ by dt.
    """
    age = seconds(age)
    far = "less than 0: do the clocks differ?" if age < -dt else f"more than {steps * dt:.3g} s"
    return [] if -dt <= age <= steps * dt else [f"the readings' age is {age:.3g} s, {far}"]


def wrong_rate(period: float, dt: float, share: float) -> list[str]:
    """The fault of a time between two control steps [s] that differs from dt by this share."""
    says = f"the period is {period:.3g} s: this policy runs once every {dt:g} s"
    return [says] if abs(period / dt - 1) > share else []
