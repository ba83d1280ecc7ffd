"""`Legged`: what tasks of robots with legs have in common."""

from dataclasses import dataclass
from typing import Any

import mujoco
from torch import Tensor

from gpusim_rl.envs.state import State
from gpusim_rl.envs.task import Task


@dataclass(kw_only=True)
class Legged(Task):
    """A robot on legs, which measures its gyro, its joints and where up is.

    A subclass sets `stance`, the angles (nu,) of the joints [rad] about which the actor sees them.
    The model has the sensors `gyro` and `up`, and a torque sensor of each joint, one after another.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self.torques = torque_sensors(self.mjm)
        self.stance: Tensor

    def observe(self, s: State) -> dict[str, Tensor]:
        return dict(
            gyro=s.gyro,
            up=s.up,
            joints=s.joint_pos - self.stance,
            speeds=s.joint_vel,
            action=s.action,
        )

    def power(self, s: State) -> Tensor:
        """(B,) mechanical power, Σ|τ q̇| [W]."""
        return (s.span(*self.torques) * s.joint_vel).abs().sum(1)


def torque_sensors(m: Any) -> tuple[str, str]:
    """The first and the last sensor of a joint's torque, which are one for each joint of ctrl."""
    kind = mujoco.mjtSensor.mjSENS_JOINTACTFRC
    names = [m.sensor(i).name for i in range(m.nsensor) if m.sensor_type[i] == kind]
    if len(names) != m.nu:
        expected = f"expected {m.nu}, one for each actuator"
        raise KeyError(f"{len(names)} sensors of type jointactuatorfrc: {expected}")
    return names[0], names[-1]
