"""Acceptance: the model of a cluster beside real processes of Ray, whose work is to sleep.

    python -m tests.acceptance.cluster_model [seconds=120] [deaths=10]

The source, its ledger and Ray are those of a training. Actors sleep instead of collecting, and the
learner instead of learning. A first case of 3 actors calibrates the time of a packet and that of a
restart. Then the model predicts 2, 4 and 8 actors, of which one ends each 10 s, and one case
without deaths. Exits with 1 unless the mean lag is right to 5 %, and updates per second to 15 %.
"""

import os
import random
import signal
import sys
import threading
import time
from dataclasses import replace
from math import inf
from typing import Any

import torch

from gpusim_rl.cluster import engine, source
from gpusim_rl.cluster.actor import Actor
from gpusim_rl.cluster.iteration import ClusterIteration
from gpusim_rl.core.packing import host
from tests.bench.cluster_model import Case, Model, closed_form
from tests.cluster.planted import training

LAG, SPEED = 0.05, 0.15  # errors that are allowed, as shares of what was seen
CALIBRATION = Case(actors=3, collect=0.8, update=0.3)
CASES = [
    Case(actors=2, collect=1.0, update=0.4),
    Case(actors=4, collect=0.6, update=1.0),
    Case(actors=8, collect=1.5, update=0.5),
]


def sleeper(case: Case) -> Any:
    """The class of a process that sleeps. It loads no torch, so that it begins fast."""
    collect, spread = case.collect, case.spread

    class Sleeper:
        def begin(self, where: dict[str, int]) -> Any:
            """It has nothing to make."""
            self.rng, self.sequence, self.where = random.Random(), -1, where
            return os.getpid(), None

        def call(self, method: str, version: int, *args: Any) -> Any:
            """Sleep, and tell which packet that would be."""
            time.sleep(collect * self.rng.lognormvariate(0, spread))
            self.sequence += 1
            about = {"actor": self.where["actor"], "life": self.where["life"]}
            return about | {"sequence": self.sequence, "version": version}, {}

    return Sleeper


class SleepingEngine(engine.Engine):
    """Starts sleepers, and makes packets of what they tell."""

    case: Case

    def __init__(self, *args: Any):
        super().__init__(*args)
        self.begun: dict[Any, float] = {}
        self.starts: list[float] = []  # seconds of each start

    def start(self, kind: Any, where: dict[str, int], *about: Any) -> tuple[Any, Any]:
        """As of actors. The first time, also a packet that all others are like."""
        if not self.begun:
            plain, policy, columns = map(self.ray.get, about)
            actor = Actor(plain, policy, columns, **where)
            weights = {f"policy/{key}": host(x) for key, x in policy.state_dict().items()}
            self.packet, self.identity = actor.collect(0, weights, {}, False)[0], actor.identity()
        process = self.ray.remote(num_cpus=1, max_restarts=0)(sleeper(self.case)).remote()
        self.processes.append(process)
        reference = process.begin.remote(where)
        self.begun[reference] = time.monotonic()
        return process, reference

    def get(self, reference: Any) -> Any:
        """As of actors."""
        first, second = super().get(reference)
        if isinstance(first, dict):
            return replace(self.packet, **first), second
        self.starts.append(time.monotonic() - self.begun[reference])
        return first, self.identity


def end_some(made: ClusterIteration, every: float, over: threading.Event) -> None:
    """End an actor now and then."""
    while not over.wait(every):
        running = [seat for seat in made.source.seats if not seat.begun]
        if running:
            os.kill(random.choice(running).pid, signal.SIGKILL)


def run(case: Case, seconds: float) -> tuple[float, float, Case]:
    """Updates per second and mean lag of real processes, and the case with its times."""
    SleepingEngine.case = case
    with training([{}], f"cluster.actors={case.actors}", update=case.update) as made:
        for _ in range(3):
            made.iteration()
        made.source.spent, before = source.Spent(), made.source.version
        made.timer.read()
        begun, over = time.monotonic(), threading.Event()
        if case.deaths < inf:
            threading.Thread(target=end_some, args=(made, case.deaths, over)).start()
        while time.monotonic() - begun < seconds:
            made.iteration()
        updates, took = made.source.version - before, time.monotonic() - begun
        over.set()
        lags, packets = made.source.spent.lags, made.timer.read()()["packets"].wall
        starts = made.source.engine.starts[case.actors :]  # pyright: ignore
        told = {"call": packets / len(lags)}
        told |= {"restart": sum(starts) / len(starts)} if starts else {}
        print(
            f"  {made.source.deaths} deaths, {made.source.ledger.lost()} packets lost", flush=True
        )
    return updates / took, sum(lags) / len(lags), replace(case, **told)


def main(words: list[str]) -> None:
    """Calibrate, predict and compare."""
    if {"-h", "--help"} & {*words}:
        print(__doc__)
        raise SystemExit
    given = {key: float(x) for key, x in (word.split("=") for word in words)}
    seconds, deaths = given.get("seconds", 120.0), given.get("deaths", 10.0)
    torch.set_num_threads(1)
    source.Engine = SleepingEngine
    ray = engine.Engine(9, None)
    _, _, times = run(replace(CALIBRATION, deaths=deaths), seconds)
    print(f"a packet takes {times.call * 1e3:.1f} ms, and a restart {times.restart:.1f} s")
    wrong = 0
    for case in [*(replace(x, deaths=deaths) for x in CASES), CASES[1]]:
        case = replace(case, call=times.call, restart=times.restart, seconds=2000.0)
        speed, lag, _ = run(case, seconds)
        told = closed_form(case) if case.deaths == inf else Model(case).run()
        errors = told[0] / speed - 1, told[1] / lag - 1
        wrong += abs(errors[0]) > SPEED or abs(errors[1]) > LAG
        print(
            f"{case.actors} actors, {'no deaths' if case.deaths == inf else 'deaths'}: "
            f"{speed:.3f} updates/s, predicted {told[0]:.3f} ({errors[0]:+.1%}); "
            f"lag {lag:.3f}, predicted {told[1]:.3f} ({errors[1]:+.1%})",
            flush=True,
        )
    ray.close()
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main(sys.argv[1:])
