"""Reads the file that W&B keeps of an offline run: LevelDB's log format, with W&B's own header.

https://github.com/google/leveldb/blob/main/doc/log_format.md
"""

import struct
from collections.abc import Iterator
from pathlib import Path

from wandb.proto.wandb_internal_pb2 import Record

BLOCK, HEADER, FIRST = 32768, 7, 7  # bytes: a block, a record's header, the file's own header
FULL, LAST = 1, 4  # kinds of parts that end a record


def records(file: Path) -> Iterator[Record]:
    """The records of a run, in order; AssertionError if the file is of another format."""
    data, at, whole = file.read_bytes(), FIRST, b""
    assert data[:4] == b":W&B"
    while at + HEADER <= len(data):
        if BLOCK - at % BLOCK < HEADER:  # the rest of a block is padding
            at += BLOCK - at % BLOCK
            continue
        _, size, kind = struct.unpack("<IHB", data[at : at + HEADER])
        whole += data[at + HEADER : at + HEADER + size]
        at += HEADER + size
        if kind in (FULL, LAST):
            record = Record()
            record.ParseFromString(whole)
            yield record
            whole = b""
