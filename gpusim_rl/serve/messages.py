"""Messages of the server: openpi's, which are msgpack with NumPy arrays.

An array is a map with the keys `__ndarray__`, `data`, `dtype` and `shape`, a single number of NumPy
one with `__npgeneric__`, `data` and `dtype`, as `openpi_client.msgpack_numpy` writes them.
"""

from typing import Any

import msgpack
import numpy as np

# Nothing but plain numbers, which is no object that a stranger chooses.
TYPES = {kind.str: kind for kind in map(np.dtype, "e f d ? b h i q B H I Q".split())}


def pack(value: object) -> bytes:
    """A message of plain values and arrays."""
    return msgpack.packb(value, default=packed_array) or b""


def packed_array(x: np.ndarray | np.generic) -> dict[bytes, object]:
    """An array or a number of NumPy as a map."""
    if not isinstance(x, np.ndarray):
        return {b"__npgeneric__": True, b"data": x.item(), b"dtype": x.dtype.str}
    array = {b"__ndarray__": True, b"data": x.tobytes()}
    return array | {b"dtype": x.dtype.str, b"shape": x.shape}


def unpack(message: bytes | str) -> dict[str, Any]:
    """The values of a stranger's message; ValueError in one line if it is none."""
    if isinstance(message, str):
        raise ValueError("a text is no message: expected msgpack with a map")
    try:
        values = msgpack.unpackb(message, object_hook=unpacked_array)
    except Exception as error:  # whatever is wrong with it
        reason = " ".join(str(error).split())
        raise ValueError(f"no message of msgpack: {type(error).__name__} {reason}") from None
    if not isinstance(values, dict):
        raise ValueError(f"a message is a map, not {type(values).__name__}")
    return values


def unpacked_array(x: dict[bytes, Any]) -> object:
    """The array or number that a map stands for; other maps stay."""
    if b"__ndarray__" in x:
        return np.frombuffer(x[b"data"], TYPES[x[b"dtype"]]).reshape(x[b"shape"])
    if b"__npgeneric__" in x:
        with np.errstate(all="ignore"):  # beyond the type is infinite, as in an array
            return TYPES[x[b"dtype"]].type(x[b"data"])
    return x
