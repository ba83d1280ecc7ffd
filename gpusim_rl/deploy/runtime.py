"""Run an exported policy on a robot's computer, with numpy and onnxruntime alone.

This file can be copied to the robot by itself.

    policy = Policy("policy.onnx")
    policy.reset()
    every policy.dt seconds:
        targets = policy.act({"gyro": …, "up": …, "joint_pos": …, "joint_vel": …}, command)

`targets` are the actuators' controls in the order of `policy.joints`. For the quadruped they are
joint angles [rad] for PD controllers with the gains in `policy.about`.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

MAX_BYTES = 1 << 28  # of a policy's file
MAX_HISTORY = 64  # control steps of one observation term, as in config/validate.py
Array = np.ndarray
Readings = Mapping[str, Any]  # name → values


class Policy:
    """An exported policy with what it remembers: the last action, the history, the gait clock.

    Args:
        path: a file that gpusim_rl exported; it drives one robot or a batch of them.

    Attributes:
        about: the metadata: task, observation terms, action, command, gains, limits, versions.
        mjcf: the text of the model.
        dt: control period [s].
        joints: names of the joints, in the order of the targets.
        reads: names of the joints of `joint_pos` and `joint_vel`, in the order of an array.
        action: (B, nu) the last action, clamped.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is damaged, or another program wrote it.
    """

    def __init__(self, path: str | Path):
        if not Path(path).is_file():
            raise FileNotFoundError(f"no ONNX file {path}")
        self.session = load_session(Path(path))
        metadata = self.session.get_modelmeta().custom_metadata_map
        try:
            self.about: dict[str, Any] = json.loads(metadata["gpusim_rl"])
            self.mjcf: str = metadata["mjcf"]
        except (KeyError, ValueError, RecursionError):
            reason = "it has no description of its task"
            raise ValueError(f"{path} was not exported by gpusim_rl: {reason}") from None
        version = self.about.get("format") if isinstance(self.about, dict) else None
        if version != 1:
            raise ValueError(f"{path} has format {version!r}, this program reads format 1")
        try:
            self._configure()
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            reason = f"{type(error).__name__} {error}"
            raise ValueError(f"{path} has an invalid description: {reason}") from None
        self.reset()

    def _configure(self) -> None:
        """Set the attributes that `about` describes; raises many kinds of error if it is wrong."""
        action = self.about["action"]
        self.dt: float = float(self.about["dt"])
        if not 0 < self.dt <= 10:
            raise ValueError(f"dt {self.dt}")
        if not all(1 <= history(term) <= MAX_HISTORY for term in self.about["observation"]):
            raise ValueError(f"a history that is not from 1 to {MAX_HISTORY} control steps")
        if self.about["command"] is not None:
            [list(map(float, self.about["command"][key])) for key in ("low", "high")]
        self.joints: list[str] = list(action["names"])
        self.reads = {source: self._joints(source) for source in ("joint_pos", "joint_vel")}
        self._offset = np.asarray(action["offset"], np.float32)
        self._scale = np.asarray(action["scale"], np.float32)
        none = np.zeros(len(self.joints))
        self._bend = np.asarray(action["bend"] or none, np.float32)  # swing added by the clock
        self._lag = np.asarray(action["lag"] or none, np.float32)  # turns

    def reset(self, phase: float | Array = 0.0) -> None:
        """Forget the past and set the gait clock.

        Args:
            phase: of the clock [turns]; a number for one robot, (B,) for a batch of B.
        """
        self._single = np.ndim(phase) == 0
        self._phase = np.atleast_1d(np.asarray(phase, np.float32))
        self.action = np.zeros((len(self._phase), len(self.joints)), np.float32)
        # term → (B, …) its earlier control steps; empty until the first observation fills it
        self._history: dict[str, Array] = {}

    @property
    def needs(self) -> dict[str, int]:
        """The names of the readings that `act` needs, and their widths."""
        terms = self.about["observation"]
        sensors = {term["names"][0]: term["width"] for term in terms if term["source"] == "sensor"}
        return sensors | {source: len(joints) for source, joints in self.reads.items() if joints}

    def observe(self, readings: Readings, command: Any = None) -> Array:
        """The observation (B, no), float32: the terms in the order of training.

        Each term comes with its history, oldest first.

        Args:
            readings: by name, see `needs`. Sensors are (width,) or (B, width). `joint_pos` [rad, m]
                and `joint_vel` [rad/s, m/s] map a joint's name to a number or (B,), or are arrays
                in the order of `reads`.
            command: where the task has one, its numbers; or (B, …), one for each robot.

        Raises:
            ValueError: a reading is missing, has the wrong width, or is not finite.
        """
        return np.concatenate(self._observe_terms(readings, command), axis=1)

    def act(self, readings: Readings, command: Any = None) -> Array:
        """Controls for the next `dt` seconds; advances the history and the gait clock.

        The arguments and errors are those of `observe`. Returns (nu,) for one robot, or (B, nu).
        """
        terms, values = self.about["observation"], self._observe_terms(readings, command)
        obs = np.concatenate(values, axis=1)
        self._history = {
            term["name"]: x[:, x.shape[1] // history(term) :]
            for term, x in zip(terms, values, strict=True)
        }
        clip = self.about["action"]["clip"]
        action = np.clip(np.asarray(self.session.run(["action"], {"obs": obs})[0]), -clip, clip)
        applied = self.action if self.about["action"]["delay"] else action
        swing = np.maximum(np.sin(2 * np.pi * (self._phase[:, None] + self._lag)), 0)
        swing = self._bend * (swing * self._gate(command))
        targets = self._offset + self._scale * applied + swing
        self.action = action
        if self.about["clock"]:
            self._phase = (self._phase + np.float32(self.dt * self.about["clock"]["frequency"])) % 1
        return targets[0] if self._single else targets

    def _observe_terms(self, readings: Readings, command: Any) -> list[Array]:
        """(B, history · width) of each observation term."""
        values = []
        for term in self.about["observation"]:
            now = self._term(term, readings, command)
            past = self._history.get(term["name"], np.tile(now, (1, history(term) - 1)))
            values.append(np.concatenate([past, now], axis=1))
        return values

    def _gate(self, command: Any) -> Array:
        """(B, 1) or (1, 1): 1 where the command is fast enough to run the clock, else 0."""
        if not self.about["clock"] or command is None:
            return np.zeros((1, 1), np.float32)
        squared = (np.atleast_2d(np.asarray(command, np.float32)) ** 2).sum(1, keepdims=True)
        return (squared > self.about["clock"]["gate"] ** 2).astype(np.float32)

    def _term(self, term: dict[str, Any], readings: Readings, command: Any) -> Array:
        """(B, width) of one observation term at this control step."""
        source = term["source"]
        if source == "action":
            return self.action
        if source == "clock":
            angle = 2 * np.pi * self._phase[:, None]
            return self._gate(command) * np.concatenate([np.cos(angle), np.sin(angle)], 1)
        if source == "command":
            return self._command(term, command)
        name = term["names"][0] if source == "sensor" else source
        if name not in readings:
            needed = ", ".join(self.needs)
            raise ValueError(f"reading {name!r} is missing: this policy needs {needed}")
        if source == "sensor":
            x = self._checked(name, readings[name], term["width"])
        else:
            x = self._joint_values(source, term, readings)
        x = x - np.asarray(term["offset"], np.float32) if term["offset"] else x
        return np.concatenate([np.cos(x), np.sin(x)], 1) if term["form"] == "cos_sin" else x

    def _command(self, term: dict[str, Any], command: Any) -> Array:
        """(B, width) of the command."""
        if command is None:
            raise ValueError(
                f"this policy follows a command of {term['width']} numbers [{term['unit']}], "
                "but none was given"
            )
        command = np.atleast_1d(command)  # one for all robots, or one for each
        shape = (len(self._phase), command.shape[-1])
        return self._checked("command", np.broadcast_to(command, shape), term["width"])

    def _joint_values(self, source: str, term: dict[str, Any], readings: Readings) -> Array:
        """(B, joints of the term) of `joint_pos` or `joint_vel`, from a mapping or an array."""
        value, names = readings[source], self.reads[source]
        if isinstance(value, Mapping):
            missing = [joint for joint in names if joint not in value]
            if missing:
                lacks, needed = ", ".join(missing), ", ".join(names)
                raise ValueError(f"{source} has no joint {lacks}: this policy needs {needed}")
            value = np.stack([np.asarray(value[joint], np.float32) for joint in names], -1)
        columns = [names.index(joint) for joint in term["names"]]
        return self._checked(source, value, len(names))[:, columns]

    def _checked(self, name: str, value: Any, width: int) -> Array:
        """A reading as (B, width) float32; ValueError if its shape differs or it is not finite."""
        x = np.atleast_2d(np.asarray(value, np.float32))
        if x.shape != (len(self._phase), width):
            robots = "" if self._single else f" for each of {len(self._phase)} robots"
            needed, shape = f"{width} numbers{robots}", np.shape(value)
            raise ValueError(f"{name} has shape {shape}, this policy needs {needed}")
        if not np.isfinite(x).all():
            raise ValueError(f"{name} is not finite: {x[~np.isfinite(x).all(1)][0]}")
        return x

    def _joints(self, source: str) -> list[str]:
        """The joints that the terms of `source` read, each once, in the order of the terms."""
        terms = [term for term in self.about["observation"] if term["source"] == source]
        return list(dict.fromkeys(joint for term in terms for joint in term["names"]))


def load_session(path: Path) -> onnxruntime.InferenceSession:
    """The ONNX model of a file; ValueError in one line if onnxruntime cannot load it."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1  # a small network gains nothing from more
    options.log_severity_level = 3  # errors only
    try:
        data = path.read_bytes() if path.stat().st_size <= MAX_BYTES else b""
        # loaded from bytes, a model that reads its weights from other files is refused
        return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the errors of onnxruntime have no common base class
        reason = " ".join(str(error).split())
        raise ValueError(
            f"{path} is not an ONNX file that onnxruntime can load: {reason}"
        ) from None


def history(term: dict[str, Any]) -> int:
    """Control steps of a term in the observation; 1 in older files, which do not say."""
    return int(term.get("history", 1))


def readings(policy: Policy, data: Any) -> dict[str, Any]:
    """What a robot would measure, from a `mujoco.MjData`: sensors, and joints by their names."""
    values: dict[str, Any] = {
        name: data.sensor(name).data.copy() for name in policy.needs if name not in policy.reads
    }
    for source, field in (("joint_pos", "qpos"), ("joint_vel", "qvel")):
        joints = policy.reads[source]
        values[source] = {joint: getattr(data.joint(joint), field)[0] for joint in joints}
    return values
