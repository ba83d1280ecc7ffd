"""A process that hosts some members of a search, and takes their rows in turn.

    python -m gpusim_rl.population.place SEARCH PLACE PLACES

Place p of P hosts the members p, p + P, … . It may be killed, and goes on when started again.
"""

import sys
import time
from pathlib import Path

from gpusim_rl.core.errors import one_line_errors
from gpusim_rl.population.member import Member
from gpusim_rl.population.search import Search, read_search
from gpusim_rl.training.signals import Signals

PERIOD = 0.2  # s between two looks at siblings in other processes


def host(search: Search, names: list[str]) -> int:
    """Train members until all have ended, or a signal comes: its number, or 0."""
    with Signals(lambda *_: None) as signals:
        members = [Member(search, name, lambda: signals.caught).turns() for name in names]
        while members and not signals.caught:
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
    return signals.caught


def main(home: str, place: str, places: str) -> None:
    """Host the members of a place, and exit as a training does."""
    with one_line_errors():
        search = read_search(Path(home))
    if caught := host(search, [*search.numbers][int(place) :: int(places)]):
        raise SystemExit(128 + caught)


if __name__ == "__main__":
    main(*sys.argv[1:])
