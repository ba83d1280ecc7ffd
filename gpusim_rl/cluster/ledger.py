"""Which packets are learned from: each at most once, and none that is too old."""

from collections import Counter
from dataclasses import dataclass, field

from gpusim_rl.cluster.packet import Packet


@dataclass
class Account:
    """The packets of one life of an actor: each number from 0 to `next` - 1 has one fate."""

    next: int = 0
    learned: int = 0
    refused: int = 0

    @property
    def lost(self) -> int:
        """Packets that never came, with the process that had them."""
        return self.next - self.learned - self.refused


@dataclass
class Ledger:
    """Accepts packets and refuses others. Its key is (actor, life, sequence).

    Args:
        schema: of the columns that the learner has.
        max_lag: updates that a policy may be behind the one that learns from its steps.
        lives: of each actor, the life that is now.

    Attributes:
        accounts: (actor, life) → what became of its packets.
        refusals: reason → how many were refused for it.
    """

    schema: str
    max_lag: int
    lives: list[int]
    accounts: dict[tuple[int, int], Account] = field(default_factory=dict)
    refusals: Counter[str] = field(default_factory=Counter)

    def refusal(self, packet: Packet, version: int) -> str:
        """Why a packet may not be learned from by an update of this version; empty if it may."""
        next_one = self.accounts.get((packet.actor, packet.life), Account()).next
        if packet.schema != self.schema:
            return "columns"
        if packet.life != self.lives[packet.actor]:
            return "life"
        if packet.sequence < next_one:
            return "twice"
        return "late" if version - packet.version > self.max_lag else ""

    def accept(self, packet: Packet, version: int) -> bool:
        """Enter a packet. Returns whether to learn from it."""
        why = self.refusal(packet, version)
        if why:
            self.refusals[why] += 1
        if why in ("columns", "life", "twice"):  # no packet of this ledger
            return False
        account = self.accounts.setdefault((packet.actor, packet.life), Account())
        account.next = packet.sequence + 1
        account.learned += not why
        account.refused += bool(why)
        return not why
