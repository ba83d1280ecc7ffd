"""Signals that end a training after its iteration and its checkpoint."""

import os
import signal
import sys
import time
from collections.abc import Callable

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
REPEATED = 5.0  # s


class Signals:
    """A context in which SIGTERM, SIGINT and SIGHUP are noted in `caught`.

    The second signal ends the program at once. One that comes within seconds of the first does
    not, since schedulers and torchrun send the same one twice; SIGINT always does. `goes_on` is
    called when the process, which was stopped, goes on (SIGCONT).
    """

    caught, when = 0, 0.0

    def __init__(self, goes_on: Callable[[int, object], None]):
        self.goes_on = goes_on

    def __enter__(self) -> "Signals":
        # nohup ignores SIGHUP, and so does the training then.
        handled = [number for number in SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
        self._before = {number: signal.signal(number, self._catch) for number in handled}
        self._before[signal.SIGCONT] = signal.signal(signal.SIGCONT, self.goes_on)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _catch(self, number: int, _: object) -> None:
        repeated = number != signal.SIGINT and time.monotonic() - self.when < REPEATED
        if self.caught and repeated:
            return
        if self.caught:
            if sys.stdout.isatty():
                os.write(1, b"\x1b[?25h\n")  # the live table hid the cursor
            # not sys.exit, whose cleaning up may wait for a device or a thread
            os._exit(128 + number)
        self.caught, self.when = number, time.monotonic()
        name = signal.Signals(number).name
        line = f"{name}: ends after this iteration and its checkpoint; Ctrl-C ends at once\n"
        os.write(2, line.encode())
