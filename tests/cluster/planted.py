"""Actors in real processes that sleep, or send slowly or nonsense: what do they cause?"""

import random
import time
from collections.abc import Sequence
from contextlib import contextmanager
from typing import Any

import torch

from gpusim_rl.cluster import engine
from gpusim_rl.cluster.iteration import ClusterIteration, make_iteration
from tests.worlds import make_config

WORDS = ("task=cartpole", "num_steps=4", "algo.hidden=[16]", "fuse=off", "device=cpu")
WORDS += ("sim=native", "sim.threads=1", "threads=1", "cluster=ray")
SPREAD = 0.1  # of the logarithm of each sleep


def nap(seconds: float) -> None:
    """Sleep for about so long."""
    if seconds:
        time.sleep(seconds * random.lognormvariate(0, SPREAD))


def planted(faults: Sequence[dict[str, float]]) -> type[engine.Process]:
    """The process of actors with faults, one entry for each actor; the last is that of all others.

    Entries: `collect`, seconds of each collection; `send`, seconds of each packet on its way;
    `broken`, the collection of a first life from which on an observation is NaN; `named`, whether
    observations begin with 10 × actor + life and with the number of the step in this life.
    """
    process = engine.Process

    class Planted(process):
        def begin(self, kind: Any, where: dict[str, int], *about: Any) -> Any:
            """Make the worlds, and plant the faults."""
            begun = super().begin(kind, where, *about)
            faulty = faults[min(where["actor"], len(faults) - 1)]
            self.send, collector = faulty.get("send", 0.0), self.worker.collector
            collect, broken = collector.collect, 0 if where["life"] else faulty.get("broken")

            def slowly(steps: int) -> None:
                collect(steps)
                nap(faulty.get("collect", 0.0))
                if faulty.get("named"):
                    obs, done = collector.record.obs, self.worker.sequence * steps
                    obs[..., 0] = 10.0 * where["actor"] + where["life"]
                    obs[..., 1] = torch.arange(done, done + steps)[:, None]
                if broken and self.worker.sequence >= broken:
                    collector.record.obs[0, 0] = float("nan")

            collector.collect = slowly
            return begun

        def call(self, method: str, *args: Any) -> Any:
            """As an actor's, and the time on its way."""
            value = super().call(method, *args)
            nap(self.send if method == "collect" else 0.0)
            return value

    return Planted


@contextmanager
def training(faults: Sequence[dict[str, float]], *words: str, update: float = 0.0, worlds: int = 2):
    """A training with planted actors, whose learner sleeps for `update` seconds and learns nothing.

    worlds: of each actor.
    """
    process, actors = engine.Process, dict(x.split("=") for x in words)["cluster.actors"]
    engine.Process = planted(faults)
    try:
        cfg = make_config(*WORDS, f"num_envs={worlds * int(actors)}", *words)
        made: ClusterIteration = make_iteration(cfg)  # pyright: ignore
    finally:
        engine.Process = process
    made.learner.update = lambda record: nap(update)
    try:
        yield made
    finally:
        made.close()
