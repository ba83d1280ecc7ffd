"""What an actor sends, and which of it is learned from: each packet at most once, none too old."""

import hashlib
from collections import Counter
from dataclasses import dataclass

import numpy as np

from gpusim_rl.cluster.packing import Arrays
from gpusim_rl.config.sections import Config
from gpusim_rl.core.provenance import versions

MAY_DIFFER = ("gpu", "machine")  # of `versions`, between two machines of a cluster
FOREIGN = ("columns", "life", "twice", "version")  # refusals of packets that have no account


@dataclass(frozen=True)
class Packet:
    """The steps of one collection of an actor."""

    schema: str  # `digest` of the columns, as the actor has them
    actor: int  # who sends it, and
    life: int  # how often that one was begun before
    sequence: int  # of the packets of this life, from 0
    version: int  # of the policy that acted
    sums: np.ndarray  # (n,) of `Env.report`
    worst: np.ndarray  # the row of the worst step
    seconds: float  # that it was collected in
    idle: float  # that the actor waited before [s]
    steps: int  # control steps of all its worlds
    body: Arrays  # of `pack`


def digest(text: str) -> str:
    """A short text that two different texts do not share."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def identity(cfg: Config) -> dict[str, str]:
    """What actors and learner must have in common, by its name in a message."""
    packages = {name: x for name, x in versions().items() if name not in MAY_DIFFER}
    task = {name: cfg.plain[name] for name in ("task", "robot", "terrain", "sim", "curriculum")}
    return packages | {"task": digest(repr(task))}


class Ledger:
    """Accepts packets and refuses others. Its key is (actor, life, sequence).

    Args:
        schema: of the columns that the learner has.
        max_lag: updates that a policy may be behind the one that learns from its steps.

    Attributes:
        lives: of each actor, the life that is now.
        accounts: (actor, life) → how many packets were `sent`, `learned` from, and refused as
            `late` or for their `numbers` or `shape`. The rest was lost with the actor.
        refusals: reason → how many were refused for it.
    """

    def __init__(self, schema: str, max_lag: int, actors: int):
        self.schema, self.max_lag, self.lives = schema, max_lag, [0] * actors
        self.accounts: dict[tuple[int, int], Counter[str]] = {}
        self.refusals: Counter[str] = Counter()

    def refusal(self, packet: Packet, version: int) -> str:
        """Why an update of this version may not learn from a packet; empty if it may."""
        if packet.schema != self.schema:
            return "columns"
        if not 0 <= packet.actor < len(self.lives) or packet.life != self.lives[packet.actor]:
            return "life"
        if packet.version > version:
            return "version"
        if packet.sequence < self.accounts.get((packet.actor, packet.life), Counter())["sent"]:
            return "twice"
        return "late" if version - packet.version > self.max_lag else ""

    def enter(self, packet: Packet, why: str) -> None:
        """Enter a packet that is learned from, or refused for a reason."""
        self.refusals.update([why] if why else [])
        if why not in FOREIGN:
            account = self.accounts.setdefault((packet.actor, packet.life), Counter())
            account["sent"] = packet.sequence + 1
            account[why or "learned"] += 1

    def lost(self) -> int:
        """Packets that ended with the process that had them: those `sent`, without all others."""
        return sum(2 * x["sent"] - x.total() for x in self.accounts.values())
