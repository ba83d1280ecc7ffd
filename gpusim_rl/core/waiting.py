"""Say how far long work is: a bar in a terminal, else a line every ten seconds."""

import sys
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from threading import Event, Thread

EVERY = 10.0  # s between two lines

Say = Callable[[str], None]
print_now: Say = partial(print, flush=True)


def clock(seconds: float) -> str:
    """1:05:09 or 5:09."""
    minutes, s = divmod(round(seconds), 60)
    hours, m = divmod(minutes, 60)
    return f"{hours}:{m:02}:{s:02}" if hours else f"{m}:{s:02}"


@contextmanager
def progress(doing: str, say: Say = print_now) -> Generator[Callable[[float], None]]:
    """What takes the share of work that is done, and shows it as a bar, or by `say` in a log."""
    if sys.stdout.isatty():
        from rich.markup import escape
        from rich.progress import Progress

        with Progress(transient=True) as bar:
            task = bar.add_task(escape(doing), total=1.0)
            yield lambda done: bar.update(task, completed=done)
        return
    said, steps = time.monotonic(), list[tuple[float, float]]()

    def tell(done: float) -> None:
        nonlocal said
        steps.append((now := time.monotonic(), done))
        if now - said >= EVERY:
            said, step = now, pace(steps)
            left = f", {clock(step * (1 - done))} left" if step else ""
            say(f"{doing}: {done:.0%}{left}")

    yield tell


def pace(steps: list[tuple[float, float]]) -> float:
    """Seconds for all of the work, of when how much was done; 0 if that is not known yet.

    The first step and the slowest one do not count: they may compile.
    """
    parts = sorted((b[0] - a[0], b[1] - a[1]) for a, b in pairwise(steps))[:-1]
    share = sum(x for _, x in parts)
    return sum(x for x, _ in parts) / share if share > 0 else 0.0


def counted(steps: int, doing: str, say: Say = print_now) -> Iterator[int]:
    """The numbers of the steps, while `progress` tells how many are done."""
    with progress(doing, say) as tell:
        for i in range(steps):
            yield i
            tell((i + 1) / steps)


@contextmanager
def waiting(doing: str, say: Say = print_now) -> Generator[None]:
    """Say that work of unknown length goes on, and for how long. Arguments are as of `counted`."""
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.markup import escape

        with Console().status(escape(doing)):
            yield
        return
    over, begun = Event(), time.monotonic()

    def tell() -> None:
        while not over.wait(EVERY):
            say(f"{doing}: {clock(time.monotonic() - begun)} so far")

    thread = Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
