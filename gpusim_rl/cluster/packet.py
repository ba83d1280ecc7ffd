"""What an actor sends: the steps of its worlds, packed without loss, under a header.

A record repeats much, and is sent bit for bit all the same:

- truth values are bits;
- a column that equals an earlier one, or has one value, is sent as that. So an observation without
  noise travels once for actor and critic, and a deviation of the actions as one number;
- `end` is sent where it is not the critic's view of the next step, which are ends of episodes.
"""

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gpusim_rl.core.record import Record

Arrays = dict[str, Any]  # name → array, or a tree of them


@dataclass(frozen=True)
class Packet:
    """The steps of one collection of an actor.

    Args:
        schema: `digest` of the columns, as the actor has them.
        actor, life: who sends it, and how often that one was begun before.
        sequence: of the packets of this life, from 0.
        version: of the policy that acted.
        sums: (n,) of `Env.report`; names: what they are.
        worst: the row of the worst step.
        seconds: that it was collected in; idle: that the actor waited before.
        steps: control steps of all its worlds.
        body: of `pack`.
    """

    schema: str
    actor: int
    life: int
    sequence: int
    version: int
    names: tuple[str, ...]
    sums: np.ndarray
    worst: np.ndarray
    seconds: float
    idle: float
    steps: int
    body: Arrays

    @property
    def nbytes(self) -> int:
        """Bytes of all its arrays."""
        return size([self.sums, self.worst, self.body])


def digest(text: str) -> str:
    """A short text that two different texts do not share."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def size(tree: Any) -> int:
    """Bytes of the arrays in nested dictionaries and lists."""
    if isinstance(tree, np.ndarray):
        return tree.nbytes
    inside = tree.values() if isinstance(tree, dict) else tree
    return sum(map(size, inside)) if isinstance(tree, dict | list | tuple) else 0


def kinds(record: Record) -> tuple[list[str], list[str], bool]:
    """The columns that are packed as numbers, those that are as bits, and whether `end` is apart.

    Those of another type than float32 are in neither list.
    """
    columns = record.columns
    apart = "end" in columns and columns.get("critic") == columns["end"]
    floats = {name: x for name, x in columns.items() if x.storage == torch.float32}
    flags = [name for name, x in floats.items() if x.dtype == torch.bool]
    numbers = [name for name in floats if name not in flags and not (apart and name == "end")]
    return numbers, flags, apart


def pack(record: Record) -> Arrays:
    """The rows (T, B, …) of a record and the memory before them, as arrays."""
    names, flags, apart = kinds(record)
    steps, worlds = record.rows.shape[:2]
    parts = [record.column(name).reshape(steps * worlds, -1) for name in names]
    columns = torch.cat(parts, 1).T.contiguous().cpu().numpy()  # (width, T B)
    first: dict[bytes, int] = {}
    # as bytes, since numbers that are equal may differ in a bit, and NaN equals nothing
    source = [first.setdefault(row.tobytes(), i) for i, row in enumerate(columns)]
    bits = columns.view(np.int32)
    level = (bits == bits[:, :1]).all(1)  # of one value
    alone = np.arange(len(columns)) == source
    body: Arrays = {
        "source": np.array(source, np.int16),
        "level": level & alone,
        "values": columns[level & alone, 0],
        "columns": columns[alone & ~level],
        "flags": [np.packbits(host(getattr(record, name)).ravel()) for name in flags],
        "memory": {name: host(x) for name, x in record.memory.items()},
    }
    others = {dtype: x for dtype, x in record.parts.items() if dtype != torch.float32}
    body["others"] = {str(dtype): host(x) for dtype, x in others.items()}
    if apart:
        end, critic = (host(record.column(name)).view(np.int32) for name in ("end", "critic"))
        differs = np.ones((steps, worlds), bool)
        differs[:-1] = (end[:-1] != critic[1:]).any(-1)
        body |= {"ends": end.view(np.float32)[differs], "differs": np.packbits(differs.ravel())}
    return body


def unpack(body: Arrays, record: Record, worlds: slice) -> None:
    """Write what `pack` gave to some worlds of a record (T, B, …), and their memory. In place."""
    names, flags, apart = kinds(record)
    steps, count = len(record), worlds.stop - worlds.start
    level, source = body["level"], body["source"].astype(np.int64)
    whole = np.empty((len(source), steps * count), np.float32)
    alone = np.arange(len(source)) == source
    whole[alone & ~level] = body["columns"]
    whole[level] = body["values"][:, None]
    whole[~alone] = whole[source[~alone]]
    rows = torch.from_numpy(whole).T.view(steps, count, -1)
    places = [record.column(name)[:, worlds] for name in names]
    widths = [place[0, 0].numel() for place in places]
    for place, values in zip(places, rows.split(widths, -1), strict=True):
        place.copy_(values.reshape(place.shape))
    for name, packed in zip(flags, body["flags"], strict=True):
        record.column(name)[:, worlds] = from_bits(packed, (steps, count)).to(record.rows)
    for dtype, x in record.parts.items():
        if dtype != torch.float32:
            x[:, worlds] = torch.tensor(body["others"][str(dtype)]).to(x)
    for name, x in record.memory.items():
        x[worlds] = torch.tensor(body["memory"][name]).to(x)
    if apart:
        end, critic = record.column("end")[:, worlds], record.column("critic")[:, worlds]
        end[:-1] = critic[1:]
        differs = from_bits(body["differs"], (steps, count)).to(end.device)
        end[differs] = torch.tensor(body["ends"]).to(end)


def from_bits(packed: np.ndarray, shape: tuple[int, int]) -> Tensor:
    """The truth values (T, B) of what `np.packbits` gave."""
    values = np.unpackbits(packed, count=shape[0] * shape[1]).astype(bool)
    return torch.from_numpy(values).view(shape)


def host(x: Tensor) -> np.ndarray:
    """A copy as an array, which no later step changes."""
    return x.detach().cpu().numpy().copy()
