"""When something is due in real time."""

import time
from collections import deque

BEHIND = 0.25  # s: a simulation further behind real time than this does not catch up
LATE = 0.05  # s


class Pace:
    """When the next step is due in real time, and how fast the last two seconds were."""

    def __init__(self) -> None:
        self.due = time.perf_counter()
        self.past: deque[tuple[float, float]] = deque([(self.due, 0.0)])

    def wait(self) -> float:
        """Seconds until the next step is due."""
        now = time.perf_counter()
        # after a long picture, steps in a burst would look like a jump
        self.due = max(self.due, now - BEHIND)
        return self.due - now

    def late(self) -> bool:
        """Whether the simulation is further behind real time than a picture takes."""
        return time.perf_counter() - self.due > LATE

    def stepped(self, seconds: float, speed: float) -> None:
        """Count a step of these simulated seconds at a multiple of real time."""
        self.due += seconds / speed
        self.past.append((time.perf_counter(), self.past[-1][1] + seconds))
        while self.past[-1][0] - self.past[0][0] > 2.0:
            self.past.popleft()

    def rate(self) -> float:
        """Simulated seconds in a second."""
        (begun, first), (now, last) = self.past[0], self.past[-1]
        return (last - first) / max(now - begun, 1e-9)


class Every:
    """Tells when a period [s] has passed."""

    def __init__(self, period: float):
        self.period, self.last = period, 0.0

    def passed(self) -> bool:
        """Whether it has, since this was last true."""
        now = time.perf_counter()
        if now - self.last < self.period:
            return False
        self.last = now
        return True
