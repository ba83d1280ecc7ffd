"""Run an exported policy on a robot's computer: numpy and onnxruntime, nothing else. This file can be copied alone.

    policy = Policy("policy.onnx")
    policy.reset()
    every policy.dt seconds:
        targets = policy.act({"gyro": …, "up": …, "joint_pos": …, "joint_vel": …}, command)

`targets` are the actuators' controls in the order of `policy.joints`: for the quadruped, joint angles [rad] for PD loops
with the gains in `policy.about`.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

LARGEST = 1 << 28  # bytes of a policy
PAST = 64  # control steps of a history
Array = np.ndarray
Readings = Mapping[str, Any]


class Policy:
    """An exported policy with its memory, the last action and the gait clock, for one robot or for a batch of them.

    Args:
        path: a file that gpusim_rl exported.

    `about` is the metadata: observation terms, action, gains, limits, command, task, versions. `mjcf` is the model's text,
    `dt` the control period [s], `joints` the joints in the order of the targets, `action` (B, nu) the last action, clamped,
    and `reads` the joints of `joint_pos` and `joint_vel` in the order of an array. Raises ValueError or FileNotFoundError in
    one line if the file is missing, cut short, or from another program.
    """

    def __init__(self, path: str | Path):
        if not Path(path).is_file():
            raise FileNotFoundError(f"no ONNX file {path}")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1  # a small network gains nothing from more
        options.log_severity_level = 3
        try:
            data = Path(path).read_bytes() if Path(path).stat().st_size <= LARGEST else b""
            # from bytes: a file that names others for its weights, anywhere on this machine, is refused
            self.session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime has a class for each failure and no common one of its own
            raise ValueError(f"{path} is not an ONNX file that onnxruntime can load: {' '.join(str(error).split())}") from None
        notes = self.session.get_modelmeta().custom_metadata_map
        try:
            self.about: dict[str, Any] = json.loads(notes["gpusim_rl"])
            self.mjcf: str = notes["mjcf"]
        except (KeyError, ValueError, RecursionError):
            raise ValueError(f"{path} was not exported by gpusim_rl: it has no description of its task") from None
        found = self.about.get("format") if isinstance(self.about, dict) else None
        if found != 1:
            raise ValueError(f"{path} has format {found!r}, this program reads format 1")
        try:
            action = self.about["action"]
            self.dt: float = float(self.about["dt"])  # s, control period
            if not 0 < self.dt <= 10:
                raise ValueError(f"dt {self.dt}")
            if not all(1 <= self._steps(term) <= PAST for term in self.about["observation"]):
                raise ValueError(f"a history of other than 1 to {PAST} steps")
            if self.about["command"] is not None:
                [list(map(float, self.about["command"][key])) for key in ("low", "high")]
            self.joints: list[str] = list(action["names"])
            self.reads = {source: self._joints(source) for source in ("joint_pos", "joint_vel")}
            self._offset, self._scale = (np.asarray(action[k], np.float32) for k in ("offset", "scale"))
            self._bend, self._lag = (np.asarray(action[k] or np.zeros(len(self.joints)), np.float32) for k in ("bend", "lag"))
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"{path} describes itself wrongly: {type(error).__name__} {error}") from None
        self.reset()

    def reset(self, phase: float | Array = 0.0) -> None:
        """Forget the past and set the clock [turns]: a number for one robot, (B,) for a batch of B."""
        self._single = np.ndim(phase) == 0
        self._phase = np.atleast_1d(np.asarray(phase, np.float32))
        self.action = np.zeros((len(self._phase), len(self.joints)), np.float32)
        self._past: dict[str, Array] = {}  # term → (B, …) the steps before this one; the first observation fills it

    @property
    def needs(self) -> dict[str, int]:
        """The readings that `act` asks for, and their widths."""
        terms = self.about["observation"]
        needed = {term["names"][0]: term["width"] for term in terms if term["source"] == "sensor"}
        return needed | {source: len(joints) for source, joints in self.reads.items() if joints}

    def observe(self, readings: Readings, command: Any = None) -> Array:
        """(B, no) float32, the terms in the order of training, each with its history, oldest first.

        Args:
            readings: by name, see `needs`: sensors (width,) or (B, width); `joint_pos` [rad, m] and `joint_vel` [rad/s, m/s]
                as a mapping from joint name to a number or (B,), or as an array in the order of `reads`.
            command: where the task has one, its numbers, or (B, …) one for each robot.

        Raises:
            ValueError: a reading is missing, of another width, or not finite.
        """
        return np.concatenate(self._seen(readings, command), axis=1)

    def act(self, readings: Readings, command: Any = None) -> Array:
        """Controls for the next `dt` seconds, (nu,) for one robot or (B, nu) for a batch; moves the clock on."""
        seen = self._seen(readings, command)
        obs, terms = np.concatenate(seen, axis=1), self.about["observation"]
        self._past = {term["name"]: x[:, x.shape[1] // self._steps(term) :] for term, x in zip(terms, seen, strict=True)}
        clip = self.about["action"]["clip"]
        action = np.clip(np.asarray(self.session.run(["action"], {"obs": obs})[0]), -clip, clip)
        used = self.action if self.about["action"]["delay"] else action
        swing = np.maximum(np.sin(2 * np.pi * (self._phase[:, None] + self._lag)), 0) * self._moving(command)
        targets = self._offset + self._scale * used + self._bend * swing
        self.action = action
        if self.about["clock"]:
            self._phase = (self._phase + np.float32(self.dt * self.about["clock"]["frequency"])) % 1
        return targets[0] if self._single else targets

    def _seen(self, readings: Readings, command: Any) -> list[Array]:
        """(B, history · width) of each term."""
        found = []
        for term in self.about["observation"]:
            now = self._term(term, readings, command)
            past = self._past.get(term["name"], np.tile(now, (1, self._steps(term) - 1)))
            found.append(np.concatenate([past, now], axis=1))
        return found

    @staticmethod
    def _steps(term: dict[str, Any]) -> int:
        """Control steps of a term that the policy sees; files of the first days do not say."""
        return int(term.get("history", 1))

    def _moving(self, command: Any) -> Array:
        """(B, 1) or (1, 1): 1 where the command asks for motion, by the clock's gate."""
        if not self.about["clock"] or command is None:
            return np.zeros((1, 1), np.float32)
        squared = (np.atleast_2d(np.asarray(command, np.float32)) ** 2).sum(1, keepdims=True)
        return (squared > self.about["clock"]["gate"] ** 2).astype(np.float32)

    def _term(self, term: dict[str, Any], readings: Readings, command: Any) -> Array:
        """(B, width) of one observation term."""
        source = term["source"]
        if source == "action":
            return self.action
        if source == "clock":
            angle = 2 * np.pi * self._phase[:, None]
            return self._moving(command) * np.concatenate([np.cos(angle), np.sin(angle)], 1)
        if source == "command":
            if command is None:
                raise ValueError(f"this policy follows a command of {term['width']} numbers [{term['unit']}], none was given")
            command = np.atleast_1d(command)
            return self._checked("command", np.broadcast_to(command, (len(self._phase), command.shape[-1])), term["width"])
        name = term["names"][0] if source == "sensor" else source
        if name not in readings:
            raise ValueError(f"reading {name!r} is missing: this policy needs {', '.join(self.needs)}")
        x = self._checked(name, readings[name], term["width"]) if source == "sensor" else self._pick(source, term, readings)
        x = x - np.asarray(term["offset"], np.float32) if term["offset"] else x
        return np.concatenate([np.cos(x), np.sin(x)], 1) if term["form"] == "cos_sin" else x

    def _pick(self, source: str, term: dict[str, Any], readings: Readings) -> Array:
        """(B, joints of the term) of `joint_pos` or `joint_vel`, from a mapping or an array."""
        value, names = readings[source], self.reads[source]
        if isinstance(value, Mapping):
            missing = [joint for joint in names if joint not in value]
            if missing:
                raise ValueError(f"{source} has no joint {', '.join(missing)}: this policy needs {', '.join(names)}")
            value = np.stack([np.asarray(value[joint], np.float32) for joint in names], -1)
        return self._checked(source, value, len(names))[:, [names.index(joint) for joint in term["names"]]]

    def _checked(self, name: str, value: Any, width: int) -> Array:
        """A reading as (B, width) float32; ValueError if it has another shape or is not finite."""
        x = np.atleast_2d(np.asarray(value, np.float32))
        if x.shape != (len(self._phase), width):
            robots = "" if self._single else f" for each of {len(self._phase)} robots"
            raise ValueError(f"{name} has shape {np.shape(value)}, this policy needs {width} numbers{robots}")
        if not np.isfinite(x).all():
            raise ValueError(f"{name} is not finite: {x[~np.isfinite(x).all(1)][0]}")
        return x

    def _joints(self, source: str) -> list[str]:
        """Joints whose angles or speeds are read, in the order in which the terms first name them."""
        return list(dict.fromkeys(j for term in self.about["observation"] if term["source"] == source for j in term["names"]))


def readings(policy: Policy, data: Any) -> dict[str, Any]:
    """What a robot would measure, from a `mujoco.MjData`: the policy's sensors, and its joints by name."""
    found: dict[str, Any] = {name: data.sensor(name).data.copy() for name in policy.needs if name not in policy.reads}
    for source, field in (("joint_pos", "qpos"), ("joint_vel", "qvel")):
        found[source] = {joint: getattr(data.joint(joint), field)[0] for joint in policy.reads[source]}
    return found
