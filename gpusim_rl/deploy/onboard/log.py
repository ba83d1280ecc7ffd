"""Write each control step of a robot to a file, and read it back.

    log = Log("walk.mcap", policy)
    guard = Guard(policy, record=log)
    …
    log.close()

The file is MCAP, which Foxglove, Rerun and the tools of ROS 2 open. This file of the folder alone
needs more than NumPy: `pip install mcap`, which brings zstandard. docs/robot-log.md describes the
format.
"""

import functools
import hashlib
import json
import math
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .checks import Policy
from .verdict import Json, digest

FORMAT = 1
NAME, TOPIC, SCHEMA = "gpusim_rl", "/control", "gpusim_rl.Step"
# Bytes and [s] of a chunk; a killed program loses at most one. Why: docs/decisions/robot-log.md
CHUNK, LONGEST_CHUNK_S = 16 << 10, 0.5
LIMIT = 1 << 26  # bytes of one record of a file that is read
DT = 1e-4, 10.0  # shortest and longest control period [s], as of runtime.py
MISSING = "a robot's log needs mcap: pip install mcap"
NOT_FINITE = re.compile("nan|-?inf")
# What a description of a stranger raises: JSON has numbers beyond float, and any nesting.
MISTAKES = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError)
MISTAKES += (RecursionError, MemoryError)
Array = np.ndarray


class Log:
    """A file of control steps. Call it with one step, as `Guard` does with its `record`.

    A step is a dictionary, see `Recording`; numbers that are not finite become null. Description,
    model and digest of a `Policy` of runtime.py are written first.

    ValueError if mcap is not installed, OSError if the file exists or cannot be written.
    """

    def __init__(self, path: str | Path, policy: Policy):
        try:
            from mcap.writer import Writer
        except ImportError:
            raise ValueError(MISSING) from None
        try:
            self.file = open(path, "xb")
        except FileExistsError:
            raise FileExistsError(f"{path} exists already: name another log") from None
        self.writer = Writer(self.file, enable_data_crcs=True)
        self.writer.start(NAME)
        description = json.dumps(policy.description)
        values = {"format": str(FORMAT), "digest": digest(policy.data), "about": description}
        values |= {"mjcf": policy.mjcf, "sha256": checksum(description, policy.mjcf)}
        self.writer.add_metadata(NAME, values)
        fields = json.dumps(schema(policy)).encode()
        kind = self.writer.register_schema(SCHEMA, "jsonschema", fields)
        self.channel = self.writer.register_channel(TOPIC, "json", kind)
        self.writer.flush()
        self.begin, self.first, self.last = time.time_ns(), None, 0.0
        self.bytes, self.flushed = 0, -math.inf

    def __call__(self, step: Json) -> None:
        """Append a step; OSError if the disk is full."""
        now = step["time"]
        if not math.isfinite(now):  # the clock is broken, which is among the faults
            now = self.last
        self.first = now if self.first is None else self.first
        data = encode({**step, "time": now})
        at = self.begin + max(0, int((now - self.first) * 1e9))
        self.writer.add_message(self.channel, at, data, at)
        self.bytes, self.last = self.bytes + len(data), now
        if self.bytes >= CHUNK or now - self.flushed >= LONGEST_CHUNK_S:
            self.writer.flush()
            self.bytes, self.flushed = 0, now

    def close(self) -> None:
        """Write the index, with which viewers open the file at once. A second call does nothing."""
        if not self.file.closed:
            with self.file:
                self.writer.finish()


def checksum(description: str, mjcf: str) -> str:
    """SHA-256 of the two texts: MCAP's own checksum of them is missing where a log was cut."""
    return hashlib.sha256((description + mjcf).encode()).hexdigest()


def encode(step: Json) -> bytes:
    """A step as JSON, which knows no number that is not finite: null stands for it.

    Written by hand: `json` takes twice as long, which a robot has better use for.
    """
    rows = [f"{quote(name)}:{row(x.tolist())}" for name, x in step["readings"].items()]
    command = "null" if step["command"] is None else row(step["command"].tolist())
    faults = json.dumps(step["faults"]) if step["faults"] else "[]"
    return (
        f'{{"time":{float(step["time"])!r},"age":{row([step["age"]])[1:-1]},'
        f'"readings":{{{",".join(rows)}}},"command":{command},"targets":{row(step["targets"].tolist())},'
        f'"gain":{row([step["gain"]])[1:-1]},"phase":"{step["phase"]}",'
        f'"restart":{"true" if step["restart"] else "false"},"faults":{faults}}}'
    ).encode()


quote = functools.cache(json.dumps)  # names, of which there are few


def row(values: list[float]) -> str:
    """Numbers in JSON, with nine digits, which hold a float32 exactly."""
    text = ("%.9g," * len(values) % tuple(values))[:-1]
    return f"[{NOT_FINITE.sub('null', text) if 'n' in text else text}]"


