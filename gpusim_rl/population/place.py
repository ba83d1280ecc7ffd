"""A process that hosts some members of a search, and takes their rows in turn.

    python -m gpusim_rl.population.place SEARCH PLACE PLACES PARENT

Place p of P hosts the members p, p + P, … . It may be killed, and goes on when started again. It
ends once the process PARENT is gone that started it; 0: a cluster did.
"""

import os
import signal
import sys
import time
from pathlib import Path

from gpusim_rl.core.errors import one_line_errors
from gpusim_rl.population.member import Member
from gpusim_rl.population.search import Search, hold, read_search
from gpusim_rl.training.signals import Signals

PERIOD = 0.2  # s between two looks at siblings in other processes


def host(search: Search, names: list[str], parent: int = 0) -> int:
    """Train members until all have ended, or a signal comes: its number, or 0.

    parent: the process of the command, with which it ends; 0: it does not ask.
    """
    caught = 0
    with Signals(lambda *_: None) as signals, hold(search.home):

        def stop() -> int:
            # the command was killed, perhaps before this process began, and may be started again
            lost = parent and os.getppid() != parent
            return signals.caught or (signal.SIGHUP if lost else 0)

        members = [Member(search, name, stop).turns() for name in names]
        while members and not (caught := stop()):
            moved, left = False, []
            for turns in members:
                if (step := next(turns, None)) is not None:
                    left.append(turns)
                    moved |= step
                moved |= step is None
            members = left
            if not moved:
                time.sleep(PERIOD)
        for turns in members:
            turns.close()  # its last iteration is saved
    return caught


def main(home: str, place: str, places: str, parent: str) -> None:
    """Host the members of a place, and exit as a training does."""
    with one_line_errors():
        search = read_search(Path(home))
        caught = host(search, [*search.numbers][int(place) :: int(places)], int(parent))
    if caught:
        raise SystemExit(128 + caught)


if __name__ == "__main__":
    main(*sys.argv[1:])
