"""A model of actors, network and learner: `python -m benchmarks.cluster_model [KEY=VALUE …]`.

Keys are those of `Case`: `actors=64 collect=0.5 update=0.05`. Prints updates per second, mean lag
and refused packets, by the closed form and by the simulation of events. No such cluster was run.
"""

import random
import sys
from collections import Counter
from collections.abc import Generator
from dataclasses import asdict, dataclass
from math import inf

from simpy import Environment, Interrupt, Process, Resource, Store

from benchmarks import program


@dataclass(frozen=True, kw_only=True)
class Case:
    """Actors that collect ahead of a learner, as `RemoteSource` asks them. Times are in seconds."""

    actors: int = 2
    collect: float = 0.4  # of a packet; update: of a record, which takes a packet of each actor
    update: float = 0.1
    packet: float = 1e5  # bytes; weights: of a policy; bandwidth: of the learner's link [bytes/s]
    weights: float = 1e5
    bandwidth: float = 1.25e9
    call: float = 1e-3  # of the learner for each packet, beside its bytes
    max_lag: int = 1  # as `cluster.max_lag`
    spread: float = 0.1  # of the logarithm of collect and update
    deaths: float = inf  # mean time between two deaths; restart: until such an actor has begun
    restart: float = 10.0
    seconds: float = 200.0  # that are simulated
    seed: int = 1


def closed_form(case: Case) -> tuple[float, float, int]:
    """As `Model.run`, where no actor ends: the slower side bounds the speed.

    Each actor has one packet on its way, and a record takes as many: so the lag is 1.
    """
    learner = case.update + case.actors * (case.call + case.packet / case.bandwidth)
    actor = case.collect + case.actors * case.weights / case.bandwidth
    return 1 / max(learner, actor), min(1.0, case.max_lag), 0


class Model:
    """The events of a case. `run` gives updates per second, mean lag, and packets refused."""

    def __init__(self, case: Case):
        self.case, self.env, self.rng = case, Environment(), random.Random(case.seed)
        self.link, self.news = Resource(self.env), Store(self.env)
        self.idle, self.packets = [*range(case.actors)], []  # the latter: versions that acted
        self.work: dict[int, Process] = {}  # of actors that were asked
        self.asked: Counter[int] = Counter()  # version → actors that act with it
        self.version = self.lags = self.refused = 0

    def collect(self, i: int, version: int) -> Generator:
        case, packet = self.case, [version]
        try:
            with self.link.request() as turn:
                yield turn
                yield self.env.timeout(case.weights / case.bandwidth)
            yield self.env.timeout(case.collect * self.rng.lognormvariate(0, case.spread))
        except Interrupt:
            del self.work[i]
            yield self.env.timeout(case.restart)
            packet = []
        self.news.put((i, version, packet))

    def end_some(self) -> Generator:
        while self.case.deaths < inf:
            yield self.env.timeout(self.rng.expovariate(1 / self.case.deaths))
            process = self.work.get(self.rng.randrange(self.case.actors))
            if process and process.is_alive:
                process.interrupt()

    def ask(self, done: int) -> None:
        n, bound, now = self.case.actors, self.case.max_lag, self.version
        coming = done + len(self.packets) + sum(self.asked[now - k] for k in range(bound + 1))
        while self.idle and coming // n <= bound:
            i, coming = self.idle.pop(0), coming + 1
            self.asked[now] += 1
            self.work[i] = self.env.process(self.collect(i, now))

    def receive(self) -> Generator:
        ready = [(yield self.news.get()), *self.news.items]
        self.news.items.clear()
        for i, version, packet in ready:
            size = self.case.packet / self.case.bandwidth
            yield self.env.timeout(len(packet) * (self.case.call + size))
            self.packets += packet
            self.idle.append(i)
            self.asked[version] -= 1

    def learn(self) -> Generator:
        while True:
            done = 0
            while done < self.case.actors:
                self.ask(done)
                if not self.packets:
                    yield from self.receive()
                    continue
                lag = self.version - self.packets.pop(0)
                late = lag > self.case.max_lag
                self.refused, done = self.refused + late, done + (not late)
                self.lags += 0 if late else lag
            self.ask(done)
            time = self.case.update * self.rng.lognormvariate(0, self.case.spread)
            yield self.env.timeout(time)
            self.version += 1

    def run(self) -> tuple[float, float, int]:
        for process in (self.learn(), self.end_some()):
            self.env.process(process)
        self.env.run(self.case.seconds)
        packets = max(self.version, 1) * self.case.actors
        return self.version / self.case.seconds, self.lags / packets, self.refused


def main(words: list[str]) -> None:
    """Print what both give for a case."""
    case = Case(**vars(program.read_keys(__doc__, words, **asdict(Case()))))
    for name, values in {"closed form": closed_form(case), "simulation": Model(case).run()}.items():
        print("{}: {:.3g} updates/s, lag {:.2f}, refused {}".format(name, *values))


if __name__ == "__main__":
    main(sys.argv[1:])
