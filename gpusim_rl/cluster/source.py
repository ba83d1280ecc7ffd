"""`RemoteSource`: the steps of actors in other processes fill the learner's record."""

import copy
import time
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gpusim_rl.algorithms.learner import Learner
from gpusim_rl.cluster.actor import identity
from gpusim_rl.cluster.engine import ActorLost, Engine
from gpusim_rl.cluster.ledger import Ledger
from gpusim_rl.cluster.packet import Arrays, Packet, digest, host, unpack
from gpusim_rl.config.sections import Config
from gpusim_rl.core.distributed import PeerLost
from gpusim_rl.core.errors import warn
from gpusim_rl.core.record import Record
from gpusim_rl.core.states import Live
from gpusim_rl.envs.env import Env

DEATHS = 5  # of an actor in a row, before it delivers anything: then the training ends


@dataclass
class Seat:
    """The place of an actor: its worlds, and the process that has them now.

    Attributes:
        first, count: of its worlds, by their global ids.
        process: as `Engine.start` gives it; pid: of its operating system.
        begun: the reference to what begins it, until it has begun; asked: to its next packet.
        state: reference to the state of its worlds before the next collection, where that is kept.
        deaths: in a row, without a packet between.
        seconds, idle: spent by its collections, and between them, since the last report.
    """

    first: int
    count: int
    process: Any = None
    pid: int = 0
    begun: Any = None
    asked: Any = None
    state: Any = None
    deaths: int = 0
    seconds: float = 0.0
    idle: float = 0.0


@dataclass
class Sums:
    """What packets report, added up since the last report of the learner."""

    measures: Tensor | None = None  # sums over worlds and packets of means
    packets: int = 0
    bytes: int = 0
    steps: int = 0
    lags: list[int] = field(default_factory=list)
    wait: float = 0.0  # seconds that the learner waited