def schema(policy: Policy) -> Json:
    """The JSON schema of a step, with the units of its numbers."""
    inputs = {x["name"]: x for x in policy.description["inputs"]}

    def numbers(description: Json, names: list[str]) -> Json:
        units = ", ".join(sorted({*description.get("units", [])}))
        says = f"{', '.join(map(str, names))} [{units}]" if names else f"[{units}]"
        return {"type": "array", "items": {"type": ["number", "null"]}, "description": says}

    readings = {name: numbers(inputs[name], policy.reads.get(name, [])) for name in policy.needs}
    number, text = {"type": "number"}, {"type": "string"}
    command = numbers(policy.command, policy.command["names"]) if policy.command else {}
    fields = {
        "time": number | {"description": "of the guard's clock [s]"},
        "age": number | {"description": "of the readings [s]"},
        "readings": {"type": "object", "properties": readings},
        "command": command | {"type": ["array", "null"]},
        "targets": numbers(policy.outputs, policy.joints),
        "gain": number | {"description": "share of kp"},
        "phase": text | {"description": "rise, run, stop or off"},
        "restart": {"type": "boolean", "description": "whether the policy begins"},
        "faults": {"type": "array", "items": text},
    }
    return {"title": SCHEMA, "type": "object", "properties": fields}


@dataclass(frozen=True)
class Recording:
    """T control steps of a robot, as its log has them. What was not there is NaN."""

    description: Json  # of the controller, as docs/policy.schema.json has it
    mjcf: str  # the text of its model
    digest: str  # SHA-256 of the controller's file without its verdict
    whole: bool  # whether the log was closed; else its program was killed, or the file is cut
    time: Array  # (T,) of the guard's clock [s]
    age: Array  # (T,) of the readings [s]
    readings: dict[str, Array]  # name → (T, width), as the guard read them
    command: Array  # (T, n) within the range of training; NaN unless the policy ran
    targets: Array  # (T, nu) that were sent to the servos, in the order of `joints`
    gain: Array  # (T,) share of kp of the servos
    phase: Array  # (T,) rise, run, stop or off: of the guard as the step began
    restart: Array  # (T,) bool, whether an episode of the policy began
    faults: list[list[str]]  # what was wrong in each step, one line each

    @property
    def dt(self) -> float:
        """The control period [s]."""
        return float(self.description["dt"])

    @property
    def joints(self) -> list[str]:
        """The names of the joints, in the order of the targets."""
        return self.description["outputs"][0]["joints"]


def read(path: str | Path) -> Recording:
    """The control steps of a log. One whose program was killed is read to its last whole chunk.

    ValueError, in one line, if mcap is not installed, or the file is damaged or no log of ours.
    """
    try:
        from mcap.stream_reader import StreamReader
    except ImportError:
        raise ValueError(MISSING) from None
    description: dict[str, str] = {}
    rows, whole, channels = [], True, set[int]()
    with open(path, "rb") as file:
        reader = StreamReader(file, validate_crcs=True, record_size_limit=LIMIT)
        try:
            for record in reader.records:
                kind = type(record).__name__
                if kind == "Metadata" and record.name == NAME:
                    description = record.metadata
                elif kind == "Channel" and record.topic == TOPIC:
                    channels.add(record.id)
                elif kind == "Message" and record.channel_id in channels:
                    rows.append(json.loads(record.data))
        except Exception as error:  # those of mcap, zstandard and struct have no common base class
            whole = False
            if file.read(1):  # the file goes on, so it was not cut
                reason = " ".join(str(error).split())[:200]
                raise ValueError(f"{path} is a damaged MCAP file: {reason}") from None
    if wrong := fault(description):
        raise ValueError(f"{path} {wrong}")
    try:
        return recording(description, rows, whole)
    except MISTAKES as error:
        reason = " ".join(f"{type(error).__name__} {error}".split())[:200]
        raise ValueError(f"{path} is a damaged log: {reason}") from None


def fault(metadata: Mapping[str, str]) -> str:
    """What is wrong with the metadata of a log, as far as it is seen before it is parsed; or ""."""
    if not metadata:
        return f"is no log of a robot: it has no metadata {NAME!r}"
    if metadata.get("format") != str(FORMAT):
        return f"has format {metadata.get('format')!r}: this program reads {FORMAT}"
    if checksum(metadata.get("about", ""), metadata.get("mjcf", "")) != metadata.get("sha256"):
        return "is a damaged log: its description or model is not what was written"
    return ""


def recording(metadata: Mapping[str, str], rows: list[Json], whole: bool) -> Recording:
    """The steps of a log; raises many kinds of error if it is damaged."""
    description = json.loads(metadata["about"])
    kinds = {x["name"]: (x["kind"], x["shape"]) for x in description["inputs"]}
    readings = {name: int(shape[0]) for name, (kind, shape) in kinds.items() if kind == "reading"}
    (commands,) = [int(shape[0]) for kind, shape in kinds.values() if kind == "command"] or [0]
    nu = len(description["outputs"][0]["joints"])
    if not DT[0] <= float(description["dt"]) <= DT[1]:
        raise ValueError(f"dt {description['dt']}")

    def stack(values: Iterable[Any], width: int) -> Array:
        x = [[None] * width if row is None else row for row in values]
        return np.array(x, float).reshape(len(x), width)

    def column(name: str, kind: type) -> Array:
        return np.array([row[name] for row in rows], kind)

    return Recording(
        description=description,
        mjcf=metadata["mjcf"],
        digest=metadata["digest"],
        whole=whole,
        readings={
            name: stack((row["readings"].get(name) for row in rows), width)
            for name, width in readings.items()
        },
        command=stack((row["command"] for row in rows), commands),
        targets=stack((row["targets"] for row in rows), nu),
        **{name: column(name, float) for name in ("time", "age", "gain")},
        phase=column("phase", str),
        restart=column("restart", bool),
        faults=[list(map(str, row["faults"])) for row in rows],
    )
