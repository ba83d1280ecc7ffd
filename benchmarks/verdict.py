"""The line that says what bounds a cluster, for twelve planted causes.

    python -m benchmarks.verdict [CASE …]

Each case is a training with real processes, in which actors or the learner sleep, packets take long
on their way, or actors end. Prints the verdict of each row and of the case, which is that of its
last row. Exits with 1 unless all are right, and name the key to turn.
"""

import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks import program
from gpusim_rl.cluster.engine import Engine
from gpusim_rl.training.bottleneck import Verdict, cluster_verdict
from tests.cluster.planted import training

ROWS, WARM = 6, 3  # iterations that are judged, and before them
SYNC = "cluster.sync=true"


@dataclass
class Case:
    """A planted cause, and the verdict that is right.

    Args:
        bound: of the verdict; key: words of its line.
        faults: of the actors, as `planted` has them; words: of train.py; update: seconds.
        disturb: is called before the rows that are judged.
    """

    name: str
    bound: str
    key: str
    actors: int
    faults: list[dict[str, float]]
    words: tuple[str, ...] = ()
    update: float = 0.05
    disturb: Callable[[Any], None] = lambda made: None


def stop(made: Any) -> None:
    """Stop the first actor, as a machine that hangs."""
    os.kill(made.source.slots[0].pid, signal.SIGSTOP)


def read_slowly(made: Any) -> None:
    """Reading a packet takes long, as of large ones."""
    take = made.source.take

    def slowly(packet: Any, worlds: slice) -> bool:
        taken = take(packet, worlds)
        made.timer.start("packets")
        time.sleep(0.3)
        made.timer.start("wait")
        return taken

    made.source.take = slowly


CASES = [
    Case("a sleeping learner", "the learner", "cluster.actors", 2, [{}], update=0.8),
    Case("a sleeping learner in step", "the learner", "cluster.actors", 2, [{}], (SYNC,), 1.2),
    Case("sleeping actors", "the actors", "cluster.actors", 2, [{"collect": 0.5}]),
    Case("sleeping actors in step", "the actors", "cluster.actors", 2, [{"collect": 0.6}], (SYNC,)),
    Case("four sleeping actors", "the actors", "cluster.actors", 4, [{"collect": 0.8}]),
    Case("one sleeps", "one slow actor", "machine", 3, [{"collect": 1.5}, {"collect": 0.4}]),
    Case(
        *("one sleeps in step", "one slow actor", "machine", 3),
        *([{"collect": 1.5}, {"collect": 0.3}], (SYNC,)),
    ),
    Case("a slow link", "the network", "num_steps", 2, [{"send": 0.8}]),
    Case("a slow link in step", "the network", "num_steps", 2, [{"send": 0.8}], (SYNC,)),
    Case("a slow link of one", "one slow actor", "machine", 3, [{"send": 1.5}, {"collect": 0.4}]),
    Case("a stopped actor", "missing actors", "machine", 3, [{"collect": 0.5}], disturb=stop),
    Case("slow reading", "packets", "num_steps", 2, [{}], disturb=read_slowly),
]


def judge(case: Case) -> bool:
    """Run a case. Returns whether its verdict is right."""
    words = (f"cluster.actors={case.actors}", *case.words)
    with training(case.faults, *words, update=case.update) as made:
        lines, verdict = [], Verdict("", "")
        for i in range(WARM + ROWS):
            if i == WARM:
                case.disturb(made)
            made.iteration()
            verdict = cluster_verdict(made.report()())
            lines.append(verdict.bound)
    right = verdict.bound == case.bound and case.key in verdict.line
    rows = sum(bound == case.bound for bound in lines[WARM:])
    print(f"{'right' if right else 'WRONG'}: {case.name} ({rows} of {ROWS} rows): {verdict.line}")
    return right


def main(names: list[str]) -> None:
    """Run the cases, in one Ray."""
    _, names = program.split_words(__doc__, names)
    names = program.choose(names, [case.name for case in CASES])
    torch.set_num_threads(1)
    ray = Engine(6, None)
    chosen = [case for case in CASES if case.name in names]
    right = sum(judge(case) for case in chosen)
    ray.close()
    print(f"{right} of {len(chosen)} are right")
    raise SystemExit(right < len(chosen))


if __name__ == "__main__":
    main(sys.argv[1:])
