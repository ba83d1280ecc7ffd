"""How a quadruped can stand: the kinematics of its four legs."""

from itertools import product

import mujoco
import numpy as np

from gpusim_rl.legs import FREE, Foot, Misfit

CROUCH = 0.7  # height of the hip above the foot over the leg's length, where nobody says how to stand: cos 0.8 rad
Array = np.ndarray


class Legs:
    """Kinematics of four legs of three hinges below a free base. Angles (12,) are in the order FL, FR, RL, RR.

    Args:
        m: the model; moves nothing but the base and these legs.
        base: body.
        joints: (12,) names.
        feet: four.
    """

    def __init__(self, m: mujoco.MjModel, base: str, joints: list[str], feet: list[Foot]):
        self.m, self.d, self.feet = m, mujoco.MjData(m), feet
        self.base, self.names = m.body(base).id, joints
        self.ids = np.array([m.joint(name).id for name in self.names])
        self.at, self.dof = m.jnt_qposadr[self.ids], m.jnt_dofadr[self.ids]
        self.knees = [m.body(foot.body).id for foot in feet]
        beside = [m.joint(j).name for j in range(m.njnt) if j not in self.ids and m.jnt_type[j] != FREE]
        if m.nq != 19 or m.jnt_type[0] != FREE:
            raise Misfit(f"beside the base and its legs there move {', '.join(beside) or 'other free bodies'}")
        limited = m.jnt_limited[self.ids].astype(bool)
        wide = np.where(limited[:, None], m.jnt_range[self.ids], np.pi * np.array([-1, 1]))
        self.low, self.high = np.clip(wide, -np.pi, np.pi).T
        self.pose(m.qpos0[self.at])
        thigh, knee = self.d.xanchor[self.ids[1::3]], self.d.xanchor[self.ids[2::3]]
        foot = self.spots()
        self.length = np.linalg.norm(knee - thigh, axis=1) + np.linalg.norm(foot - knee, axis=1)  # (4,) m
        self.wanted = thigh - [[0, 0, CROUCH]] * self.length[:, None]  # below the hips
        self.pose(np.where(np.arange(12) % 3 == 0, np.clip(0, self.low, self.high), (self.low + self.high) / 2))
        side = self.spots()[:, 1]  # with the abductions at rest; never narrower than that
        self.wanted[:, 1] = np.where(np.abs(side) > np.abs(thigh[:, 1]), side, thigh[:, 1])

    def qpos(self, angles: Array) -> Array:
        """(19,) in the model's order, the feet on the ground."""
        qpos = np.zeros(19)
        qpos[2], qpos[3], qpos[self.at] = self.pose(angles), 1, angles
        return qpos

    def pose(self, angles: Array) -> float:
        """Bend the joints, the base at the origin; height of the base above the lowest foot [m]."""
        self.d.qpos[:] = 0
        self.d.qpos[3], self.d.qpos[self.at] = 1, angles
        mujoco.mj_kinematics(self.m, self.d)
        mujoco.mj_comPos(self.m, self.d)
        return float(max(foot.radius - z for foot, z in zip(self.feet, self.spots()[:, 2], strict=True)))

    def spots(self) -> Array:
        """(4, 3) centres of the feet [m]."""
        frames = self.d.xmat[self.knees].reshape(4, 3, 3)
        return self.d.xpos[self.knees] + np.einsum("fij,fj->fi", frames, [foot.place for foot in self.feet])

    def jacobian(self) -> Array:
        """(4, 3, 3) of each foot by its leg's joints [m/rad]."""
        found, full = [], np.zeros((3, self.m.nv))
        for i, (spot, knee) in enumerate(zip(self.spots(), self.knees, strict=True)):
            mujoco.mj_jac(self.m, self.d, full, None, spot, knee)
            found.append(full[:, self.dof[3 * i : 3 * i + 3]].copy())
        return np.array(found)

    def keyframes(self, own: mujoco.MjModel) -> list[Array]:
        """(12,) each: the angles of the model's own keyframes."""
        at = [own.jnt_qposadr[own.joint(name).id] for name in self.names]
        return [key[at] for key in own.key_qpos]

    def bent(self) -> Array:
        """(12,) the feet below the hips at CROUCH: damped least squares from many starts, a knee behind its foot preferred."""
        best, worth = np.clip(np.zeros(12), self.low, self.high), np.full(4, np.inf)
        middle = np.clip(np.zeros(12), self.low, self.high)
        for thigh, knee in product(np.linspace(0.05, 0.95, 7), repeat=2):
            share = np.tile([0.0, thigh, knee], 4)
            angles = np.where(np.tile([True, False, False], 4), middle, self.low + share * (self.high - self.low))
            for _ in range(40):
                self.pose(angles)
                error, jacobian = self.wanted - self.spots(), self.jacobian()
                square = jacobian.transpose(0, 2, 1) @ jacobian + 1e-4 * np.eye(3)
                step = np.linalg.solve(square, (jacobian.transpose(0, 2, 1) @ error[:, :, None]))[:, :, 0]
                angles = np.clip(angles + step.ravel().clip(-0.3, 0.3), self.low, self.high)
            self.pose(angles)
            miss = np.linalg.norm(self.wanted - self.spots(), axis=1) / self.length
            ahead = (self.d.xanchor[self.ids[2::3]] - self.spots())[:, 0] > 0
            cost = 100 * miss + ahead + 0.1 * np.abs(angles.reshape(4, 3)).sum(1)
            better = cost < worth
            best, worth = np.where(np.repeat(better, 3), angles, best), np.where(better, cost, worth)
        return best

    def flex(self, angles: Array) -> tuple[float, ...]:
        """(12,) the direction of the joints that lifts each foot straight up, 1 rad of the knee in each."""
        self.pose(angles)
        found = [np.linalg.lstsq(j[[0, 2], 1:], [0.0, 1.0], rcond=1e-3)[0] for j in self.jacobian()]
        return tuple(float(x) for step in found for x in (0.0, *(step / max(abs(step[1]), 0.25 * abs(step[0]), 1e-9))))

    def inertia(self, angles: Array) -> float:
        """The largest of a leg about one of its joints, without armature [kg m²]."""
        self.pose(angles)
        mujoco.mj_crb(self.m, self.d)
        full = np.zeros((self.m.nv, self.m.nv))
        mujoco.mj_fullM(self.m, self.d, full)
        return float((full[self.dof, self.dof] - self.m.dof_armature[self.dof]).max())

    def lever(self, angles: Array) -> float:
        """Weight times height of the base [N m]: what a joint has to do with."""
        weight = self.m.body_subtreemass[self.base] * float(np.linalg.norm(self.m.opt.gravity))
        return weight * max(self.pose(angles), 0.5 * float(self.length.mean()))
