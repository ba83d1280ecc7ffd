"""The verdict of the release gate in an exported file, and whether the file is still the same.

Only Python's own library is needed, so this file can be copied to a robot beside `runtime.py`.

A verdict is one more entry of the ONNX file's metadata, at the end of its bytes. It holds a
checksum of all other bytes and of itself. It is no signature: who edits a file on purpose can
compute another checksum.
"""

import hashlib
import json
from typing import Any

KEY = "gate"  # of the metadata
METADATA = 14  # number of the field `metadata_props` of an ONNX model
BYTES = 2  # protobuf's wire type of strings and of messages
FIXED = {1: 8, 5: 4}  # wire type → bytes of a number of fixed width
Verdict = dict[str, Any]


def digest(data: bytes) -> str:
    """SHA-256 of an ONNX file without its verdict: graph, weights, description and model.

    ValueError if the bytes are no protobuf message.
    """
    return hashlib.sha256(split(data)[0]).hexdigest()


# Why: docs/decisions/0045-verdict-in-the-file.md
def with_verdict(data: bytes, verdict: Verdict) -> bytes:
    """The bytes of an ONNX file with a verdict, in place of an older one.

    `file`, the digest, and `sha256`, the checksum of file and verdict, are added to it.
    """
    file, _ = split(data)
    verdict = verdict | {"file": digest(file)}
    text = json.dumps(verdict | {"sha256": checksum(verdict)}, ensure_ascii=False)
    entry = field(1, KEY.encode()) + field(2, text.encode())
    return file + field(METADATA, entry)


def read_verdict(data: bytes) -> Verdict | None:
    """The verdict in the bytes of an ONNX file; None if it has none.

    ValueError if the file or its verdict was edited since it was judged.
    """
    file, texts = split(data)
    if not texts:
        return None
    try:
        (verdict,) = [json.loads(text) for text in texts]
        told = verdict.pop("sha256")
        same = verdict["file"] == digest(file) and told == checksum(verdict)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        same = False
    if not same:
        raise ValueError("the file was edited after the gate judged it: judge it again")
    return verdict | {"sha256": told}


def checksum(verdict: Verdict) -> str:
    """SHA-256 of a verdict, which holds the digest of its file."""
    text = json.dumps(verdict, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


# -- protobuf --------------------------------------------------------------------------------------


def split(data: bytes) -> tuple[bytes, list[bytes]]:
    """The bytes of an ONNX file without its verdicts, and the texts of these."""
    rest, texts = [], []
    for number, start, begin, end in fields(data):
        if number == METADATA:
            entry = {n: data[begin:end][a:b] for n, _, a, b in fields(data[begin:end])}
            if entry.get(1) == KEY.encode():
                texts.append(entry.get(2, b""))
                continue
        rest.append(data[start:end])
    return b"".join(rest), texts


def fields(data: bytes) -> list[tuple[int, int, int, int]]:
    """(number, start, start of the value, end) of each field of a protobuf message.

    https://protobuf.dev/programming-guides/encoding. ValueError if the bytes are none.
    """
    parts, at = [], 0
    while at < len(data):
        start = at
        tag, at = varint(data, at)
        number, kind = tag >> 3, tag & 7
        if kind == 0:
            begin, at = at, varint(data, at)[1]
        elif kind == BYTES:
            length, begin = varint(data, at)
            at = begin + length
        elif kind in FIXED:
            begin, at = at, at + FIXED[kind]
        else:
            raise ValueError("the file is damaged: it is no ONNX file")
        if at > len(data):
            raise ValueError("the file is damaged: it ends too early")
        parts.append((number, start, begin, at))
    return parts


def varint(data: bytes, at: int) -> tuple[int, int]:
    """The number that begins at a byte, and where it ends."""
    value = 0
    for i, byte in enumerate(data[at : at + 10]):
        value |= (byte & 127) << (7 * i)
        if byte < 128:
            return value, at + i + 1
    raise ValueError("the file is damaged: it is no ONNX file")


def field(number: int, value: bytes) -> bytes:
    """A protobuf field that holds bytes."""
    return encoded(number << 3 | BYTES) + encoded(len(value)) + value


def encoded(value: int) -> bytes:
    """A number as a varint."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])
