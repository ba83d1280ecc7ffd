"""Kinematics of legs below a free base: what quadrupeds and humanoids have in common."""

from abc import ABC, abstractmethod

import mujoco
import numpy as np

from gpusim_rl.robots.bodies import FREE, Array, RobotError


class Legs(ABC):
    """Legs of hinges below a free base.

    All angles (n,) are in radians, in the order of `names`.

    Args:
        m: the model. Nothing moves in it but the base and these legs.
        base: body.
        names: of the hinges.

    Raises:
        RobotError: something else moves.
    """

    length: float  # m, the mean length of a leg

    def __init__(self, m: mujoco.MjModel, base: str, names: list[str]):
        self.m, self.d = m, mujoco.MjData(m)
        self.base, self.names, self.count = m.body(base).id, names, len(names)
        self.ids = np.array([m.joint(name).id for name in names])
        self.qposadr, self.dofadr = m.jnt_qposadr[self.ids], m.jnt_dofadr[self.ids]
        if m.nq != 7 + self.count or m.jnt_type[0] != FREE:
            hinges = [j for j in range(m.njnt) if j not in self.ids and m.jnt_type[j] != FREE]
            others = ", ".join(m.joint(j).name for j in hinges) or "other free bodies"
            raise RobotError(f"besides the base and its legs, {others} can move")
        limited = m.jnt_limited[self.ids].astype(bool)
        ranges = np.where(limited[:, None], m.jnt_range[self.ids], np.pi * np.array([-1, 1]))
        self.low, self.high = np.clip(ranges, -np.pi, np.pi).T

    @abstractmethod
    def lift_direction(self, angles: Array) -> tuple[float, ...]:
        """(n,) the direction of the joints that lifts each foot straight up."""

    @abstractmethod
    def height(self) -> float:
        """Height of the base above the lowest point of its feet [m], with the angles set."""

    def set_angles(self, angles: Array) -> float:
        """Set the joints, with the base upright at the origin. Returns `height`."""
        self.d.qpos[:] = 0
        self.d.qpos[3], self.d.qpos[self.qposadr] = 1, angles
        mujoco.mj_kinematics(self.m, self.d)
        mujoco.mj_comPos(self.m, self.d)
        return self.height()

    def qpos(self, angles: Array) -> Array:
        """(7 + n,) positions in the model's order, with the feet on the ground."""
        height = self.set_angles(angles)
        qpos = self.d.qpos.copy()
        qpos[2] = height
        return qpos

    def weight(self) -> float:
        """Weight of the robot [N]."""
        return self.m.body_subtreemass[self.base] * float(np.linalg.norm(self.m.opt.gravity))
