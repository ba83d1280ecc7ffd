"""Run an exported controller on a robot's computer, with numpy and onnxruntime alone.

This file can be copied to the robot by itself. It checks the shapes of readings and keeps the
memory; all else is in the ONNX file, which needs nothing of this program.

    policy = Policy("policy.onnx")
    policy.reset()
    every policy.dt seconds:
        targets = policy.act({"gyro": …, "up": …, "joint_pos": …, "joint_vel": …}, command)
        where policy.fault lasts, bring the robot to its safe pose

`targets` are the actuators' controls in the order of `policy.joints`. For the quadruped they are
joint angles [rad] for PD controllers with the gains in `policy.outputs`.
"""

import hashlib
import json
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import ArrayLike, DTypeLike

FORMAT = 4  # of the descriptions that are read
SEAL = re.compile(rb"sha256 of the first (\d{9}) bytes: ([0-9a-f]{64})")
VERDICT = re.compile(rb"r[\x80-\xff]*[\0-\x7f]\n\x04gate\x12[\x80-\xff]*[\0-\x7f]{[^\0-\x1f]*}")
CHANGED = "was changed after its export, so its SHA-256 differs"
MAX_BYTES = 1 << 28  # of a policy's file
MAX_NUMBERS = 1 << 20  # of all readings, and of one memory, for one robot
SHORTEST_PERIOD_S = 1e-4  # control period [s]
# onnxruntime computes so many floats at once, and what is left over in another way.
LANES = 4  # Why: docs/decisions/controller.md
WEIGHTS_FOLDER = "session.model_external_initializers_file_folder_path"
TYPES = ("float32", "float64", "int32", "int64", "bool")
VIEWS = (*TYPES, "float16", "uint8")
# what a wrong description raises: JSON has numbers beyond float
MISTAKES = LookupError, TypeError, ValueError, AttributeError, OverflowError, MemoryError
Array = np.ndarray
Readings = Mapping[str, Any]  # name → values


