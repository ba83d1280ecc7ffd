"""`RemoteSource`: the steps of actors in other processes fill the learner's record."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gpusim_rl.algorithms.learner import Learner
from gpusim_rl.cluster.actor import Actor
from gpusim_rl.cluster.central import Exchange, InferenceServer
from gpusim_rl.cluster.engine import Engine, Handle, ProcessLost
from gpusim_rl.cluster.evaluator import Evaluator
from gpusim_rl.cluster.ledger import Ledger, Packet, digest, identity
from gpusim_rl.cluster.packing import Arrays, host, shaped, size, tensor, unpack
from gpusim_rl.config.sections import Config
from gpusim_rl.core.distributed import PeerLost
from gpusim_rl.core.errors import warn
from gpusim_rl.core.graphs import PartTimer
from gpusim_rl.core.record import Record
from gpusim_rl.core.states import Live
from gpusim_rl.envs.env import Env

UNIT = 16  # worlds: where shares are multiples of it, a product of matrices rounds as that of all
PATIENCE = 2  # updates that an actor may be late before it is said to be missing
BROKEN = {  # refusal of a packet → what is said of its actor, which is replaced
    "numbers": "has sent numbers that are not finite",
    "shape": "has sent arrays that do not fit",
}
DEATHS = 5  # of a process in a row, before it delivers anything: then the training ends


@dataclass
class ActorSlot:
    """The place of an actor, or of the evaluator, and the process that has it now."""

    name: str  # in messages
    first: int = 0  # of its rows, among those of this process
    count: int = 0
    process: Handle = None  # as the engine knows it; pid: as the operating system does
    pid: int = 0
    starting: Handle = None  # reference to what begins it, until it has begun
    asked: Handle = None  # reference to its next packet, or success
    version: int = 0  # of the policy that it was asked to act with
    state: Arrays | None = None  # of its worlds before the next collection, in sync mode
    deaths: int = 0  # in a row, without a result between
    died: bool = False  # since the last report
    seconds: float = 0.0  # spent by its last collection
    idle: float = 0.0  # and before it


@dataclass
class ReportSums:
    """What was learned from since the last report of the learner."""

    means: Any = 0.0  # (n,) of each measure, times control steps
    bytes: int = 0
    steps: int = 0
    lags: list[int] = field(default_factory=list[int])


class RemoteSource:
    """Fills a record (T, B, …) with the steps of actors, in which the policy of a learner acts.

    With `sync`, each has its share of the worlds of one process, and the record is that of one
    process, bit for bit. Else each packet has B / actors worlds, and a record takes as many packets
    as there are actors, whoever is first. ValueError if the actors do not fit the learner.

    Args:
        env: whose statistics take what packets report. It is not stepped.
        own_worlds: whether an actor writes its own worlds alone, as the rows of a ring need that
            follow each other. A record then takes one packet of each actor.

    Attributes:
        first: global id of the first row of this process.
        version: updates of the policy.
        numbers: key → a live number of the task, which the actors are told.
        broken_off: worlds whose steps in the record do not follow those of the record before.
    """

    def __init__(
        self, cfg: Config, env: Env, learner: Learner, record: Record, own_worlds: bool = False
    ):
        section, rows, group, agents = cfg.cluster, record.rows.shape[1], env.group, env.agents
        actors, rest = divmod(section.actors, group.size)
        if rest:
            what = f"cluster.actors={section.actors}"
            raise ValueError(f"{what} does not divide into {group.size} ranks")
        self.env, self.learner, self.record, self.sync = env, learner, record, section.sync
        self.timer = PartTimer(env.device)
        self.measures = len(env.scheduled_task.measure(env.current_state()))
        record.memory = learner.policy.blank_memory(rows)
        self.first, shared = group.rank * rows, shares(rows // agents, actors, section.sync)
        self.slots = [
            ActorSlot(f"actor {group.rank * actors + i}", agents * first, agents * count)
            for i, (first, count) in enumerate(shared)
        ]
        self.identity = identity(cfg) | {"columns": digest(record.schema)}
        self.ledger = Ledger(self.identity["columns"], section.lag_limit, actors)
        self.numbers: dict[str, Tensor] = {}
        self.own_worlds, self.broken_off = own_worlds, list[slice]()
        self.last: dict[int, tuple[int, int]] = {}  # actor → life and sequence of what was taken
        self.packets: list[Packet] = []  # that came, in their order, and are not learned from yet
        self.sent: tuple[int, Handle] = -1, None  # a version, and the reference to its weights
        self.version, self.deaths, self.spent = 0, 0, ReportSums()
        self.evaluator = RemoteEvaluator(self, ActorSlot("the evaluator"))
        self.server, self.exchange = ActorSlot("the inference server"), None
        self.engine = Engine(section.actors, section.address, section.labels)
        policy = copy.deepcopy(learner.policy).to(torch.device("cpu"))
        try:
            if section.inference == "central":
                parts = [slice(x.first, x.first + x.count) for x in self.slots]
                self.exchange = Exchange(env, learner.policy, parts, section.lag_limit + 2)
            metadata = cfg.plain, policy, record.columns, self.exchange
            self.metadata = [self.engine.put(x) for x in metadata]
            self.start_all()
        except BaseException:
            self.close()
            raise

    def start_all(self) -> None:
        """Start the processes of all actors, and wait until they have begun."""
        for actor in range(len(self.slots)):
            self.start(actor)
        for actor in range(len(self.slots)):
            self.wait_for(actor)

    def start(self, actor: int) -> None:
        """Start the process of an actor, in its present life."""
        slot, life = self.slots[actor], self.ledger.lives[actor]
        first, agents = self.first + slot.first, self.env.agents
        where = {"actor": actor, "life": life, "first": first // agents}
        where |= {"count": slot.count // agents, "again": 0 if self.sync else life}
        slot.process, slot.starting = self.engine.start(Actor, where, *self.metadata)
        slot.asked = None

    def wait(self, references: list[Handle]) -> list[Handle]:
        """Those references that are ready, at least one. A server that ends is started again."""
        slot, (plain, policy, _, exchange) = self.server, self.metadata
        while self.exchange:
            try:
                if not slot.asked:
                    about = plain, policy, exchange, str(self.env.device)
                    slot.process, begun = self.engine.start(InferenceServer, {}, *about)
                    slot.pid, metadata = self.engine.get(begun)
                    self.check_identity(slot, metadata)
                    slot.asked = self.engine.call(slot.process, "serve")
                ready = self.engine.ready([slot.asked, *references])
                if slot.asked not in ready:
                    return ready
                self.engine.get(slot.asked)
            except ProcessLost as error:
                slot.asked = None
                self.count_death(slot, "has ended", error)
        return self.engine.ready(references)

    def wait_for(self, actor: int) -> None:
        """Wait until an actor has begun, and check what it is; one that ends is started again."""
        slot = self.slots[actor]
        while slot.starting:
            try:
                slot.pid, metadata = self.engine.get(slot.starting)
                self.check_identity(slot, metadata)
                if slot.state:
                    self.engine.get(self.engine.call(slot.process, "load", slot.state))
                slot.starting = None
            except ProcessLost as error:
                self.replace(actor, reason=error)

    def check_identity(self, slot: ActorSlot, metadata: dict[str, str]) -> None:
        """End a process of another version or task than the learner's, with an error that says so:
        ValueError, and PeerLost where the training has begun."""
        for name, theirs in metadata.items():
            if theirs != (expected := self.identity.get(name)):
                self.engine.end(slot.process)
                kind = PeerLost if self.version else ValueError
                raise kind(f"{slot.name} is refused: its {name} is {theirs}, not {expected}")

    def replace(self, actor: int, what: str = "has ended", reason: object = "") -> None:
        """Begin the next life of an actor whose process has ended; see `count_death`."""
        self.count_death(self.slots[actor], what, reason)
        self.ledger.lives[actor] += 1
        self.start(actor)

    def count_death(self, slot: ActorSlot, what: str, reason: object) -> None:
        """Count and tell that a process has ended; PeerLost if it ends for ever.

        what: it did, and the reason that Ray knows.
        """
        slot.deaths, slot.died = slot.deaths + 1, True
        self.deaths += 1
        if slot.deaths > DEATHS:
            raise PeerLost(f"{slot.name} {what} {DEATHS} times before it gave anything: {reason}")
        warn(f"{slot.name} (process {slot.pid or 'none'}) {what}: it is started again")

    def insist(self, actor: int, ask: Callable[[ActorSlot], Handle]) -> Any:
        """The value of what `ask` asks of an actor, or of its next life if it ends."""
        while True:
            self.wait_for(actor)
            try:
                (reference,) = self.wait([ask(self.slots[actor])])
                return self.engine.get(reference)
            except ProcessLost as error:
                self.replace(actor, reason=error)

    def collect(self, steps: int) -> None:
        """Fill the record. In place."""
        self.timer.start("wait")
        if self.sync:
            return self.collect_in_step()
        if self.own_worlds:
            return self.collect_of_each()
        done, count = 0, self.slots[0].count
        while done < len(self.slots):
            self.ask_idle(done)
            if not self.packets:
                self.receive()
            else:
                worlds = slice(done * count, (done + 1) * count)
                done += self.take(self.packets.pop(0), worlds)
        self.ask_idle(done)  # so that actors collect while the learner learns

    def collect_in_step(self) -> None:
        """Each actor collects once, from the same policy. The state of its worlds survives it."""
        for slot in self.slots:
            self.ask(slot)
        for actor, slot in enumerate(self.slots):
            worlds, learned, state = slice(slot.first, slot.first + slot.count), False, None
            while not learned:
                packet, state = self.insist(actor, self.ask)
                slot.asked = None
                learned = self.take(packet, worlds)
            slot.state = state

    def collect_of_each(self) -> None:
        """One packet of each actor to its own worlds, while the actors go on. In place."""
        done: set[int] = set()
        while len(done) < len(self.slots):
            self.ask_each(done)
            waiting = [i for i, x in enumerate(self.packets) if x.actor not in done]
            if not waiting:
                self.receive()
                continue
            packet = self.packets.pop(waiting[0])
            slot, before = self.slots[packet.actor], (packet.life, packet.sequence - 1)
            worlds = slice(slot.first, slot.first + slot.count)
            if self.take(packet, worlds):
                done.add(packet.actor)
                if self.last.get(packet.actor) != before:
                    self.broken_off.append(worlds)
                self.last[packet.actor] = packet.life, packet.sequence
        self.ask_each(done)  # so that actors collect while the learner learns

    def ask_each(self, done: set[int]) -> None:
        """Let each idle actor collect, if its packet will not be late.

        done: actors of which the record has a packet.
        """
        for actor, slot in enumerate(self.slots):
            late = (actor in done) + sum(x.actor == actor for x in self.packets)
            if not (slot.starting or slot.asked or late > self.ledger.max_lag):
                self.ask(slot)

    def ask(self, slot: ActorSlot) -> Handle:
        """The reference to the packet that an actor is asked for."""
        numbers = {key: host(x) for key, x in self.numbers.items()}
        options = self.version, self.weights(), numbers, self.sync
        if not slot.asked:
            slot.asked = self.engine.call(slot.process, "collect", *options)
            slot.version = self.version
        return slot.asked

    # Why: docs/decisions/cluster.md
    def ask_idle(self, done: int) -> None:
        """Let each idle actor collect, if its packet will not be late.

        An actor is asked when it can begin, so the policy that it is sent is the newest then. A
        record takes as many packets as there are actors, and has `done` of them. So the k-th packet
        from now on is learned from (done + k) // actors updates later. Packets of actors that are
        late already are not among them.
        """
        for slot in self.slots:
            coming = sum(bool(x.asked) and self.late_by(x) <= 0 for x in self.slots)
            ahead = done + len(self.packets) + coming
            late = ahead // len(self.slots) > self.ledger.max_lag
            if not (slot.starting or slot.asked or late):
                self.ask(slot)

    def late_by(self, slot: ActorSlot) -> int:
        """Updates by which the packet that an actor is asked for would be too old now."""
        return self.version - slot.version - self.ledger.max_lag

    def missing(self) -> int:
        """Actors that ended since the last report, have not begun, or give nothing any more."""
        return sum(
            x.died or x.starting is not None or (x.asked is not None and self.late_by(x) > PATIENCE)
            for x in self.slots
        )

    def receive(self) -> None:
        """Wait for an actor: for a packet, or that it has begun, or that it has ended."""
        waits = {slot.starting or slot.asked: i for i, slot in enumerate(self.slots)}
        waits.pop(None, None)  # of those that may not collect yet
        for reference in self.wait([*waits]):
            actor, slot = waits[reference], self.slots[waits[reference]]
            if slot.starting:
                self.wait_for(actor)
                continue
            slot.asked = None
            try:
                self.packets.append(self.engine.get(reference)[0])
            except ProcessLost as error:
                self.replace(actor, reason=error)

    def take(self, packet: Packet, worlds: slice) -> bool:
        """Write a packet to some worlds of the record, and add what it reports. In place.

        Returns whether to learn from it. An actor whose packet is broken is replaced.
        """
        why = self.ledger.refusal(packet, self.version)
        if not why:
            self.timer.start("packets")
            why = self.write(packet, worlds)
            self.timer.start("wait")
        self.ledger.enter(packet, why)
        if why in BROKEN:
            self.engine.end(self.slots[packet.actor].process)
            self.replace(packet.actor, BROKEN[why])
        if why:
            return False
        slot = self.slots[packet.actor]
        slot.seconds, slot.idle, slot.deaths = packet.seconds, packet.idle, 0
        self.server.deaths = 0
        spent, env = self.spent, self.env
        spent.bytes += size([packet.sums, packet.worst, packet.body])
        spent.steps += packet.steps
        spent.lags.append(self.version - packet.version)
        sums, totals = tensor(packet.sums).to(env.device), env.statistics.totals
        totals += sums[: len(totals)]
        spent.means = spent.means + packet.steps * sums[len(totals) :]
        worst, row = tensor(packet.worst).to(env.device), env.worst_step.row
        row.copy_(torch.where(worst[0] > row[0], worst, row))
        return True

    def write(self, packet: Packet, worlds: slice) -> str:
        """Write the steps of a packet to some worlds of the record. In place.

        Returns why they may not be learned from; empty if they may.
        """
        totals = len(self.env.statistics.totals)
        try:
            unpack(packet.body, self.record, worlds)
            sums = shaped(packet.sums, totals + self.measures)[:totals]
            shaped(packet.worst, *self.env.worst_step.row.shape)
        except (ValueError, LookupError, TypeError, AttributeError):
            return "shape"
        if packet.steps != self.record.rows[:, worlds].shape[:2].numel():
            return "shape"
        # a mean of measures may be of no world, so it may be NaN
        return "" if self.is_finite(worlds) and np.isfinite(sums).all() else "numbers"

    def is_finite(self, worlds: slice) -> bool:
        """Whether all numbers of some worlds are finite, but for steps that are quarantined."""
        finite = self.record.rows[:, worlds].sum(-1).isfinite()  # of a sum, in one pass
        if "fault" in self.record.columns:
            finite |= self.record.fault[:, worlds]
        return bool(finite.all())

    def weights(self) -> Handle:
        """The reference to the weights of now: it is made once for a version."""
        if self.sent[0] != self.version:
            live = self.learner.tensors().items()
            policy = {name: x.tensor for name, x in live if name.startswith("policy/")}
            if self.exchange:
                self.exchange.put(self.version, policy)
            weights = {name: host(x) for name, x in policy.items()}
            self.sent = self.version, self.engine.put(weights)
        return self.sent[1]

    def tensors(self) -> dict[str, Live]:
        """The lives of the actors: those after a continuation draw other random numbers."""
        lives = torch.tensor(self.ledger.lives, device=self.env.device)
        return {} if self.sync else {"cluster/lives": Live(lives, True)}

    def states(self) -> list[Arrays]:
        """The state of the worlds of each actor in sync mode."""
        return [
            x.state or self.insist(i, lambda slot: self.engine.call(slot.process, "state"))
            for i, x in enumerate(self.slots)
        ]

    def load(self, state: dict[str, Tensor], layout: dict[str, bool]) -> None:
        """Continue all worlds from a state of one process. In place.

        layout: name → whether it has a row for each world.
        """
        every = self.env.group.size * self.record.rows.shape[1]
        for actor, slot in enumerate(self.slots):
            ends = self.first + slot.first, self.first + slot.first + slot.count
            slot.state = {}
            for name, per in layout.items():
                x = state[name]  # with rows of worlds or of agents
                rows = slice(*(end * len(x) // every for end in ends)) if per else ...
                slot.state[name] = host(x[rows])
            self.insist(actor, lambda slot: self.engine.call(slot.process, "load", slot.state))

    def refuse_earlier(self) -> None:
        """Let what was collected until now be too old. In place."""
        self.version += 1 + self.ledger.max_lag

    def begin_again(self, life: int) -> None:
        """Replace all actors, since a training is continued. In place.

        life: the last one of any world before.
        """
        for slot in self.slots:
            self.engine.end(slot.process)
        self.ledger.lives[:] = [max(life, *self.ledger.lives) + 1] * len(self.slots)
        self.packets.clear()
        self.start_all()

    def close(self) -> None:
        self.engine.close()
        if self.exchange:
            self.exchange.close()


# Why: docs/decisions/cluster.md
class RemoteEvaluator:
    """Has policies of a source evaluated in another process, one after the other.

    The process is started for the first of them. If it ends, the next one repeats what it was at.
    """

    def __init__(self, source: RemoteSource, slot: ActorSlot):
        self.source, self.slot = source, slot

    def begin(self, evaluate: Callable[[Evaluator], float], mean: float) -> None:
        """Let the policy of now be evaluated."""
        self.request = evaluate, self.source.version, self.source.weights(), mean
        self.send()

    def send(self) -> None:
        """Ask the process, or a new one if there is none."""
        engine, slot = self.source.engine, self.slot
        if not slot.process:
            slot.process, slot.starting = engine.start(Evaluator, {}, *self.source.metadata[:2])
        slot.asked = engine.call(slot.process, "success", *self.request)

    def result(self, wait: bool) -> float | None:
        """The success of what was begun last; None if it is not known yet.

        Raises:
            PeerLost: the process is of another version or task, it cannot evaluate, or it ends
                again and again.
        """
        engine, slot = self.source.engine, self.slot
        while engine.ready([slot.starting], wait):
            try:
                slot.pid, metadata = engine.get(slot.starting)
                self.source.check_identity(slot, metadata)
                if not engine.ready([slot.asked], wait):
                    break
                success, slot.deaths = engine.get(slot.asked), 0
                return success
            except ProcessLost as error:
                self.source.count_death(slot, "has ended", error)
                slot.process, slot.pid = None, 0
                self.send()
            except (ValueError, OSError) as error:
                raise PeerLost(f"{slot.name} has failed: {error}") from None
        return None


def shares(worlds: int, actors: int, sync: bool) -> list[tuple[int, int]]:
    """First world and number of worlds of each actor.

    ValueError if there are too few, or without `sync` they do not divide.
    """
    if worlds < actors or (not sync and worlds % actors):
        raise ValueError(f"num_envs={worlds} does not divide into cluster.actors={actors}")
    unit = UNIT if worlds >= UNIT * actors and sync else 1
    bounds = [unit * (i * (worlds // unit) // actors) for i in range(actors)]
    return [(a, b - a) for a, b in pairwise([*bounds, worlds])]
