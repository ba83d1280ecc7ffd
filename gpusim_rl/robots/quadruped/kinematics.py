"""How a quadruped can stand: the kinematics of its four legs."""

from itertools import product

import mujoco
import numpy as np

from gpusim_rl.robots.bodies import Array
from gpusim_rl.robots.legs import Legs
from gpusim_rl.robots.quadruped.topology import Foot

# Height of the hip above the foot in lengths of the leg, where no stance is given: cos(0.8 rad).
CROUCH = 0.7


class FourLegs(Legs):
    """Four legs of three hinges each, in the order FL, FR, RL, RR.

    Args:
        m: the model. Nothing moves in it but the base and these legs.
        base: body.
        names: (12,) of the hinges.
        feet: four.
    """

    def __init__(self, m: mujoco.MjModel, base: str, names: list[str], feet: list[Foot]):
        super().__init__(m, base, names)
        self.feet = feet
        self.knee_bodies = [m.body(foot.knee_body).id for foot in feet]
        self.set_angles(m.qpos0[self.qposadr])
        thigh, knee = self.d.xanchor[self.ids[1::3]], self.d.xanchor[self.ids[2::3]]
        upper, lower = knee - thigh, self.foot_positions() - knee
        self.lengths = np.linalg.norm(upper, axis=1) + np.linalg.norm(lower, axis=1)  # (4,) m
        self.length = float(self.lengths.mean())  # m
        self.target = self.crouch_target(thigh)  # (4, 3) m

    def crouch_target(self, thigh: Array) -> Array:
        """(4, 3) positions of the feet in a crouch: below the thigh joints (4, 3), or as far to the
        side as they are with the abductions at rest."""
        target = thigh - [[0, 0, CROUCH]] * self.lengths[:, None]
        abduction = np.arange(12) % 3 == 0
        center = (self.low + self.high) / 2
        self.set_angles(np.where(abduction, np.clip(0, self.low, self.high), center))
        side = self.foot_positions()[:, 1]
        target[:, 1] = np.where(np.abs(side) > np.abs(thigh[:, 1]), side, thigh[:, 1])
        return target

    def height(self) -> float:
        """Height of the base above the lowest foot [m]."""
        heights = self.foot_positions()[:, 2]
        return float(max(foot.radius - z for foot, z in zip(self.feet, heights, strict=True)))

    def foot_positions(self) -> Array:
        """(4, 3) centers of the feet [m]."""
        frames = self.d.xmat[self.knee_bodies].reshape(4, 3, 3)
        local = [foot.pos for foot in self.feet]
        return self.d.xpos[self.knee_bodies] + np.einsum("fij,fj->fi", frames, local)

    def jacobian(self) -> Array:
        """(4, 3, 3) of each foot's position by the joints of its leg [m/rad]."""
        jacobians, full = [], np.zeros((3, self.m.nv))
        for i, (foot, body) in enumerate(zip(self.foot_positions(), self.knee_bodies, strict=True)):
            mujoco.mj_jac(self.m, self.d, full, None, foot, body)
            jacobians.append(full[:, self.dofadr[3 * i : 3 * i + 3]].copy())
        return np.array(jacobians)

    def crouch(self) -> Array:
        """(12,) angles with bent legs, the feet near `target`.

        Inverse kinematics runs from many starts. For each leg the result with the smallest error
        wins; a knee ahead of its foot and large angles count as errors, too.
        """
        rest = np.clip(np.zeros(12), self.low, self.high)
        best, best_cost = rest, np.full(4, np.inf)
        abduction = np.tile([True, False, False], 4)
        for thigh, knee in product(np.linspace(0.05, 0.95, 7), repeat=2):
            share = np.tile([0.0, thigh, knee], 4)
            start = np.where(abduction, rest, self.low + share * (self.high - self.low))
            angles = self.inverse_kinematics(start)
            self.set_angles(angles)
            feet = self.foot_positions()
            error = np.linalg.norm(self.target - feet, axis=1) / self.lengths
            ahead = (self.d.xanchor[self.ids[2::3]] - feet)[:, 0] > 0
            cost = 100 * error + ahead + 0.1 * np.abs(angles.reshape(4, 3)).sum(1)
            better = cost < best_cost
            best = np.where(np.repeat(better, 3), angles, best)
            best_cost = np.where(better, cost, best_cost)
        return best

    def inverse_kinematics(self, angles: Array) -> Array:
        """(12,) angles after at most 40 steps of damped least squares toward `target`, within
        limits."""
        for _ in range(40):
            self.set_angles(angles)
            error, jacobian = self.target - self.foot_positions(), self.jacobian()
            transposed = jacobian.transpose(0, 2, 1)
            # damping [m²]: a straight leg has an answer, too
            square = transposed @ jacobian + 1e-4 * np.eye(3)
            step = np.linalg.solve(square, transposed @ error[:, :, None])[:, :, 0]
            former = angles
            angles = np.clip(angles + step.ravel().clip(-0.3, 0.3), self.low, self.high)
            if np.abs(angles - former).max() < 1e-9:  # rad: they stay, to the rounding of a stance
                break
        return angles

    def lift_direction(self, angles: Array) -> tuple[float, ...]:
        """(12,) the direction of the joints that lifts each foot straight up, scaled to 1 rad of
        the knee."""
        self.set_angles(angles)
        steps = [np.linalg.lstsq(j[[0, 2], 1:], [0.0, 1.0], rcond=1e-3)[0] for j in self.jacobian()]
        scales = [max(abs(knee), 0.25 * abs(thigh), 1e-9) for thigh, knee in steps]
        return tuple(
            float(x)
            for step, scale in zip(steps, scales, strict=True)
            for x in (0.0, *(step / scale))
        )

    def inertia(self, angles: Array) -> float:
        """The largest inertia [kg m²] of a leg about one of its joints, without armature."""
        self.set_angles(angles)
        mujoco.mj_crb(self.m, self.d)
        full = np.zeros((self.m.nv, self.m.nv))
        mujoco.mj_fullM(self.m, self.d, full)
        return float((full[self.dofadr, self.dofadr] - self.m.dof_armature[self.dofadr]).max())

    def torque_scale(self, angles: Array) -> float:
        """Weight times height of the base [N m], the order of magnitude of a joint's torque."""
        return self.weight() * max(self.set_angles(angles), 0.5 * self.length)