class Policy:
    """An exported controller, and what it remembers.

    Args:
        path: a file that gpusim_rl exported; it drives one robot or a batch of them.

    Attributes:
        data: the file's bytes, with the gate's verdict if it has one.
        description: the metadata, as docs/policy.schema.json describes them.
        mjcf: the text of the model.
        dt: control period [s].
        needs: the names of the readings that `act` needs, and their widths.
        views: of further inputs, such as pictures, that `act` needs: name → shape and type.
        reads: reading of joints → the names of its joints, in order.
        command: what `description` says of the command; None if the policy follows none.
        outputs: what `description` says of the targets: gains, limits, safe pose.
        joints: names of the joints, in the order of the targets.
        start: what it remembers as an episode begins, name → (1, …).
        memory: what the policy remembers, name → (B, …).
        fault: (B,) bool, whether a number of a robot's last step was not finite: see `act`.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is damaged, or another program wrote it.
    """

    def __init__(self, path: str | Path):
        if not (path := Path(path)).is_file():
            raise FileNotFoundError(f"no ONNX file {path}")
        self.data = path.read_bytes() if path.stat().st_size <= MAX_BYTES else b""
        self.session = load_session(unsealed(self.data, path), path)
        metadata = self.session.get_modelmeta().custom_metadata_map
        try:
            self.description: dict[str, Any] = json.loads(metadata["gpusim_rl"])
            self.mjcf: str = metadata["mjcf"]
        except (KeyError, ValueError, RecursionError):
            adopts = "no description; play.py mode=adopt takes networks of others"
            raise ValueError(f"{path} was not exported by gpusim_rl: {adopts}") from None
        check_format(self.description, path)
        if not SEAL.search(self.data):
            raise ValueError(f"{path} {CHANGED}")
        try:
            self._configure()
            self._try()
        except MISTAKES as error:
            reason = " ".join(f"{type(error).__name__} {error}".split())
            raise ValueError(f"{path} has an invalid description: {reason}") from None

    def _configure(self) -> None:
        """Set the attributes that `description` has; raises many kinds of error if it is wrong."""
        inputs = {str(x["name"]): x for x in self.description["inputs"]}
        self.dt = float(self.description["dt"])
        if not SHORTEST_PERIOD_S <= self.dt <= 10:
            raise ValueError(f"dt {self.dt}")
        readings = {name: x for name, x in inputs.items() if x["kind"] == "reading"}
        self.needs = {name: int(x["shape"][0]) for name, x in readings.items()}
        views = {name: x for name, x in inputs.items() if x["kind"] == "view"}
        self.views = {k: (tuple(map(int, x["shape"])), str(x["type"])) for k, x in views.items()}
        if unknown := [x for _, x in self.views.values() if x not in VIEWS]:
            raise ValueError(f"a view of type {unknown[0]}")
        sizes = [*self.needs.values(), *(math.prod(shape) for shape, _ in self.views.values())]
        if sum(sizes) > MAX_NUMBERS:
            raise ValueError(f"readings of {sum(sizes)} numbers")
        self.reads = {name: list(x["joints"]) for name, x in readings.items() if "joints" in x}
        (self.command,) = [x for x in inputs.values() if x["kind"] == "command"] or [None]
        if self.command:
            [list(map(float, self.command["trained"][end])) for end in ("low", "high")]
        self.outputs, fault = self.description["outputs"]
        if (self.outputs["name"], fault["name"]) != ("targets", "fault"):
            raise ValueError("outputs are not targets and fault")
        self.joints = list(self.outputs["joints"])
        self.start: dict[str, Array] = {}
        memory = self.description["memory"]
        for entry in memory:
            shape, kind = [int(n) for n in entry["shape"]], str(entry["type"])
            if kind not in TYPES or not 0 <= np.prod([float(n) for n in shape]) <= MAX_NUMBERS:
                raise ValueError(f"memory {entry['name']} of type {kind}, shape {shape}")
            self.start[str(entry["name"])] = np.asarray(entry["start"], kind).reshape(1, *shape)
        self._inputs = {str(x["name"]): str(x["input"]) for x in memory}
        self._results = ["targets", "fault", *(str(x["output"]) for x in memory)]
        expected = {*inputs, *self._inputs.values()}
        names = {x.name for x in self.session.get_inputs()}
        if names != expected:
            raise ValueError(f"inputs {sorted(names)}, described are {sorted(expected)}")

    def _try(self) -> None:
        """Run once; ValueError unless the network is what its description says."""
        self.reset()  # with ones: a task may normalize a direction, which it cannot do with zeros
        readings: Readings = {name: np.ones(width) for name, width in self.needs.items()}
        readings |= {name: np.ones(*view) for name, view in self.views.items()}
        self.act(readings, np.zeros(len(self.command["names"])) if self.command else None)
        if self.fault.any():
            raise ValueError("its results for readings of 1 are not finite")
        self.reset()

    def reset(self, worlds: int | None = None) -> None:
        """Forget the past: an episode begins, of a batch of robots.

        worlds: their number; None for one, whose readings and targets have no batch axis.
        """
        self._single, self._worlds = worlds is None, worlds or 1
        self.memory = {name: x.repeat(self._worlds, 0) for name, x in self.start.items()}
        self._begins, self.fault = np.ones(self._worlds, bool), np.zeros(self._worlds, bool)

    def restart(self, worlds: Array) -> None:
        """Forget the past of the robots for which worlds (B,) is true: an episode begins."""
        for name, start in self.start.items():
            begins = worlds.reshape(-1, *[1] * (start.ndim - 1))
            self.memory[name] = np.where(begins, start, self.memory[name])
        self._begins |= worlds

    def act(self, readings: Readings, command: ArrayLike | None = None) -> Array:
        """Controls for the next `dt` seconds; advances the memory.

        If a number of a robot's readings, command or result is not finite, `fault` is true for it.
        Its controls are then those of its last step without a fault, and its memory stays.

        Args:
            readings: by name, see `needs`, each (width,) or (B, width). Those of joints may also
                map a joint's name to a number or (B,). Views are among them, each of its shape or
                (B, …).
            command: where the task has one, its numbers; or (B, …), one for each robot.

        Returns:
            (nu,) for one robot, or (B, nu).

        Raises:
            ValueError: a reading is missing or has the wrong width, or onnxruntime cannot run the
                file. The memory then stays as it was.
        """
        feed = {name: self.reading(name, readings) for name in self.needs}
        feed |= {name: self.view(name, readings) for name in self.views}
        if self.command:
            feed["command"] = self.command_rows(command)
        targets, fault, self.memory = self.run(feed, self._begins, self.memory)
        self.fault, self._begins = fault, self._begins & fault
        return targets[0] if self._single else targets

    def run(
        self, readings: Mapping[str, Array], restart: Array, memory: Mapping[str, Array]
    ) -> tuple[Array, Array, dict[str, Array]]:
        """One control step of B robots; nothing of it is remembered here.

        The bits of a robot's results do not depend on the others of its batch.

        Args:
            readings: name → (B, width) float32, with the command, if there is one, as `command`.
            restart: (B,) bool, for which robots an episode begins.
            memory: of the robots, name → (B, …), see `start`.

        Returns:
            (B, nu) targets, (B,) bool fault, and the memory of the next step.

        Raises:
            ValueError: onnxruntime cannot run the file, or its targets are not finite.
        """
        feed = {**readings, "restart": restart}
        feed |= {self._inputs[name]: x for name, x in memory.items()}
        robots = len(restart)
        if extra := -robots % LANES:
            rows = np.arange(robots + extra)  # the first robots once more
            feed = {name: x.take(rows, 0, mode="wrap") for name, x in feed.items()}
        try:
            results = map(np.asarray, self.session.run(self._results, feed))
            targets, fault, *after = (x[:robots] for x in results)
        except Exception as error:  # the errors of onnxruntime have no common base class
            reason = " ".join(str(error).split())
            raise ValueError(f"onnxruntime cannot run the policy: {reason}") from None
        if (targets.shape, fault.shape) != ((robots, len(self.joints)), (robots,)):
            raise ValueError(f"targets and fault have shapes {targets.shape}, {fault.shape}")
        if not np.isfinite(targets).all():
            raise ValueError(f"the targets {targets.tolist()} are not finite")
        return targets, fault.astype(bool), dict(zip(self.start, after, strict=True))

    def reading(self, name: str, readings: Readings) -> Array:
        """(B, width) of one reading; a mapping of joints is put in order. Raises as `act` does."""
        if name not in readings:
            needed = ", ".join(self.needs)
            raise ValueError(f"reading {name!r} is missing: this policy needs {needed}")
        value = readings[name]
        if isinstance(value, Mapping):
            names = self.reads.get(name, [])
            lacks = ", ".join(joint for joint in names if joint not in value)
            if lacks or not names:
                lacks, needed = lacks or "names", ", ".join(names) or "an array"
                raise ValueError(f"{name} has no joint {lacks}: this policy needs {needed}")
            value = np.stack([as_numbers(value[joint]) for joint in names], -1)
        return self._checked(name, value, self.needs[name])

    def view(self, name: str, readings: Readings) -> Array:
        """(B, …) one view, in its type; ValueError if it is missing, or of another shape."""
        if name not in readings:
            raise ValueError(f"view {name!r} is missing: this policy needs {', '.join(self.views)}")
        shape, kind = self.views[name]
        x = as_numbers(readings[name], kind)
        needed = shape if self._single else (self._worlds, *shape)
        if x.shape != needed:
            raise ValueError(f"view {name!r} has shape {x.shape}, this policy needs {needed}")
        return x.reshape(self._worlds, *shape)

    def command_rows(self, command: ArrayLike | None) -> Array:
        """(B, n) the command: one for all robots, or one for each."""
        description, width = self.command or {}, len((self.command or {})["names"])
        if command is None:
            needed = f"{width} numbers [{', '.join(description['units'])}]"
            raise ValueError(f"this policy follows a command of {needed}, but none was given")
        x = np.atleast_1d(command)
        return self._checked("command", np.broadcast_to(x, (self._worlds, x.shape[-1])), width)

    def _checked(self, name: str, value: ArrayLike, width: int) -> Array:
        """A value as (B, width) float32; ValueError if its shape differs."""
        x = np.atleast_2d(as_numbers(value))
        if x.shape != (self._worlds, width):
            robots = "" if self._single else f" for each of {self._worlds} robots"
            needed, shape = f"{width} numbers{robots}", np.shape(value)
            raise ValueError(f"{name} has shape {shape}, this policy needs {needed}")
        return x


