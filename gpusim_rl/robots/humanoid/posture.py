"""How a humanoid can stand: bent knees, level soles, the center of mass above them."""

import mujoco
import numpy as np

from gpusim_rl.robots.bodies import Array
from gpusim_rl.robots.humanoid.soles import Sole
from gpusim_rl.robots.humanoid.topology import pitches
from gpusim_rl.robots.legs import Legs

BEND = 0.64  # rad of the knees, as in the stance with bent knees of mjlab's G1
LEVEL = 0.087  # rad, largest tilt of a sole in a stance
LIMIT_TOLERANCE_RAD = 1e-3  # rad by which a stance may be beyond limits
DIRECTIONS = 64  # in which the center of mass must not be beyond the soles


class Posture(Legs):
    """Two legs of n hinges each, left leg and right leg from the hip down.

    Args:
        m: the model. Nothing moves in it but the base and these legs.
        base: body.
        legs: two lists of names.
        soles: left and right.
    """

    def __init__(self, m: mujoco.MjModel, base: str, legs: list[list[str]], soles: list[Sole]):
        super().__init__(m, base, [*legs[0], *legs[1]])
        self.soles = soles
        half = self.count // 2
        ids = [self.ids[:half].tolist(), self.ids[half:].tolist()]
        self.pitch = [[half * i + k for k in pitches(m, leg)] for i, leg in enumerate(ids)]
        self.set_angles(np.clip(np.zeros(self.count), self.low, self.high))
        self.turn = np.sign(self.d.xaxis[self.ids, 1])  # of each pitch about y
        anchors, ends = self.d.xanchor[self.ids], self.centers()
        hips, knees = ([pair[i] for pair in self.pitch] for i in (0, 1))
        lengths = anchors[hips] - anchors[knees], anchors[knees] - ends
        self.length = float(sum(np.linalg.norm(x, axis=1).mean() for x in lengths))  # m

    def height(self) -> float:
        """Height of the base above the lowest corner of the soles [m]."""
        radius = np.repeat([sole.radius for sole in self.soles], 4)
        return float((radius - self.corners()[:, 2]).max())

    def world(self, sole: Sole, local: Array) -> Array:
        """(…, 3) points of a sole's body in the world [m]."""
        body = self.m.body(sole.body).id
        return self.d.xpos[body] + local @ self.d.xmat[body].reshape(3, 3).T

    def corners(self) -> Array:
        """(8, 3) centers of the soles' spheres [m]."""
        return np.concatenate([self.world(sole, sole.corners) for sole in self.soles])

    def centers(self) -> Array:
        """(2, 3) centers of the soles [m]."""
        return np.array([self.world(sole, sole.center) for sole in self.soles])

    def tilts(self) -> Array:
        """(2,) angles between the soles and the ground [rad]."""
        up = []
        for sole in self.soles:
            normal = np.zeros(3)
            mujoco.mju_rotVecQuat(normal, np.array([0.0, 0, 1]), sole.quat)
            up.append(self.world(sole, normal)[2] - self.world(sole, np.zeros(3))[2])
        return np.arccos(np.clip(up, -1, 1))

    def bent(self) -> Array:
        """Angles with bent knees and level soles, these below the center of mass if they can be.

        A leg without an ankle keeps its knee as straight as it goes.
        """
        best, error = np.zeros(self.count), np.inf
        for hip in np.linspace(-1, 1, 201):
            angles = np.clip(np.zeros(self.count), self.low, self.high)
            for one, knee, *ankle in self.pitch:
                way = 1 if self.high[knee] > -self.low[knee] else -1  # in which it bends
                bend = way * BEND if ankle else 0.0
                angles[knee] = np.clip(bend, self.low[knee], self.high[knee])
                turned = self.turn[knee] * angles[knee]  # rad about y
                angles[one] = self.turn[one] * (hip if ankle else -turned)
                for joint in ankle:
                    angles[joint] = -self.turn[joint] * (hip + turned)
            angles = np.clip(angles, self.low, self.high)
            self.set_angles(angles)
            off = self.d.subtree_com[self.base, 0] - self.corners()[:, 0].mean()
            cost = abs(off) + 10 * self.tilts().max()
            if cost < error - 1e-9:
                best, error = angles, cost
        return best

    def fault(self, angles: Array) -> str:
        """Why nothing can stand like this, or ""."""
        if (
            (angles < self.low - LIMIT_TOLERANCE_RAD) | (angles > self.high + LIMIT_TOLERANCE_RAD)
        ).any():
            return "a joint is beyond its limits"
        self.set_angles(angles)
        if (tilt := float(self.tilts().max())) > LEVEL:
            return f"its soles are tilted by {np.degrees(tilt):.0f}°"
        turns = np.arange(DIRECTIONS) * 2 * np.pi / DIRECTIONS
        ways = np.stack([np.cos(turns), np.sin(turns)])  # (2, n)
        beyond = self.d.subtree_com[self.base, :2] @ ways - (self.corners()[:, :2] @ ways).max(0)
        if beyond.max() > 0:
            return f"its center of mass is {1e3 * beyond.max():.0f} mm beyond its soles"
        return ""

    def lift_direction(self, angles: Array) -> tuple[float, ...]:
        """(2n,) the direction of the joints that lifts each sole straight up and keeps it level,
        scaled to 1 rad of the knee."""
        self.set_angles(angles)
        out, (full, turning) = np.zeros(self.count), np.zeros((2, 3, self.m.nv))
        for sole, joints in zip(self.soles, self.pitch, strict=True):
            body = self.m.body(sole.body).id
            point = self.world(sole, sole.center)
            mujoco.mj_jac(self.m, self.d, full, turning, point, body)
            dofs = self.m.jnt_dofadr[self.ids[joints]]
            rows = np.stack([full[0, dofs], full[2, dofs], turning[1, dofs]])
            upward = np.array([0.0, 1.0, 0.0])
            if len(joints) < 3:  # without an ankle it cannot stay level
                rows, upward = rows[:2], upward[:2]
            step = np.linalg.lstsq(rows, upward, rcond=1e-3)[0]
            out[joints] = step / max(abs(step[1]), 0.25 * abs(step[0]), 1e-9)
        return tuple(float(x) for x in out)

    def torque_scale(self) -> float:
        """Weight times the length of a leg [N m], the order of magnitude of a joint's torque."""
        return self.weight() * self.length

    def below_knee(self) -> Array:
        """(2n,) bool: the joints of the ankles."""
        below = np.zeros(self.count, dtype=bool)
        for i, (_, knee, *_) in enumerate(self.pitch):
            below[knee + 1 : (i + 1) * self.count // 2] = True
        return below
