"""A Sim whose controls are joint targets, and whose actuators stand between them and the joints' torques."""

from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import torch
from torch import Tensor

from gpusim_rl import motor
from gpusim_rl.actuator import GAINS, Actuator
from gpusim_rl.sim import Sim, make


def drive(name: str, mjm: mujoco.MjModel, num_envs: int, *, actuator: Actuator, substeps: int, **options: Any) -> Sim:
    """`make` with actuators: the Sim itself where its own servos follow the targets at once.

    Args:
        name, mjm, num_envs, options: as for `make`; mjm has the servos that say gains and limits, fields may name `GAINS`.
        actuator: what is between.
        substeps: timesteps of a control step.
    """
    plant = actuator.plant(mjm)
    if actuator.direct:
        return make(name, plant, num_envs, **options)
    if options.get("conditional"):  # nothing may be allocated after a conditional node, and a torque is
        raise ValueError("sim.conditional=true goes with robot.actuator.kind=position without delay and lag alone")
    fields = tuple(field for field in options.pop("fields", ()) if field not in GAINS or actuator.kind == "position")
    wait = actuator.delay * substeps + actuator.lag
    return Driven(make(name, plant, num_envs, fields=fields, **options), mjm, actuator, wait)


def engine(sim: Sim) -> Sim:
    """The Sim that steps: of a `Driven` one the one inside."""
    return sim.inner if isinstance(sim, Driven) else sim


