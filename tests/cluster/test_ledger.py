"""Each packet is learned from at most once, and each world is one actor's."""

import numpy as np
import pytest

from gpusim_rl.cluster.ledger import Ledger, Packet, digest
from gpusim_rl.cluster.source import shares


def packet(actor: int = 0, life: int = 0, sequence: int = 0, version: int = 0, schema: str = "s"):
    """A packet without steps."""
    none = np.zeros(0)
    return Packet(schema, actor, life, sequence, version, none, none, 0.0, 0.0, 0, {})


def test_a_packet_is_learned_from_once():
    """Each other one is refused by its reason, and each number is accounted for."""
    ledger = Ledger("s", max_lag=2, actors=2)
    ledger.lives[1] = 1
    packets = [(packet(), 2), (packet(sequence=2), 1), (packet(sequence=2), 1)]
    packets += [(packet(sequence=3), 3), (packet(actor=1), 0), (packet(actor=1, life=1), 0)]
    packets += [(packet(sequence=4, schema="other"), 0), (packet(sequence=4, version=9), 8)]
    packets += [(packet(actor=actor, sequence=4), 0) for actor in (-1, 2)]
    whys = []
    for each, version in packets:
        whys.append(ledger.refusal(each, version))
        ledger.enter(each, whys[-1])
    ledger.enter(packet(sequence=4), "numbers")
    assert whys == ["", "", "twice", "late", "life", "", "columns", "version", "life", "life"]
    counts = {"twice": 1, "late": 1, "life": 3, "columns": 1, "version": 1, "numbers": 1}
    assert ledger.refusals == counts
    assert ledger.accounts[0, 0] == {"sent": 5, "learned": 2, "late": 1, "numbers": 1}
    assert ledger.lost() == 1


def test_worlds_are_shared():
    """Each world is one actor's; without sync all actors have as many."""
    assert shares(70, 3, sync=True) == [(0, 16), (16, 16), (32, 38)]
    assert shares(7, 3, sync=True) == [(0, 2), (2, 2), (4, 3)]
    assert shares(6, 2, sync=False) == [(0, 3), (3, 3)]
    with pytest.raises(ValueError, match=r"num_envs=64 does not divide into cluster.actors=3"):
        shares(64, 3, sync=False)
    assert digest("a") != digest("b")
