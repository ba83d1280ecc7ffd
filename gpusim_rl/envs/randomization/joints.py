"""What randomization needs to know of the joints of a model, and of the servos on them."""

import mujoco
import torch
from torch import Tensor

FREE, BALL = int(mujoco.mjtJoint.mjJNT_FREE), int(mujoco.mjtJoint.mjJNT_BALL)


def free_joint(m: mujoco.MjModel) -> int | None:
    """The first free joint, which is that of the base; None if there is none."""
    return next((j for j in range(m.njnt) if m.jnt_type[j] == FREE), None)


def joint_ranges(m: mujoco.MjModel) -> tuple[Tensor, Tensor]:
    """(nq,) the least and the greatest value of each entry of `qpos`; infinite without a limit."""
    low, high = torch.full((m.nq,), -torch.inf), torch.full((m.nq,), torch.inf)
    for j in range(m.njnt):
        if m.jnt_limited[j] and m.jnt_type[j] not in (FREE, BALL):
            low[m.jnt_qposadr[j]], high[m.jnt_qposadr[j]] = m.jnt_range[j].tolist()
    return low, high


def servo_joints(m: mujoco.MjModel) -> tuple[Tensor, Tensor]:
    """For each actuator the column of `qpos` (nu,) int64 that it acts on, and its gear (nu,).

    The gear is 0 unless the actuator is a position servo on a joint.
    """
    on_joint = m.actuator_trntype == mujoco.mjtTrn.mjTRN_JOINT
    affine = m.actuator_biastype == mujoco.mjtBias.mjBIAS_AFFINE
    servo = on_joint & affine & (m.actuator_biasprm[:, 1] != 0)
    columns = m.jnt_qposadr[m.actuator_trnid[:, 0].clip(min=0)]
    gear = torch.as_tensor(servo * m.actuator_gear[:, 0], dtype=torch.float32)
    return torch.as_tensor(columns, dtype=torch.int64), gear
