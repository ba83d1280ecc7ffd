"""The clock of a robot's loop, which also ends it softly. Python alone."""

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

    def __init__(self, dt: float, stop: Callable[[], Any] | None = None):
        self.dt, self.stop, self.asked = dt, stop, False
        self.next = time.monotonic() + dt
        for number in (signal.SIGINT, signal.SIGTERM) if stop else ():
            signal.signal(number, self._ask)

    def sleep(self) -> None:
        """Until the next control step begins."""
        time.sleep(max(0.0, self.next - time.monotonic()))
        self.next = max(self.next + self.dt, time.monotonic())
        if self.asked and self.stop:
            self.stop()

    def _ask(self, *_: Any) -> None:
        self.asked = True
