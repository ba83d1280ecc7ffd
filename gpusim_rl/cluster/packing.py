"""Records as arrays that another process takes: without loss, and each repetition once.

- Truth values are bits.
- A column that equals an earlier one, or has one value, is sent as that. So an observation without
  noise travels once for actor and critic, and a deviation of the actions as one number.
- `end` is sent where it is not the critic's view of the next step: where an episode ends.
"""

# torch has no types for some of its members:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from typing import Any

import numpy as np
import torch
from torch import Tensor

from gpusim_rl.core.record import Record

Arrays = dict[str, Any]  # name → array, or a tree of them


def size(tree: Any) -> int:
    """Bytes of the arrays in nested dictionaries and lists."""
    if isinstance(tree, np.ndarray):
        return tree.nbytes
    return sum(map(size, tree.values() if isinstance(tree, dict) else tree))


def kinds(record: Record) -> tuple[list[str], list[str], bool]:
    """The columns that are packed as numbers, those that are as bits, and whether `end` is apart.

    Those of another type than float32 are in neither list.
    """
    columns = record.columns
    apart = "end" in columns and columns.get("critic") == columns["end"]
    floats = [name for name, x in columns.items() if x.storage == torch.float32]
    flags = [name for name in floats if columns[name].dtype == torch.bool]
    return [x for x in floats if x not in flags and not (apart and x == "end")], flags, apart


def pack(record: Record) -> Arrays:
    """The rows (T, B, …) of a record and the memory before them, as arrays."""
    names, flags, apart = kinds(record)
    steps, worlds = record.rows.shape[:2]
    parts = [record.column(name).reshape(steps * worlds, -1) for name in names]
    columns = torch.cat(parts, 1).T.contiguous().cpu().numpy()  # (width, T B)
    first: dict[bytes, int] = {}
    # as bytes, since numbers that are equal may differ in a bit, and NaN equals nothing
    kind = np.min_scalar_type(len(columns))
    source = np.array([first.setdefault(x.tobytes(), i) for i, x in enumerate(columns)], kind)
    bits, alone = columns.view(np.int32), np.arange(len(columns)) == source
    level = (bits == bits[:, :1]).all(1) & alone  # of one value
    others = {dtype: x for dtype, x in record.parts.items() if dtype != torch.float32}
    body: Arrays = {
        "source": source,
        "level": np.packbits(level),
        "values": columns[level, 0],
        "columns": columns[alone & ~level],
        # without the zeros at their end: mostly nothing is left
        "flags": [np.trim_zeros(np.packbits(host(getattr(record, x))), "b") for x in flags],
        "memory": {name: host(x) for name, x in record.memory.items()},
        "others": {str(dtype): host(x) for dtype, x in others.items()},
    }
    if apart:
        end, critic = (host(record.column(name)).view(np.int32) for name in ("end", "critic"))
        differs = np.ones((steps, worlds), bool)
        differs[:-1] = (end[:-1] != critic[1:]).any(-1)
        body |= {"ends": end.view(np.float32)[differs], "differs": np.packbits(differs)}
    return body


def unpack(body: Arrays, record: Record, worlds: slice) -> None:
    """Write what `pack` gave to some worlds of a record (T, B, …), and their memory. In place.

    What another program made may raise ValueError, LookupError or TypeError, after a part of it was
    written. Nothing is broadcast.
    """
    names, flags, apart = kinds(record)
    places = [record.column(name)[:, worlds] for name in names]
    widths, shape = [x[0, 0].numel() for x in places], record.rows[:, worlds].shape[:2]
    source = shaped(body["source"], sum(widths))
    level = np.unpackbits(body["level"], count=len(source)).astype(bool)
    whole = np.empty((len(source), shape[0] * shape[1]), np.float32)
    alone = np.arange(len(source)) == source
    if (source < 0).any() or not alone[source].all() or (level & ~alone).any():
        raise ValueError("a column is a copy of one that is not sent")
    whole[alone & ~level] = shaped(body["columns"], (alone & ~level).sum(), whole.shape[1])
    whole[level] = shaped(body["values"], level.sum())[:, None]
    whole[~alone] = whole[source[~alone]]
    rows = torch.from_numpy(whole).T.view(*shape, -1)
    parts = rows.split(widths, -1)
    for place, values in zip(places, parts, strict=True):
        place.copy_(values.reshape(place.shape))
    for name, packed in zip(flags, body["flags"], strict=True):
        record.column(name)[:, worlds].copy_(from_bits(packed, shape))
    for dtype, x in record.parts.items():
        if dtype != torch.float32:
            x[:, worlds] = tensor(shaped(body["others"][str(dtype)], *x[:, worlds].shape)).to(x)
    for name, x in record.memory.items():
        x[worlds] = tensor(shaped(body["memory"][name], *x[worlds].shape)).to(x)
    if apart:
        end = record.column("end")[:, worlds]
        end[:-1] = record.column("critic")[1:, worlds]
        differs = from_bits(body["differs"], shape).to(end.device)
        end[differs] = tensor(shaped(body["ends"], int(differs.sum()), *end.shape[2:])).to(end)


def shaped(x: np.ndarray, *shape: int) -> np.ndarray:
    """An array of numbers; ValueError if it has another shape, which might be broadcast."""
    if x.shape != shape or x.dtype.kind not in "fiub":
        raise ValueError(f"an array has type {x.dtype} and shape {x.shape}, not {shape}")
    return x


def from_bits(packed: np.ndarray, shape: tuple[int, ...]) -> Tensor:
    """The truth values (T, B) of what `np.packbits` gave."""
    values = np.zeros(shape[0] * shape[1], bool)
    values[: 8 * len(packed)] = np.unpackbits(packed)[: len(values)]
    return torch.from_numpy(values).view(shape)


def host(x: Tensor) -> np.ndarray:
    """A copy as an array, which no later step changes."""
    return x.detach().cpu().numpy().copy()


def tensor(x: np.ndarray) -> Tensor:
    """A tensor on the CPU with the numbers of an array, which may not be written."""
    return torch.from_numpy(x.copy())
