"""A robot in its safe pose: what it measures, how it tilts as joints move, and how it lies down."""

import copy
from collections.abc import Iterable
from typing import Any

import mujoco
import numpy as np

from gpusim_rl.envs.readings import JOINTS
from gpusim_rl.robots.servos import actuators, driven_joints, safe_controls

MOVE = 0.05  # [rad, m] that each joint is moved by
SETTLE, HOLD = 3.0, 0.5  # [s] before the first reading, and at each end of a move
NEAR = 0.3  # [rad, m] largest distance of a joint from its pose, and turn of the base
SINKS = 0.2  # largest share of its height that the base loses
SOFT = 0.02  # share of kp as it sinks
STATE = mujoco.mjtState.mjSTATE_INTEGRATION
AXIS = [getattr(mujoco.mjtSensor, f"mjSENS_FRAME{x}AXIS").value for x in "XYZ"]


def standing(m: mujoco.MjModel, needs: Iterable[str]) -> dict[str, Any]:
    """What a robot measures that stands in the safe pose, for a check before its first step.

    Each joint is moved in both directions, and half of the difference is written down.

    Args:
        m: with the safe pose as its first keyframe.
        needs: names of readings; those that an estimator computes are left out.

    Returns:
        `readings`: name → numbers. `move`: how far each joint is moved [rad, m]. `tilts`: for each
        reading of an axis, (nu, 3) how it changes. `lying`: (nu,) a pose on the ground, if one is
        known. Nothing if not all actuators are position servos of joints, or if the robot does not
        stand still.
    """
    if not m.nkey or None in actuators(m)["kp"] or -1 in driven_joints(m):
        return {}
    data, pose = mujoco.MjData(m), safe_controls(m)
    mujoco.mj_resetDataKeyframe(m, data, 0)
    begin = data.qpos.copy()
    run(m, data, pose, SETTLE)
    if not stands(m, data, begin):
        return {}
    known = {*JOINTS, *(m.sensor(i).name for i in range(m.nsensor))}
    names = [name for name in needs if name in known]
    axes = [x for x in names if x not in JOINTS and int(m.sensor(x).type[0]) in AXIS]
    seen, settled = {name: reading(m, data, name) for name in names}, state(m, data)
    tilts: dict[str, list[list[float]]] = {name: [] for name in axes}
    for i in range(m.nu):
        ends = []
        for way in (-MOVE, MOVE):
            mujoco.mj_setState(m, data, settled, STATE)
            run(m, data, pose + way * (np.arange(m.nu) == i), HOLD)
            ends.append({name: reading(m, data, name) for name in axes})
        for name in axes:
            tilts[name].append(((ends[1][name] - ends[0][name]) / 2).tolist())
    readings = {name: x.tolist() for name, x in seen.items()}
    about = {"readings": readings, "move": MOVE, "tilts": tilts}
    down = lying(m)
    return about if down is None else about | {"lying": down.tolist()}


def lying(m: mujoco.MjModel) -> np.ndarray | None:
    """(nu,) how the joints fold as a robot sinks upright onto the ground.

    None if its base is fixed, or if the robot topples without torque in this pose.
    """
    if not len(m.jnt_type) or m.jnt_type[0] != mujoco.mjtJoint.mjJNT_FREE:
        return None
    soft, data = copy.copy(m), mujoco.MjData(m)
    soft.actuator_gainprm[:, 0] *= SOFT
    soft.actuator_biasprm[:, 1] *= SOFT
    mujoco.mj_resetDataKeyframe(soft, data, 0)
    data.ctrl[:], turn = safe_controls(m), data.qpos[3:7].copy()
    for _ in range(round(SETTLE / m.opt.timestep)):
        mujoco.mj_step(soft, data)
        data.qpos[3:7], data.qvel[:2], data.qvel[3:6] = turn, 0, 0
    pose = reading(m, data, JOINTS[0])
    soft.actuator_gainprm[:, 0] = soft.actuator_biasprm[:, 1] = 0
    run(soft, data, pose, SETTLE)
    turned = np.abs(data.qpos[3:7] @ turn)  # cos of half the angle
    return pose if np.isfinite(data.qpos).all() and turned > np.cos(NEAR / 2) else None


def run(m: mujoco.MjModel, data: mujoco.MjData, targets: np.ndarray, seconds: float) -> None:
    """Step with the same targets (nu,)."""
    data.ctrl[:] = targets
    mujoco.mj_step(m, data, round(seconds / m.opt.timestep))
    mujoco.mj_forward(m, data)


def state(m: mujoco.MjModel, data: mujoco.MjData) -> np.ndarray:
    """All that a step depends on."""
    x = np.empty(mujoco.mj_stateSize(m, STATE))
    mujoco.mj_getState(m, data, x, STATE)
    return x


def stands(m: mujoco.MjModel, data: mujoco.MjData, begin: np.ndarray) -> bool:
    """Whether joints and base are about where they began (nq,)."""
    joints = m.jnt_qposadr[driven_joints(m)]
    moved = np.abs(data.qpos - begin)
    free = m.jnt_qposadr[m.jnt_type == mujoco.mjtJoint.mjJNT_FREE] + 2  # their heights
    upright = (moved[free] <= SINKS * np.abs(begin[free])).all()
    return bool(np.isfinite(data.qpos).all() and (moved[joints] <= NEAR).all() and upright)


def reading(m: mujoco.MjModel, data: mujoco.MjData, name: str) -> np.ndarray:
    """The numbers of a sensor, or of the actuated joints."""
    if name not in JOINTS:
        return data.sensor(name).data.copy()
    place, array = (m.jnt_qposadr, data.qpos) if name == JOINTS[0] else (m.jnt_dofadr, data.qvel)
    return array[place[driven_joints(m)]].copy()