class RemoteSource:
    """Fills a record (T, B, …) with the steps of actors.

    With `sync`, each has its share of the worlds of one process, and the record is that of one
    process, bit for bit. Else each packet has B / actors worlds, and a record takes as many packets
    as there are actors, whoever is first.

    Args:
        cfg: of the training.
        learner: whose policy acts.
        record: (T, B, …) that it learns from.
        env: whose statistics take what packets report. It is not stepped.

    Attributes:
        version: updates of the policy. A packet whose policy is more than `max_lag` behind is
            refused.
        numbers: key → a live number of the task, which the actors are told.
    """

    def __init__(
        self,
        cfg: Config,
        env: Env,
        learner: Learner,
        record: Record,
    ):
        section, worlds = cfg.cluster, record.rows.shape[1]
        self.cfg, self.env, self.learner, self.record = cfg, env, learner, record
        self.sync, self.version = section.sync, 0
        self.numbers: dict[str, Tensor] = {}
        self.packets: list[Packet] = []  # that came, in their order, and are not learned from yet
        self.weights, self.weights_version = None, -1
        self.spent = Sums()
        self.deaths = 0
        about = identity(cfg) | {"columns": digest(record.schema)}
        self.seats = [Seat(*x) for x in shares(worlds, section.actors, section.sync)]
        max_lag = 0 if section.sync else section.max_lag
        self.ledger = Ledger(about["columns"], max_lag, [0] * section.actors)
        self.identity, self.engine = about, Engine(section.actors, section.address)
        policy = copy.deepcopy(learner.policy).cpu()
        self.common = self.engine.put(cfg.plain), self.engine.put(policy), record.columns
        try:
            for actor in range(section.actors):
                self.start(actor)
            for actor in range(section.actors):
                self.wait_for(actor)
        except BaseException:
            self.engine.close()
            raise

    # -- processes ---------------------------------------------------------------------------------

    def start(self, actor: int) -> None:
        """Start the process of an actor, in its present life."""
        seat, life = self.seats[actor], self.ledger.lives[actor]
        where = {"actor": actor, "life": life, "first": seat.first, "count": seat.count}
        where["again"] = 0 if self.sync else life
        seat.process, seat.begun = self.engine.start(*self.common, where)
        seat.asked = None

    def wait_for(self, actor: int) -> None:
        """Wait until an actor has begun, and check what it is; a lost one is started again.

        Raises:
            ValueError: it is of another version or task.
        """
        seat = self.seats[actor]
        while seat.begun:
            try:
                seat.pid, about = self.engine.get(seat.begun)
                self.check_identity(actor, about)
                if seat.state is not None:
                    self.engine.get(self.engine.call(seat.process, "load", seat.state))
                seat.begun = None
            except ActorLost as error:
                self.replace(actor, str(error))

    def check_identity(self, actor: int, about: dict[str, str]) -> None:
        """ValueError that says in what an actor differs from the learner."""
        for name, ours in self.identity.items():
            if about.get(name) != ours:
                self.engine.end(self.seats[actor].process)
                theirs = about.get(name)
                raise ValueError(f"actor {actor} is refused: its {name} is {theirs}, not {ours}")

    def replace(self, actor: int, reason: str) -> None:
        """Begin the next life of an actor whose process has ended.

        Raises:
            PeerLost: that was done often enough.
        """
        seat = self.seats[actor]
        seat.deaths += 1
        self.deaths += 1
        if seat.deaths > DEATHS:
            raise PeerLost(f"actor {actor} ended {DEATHS} times before it gave a step: {reason}")
        warn(f"actor {actor} (process {seat.pid or 'none'}) has ended: it is started again")
        self.ledger.lives[actor] += 1
        self.start(actor)

    # -- steps -------------------------------------------------------------------------------------

    def collect(self, steps: int) -> None:
        """Fill the record. In place."""
        if self.sync:
            return self.collect_in_step()
        done, share = 0, self.seats[0].count
        while done < len(self.seats):
            self.ask()
            if self.packets:
                packet = self.packets.pop(0)
                if self.ledger.accept(packet, self.version):
                    self.take(packet, slice(done * share, (done + 1) * share))
                    done += 1
            else:
                self.receive()
        self.ask()  # so that actors collect while the learner learns

    def collect_in_step(self) -> None:
        """Each actor collects once, from the same policy."""
        how = self.version, self.current_weights(), self.current_numbers()
        for actor in range(len(self.seats)):
            self.ask_with_state(actor, how)
        for actor, seat in enumerate(self.seats):
            while True:
                begun = time.monotonic()
                try:
                    packet, state = self.engine.get(seat.asked[0]), seat.asked[1]
                    break
                except ActorLost as error:
                    self.replace(actor, str(error))
                    self.wait_for(actor)
                    self.ask_with_state(actor, how)
                finally:
                    self.spent.wait += time.monotonic() - begun
            seat.state = state
            if not self.ledger.accept(packet, self.version):
                raise PeerLost(f"actor {actor} gave a packet that does not fit")
            self.take(packet, slice(seat.first, seat.first + seat.count))

    def ask_with_state(self, actor: int, how: tuple[Any, ...]) -> None:
        """Let an actor collect, and return the state of its worlds: it survives the process."""
        seat = self.seats[actor]
        seat.asked = self.engine.call(seat.process, "collect_with_state", *how, count=2)

    def ask(self) -> None:
        """Let each idle actor collect, if its packet will not be late.

        An actor is asked when it can begin, so the policy it is sent is the newest then. A record
        takes as many packets as there are actors. So the k-th packet from now on is learned from
        k // actors updates later.
        """
        for seat in self.seats:
            ahead = len(self.packets) + sum(x.asked is not None for x in self.seats)
            late = ahead // len(self.seats) > self.ledger.max_lag
            if seat.begun is None and seat.asked is None and not late:
                how = self.version, self.current_weights(), self.current_numbers()
                seat.asked = self.engine.call(seat.process, "collect", *how)

    def receive(self) -> None:
        """Wait for an actor: for a packet, or that it has begun, or that it has ended."""
        waits = {x.asked or x.begun: i for i, x in enumerate(self.seats) if x.asked or x.begun}
        begun = time.monotonic()
        ready = self.engine.ready([*waits])
        self.spent.wait += time.monotonic() - begun
        for reference in ready:
            actor = waits[reference]
            seat = self.seats[actor]
            if seat.begun:
                self.wait_for(actor)
                continue
            seat.asked = None
            try:
                self.packets.append(self.engine.get(reference))
            except ActorLost as error:
                self.replace(actor, str(error))

    def take(self, packet: Packet, worlds: slice) -> None:
        """Write a packet to some worlds of the record, and count it. In place."""
        unpack(packet.body, self.record, worlds)
        seat, spent = self.seats[packet.actor], self.spent
        seat.deaths = 0
        seat.seconds += packet.seconds
        seat.idle += packet.idle
        spent.packets += 1
        spent.bytes += packet.nbytes
        spent.steps += packet.steps
        spent.lags.append(self.version - packet.version)
        sums, totals = torch.from_numpy(packet.sums).to(self.env.device), self.env.statistics.totals
        totals += sums[: len(totals)]
        means = packet.steps * sums[len(totals) :]
        spent.measures = means if spent.measures is None else spent.measures + means
        worst = torch.from_numpy(packet.worst).to(self.env.device)
        row = self.env.worst_step.row
        row.copy_(torch.where(worst[0] > row[0], worst, row))

    def current_weights(self) -> Any:
        """The reference to the weights of now: it is made once for a version."""
        if self.weights_version != self.version:
            live = self.learner.tensors()
            names = [name for name in live if name.startswith("policy/")]
            self.weights = self.engine.put({name: host(live[name].tensor) for name in names})
            self.weights_version = self.version
        return self.weights

    def current_numbers(self) -> Arrays:
        """The numbers of the task as they are now."""
        return {key: host(x) for key, x in self.numbers.items()}

    # -- checkpoints -------------------------------------------------------------------------------

    def tensors(self) -> dict[str, Live]:
        """The lives of the actors: those after a continuation draw other random numbers."""
        lives = torch.tensor(self.ledger.lives)
        return {} if self.sync else {"cluster/lives": Live(lives, False)}

    def state(self) -> dict[str, Tensor]:
        """The state of all worlds, as one process has it, by name."""
        states = []
        for actor, seat in enumerate(self.seats):
            while True:
                reference = seat.state or self.engine.call(seat.process, "state")
                try:
                    states.append(self.engine.get(reference))
                    break
                except ActorLost as error:
                    self.replace(actor, str(error))
                    self.wait_for(actor)
        return {name: torch.from_numpy(joined([x[name] for x in states])) for name in states[0]}

    def load(self, state: dict[str, Tensor], layout: dict[str, bool]) -> None:
        """Continue all worlds from a state of one process. In place.

        layout: name → whether it has a row for each world.
        """
        for actor, seat in enumerate(self.seats):
            rows = slice(seat.first, seat.first + seat.count)
            mine = {x: host(state[x][rows] if worlds else state[x]) for x, worlds in layout.items()}
            seat.state = self.engine.put(mine)
            try:
                self.engine.get(self.engine.call(seat.process, "load", seat.state))
            except ActorLost as error:
                self.replace(actor, str(error))
                self.wait_for(actor)

    def begin_again(self, lives: list[int]) -> None:
        """Replace all actors: they are of a training that is continued. In place.

        lives: that were begun before.
        """
        for actor, seat in enumerate(self.seats):
            self.engine.end(seat.process)
            earlier = lives[actor] if actor < len(lives) else 0
            self.ledger.lives[actor] = 1 + max(earlier, self.ledger.lives[actor])
            seat.asked = None
            self.start(actor)
        self.packets.clear()
        for actor in range(len(self.seats)):
            self.wait_for(actor)

    def close(self) -> None:
        """End all actors."""
        self.engine.close()


def joined(parts: list[np.ndarray]) -> np.ndarray:
    """Rows of all actors; what they have in common, from the first."""
    return np.concatenate(parts) if parts[0].ndim else parts[0].copy()


def shares(worlds: int, actors: int, sync: bool) -> list[tuple[int, int]]:
    """First world and number of worlds of each actor.

    Raises:
        ValueError: there are too few, or without `sync` they do not divide.
    """
    if worlds < actors or (not sync and worlds % actors):
        raise ValueError(f"num_envs={worlds} does not divide into cluster.actors={actors}")
    bounds = [i * worlds // actors for i in range(actors + 1)]
    return [(a, b - a) for a, b in pairwise(bounds)]
