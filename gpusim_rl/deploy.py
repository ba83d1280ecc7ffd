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

Array = np.ndarray
Readings = Mapping[str, Any]


class Policy:
    """An exported policy with its memory: the last action and the gait clock.

    Args:
        path: a file that gpusim_rl exported.

    `about` is the metadata: observation terms, action, gains, limits, command, task, versions. Raises ValueError or
    FileNotFoundError in one line if the file is missing, cut short, or from another program.
    """

    def __init__(self, path: str | Path):
        if not Path(path).is_file():
            raise FileNotFoundError(f"no ONNX file {path}")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1  # a small network gains nothing from more
        options.log_severity_level = 3
        try:
            self.session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime has a class for each failure and no common one of its own
            raise ValueError(f"{path} is not an ONNX file that onnxruntime can load: {' '.join(str(error).split())}") from None
        notes = self.session.get_modelmeta().custom_metadata_map
        try:
            self.about: dict[str, Any] = json.loads(notes["gpusim_rl"])
            self.mjcf: str = notes["mjcf"]
        except (KeyError, json.JSONDecodeError):
            raise ValueError(f"{path} was not exported by gpusim_rl: it has no description of its task") from None
        if self.about.get("format") != 1:
            raise ValueError(f"{path} has format {self.about.get('format')!r}, this program reads format 1")
        action = self.about["action"]
        self.dt: float = self.about["dt"]  # s, control period
        self.joints: list[str] = list(action["names"])
        self._offset, self._scale = (np.asarray(action[k], np.float32) for k in ("offset", "scale"))
        self._bend, self._lag = (np.asarray(action[k] or np.zeros(len(self.joints)), np.float32) for k in ("bend", "lag"))
        self.reset()

    def reset(self, phase: float | Array = 0.0) -> None:
        """Forget the last action and set the clock [turns]; a batch has one phase each, (B,)."""
        self._phase = np.atleast_1d(np.asarray(phase, np.float32))
        self._last = np.zeros((len(self._phase), len(self.joints)), np.float32)

    @property
    def needs(self) -> dict[str, int]:
        """The readings that `act` asks for, and their widths."""
        own = ("action", "command", "clock")
        needed: dict[str, int] = {}
        for term in self.about["observation"]:
            if term["source"] not in own:
                name = term["names"][0] if term["source"] == "sensor" else term["source"]
                needed[name] = term["width"] if term["source"] == "sensor" else len(term["names"])
        return needed

    def observe(self, readings: Readings, command: Any = None) -> Array:
        """(B, no) float32, the terms in the order of training.

        Args:
            readings: by name, see `needs`: sensors (width,) or (B, width); `joint_pos` [rad], `joint_vel` [rad/s] as a
                mapping from joint name, or as an array in the order of the term's names.
            command: (3,) or (B, 3) where the task has one.
        """
        batch = len(self._phase)
        return np.concatenate([self._term(term, readings, command, batch) for term in self.about["observation"]], axis=1)

    def act(self, readings: Readings, command: Any = None) -> Array:
        """Controls for the next `dt` seconds, (nu,), or (B, nu) for a batch; moves the clock on."""
        obs = self.observe(readings, command)
        clip = self.about["action"]["clip"]
        action = np.clip(self.session.run(["action"], {"obs": obs})[0], -clip, clip)
        used = self._last if self.about["action"]["delay"] else action
        swing = np.maximum(np.sin(2 * np.pi * (self._phase[:, None] + self._lag)), 0) * self._moving(command)
        targets = self._offset + self._scale * used + self._bend * swing
        self._last = action
        if self.about["clock"]:
            self._phase = (self._phase + np.float32(self.dt * self.about["clock"]["frequency"])) % 1
        return targets if len(targets) > 1 else targets[0]

    def _moving(self, command: Any) -> Array:
        """(B, 1) or (1, 1): 1 where the command asks for motion, by the clock's gate."""
        if not self.about["clock"] or command is None:
            return np.zeros((1, 1), np.float32)
        squared = (np.atleast_2d(np.asarray(command, np.float32)) ** 2).sum(1, keepdims=True)
        return (squared > self.about["clock"]["gate"] ** 2).astype(np.float32)

    def _term(self, term: dict[str, Any], readings: Readings, command: Any, batch: int) -> Array:
        """(B, width) of one observation term."""
        source = term["source"]
        if source == "action":
            return self._last
        if source == "clock":
            angle = 2 * np.pi * self._phase[:, None]
            return self._moving(command) * np.concatenate([np.cos(angle), np.sin(angle)], 1).astype(np.float32)
        if source == "command":
            if command is None:
                raise ValueError(f"this policy follows a command of {term['width']} numbers [{term['unit']}], none was given")
            value, name, width = command, "command", term["width"]
        else:
            name = term["names"][0] if source == "sensor" else source
            if name not in readings:
                raise ValueError(f"reading {name!r} is missing: this policy needs {', '.join(self.needs)}")
            value, width = readings[name], self.needs[name]
            if isinstance(value, Mapping):
                missing = [joint for joint in term["names"] if joint not in value]
                if missing:
                    raise ValueError(f"{name} has no joint {', '.join(missing)}: it needs {', '.join(term['names'])}")
                value = np.stack([np.asarray(value[joint], np.float32) for joint in term["names"]], -1)
        x = np.atleast_2d(np.asarray(value, np.float32))
        if x.shape != (batch, width):
            raise ValueError(f"{name} has shape {np.shape(value)}, expected {width} numbers for each of {batch} robot(s)")
        if not np.isfinite(x).all():
            raise ValueError(f"{name} is not finite: {x[~np.isfinite(x).all(1)][0]}")
        if term["form"] == "cos_sin":
            x = np.concatenate([np.cos(x), np.sin(x)], 1)
        return x - np.asarray(term["offset"], np.float32) if term["offset"] else x


def readings(policy: Policy, data: Any) -> dict[str, Any]:
    """What a robot would measure, from a `mujoco.MjData`: the policy's sensors, and its joints by name."""
    found: dict[str, Any] = {}
    for term in policy.about["observation"]:
        if term["source"] == "sensor":
            found[term["names"][0]] = data.sensor(term["names"][0]).data.copy()
        elif term["source"] in ("joint_pos", "joint_vel"):
            field = "qpos" if term["source"] == "joint_pos" else "qvel"
            found[term["source"]] = {name: getattr(data.joint(name), field)[0] for name in term["names"]}
    return found
