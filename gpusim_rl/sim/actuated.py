"""A Sim whose controls are joint targets; its actuators turn them into the joints' torques."""

import math
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from gpusim_rl.sim import actuator_models
from gpusim_rl.sim.actuator_spec import DELAY, GAINS, Actuator
from gpusim_rl.sim.base import Sim
from gpusim_rl.sim.factory import make

PARTS = 1024  # of a timestep, to which a delay is rounded: whole ones are exact in float32


def make_actuated(
    name: str,
    mjm: mujoco.MjModel,
    num_envs: int,
    *,
    actuator: Actuator,
    **options: Any,
) -> Sim:
    """`make` with actuators: the Sim itself where its own servos follow the targets at once.

    mjm has the servos that say gains and limits; fields may name `GAINS` and `DELAY`.
    """
    plant = actuator.plant(mjm)
    if actuator.direct:
        return make(name, plant, num_envs, **options)
    # Nothing may be allocated after a conditional node, and torques are.
    if options.get("conditional"):
        raise ValueError(
            "sim.conditional=true works only with robot.actuator.kind=position, without a delay"
        )
    fields = tuple(
        field
        for field in options.pop("fields", ())
        if field != DELAY and (field not in GAINS or actuator.kind == "position")
    )
    return ActuatedSim(make(name, plant, num_envs, fields=fields, **options), mjm, actuator)


def engine(sim: Sim) -> Sim:
    """The Sim that steps: the one inside an `ActuatedSim`, any other itself."""
    return sim.inner if isinstance(sim, ActuatedSim) else sim


