"""A packed record: every bit of it arrives, in few bytes."""

import pytest
import torch
from torch import Tensor

from gpusim_rl.cluster.packing import pack, size, unpack
from gpusim_rl.core.record import FLAG, NUMBER, Column, Record, vector

T, B = 5, 6
COLUMNS = dict(obs=vector(3), critic=vector(4), action=vector(2), std=vector(2), end=vector(4))
COLUMNS |= dict(reward=NUMBER, terminated=FLAG, truncated=FLAG, count=Column((), torch.int64))


def blank() -> Record:
    """A record of the columns, with a memory."""
    record = Record.zeros(COLUMNS, T, B, device=torch.device("cpu"))
    record.memory = {"actor": torch.zeros(B, 7)}
    return record


def filled(seed: int = 0) -> Record:
    """A random record: critic and actor see some numbers alike, and a few are not finite."""
    g, record = torch.Generator().manual_seed(seed), blank()
    for x in record.parts.values():
        x.copy_(torch.randint(-9, 9, x.shape, generator=g) / 4)
    record.memory["actor"].copy_(torch.randn(B, 7, generator=g))
    record.column("critic")[..., :2] = record.obs[..., 1:]
    record.column("std").fill_(0.3)
    ended = torch.rand(T, B, generator=g) < 0.2
    record.column("truncated").copy_(ended)
    record.column("terminated").zero_()
    record.column("end")[:-1] = torch.where(ended[:-1, :, None], 7.0, record.critic[1:])
    record.obs[1, 2, 0], record.reward[3, 3], record.obs[2, 2, 1] = torch.nan, -0.0, torch.inf
    return record


def bits(x: Tensor) -> Tensor:
    """The bits of float32 numbers."""
    return x.contiguous().view(torch.int32)


def test_every_bit_arrives():
    """Two packed records are one of all worlds, bit for bit, NaN and -0 too."""
    whole, (left, right) = filled(), (blank(), blank())
    for half, rows in ((left, slice(0, B // 2)), (right, slice(B // 2, B))):
        part = Record.zeros(COLUMNS, T, B // 2, device=torch.device("cpu"))
        for dtype, x in part.parts.items():
            x.copy_(whole.parts[dtype][:, rows])
        part.memory = {"actor": whole.memory["actor"][rows].clone()}
        for target in (left, right) if half is left else (left,):
            unpack(pack(part), target, rows)
    assert torch.equal(bits(left.rows), bits(whole.rows))
    assert torch.equal(left.count, whole.count)
    assert torch.equal(left.memory["actor"], whole.memory["actor"])
    assert not torch.equal(bits(right.rows), bits(whole.rows))  # its other half is blank


@pytest.mark.parametrize(
    "change",
    [
        lambda x: {"columns": x["columns"][:1]},
        lambda x: {"columns": x["columns"][:, :1]},
        lambda x: {"columns": x["columns"].astype(object)},
        lambda x: {"values": x["values"].repeat(2)},
        lambda x: {"source": x["source"][:-1]},
        lambda x: {"source": x["source"] + 1},
        lambda x: {"source": x["source"].astype(int) - 1},
        lambda x: {"level": ~x["level"]},
        lambda x: {"ends": x["ends"][:1]},
        lambda x: {"ends": None},
        lambda x: {"memory": {"actor": x["memory"]["actor"][:1]}},
        lambda x: {"memory": {}},
        lambda x: {"others": {name: y[:1] for name, y in x["others"].items()}},
        lambda x: {"flags": x["flags"][:1]},
    ],
)
def test_arrays_that_do_not_fit(change):
    """What is no packing of such a record is refused, and nothing is broadcast."""
    body = pack(filled())
    with pytest.raises((ValueError, LookupError, TypeError, AttributeError)):
        unpack(body | change(body), blank(), slice(0, B))


def test_what_repeats_is_sent_once():
    """Columns that are equal or of one value, ends that follow, and truth values take few bytes."""
    record = filled()
    record.obs[1, 2, 0], record.obs[2, 2, 1] = 0.0, 0.0
    record.column("critic")[..., :2] = record.obs[..., 1:]
    ended = int(record.truncated[:-1].sum()) + B
    body = pack(record)
    # obs 3, critic 2 of 4, action 2, reward 1: numbers of each step
    assert body["columns"].shape == (8, T * B) and len(body["values"]) == 1
    assert body["ends"].shape[1] == 4 and len(body["ends"]) <= ended + 1
    assert size(body["flags"][0]) == 0 and size(body["flags"]) <= -(-T * B // 8)