def as_numbers(value: ArrayLike, kind: DTypeLike = np.float32) -> Array:
    """A value in a type. A number that is too large for floats becomes infinite: a fault.

    ValueError for another number than 0 to 255 where bytes are expected.
    """
    if kind == "uint8":
        x = np.asarray(value)
        if x.dtype.kind not in "ui" or x.min(initial=0) < 0 or x.max(initial=0) > 255:
            raise ValueError(f"{x.dtype} numbers, expected whole ones from 0 to 255")
    with np.errstate(over="ignore", invalid="ignore"):  # a signaling NaN is a NaN
        return np.asarray(value, kind)


def unsealed(data: bytes, path: Path) -> bytes:
    """The bytes that were exported, without the verdict after them; all of a file without a seal.

    Only these are run, so that nothing that follows can change the network. The seal is their
    SHA-256. It finds mistakes, and is no signature. ValueError if the bytes are others.
    """
    if not (seal := SEAL.search(data)):
        return data
    size, digest = int(seal[1]), seal[2]
    exported, end = data[:size], data[size:]
    actual = hashlib.sha256(exported.replace(digest, b"0" * 64)).hexdigest()
    if actual != digest.decode() or (end and not VERDICT.fullmatch(end)):
        raise ValueError(f"{path} {CHANGED}")
    return exported


