"""What the members of a search have done, read from its folder, and the live table of them."""

import time
from dataclasses import dataclass, field
from itertools import pairwise

from rich.console import Console
from rich.live import Live
from rich.table import Table

from gpusim_rl.core.files import Plain
from gpusim_rl.core.waiting import clock
from gpusim_rl.population.rules import survivors
from gpusim_rl.population.search import ROWS, Search, ending
from gpusim_rl.runs.rows import Rows

PERIOD = 2.0  # s between two looks at the folder


@dataclass
class State:
    """A member as its files tell it."""

    name: str
    iteration: int  # of its last row of metrics
    score: list[float]  # the last one; empty if it has none
    ending: str  # stopped, done or failed; empty while it trains
    last_event: str  # what it decided last, or how it ended
    cpu_s: float
    rows: list[Plain] = field(repr=False)


def states(search: Search) -> list[State]:
    """The members of a search, in order."""
    return [state(search, name) for name in search.numbers]


def state(search: Search, name: str) -> State:
    rows = Rows(search.home / name / ROWS).read()
    metrics = Rows(search.home / name / "metrics.jsonl").read()
    iteration = metrics[-1]["iteration"] if metrics else 0
    scores = [row["score"] for row in rows if "score" in row]
    last_event, end = "", ending(rows)
    for row in rows:
        for key, text in {
            "stopped": "stopped",
            "copied": "copied",
            "error": "kept its own",
        }.items():
            if key in row:
                last_event = f"{text} at {row['iteration']}: {row[key]}"
        last_event = row.get("why", "done") if "ended" in row else last_event
    cpu_s = max((row.get("cpu_s", 0.0) for row in rows), default=0.0)
    return State(name, iteration, scores[-1] if scores else [], end, last_event, cpu_s, rows)


def best_member(members: list[State]) -> State | None:
    """The member with the best last score, of those that have trained to the end if any has."""
    done = [x for x in members if x.ending == "done" and x.score]
    ranked = done or [x for x in members if x.score and x.ending != "failed"]
    return max(ranked, key=lambda x: x.score, default=None)


def planned(search: Search) -> int:
    """The iterations that all members together will do."""
    section, total = search.section, search.cfg.iterations
    if section.name != "asha":
        return total * len(search.numbers)
    ends = [0, *search.rounds, total]
    return sum(survivors(section, k) * (b - a) for k, (a, b) in enumerate(pairwise(ends)))


class MemberTable:
    """The live table of a search, or a line for each decision where there is no terminal."""

    def __init__(self, search: Search):
        self.search, self.console = search, Console()
        self.live = Live(console=self.console) if self.console.is_terminal else None
        self.begun, self.first, self.due = time.monotonic(), -1, 0.0
        self.last_events: dict[str, str] = {}
        self.done = 0

    def __enter__(self) -> "MemberTable":
        if self.live:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.due = 0.0
        self()
        if self.live:
            self.live.stop()

    def __call__(self) -> int:
        """Show the members anew, now and then; returns the iterations of all together."""
        if time.monotonic() < self.due:
            return self.done
        self.due = time.monotonic() + PERIOD
        members = states(self.search)
        self.done = sum(x.iteration for x in members)
        self.first = self.done if self.first < 0 else self.first
        if self.live:
            self.live.update(self.table(members))
            return self.done
        for x in members:
            if x.last_event and x.last_event != self.last_events.get(x.name):
                self.last_events[x.name] = x.last_event
                score = f", {self.search.section.goal} {x.score[0]:.3f}" if x.score else ""
                print(f"{x.name}: {x.last_event}{score}; {self.left()}", flush=True)
        return self.done

    def left(self) -> str:
        """How far all are, and the time that is left."""
        total, new = planned(self.search), self.done - self.first
        text = f"{self.done} of {total} iterations"
        if new <= 0:
            return text
        seconds = (time.monotonic() - self.begun) / new * max(total - self.done, 0)
        return f"{text}, left {clock(seconds)}"

    def table(self, members: list[State]) -> Table:
        """The table, the best member first."""
        table = Table(title=f"{self.search.home} · {self.left()}", box=None)
        keys = [*next(iter(self.search.numbers.values()))]
        for heading in ("member", "iteration", self.search.section.goal, *keys, ""):
            table.add_column(heading, justify="left" if heading in ("member", "") else "right")
        for x in sorted(members, key=lambda x: (x.ending == "stopped", [-y for y in x.score])):
            numbers = next((r["numbers"] for r in reversed(x.rows) if "numbers" in r), {})
            cells = [short(numbers.get(key, "")) for key in keys]
            score = f"{x.score[0]:.3f}" if x.score else ""
            table.add_row(x.name, str(x.iteration), score, *cells, x.last_event)
        return table


def short(value: object) -> str:
    """A number of a member with four digits, or another value as it is."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