# Why: docs/decisions/actuators.md
class ActuatedSim(Sim):
    """`Sim` around another: a timestep applies the torque for the targets of `delay` seconds ago.

    Args:
        inner: steps `actuator.plant(mjm)`.
        mjm: the model with its servos, whose gains and limits the actuators have.
        actuator: kind and numbers.

    Until a target has passed the delay, a restarted joint is asked to stay where it stands. Where
    a target changes within a timestep, the mean of that timestep acts.

    `ctrl` holds targets [rad]. `memory` is what the actuators remember, newest first: `targets`
    (B, timesteps of the largest delay, nu) [rad], and for a network `errors` [rad] and `speeds`
    [rad/s]. These two are (B, farthest offset, nu).

    `model` also knows `delay` [s], (B, 1), if there is one. Unless the engine's own servos act, it
    knows `kp` [N m/rad], `kd` [N m s/rad] and `strength` [1], (B, nu) each. A strength scales every
    limit, and a network's torque. A network's torque depends on the number of worlds in its last
    bits, as matrix products do.
    """

    def __init__(self, inner: Sim, mjm: mujoco.MjModel, actuator: Actuator):
        self.inner, self.kind, self.capturable = inner, actuator.kind, inner.capturable
        self.qpos, self.qvel = inner.qpos, inner.qvel
        self.sensordata, self.force = inner.sensordata, inner.force
        self.mocap_pos, self.mocap_quat = inner.mocap_pos, inner.mocap_quat
        self.ctrl, self.overflow = torch.zeros_like(inner.ctrl), torch.zeros_like(inner.overflow)
        self._fault = torch.zeros_like(self.overflow)
        self._find_joints(mjm)
        gains = actuator.gains(mjm) if self.kind != "position" else {}
        low, high = actuator.delays
        self._timestep, self.memory = mjm.opt.timestep, {}
        if high:
            steps = max(math.ceil(round(high / self._timestep * PARTS) / PARTS), 1)
            self.memory = {"targets": self._zeros(steps)}
            self._ages = torch.arange(steps + 1, device=self.qpos.device).to(self.qpos)
            gains |= {DELAY: [low]}
        self._model = {x: self._tensor(y).repeat(len(self.qpos), 1) for x, y in gains.items()}
        if self.kind != "position":
            self._set_limits(mjm)
        if self.kind == "dc":
            self._set_motor(mjm, actuator)
        if self.kind == "net":
            self._load_net(Path(actuator.file or ""), mjm.opt.timestep)

    def _find_joints(self, mjm: mujoco.MjModel) -> None:
        """Keep where each actuator's joint stands in qpos and qvel.

        An actuator with another transmission gets the first joint, whose values are not used.
        """
        drives_joint = mjm.actuator_trntype == mujoco.mjtTrn.mjTRN_JOINT
        joint = np.where(drives_joint, np.maximum(mjm.actuator_trnid[:, 0], 0), 0)
        self._qposadr, self._dofadr = (
            torch.tensor(address[joint], dtype=torch.int64, device=self.qpos.device)
            for address in (mjm.jnt_qposadr, mjm.jnt_dofadr)
        )
        # 1 where a target is an angle of the joint, else 0.
        self._is_angle = self._tensor(drives_joint & (mjm.actuator_biasprm[:, 1] != 0))

    def _set_limits(self, mjm: mujoco.MjModel) -> None:
        """Keep the servos' forcerange and ctrlrange; without one they are unlimited."""
        limited = mjm.actuator_forcelimited[:, None] != 0
        forces = np.where(limited, mjm.actuator_forcerange, [-1e9, 1e9])
        self._forcerange = tuple(map(self._tensor, forces.T))
        limited = mjm.actuator_ctrllimited[:, None] != 0
        targets = np.where(limited, mjm.actuator_ctrlrange, [-np.inf, np.inf])
        self._ctrlrange = tuple(map(self._tensor, targets.T))

    def _set_motor(self, mjm: mujoco.MjModel, actuator: Actuator) -> None:
        """Keep the stall torque [N m] and the no-load speed [rad/s] of a DC motor."""
        if actuator.stall is not None:
            self._stall = self._tensor(actuator.per_joint("stall", mjm.nu))
        elif mjm.actuator_forcelimited.all():
            self._stall = self._forcerange[1]
        else:
            raise ValueError(
                "robot.actuator.stall must be set: this model's servos have no force range"
            )
        self._no_load = self._tensor(actuator.per_joint("no_load", mjm.nu))

    def _load_net(self, file: Path, timestep: float) -> None:
        """Load the network, and make room for the errors and speeds of its offsets."""
        self.net = actuator_models.load(file).to(self.qpos.device)
        try:
            self._offsets = self.net.steps(timestep)
        except ValueError as error:
            raise ValueError(f"robot.actuator.file={file}: {error}") from None
        if self._offsets[-1]:
            self.memory |= {name: self._zeros(self._offsets[-1]) for name in ("errors", "speeds")}

    def _tensor(self, values: ArrayLike) -> Tensor:
        """A constant (nu,) in the engine's precision."""
        return torch.as_tensor(np.ascontiguousarray(values)).to(self.qpos)

    def _zeros(self, steps: int) -> Tensor:
        return self.ctrl.new_zeros(len(self.ctrl), steps, self.ctrl.shape[1])

    # -- one timestep ------------------------------------------------------------------------------

    def step(self, n: int) -> None:
        self._fault.zero_()
        self.overflow.zero_()
        # each timestep by itself: a torque follows the joint within a control step
        for _ in range(n):
            target = self._late_target()
            self.inner.ctrl.copy_(target if self.kind == "position" else self.torque(target))
            self.inner.step(1)
            self._fault |= self.inner.fault()
            self.overflow |= self.inner.overflow

    # Why: docs/decisions/actuators.md
    def _late_target(self) -> Tensor:
        """(B, nu) the target of `delay` seconds ago. The memory gets that of now, in place."""
        if "targets" not in self.memory:
            return self.ctrl
        recent = torch.cat([self.ctrl[:, None], self.memory["targets"]], 1)  # the newest first
        age = (self._model[DELAY] * (PARTS / self._timestep)).round() / PARTS  # timesteps
        shares = (1 - (self._ages - age).abs()).clamp(min=0)  # (B, ages): 1, or of two neighbors
        self.memory["targets"].copy_(recent[:, :-1])
        return (shares[:, :, None] * recent).sum(1)

    def torque(self, target: Tensor) -> Tensor:
        """(B, nu) [N m] for a target [rad], from the state as it is."""
        lowest, highest = self._ctrlrange
        target = target.maximum(lowest).minimum(highest)  # as the servo would
        error = target - self.qpos.index_select(1, self._qposadr)
        speed = self.qvel.index_select(1, self._dofadr)
        kp, kd, strength = (self._model[name] for name in GAINS)
        low, high = (limit * strength for limit in self._forcerange)
        if self.kind == "net":
            torque = strength * self._net_torque(error, speed)
        else:
            torque = actuator_models.pd(error, speed, kp, kd)
        if self.kind == "dc":
            stall = self._stall * strength
            least, largest = actuator_models.envelope(speed, stall, self._no_load)
            low, high = low.maximum(least), high.minimum(largest)
        return torque.maximum(low).minimum(high)

    def _net_torque(self, error: Tensor, speed: Tensor) -> Tensor:
        """(B, nu) torque [N m] of the network. Its memory gets error and speed, in place."""
        inputs = []
        for name, now in (("errors", error), ("speeds", speed)):
            rows = [now if k == 0 else self.memory[name][:, k - 1] for k in self._offsets]
            inputs.append(torch.stack(rows, -1).float())
            if name in self.memory:
                past = self.memory[name]
                past.copy_(torch.cat([now[:, None], past[:, :-1]], 1))
        return self.net(*inputs).to(error.dtype)

    # -- the rest of the protocol ------------------------------------------------------------------

    def reset(self, mask: Tensor, qpos: Tensor, qvel: Tensor) -> None:
        self.inner.reset(mask, qpos, qvel)
        start = {
            "targets": self._is_angle * qpos.index_select(1, self._qposadr),
            "errors": torch.zeros_like(self.ctrl),
            "speeds": qvel.index_select(1, self._dofadr),
        }
        for name, past in self.memory.items():
            past.copy_(torch.where(mask[:, None, None], start[name].to(past)[:, None], past))
        self.ctrl.masked_fill_(mask[:, None], 0.0)
        self._fault &= ~mask
        self.overflow &= ~mask

    def model(self, field: str) -> Tensor:
        return self._model[field] if field in self._model else self.inner.model(field)

    def refresh(self) -> None:
        self.inner.refresh()

    def exceeded(self) -> dict[str, int]:
        return self.inner.exceeded()

    def tensors(self) -> dict[str, Tensor]:
        return self.inner.tensors() | self._live()

    def load(self, state: dict[str, Tensor]) -> None:
        wrapper = self._live()
        self.inner.load({name: value for name, value in state.items() if name not in wrapper})
        for name, value in wrapper.items():
            value.copy_(state[name])

    def _live(self) -> dict[str, Tensor]:
        """Every live tensor that the engine does not know."""
        return {
            f"actuator/{name}": value
            for name, value in ({"ctrl": self.ctrl} | self._model | self.memory).items()
        }
