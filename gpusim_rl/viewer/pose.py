"""Poses of a model as pictures show them."""

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from mujoco import MjData


def join_pose(qpos: np.ndarray, mocap_pos: np.ndarray, mocap_quat: np.ndarray) -> np.ndarray:
    """(B, nq + 7 m) poses: qpos (B, nq), places (B, m, 3) [m] and quaternions of m mocap bodies."""
    placed = np.concatenate([mocap_pos, mocap_quat], 2).reshape(len(qpos), -1)
    return np.concatenate([qpos, placed], 1)


def set_pose(data: "MjData", pose: np.ndarray) -> None:
    """Set the state of a model to a pose (nq + 7 m,), in place. Of qpos (nq,) alone, m stay."""
    nq = data.model.nq
    data.qpos[:] = pose[:nq]
    if len(pose) > nq:
        placed = pose[nq:].reshape(-1, 7)
        data.mocap_pos[:], data.mocap_quat[:] = placed[:, :3], placed[:, 3:]
