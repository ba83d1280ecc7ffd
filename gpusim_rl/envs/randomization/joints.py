"""Ranges of the joints of a model, and the servos on them, for randomization."""

import mujoco
import numpy as np
import torch
from torch import Tensor

from gpusim_rl.robots.servos import driven_joints

FREE, BALL = int(mujoco.mjtJoint.mjJNT_FREE), int(mujoco.mjtJoint.mjJNT_BALL)


def joint_ranges(m: mujoco.MjModel) -> tuple[Tensor, Tensor]:
    """(nq,) the least and the greatest value of each entry of `qpos`; infinite without a limit."""
    low, high = torch.full((m.nq,), -torch.inf), torch.full((m.nq,), torch.inf)
    for j in range(m.njnt):
        if m.jnt_limited[j] and m.jnt_type[j] not in (FREE, BALL):
            low[m.jnt_qposadr[j]], high[m.jnt_qposadr[j]] = m.jnt_range[j].tolist()
    return low, high


def encoder_columns(
    m: mujoco.MjModel, readings: dict[str, int], device: torch.device
) -> tuple[Tensor, Tensor]:
    """For each column of the readings the column of `qpos` (n,) int64 it measures, and its gear.

    The gear (n,) is 0 unless an encoder measures it: `joint_pos`, a jointpos sensor, or an
    actuatorpos sensor of a joint.
    """
    columns, gears, driven = [], [], driven_joints(m)
    for name, width in readings.items():
        joints, gear = [0] * width, [0.0] * width
        if name == "joint_pos":
            joints, gear = driven, [1.0] * width
        elif name in (m.sensor(i).name for i in range(m.nsensor)):
            kind, of = m.sensor(name).type, int(m.sensor(name).objid[0])
            if kind == mujoco.mjtSensor.mjSENS_JOINTPOS:
                joints, gear = [of], [1.0]
            elif kind == mujoco.mjtSensor.mjSENS_ACTUATORPOS:
                on_joint = driven[of] >= 0
                joints, gear = [driven[of]], [float(m.actuator_gear[of, 0]) if on_joint else 0.0]
        columns += [int(m.jnt_qposadr[max(j, 0)]) if m.njnt else 0 for j in joints]
        gears += gear
    return torch.tensor(columns, device=device), torch.tensor(gears, device=device)


def servo_joints(m: mujoco.MjModel) -> tuple[Tensor, Tensor]:
    """For each actuator the column of `qpos` (nu,) int64 that it acts on, and its gear (nu,).

    The gear is 0 unless the actuator is a position servo on a joint.
    """
    joints = np.array(driven_joints(m), dtype=int)
    affine = m.actuator_biastype == mujoco.mjtBias.mjBIAS_AFFINE
    servo = (joints >= 0) & affine & (m.actuator_biasprm[:, 1] != 0)
    columns = m.jnt_qposadr[joints.clip(min=0)] if m.njnt else 0 * joints
    gear = torch.as_tensor(servo * m.actuator_gear[:, 0], dtype=torch.float32)
    return torch.as_tensor(columns, dtype=torch.int64), gear
