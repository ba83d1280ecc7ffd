"""Where the tool of an arm is: forward kinematics of a chain of hinges, on tensors."""

import mujoco
import numpy as np
import torch
from torch import Tensor

from gpusim_rl.robots.bodies import HINGE, way_to


class Chain:
    """A site as a function of the angles of the hinges between it and the world.

    The products of the transforms are written out, without their zeros. So a row of the result does
    not depend on the number of rows. ValueError if the site hangs on another joint than hinges, one
    for each body. `joints` are the hinges by their number in the model, the one at the base first.
    """

    def __init__(self, m: mujoco.MjModel, site: str, device: str = "cpu"):
        at = m.site(site).id
        self.joints: list[int] = []
        self.constants: list[np.ndarray] = []  # (3, 4) the transform before each hinge's turn
        fixed = np.eye(4)
        for body in way_to(m, m.site_bodyid[at])[1:]:
            fixed = fixed @ transform(m.body_pos[body], m.body_quat[body])
            count, joint = int(m.body_jntnum[body]), int(m.body_jntadr[body])
            if count > 1 or (count and m.jnt_type[joint] != HINGE):
                name = m.body(body).name
                raise ValueError(f"the body {name!r} moves otherwise than by one hinge")
            if count:
                axis = transform(m.jnt_pos[joint], turn_to(m.jnt_axis[joint]))
                self.joints.append(joint)
                self.constants.append((fixed @ axis)[:3].round(12))
                fixed = np.linalg.inv(axis)
        self.last = (fixed @ transform(m.site_pos[at], m.site_quat[at]))[:3].round(12)
        self.unit = torch.eye(3, device=device)

    def pose(self, angles: Tensor) -> tuple[Tensor, Tensor]:
        """Position (B, 3) [m] and axes (B, 3, 3) of the site, in the world.

        angles: (B, n) of `joints` [rad]. Column k of the axes is the site's axis k.
        """
        cos, sin = angles.cos(), angles.sin()
        unit = self.unit.to(angles.dtype)
        axes, position = list(unit), 0 * unit[0]
        for i, constant in enumerate(self.constants):
            position = position + combination(axes, constant[:, 3])
            x, y, z = (combination(axes, constant[:, k]) for k in range(3))
            c, s = cos[:, i : i + 1], sin[:, i : i + 1]
            axes = [c * x + s * y, c * y - s * x, z]
        position = position + combination(axes, self.last[:, 3])
        axes = [combination(axes, self.last[:, k]).expand_as(position) for k in range(3)]
        return position, torch.stack(axes, -1)


def combination(vectors: list[Tensor], weights: np.ndarray) -> Tensor:
    """Σ_k weights[k] · vectors[k]; a weight of 0 or ±1 costs no product."""
    total = None
    for v, w in zip(vectors, weights.tolist(), strict=True):
        if w:
            part = v if w == 1 else -v if w == -1 else w * v
            total = part if total is None else total + part
    return 0 * vectors[0] if total is None else total


def transform(position: np.ndarray, quaternion: np.ndarray) -> np.ndarray:
    """(4, 4) of a frame at a position (3,), turned by a quaternion (4,)."""
    matrix, out = np.zeros(9), np.eye(4)
    mujoco.mju_quat2Mat(matrix, quaternion / np.linalg.norm(quaternion))
    out[:3, :3], out[:3, 3] = matrix.reshape(3, 3), position
    return out


def turn_to(axis: np.ndarray) -> np.ndarray:
    """(4,) the quaternion that turns z to a unit vector (3,)."""
    quaternion = np.zeros(4)
    mujoco.mju_quatZ2Vec(quaternion, axis)
    return quaternion
