"""Reads the file that W&B keeps of an offline run: LevelDB's log format, with W&B's own header.

https://github.com/google/leveldb/blob/main/doc/log_format.md
"""

import json
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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


def read_wandb(folder: Path) -> tuple[dict[str, Any], Any]:
    """(name → last value of each metric, the last artifact) of an offline run that has ended."""
    (file,) = folder.glob("run-*.wandb")
    for _ in range(100):  # W&B's own process writes it
        kinds = {record.WhichOneof("record_type"): record for record in records(file)}
        if "exit" in kinds:
            break
        time.sleep(0.1)
    items = [item for record in records(file) for item in record.history.item]
    values = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}
    return values, kinds["artifact"].artifact