class Driven:
    """`Sim` around another: a timestep takes the targets of `wait` timesteps ago and applies their torque.

    Args:
        inner: steps `actuator.plant(mjm)`.
        mjm: the model with its servos, whose gains and limits the actuators have.
        actuator: kind and numbers.
        wait: timesteps between a target and its effect. Until then a restarted joint is asked to stay where it stands.

    `ctrl` holds targets [rad]; `memory` is what the actuators remember: `targets` (B, wait, nu), newest first, and of a
    network `errors` [rad] and `speeds` [rad/s] (B, farthest offset, nu), newest first. `model` also knows `kp` [N m/rad],
    `kd` [N m s/rad] and `strength` [1], (B, nu) each, unless the engine's own servos act; a strength scales every limit,
    and a network's torque. A network's torque depends on the number of worlds in its last bits, as matrix products do.
    """

    def __init__(self, inner: Sim, mjm: mujoco.MjModel, actuator: Actuator, wait: int):
        self.inner, self.kind, self.capturable = inner, actuator.kind, inner.capturable
        self.qpos, self.qvel, self.sensordata, self.force = inner.qpos, inner.qvel, inner.sensordata, inner.force
        n, self._like = len(inner.qpos), inner.qpos
        self.ctrl, self.overflow = torch.zeros_like(inner.ctrl), torch.zeros_like(inner.overflow)
        self._fault = torch.zeros_like(self.overflow)
        kind, joint = mujoco.mjtTrn.mjTRN_JOINT, np.maximum(mjm.actuator_trnid[:, 0], 0)
        joint = np.where(mjm.actuator_trntype == kind, joint, 0)  # of another transmission nothing is read
        self._angles, self._speeds = (
            torch.tensor(place[joint], dtype=torch.int64, device=self._like.device)
            for place in (mjm.jnt_qposadr, mjm.jnt_dofadr)
        )
        self._angular = self._tensor((mjm.actuator_trntype == kind) & (mjm.actuator_biasprm[:, 1] != 0))
        self.memory = {"targets": self._past(wait)} if wait else {}
        self._gains: dict[str, Tensor] = {}
        if self.kind != "position":
            self._gains = {name: self._tensor(x).repeat(n, 1) for name, x in actuator.gains(mjm).items()}
            limited = mjm.actuator_forcelimited[:, None] != 0
            self._least, self._most = map(self._tensor, np.where(limited, mjm.actuator_forcerange, [-1e9, 1e9]).T)
            bounded = mjm.actuator_ctrllimited[:, None] != 0
            self._reach = tuple(map(self._tensor, np.where(bounded, mjm.actuator_ctrlrange, [-np.inf, np.inf]).T))
        if self.kind == "dc":
            if actuator.stall is None and not mjm.actuator_forcelimited.all():
                raise ValueError("robot.actuator.stall: say it, for this model's servos have no force range")
            stall = self._most if actuator.stall is None else self._tensor(actuator.spread("stall", mjm.nu))
            self._curve = stall, self._tensor(actuator.spread("no_load", mjm.nu))
        if self.kind == "net":
            self._learn(Path(actuator.file or ""), mjm.opt.timestep)

    def _learn(self, file: Path, timestep: float) -> None:
        """Load the network, and make room for what it looks back at."""
        self.net = motor.load(file).to(self._like.device)
        try:
            self._back = self.net.steps(timestep)
        except ValueError as error:
            raise ValueError(f"robot.actuator.file={file}: {error}") from None
        if self._back[-1]:
            self.memory |= {name: self._past(self._back[-1]) for name in ("errors", "speeds")}

    def _tensor(self, values: Any) -> Tensor:
        """A constant (nu,) in the engine's precision."""
        return torch.as_tensor(np.ascontiguousarray(values)).to(self._like)

    def _past(self, steps: int) -> Tensor:
        """(B, steps, nu) of zeros."""
        return self.ctrl.new_zeros(len(self.ctrl), steps, self.ctrl.shape[1])

    # -- one timestep --------------------------------------------------------------------------------------------------

    def step(self, n: int) -> None:
        self._fault.zero_()
        self.overflow.zero_()
        for _ in range(n):
            target = self.pushed("targets", self.ctrl)
            self.inner.ctrl.copy_(target if self.kind == "position" else self.torque(target))
            self.inner.step(1)
            self._fault |= self.inner.fault()
            self.overflow |= self.inner.overflow

    def pushed(self, name: str, now: Tensor) -> Tensor:
        """Put (B, nu) in front of a memory, and return what falls out of it behind; `now` where there is none. In place."""
        if name not in self.memory:
            return now
        past = self.memory[name]
        oldest = past[:, -1].clone()
        past.copy_(torch.cat([now[:, None], past[:, :-1]], 1))
        return oldest

    def torque(self, target: Tensor) -> Tensor:
        """(B, nu) [N m] for a target [rad], from the state as it is."""
        target = target.maximum(self._reach[0]).minimum(self._reach[1])  # as the servo would
        error, speed = target - self._at(self.qpos, self._angles), self._at(self.qvel, self._speeds)
        kp, kd, strength = (self._gains[name] for name in GAINS)
        low, high = self._least * strength, self._most * strength
        if self.kind == "net":
            wanted = strength * self._recall(error, speed)
        else:
            wanted = motor.pd(error, speed, kp, kd)
        if self.kind == "dc":
            stall, no_load = self._curve
            slowest, fastest = motor.envelope(speed, stall * strength, no_load)
            low, high = low.maximum(slowest), high.minimum(fastest)
        return wanted.maximum(low).minimum(high)

    def _recall(self, error: Tensor, speed: Tensor) -> Tensor:
        """(B, nu) the network's torque [N m]; it remembers what it saw. In place."""
        seen = []
        for name, now in (("errors", error), ("speeds", speed)):
            rows = [now if k == 0 else self.memory[name][:, k - 1] for k in self._back]
            seen.append(torch.stack(rows, -1).float())
        found = self.net(*seen).to(error.dtype)
        self.pushed("errors", error)
        self.pushed("speeds", speed)
        return found

    def _at(self, x: Tensor, columns: Tensor) -> Tensor:
        """(B, nu) columns of (B, …)."""
        return x.index_select(1, columns)

    # -- the rest of the protocol --------------------------------------------------------------------------------------

    def reset(self, mask: Tensor, qpos: Tensor, qvel: Tensor) -> None:
        self.inner.reset(mask, qpos, qvel)
        begin = {"targets": self._angular * self._at(qpos, self._angles), "errors": torch.zeros_like(self.ctrl)}
        begin["speeds"] = self._at(qvel, self._speeds)
        for name, past in self.memory.items():
            past.copy_(torch.where(mask[:, None, None], begin[name].to(past)[:, None], past))
        self.ctrl.masked_fill_(mask[:, None], 0.0)
        self._fault &= ~mask
        self.overflow &= ~mask

    def model(self, field: str) -> Tensor:
        return self._gains[field] if field in self._gains else self.inner.model(field)

    def refresh(self) -> None:
        self.inner.refresh()

    def fault(self) -> Tensor:
        return self._fault

    def state(self) -> dict[str, Tensor]:
        return self.inner.state() | {name: value.clone() for name, value in self._own().items()}

    def load(self, state: dict[str, Tensor]) -> None:
        own = self._own()
        self.inner.load({name: value for name, value in state.items() if name not in own})
        for name, value in own.items():
            value.copy_(state[name])

    def _own(self) -> dict[str, Tensor]:
        """Every live tensor that the engine does not know."""
        return {f"actuator/{name}": value for name, value in ({"ctrl": self.ctrl} | self._gains | self.memory).items()}
