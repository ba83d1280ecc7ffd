"""The verdict of the release gate in an exported file, and whether the file is still the same.

Only Python's own library is needed, so this file can be copied to a robot beside `runtime.py`.

A verdict is one more entry of the ONNX file's metadata, at the end of its bytes. It holds a
checksum of all other bytes and of itself. It is no signature: who edits a file on purpose can
compute another checksum.
"""

import hashlib
import json
import re
from typing import Any

SIZE = re.compile(rb"sha256 of the first (\d{9}) bytes: ")  # in the seal
# A field of ONNX's metadata with the key `gate`: r, its length, the key, the length of the text.
HEAD = re.compile(rb"r[\x80-\xff]*[\0-\x7f]\n\x04gate\x12[\x80-\xff]*[\0-\x7f](?={)")
Json = dict[str, Any]


def digest(data: bytes) -> str:
    """SHA-256 of an ONNX file without its verdict: graph, weights, description and model."""
    return hashlib.sha256(cut(data)[0]).hexdigest()


# Why: docs/decisions/gate.md
def with_verdict(data: bytes, verdict: Json) -> bytes:
    """The bytes of an ONNX file with a verdict, in place of an older one.

    `file`, the digest, and `sha256`, the checksum of file and verdict, are added to it.
    """
    verdict = verdict | {"file": digest(data)}
    text = json.dumps(verdict | {"sha256": checksum(verdict)}, ensure_ascii=False)
    return cut(data)[0] + entry(text.encode())


def read_verdict(data: bytes) -> Json | None:
    """The verdict in the bytes of an ONNX file; None if it has none.

    ValueError if the file or its verdict was edited since it was judged.
    """
    file, end = cut(data)
    if not end:
        return None
    text = HEAD.sub(b"", end, count=1)
    try:
        verdict = json.loads(text)
        checked = {key: x for key, x in verdict.items() if key != "sha256"}
        sums = verdict["file"] == digest(file), verdict["sha256"] == checksum(checked)
        same = end == entry(text) and all(sums)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        same = False
    if not same:
        raise ValueError("the file was edited after the gate judged it: judge it again")
    return verdict


def difference(verdict: Json) -> str:
    """How a verdict was made otherwise than usual, in words; "" if it was not."""
    changed = verdict.get("changed")
    if isinstance(changed, dict) and changed.get("quick"):
        return "by the quick gate, which proves nothing"
    if changed:
        return "with other limits or scenarios than usual"
    return "with tracking reported, not judged" if verdict.get("adopted") else ""


def checksum(verdict: Json) -> str:
    """SHA-256 of a verdict, which holds the digest of its file."""
    text = json.dumps(verdict, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def cut(data: bytes) -> tuple[bytes, bytes]:
    """The exported bytes of an ONNX file, and those that follow: its verdict, or none.

    The seal says how many were exported; a file without one has no verdict.
    """
    size = int(seal[1]) if (seal := SIZE.search(data)) else len(data)
    return data[:size], data[size:]


def entry(text: bytes) -> bytes:
    """The metadata entry `gate` with a text, as a field of an ONNX model in protobuf."""
    pair = b"\n\x04gate\x12" + length(len(text)) + text
    return b"r" + length(len(pair)) + pair


def length(n: int) -> bytes:
    """A length in protobuf's form: seven bits in each byte, the lowest first."""
    return bytes([n & 127 | 128, *length(n >> 7)]) if n > 127 else bytes([n])
