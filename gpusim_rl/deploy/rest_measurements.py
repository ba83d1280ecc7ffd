"""A robot in its safe pose: what it measures, how it tilts as joints move, and how it lies down."""

import copy
from collections.abc import Iterable

import mujoco
import numpy as np

from gpusim_rl.deploy.onboard.joint_response import MOVE, Answer
from gpusim_rl.deploy.onboard.preflight import moved
from gpusim_rl.deploy.onboard.verdict import Json
from gpusim_rl.envs.readings import JOINTS
from gpusim_rl.robots.free_bodies import free_base
from gpusim_rl.robots.servos import actuators, driven_joints, safe_controls

SETTLE = 2.0  # [s] before the first reading, and until it lies
LARGEST_POSE_ERROR = 0.5  # [rad, m] largest distance of a joint from its pose, and turn of the base
SINKS = 0.3  # largest share of its height that the base loses
NOSLIP = 10  # iterations against the slow creep of feet that stand: real ones do not slide
SOFT = 0.02  # share of kp as it sinks
AXIS = [getattr(mujoco.mjtSensor, f"mjSENS_FRAME{x}AXIS").value for x in "XYZ"]


def standing(m: mujoco.MjModel, needs: Iterable[str], dt: float) -> Json:
    """Measurements of a robot in its safe pose, and as each joint is moved a little.

    The joints are moved as `onboard.preflight` does it on the robot, one after the other.

    Args:
        m: with the safe pose as its first keyframe.
        needs: names of readings; those that an estimator computes are left out.
        dt: control period [s].

    Returns:
        `readings`: name → numbers. `move`: how far each joint is moved [rad, m]. `changes`: for
        joint_pos and each reading of an axis, (nu, width) how it changes. `delay`: for each
        joint, the control steps until it is half way. `lying`: (nu,) a pose on the ground, if
        one is known. `fixed`: true if the base is. Nothing if not all actuators are position
        servos of joints that are measured, or if the robot does not stand still.
    """
    if not (names := measured_servos(m, needs)):
        return {}
    m = copy.copy(m)
    m.opt.noslip_iterations = NOSLIP
    data, pose = mujoco.MjData(m), safe_controls(m)
    mujoco.mj_resetDataKeyframe(m, data, 0)
    begin = data.qpos.copy()

    def step(targets: np.ndarray, seconds: float = dt) -> dict[str, np.ndarray]:
        run(m, data, targets, seconds)
        return {name: reading(m, data, name) for name in names}

    seen = step(pose, SETTLE)
    still = stands(m, data, begin)
    answers = [moved(dt, pose, i, step) for i in range(m.nu)] if still else []
    if not still or not stands(m, data, begin):
        return {}
    readings = {name: x.tolist() for name, x in seen.items()}
    down = lying(m)
    description = {"readings": readings, "move": MOVE, **changes(m, answers)}
    if fixed(m):
        return description | {"fixed": True}
    return description if down is None else description | {"lying": down.tolist()}


def changes(m: mujoco.MjModel, answers: list[Answer]) -> Json:
    """Changes of joint_pos and axes as each joint was moved, and after how many steps."""
    sensors = {name for name in answers[0].values if name not in JOINTS}
    axes = {name for name in sensors if int(m.sensor(name).type[0]) in AXIS}
    changing = [name for name in answers[0].values if name in {JOINTS[0], *axes}]
    changed = {name: [x.values[name].tolist() for x in answers] for name in changing}
    return {"changes": changed, "delay": [x.delay for x in answers]}


def measured_servos(m: mujoco.MjModel, needs: Iterable[str]) -> list[str]:
    """The readings that the model has; none unless all actuators are position servos.

    The control of such a servo is its joint's position: it has no gear, and no offset.
    """
    measured = {*JOINTS, *(m.sensor(i).name for i in range(m.nsensor))}
    names = [name for name in needs if name in measured]
    gain, bias = m.actuator_gainprm[:, 0], m.actuator_biasprm
    plain = (m.actuator_gear[:, 0] == 1) & (bias[:, 0] == 0) & (bias[:, 1] == -gain)
    servos = None not in actuators(m)["kp"] and -1 not in driven_joints(m) and plain.all()
    return names if m.nkey and servos and JOINTS[0] in names else []


def fixed(m: mujoco.MjModel) -> bool:
    """Whether the bodies that carry the driven joints stand on no joint but these."""
    driven = driven_joints(m)
    roots = m.body_rootid[m.jnt_bodyid[driven]]
    return bool(np.isin(np.flatnonzero(np.isin(m.jnt_bodyid, roots)), driven).all())


def lying(m: mujoco.MjModel) -> np.ndarray | None:
    """(nu,) how the joints fold as a robot sinks upright onto the ground.

    None if its base is fixed, or if the robot topples without torque in this pose.
    """
    if not (base := free_base(m)):
        return None
    soft, data = copy.copy(m), mujoco.MjData(m)
    soft.actuator_gainprm[:, 0] *= SOFT
    soft.actuator_biasprm[:, 1] *= SOFT
    mujoco.mj_resetDataKeyframe(soft, data, 0)
    data.ctrl[:], turn = safe_controls(m), data.qpos[base.qpos][3:].copy()
    for _ in range(round(SETTLE / m.opt.timestep)):
        mujoco.mj_step(soft, data)
        velocity = data.qvel[base.qvel]
        data.qpos[base.qpos][3:], velocity[:2], velocity[3:] = turn, 0, 0
    pose = reading(m, data, JOINTS[0])
    soft.actuator_gainprm[:, 0] = soft.actuator_biasprm[:, 1] = 0
    run(soft, data, pose, SETTLE)
    near = np.abs(data.qpos[base.qpos][3:] @ turn) > np.cos(LARGEST_POSE_ERROR / 2)  # half angles
    return pose if np.isfinite(data.qpos).all() and near else None


def run(m: mujoco.MjModel, data: mujoco.MjData, targets: np.ndarray, seconds: float) -> None:
    """Step with the same targets (nu,)."""
    data.ctrl[:] = targets
    mujoco.mj_step(m, data, round(seconds / m.opt.timestep))
    mujoco.mj_forward(m, data)


def stands(m: mujoco.MjModel, data: mujoco.MjData, begin: np.ndarray) -> bool:
    """Whether joints and base are about where they began (nq,)."""
    joints = m.jnt_qposadr[driven_joints(m)]
    moved, base = np.abs(data.qpos - begin), free_base(m)
    height = base.qpos.start + 2 if base else 0
    upright = base is None or moved[height] <= SINKS * abs(begin[height])
    holds = np.isfinite(data.qpos).all() and (moved[joints] <= LARGEST_POSE_ERROR).all()
    return bool(holds and upright)


def reading(m: mujoco.MjModel, data: mujoco.MjData, name: str) -> np.ndarray:
    """The numbers of a sensor, or of the actuated joints."""
    if name not in JOINTS:
        return data.sensor(name).data.copy()
    place, array = (m.jnt_qposadr, data.qpos) if name == JOINTS[0] else (m.jnt_dofadr, data.qvel)
    return array[place[driven_joints(m)]].copy()
