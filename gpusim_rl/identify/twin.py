"""The twins of a robot's log: the simulation with the same policy, commands and noise of sensors.

Twins walk as the policy lets them, so one that began a little apart takes other steps. How far the
twins are from one another is the unit of the distance between them and the log.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import torch

from gpusim_rl.core import maths
from gpusim_rl.core.provenance import cores_available
from gpusim_rl.core.waiting import counted
from gpusim_rl.deploy.exported import file_errors, open_onnx
from gpusim_rl.deploy.onboard.log import Recording
from gpusim_rl.deploy.onboard.verdict import digest
from gpusim_rl.deploy.rest_measurements import NOSLIP
from gpusim_rl.deploy.runtime import Policy
from gpusim_rl.envs.state import sensor_columns
from gpusim_rl.gate.robot import safe_state
from gpusim_rl.gate.scenarios import UP
from gpusim_rl.robots.free_bodies import free_base
from gpusim_rl.sim.native import Native

TWINS = 16
ALARM = 3.0  # distance from which mode=log warns
START = 0.03  # half-width of the joints about those of the log, where the policy begins [rad, m]
# Why: docs/decisions/robot-log.md
WINDOW = 2.0  # [s] of which a mean is compared; the first after a start is left out
STILL = 0.4  # [s] before the policy begins in which the robot stands, so that what moves is noise
# Twins differ by at least this much of how a number moves, and this much in its unit.
LEAST_SPREAD, SMALLEST_SPREAD = 0.01, 1e-3
UPRIGHT = 0.5  # cosine of the angle between the base's axis and the vertical from which it fell
LAG = "targets - joint_pos"  # grows with the torque of a position servo
Array = np.ndarray
Values = dict[str, Array]


@dataclass(frozen=True)
class TwinResult:
    """How far a log is from its twins in each window. 1 is as far as they are from one another."""

    time: Array  # (N,) of the guard's clock, when each window begins [s]
    # name of a reading, `targets` or `LAG` → (N,) root mean square over its numbers
    distances: Values
    fell: int  # how many twins fell; they count up to their last whole window
    steps: Array  # (T,) numbers of the control steps
    qpos: Array  # (T, nq) the first twin's states

    @property
    def by_name(self) -> dict[str, float]:
        """Name → the distance over all windows, a root mean square; the largest first."""
        total = {name: float(np.sqrt((x**2).mean())) for name, x in self.distances.items()}
        return dict(sorted(total.items(), key=lambda pair: -pair[1]))

    @property
    def distance(self) -> float:
        """The largest of `by_name`."""
        return max(self.by_name.values())


class Twins:
    """Robots of a policy's file, side by side, which the policy drives.

    Args:
        model: of the file; its feet stand still from now on (`NOSLIP`).
        noise: reading → standard deviation of its noise.
    """

    def __init__(self, policy: Policy, model: mujoco.MjModel, noise: dict[str, float]):
        self.policy, self.model, self.noise = policy, model, noise
        model.opt.noslip_iterations = NOSLIP
        self.sim = Native(model, TWINS, threads=cores_available())
        self.rng, self.base = np.random.default_rng(0), free_base(model)
        self.substeps = round(policy.dt / model.opt.timestep)
        self.first = safe_state(model).qpos.copy()
        joints = [model.joint(name) for name in policy.joints]
        self.columns = [x.qposadr[0] for x in joints]
        sensors, sensordata = sensor_columns(model).items(), self.sim.sensordata.numpy()
        self.places: dict[str, tuple[Array, Any]] = {name: (sensordata, x) for name, x in sensors}
        self.places["joint_pos"] = self.sim.qpos.numpy(), self.columns
        self.places["joint_vel"] = self.sim.qvel.numpy(), [x.dofadr[0] for x in joints]

    def begin(self, joint_pos: Array) -> None:
        """Put all twins into the safe pose, with these joint angles (nu,) but a little apart."""
        qpos = np.tile(self.first, (TWINS, 1))
        apart = self.rng.uniform(-START, START, (TWINS, len(joint_pos)))
        qpos[:, self.columns] = joint_pos + apart
        everywhere = torch.ones(TWINS, dtype=torch.bool)
        still = torch.zeros(TWINS, self.model.nv, dtype=torch.float64)
        self.sim.reset(everywhere, torch.from_numpy(qpos), still)
        self.policy.reset(TWINS)
        self.alive = np.ones(TWINS, bool)

    def step(self, command: Array | None, acts: bool) -> Values:
        """Readings and targets (TWINS, …) of a control step; one that fell has NaN.

        Unless the policy acts, the last targets stay, as those of a guard at a fault.
        """
        values = {}
        for name in self.policy.needs:
            state, columns = self.places[name]
            x = state[:, columns]
            values[name] = x + self.noise[name] * self.rng.normal(size=x.shape)
        if acts:
            self.sim.ctrl.numpy()[:] = self.policy.act(values, command)
        values["targets"] = self.sim.ctrl.numpy().copy()
        self.alive &= ~(self.sim.fault().numpy() | self.policy.fault) & self.upright()
        self.sim.step(self.substeps, np.flatnonzero(self.alive))
        rows = add_lag(values).items()
        return {name: np.where(self.alive[:, None], x, np.nan) for name, x in rows}

    def upright(self) -> Array:
        """(TWINS,) whether a free base is tilted by less than 60°."""
        if self.base is None:
            return self.alive
        qpos = torch.vstack([torch.from_numpy(self.first)[None], self.sim.qpos])
        rotation = qpos[:, self.base.qpos][:, 3:]
        first, *ups = maths.unrotate(rotation, UP.expand(len(rotation), 3)).numpy()
        return np.stack(ups) @ first > UPRIGHT


def add_lag(values: Values) -> Values:
    """The values of steps with how far the joints are from their targets."""
    return {**values, LAG: values["targets"] - values["joint_pos"]}


def missing_readings(log: Recording) -> list[str]:
    """Readings, or targets, of which a number is never there as the policy runs."""
    rows = log.phase == "run"
    if log.restart.any():
        rows &= np.cumsum(log.restart) > 0
    values = {**log.readings, "targets": log.targets}
    return [x for x in values if rows.any() and not np.isfinite(values[x][rows]).any(0).all()]


def noise_of(log: Recording) -> dict[str, float]:
    """Reading → standard deviation of its noise, of a robot that stands before the policy begins.

    A difference of two steps has twice the variance of one.
    """
    still, (begins,) = round(STILL / log.dt), np.nonzero(log.restart)
    rows = [slice(max(0, t - still), t) for t in begins]
    noise = {}
    for name, x in log.readings.items():
        changes = np.concatenate([np.diff(x[i], axis=0)[log.phase[i][1:] == "rise"] for i in rows])
        finite = changes[np.isfinite(changes)]
        noise[name] = float(np.sqrt((finite**2).mean() / 2)) if len(finite) else 0.0
    return noise


def twins_of(log: Recording, path: Path) -> tuple[TwinResult | None, mujoco.MjModel]:
    """The result of the twins of a policy's file, see `compare`, and their model.

    ValueError if the log is of another file.
    """
    policy, model = open_onnx(path)
    if (number := digest(policy.data)) != log.digest:
        says = f"the log is of the controller {log.digest[:12]}, and {path} is {number[:12]}"
        raise ValueError(f"{says}: name the file that the robot ran")
    with file_errors(path):
        return compare(log, policy, model), model


def compare(log: Recording, policy: Policy, model: mujoco.MjModel) -> TwinResult | None:
    """Drive the twins through a log of this policy, with the model of its file, and compare.

    None if the policy ran for less than two windows, or a reading is missing in all of its steps.
    """
    runs = np.flatnonzero((log.phase == "run") & (np.cumsum(log.restart) > 0))
    if not len(runs) or missing_readings(log):
        return None
    twins, length = Twins(policy, model, noise_of(log)), round(WINDOW / log.dt)
    logs = add_lag({**log.readings, "targets": log.targets})
    window, windows, begins = list[Values](), list[Values](), list[int]()
    qpos, waits, fell = np.zeros((len(runs), model.nq)), 1, np.zeros(TWINS, bool)
    for i in counted(len(runs), "driving the twins"):
        t = int(runs[i])
        acts = not log.faults[t]
        if log.restart[t] and acts:
            twins.begin(log.readings["joint_pos"][t])
            window, waits = [], 1
        elif log.restart[t]:
            continue
        window.append(twins.step(log.command[t] if policy.command else None, acts))
        qpos[i], fell = twins.sim.qpos[0].numpy(), fell | ~twins.alive
        if len(window) < length:
            continue
        if not waits:
            begins.append(t + 1 - length)
            windows.append({name: np.mean([x[name] for x in window], 0) for name in window[0]})
        window, waits = [], 0
    if not windows:
        return None
    distances = {}
    for name, x in logs.items():
        rows = np.stack([x[t : t + length].mean(0) for t in begins])
        others = np.stack([row[name] for row in windows])
        distances[name] = away(rows, others, LEAST_SPREAD * np.nanstd(x[runs], 0) + SMALLEST_SPREAD)
    finite = np.isfinite(np.stack(list(distances.values()))).all(0)
    if not finite.any():
        return None
    distances = {name: x[finite] for name, x in distances.items()}
    return TwinResult(log.time[begins][finite], distances, int(fell.sum()), runs, qpos)


def away(row: Array, twins: Array, least: Array) -> Array:
    """(N,) the distance of means (N, n) from those of the twins (N, TWINS, n).

    It is the root mean square of (x - m) / s, over the numbers. m is the mean of the twins. s² is
    their variance over all windows, times 1 + 1 / TWINS, for which a further twin has a mean of 1.
    NaN where the log has a fault, or fewer than half of the twins stand.

    least: (n,) of s.
    """
    stand = np.isfinite(twins).all(2, keepdims=True)
    count = np.maximum(stand.sum(1), 2)
    m = np.where(stand, twins, 0.0).sum(1) / count
    variances = np.where(stand, (twins - m[:, None]) ** 2, 0.0).sum(1) / (count - 1)
    enough = count >= TWINS / 2
    variance = (1 + 1 / TWINS) * (enough * variances).sum(0) / max(1, enough.sum())
    z = (row - m) / np.sqrt(variance + least**2)
    return np.where(enough[:, 0], np.sqrt((z**2).mean(1)), np.nan)