def check_format(description: object, path: Path) -> None:
    """ValueError in one line unless a description is of a controller, in the format `FORMAT`."""
    version = description.get("format") if isinstance(description, dict) else None
    if version != FORMAT:
        reads = f"this program reads format {FORMAT}: export it again with play.py mode=export"
        raise ValueError(f"{path} has format {version!r}, {reads}")
    if description.get("kind") != "controller":
        raise ValueError(f"{path} is a network alone, exported with export=network: no controller")


def load_session(data: bytes, path: Path) -> onnxruntime.InferenceSession:
    """The ONNX model of a file's bytes; ValueError in one line if onnxruntime cannot load it."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1  # a small network gains nothing from more
    options.log_severity_level = 4  # its errors are raised, and told in one line
    # else a model may read its weights from files below the working directory; here are none
    options.add_session_config_entry(WEIGHTS_FOLDER, os.devnull)
    try:
        return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the errors of onnxruntime have no common base class
        why = " ".join(str(error).split())
        raise ValueError(f"{path} is not an ONNX file that onnxruntime can load: {why}") from None


def readings(policy: Policy, data: Any) -> dict[str, Any]:
    """Readings of a robot from a `mujoco.MjData`: sensors, and joints by their names."""
    fields = {"joint_pos": "qpos", "joint_vel": "qvel"}
    return {
        name: {j: getattr(data.joint(j), fields[name])[0] for j in policy.reads[name]}
        if name in fields
        else data.sensor(name).data.copy()
        for name in policy.needs
    }
