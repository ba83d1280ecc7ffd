"""Actuators of a model: the things that they drive, their gains and torque limits."""

from typing import Any, NamedTuple

import mujoco
import numpy as np

from gpusim_rl.robots.bodies import FREE, Array, RobotError, qpos_columns
from gpusim_rl.robots.robot_config import Robot

SETTLED = 0.3  # s, after which no joint may be faster than SPEED
SPEED = 30.0  # rad/s, m/s
TRANSMISSION = mujoco.mjtTrn
ON_JOINT = (int(TRANSMISSION.mjTRN_JOINT), int(TRANSMISSION.mjTRN_JOINTINPARENT))
DRIVEN = {  # the kind of object that an actuator without a joint drives
    TRANSMISSION.mjTRN_TENDON: mujoco.mjtObj.mjOBJ_TENDON,
    TRANSMISSION.mjTRN_SITE: mujoco.mjtObj.mjOBJ_SITE,
    TRANSMISSION.mjTRN_SLIDERCRANK: mujoco.mjtObj.mjOBJ_SITE,
    TRANSMISSION.mjTRN_BODY: mujoco.mjtObj.mjOBJ_BODY,
}

FROM_FILE = {  # the reason of a value that the file has
    "torque": "the limits in the file",
    "armature": "as in the file",
    "kp": "the gains of the file's servos",
    "kd": "the damping of the file's servos",
}


def driven_joints(m: mujoco.MjModel) -> list[int]:
    """The joint that each actuator drives, in the order of ctrl; -1 if it drives none."""
    kinds = zip(m.actuator_trntype, m.actuator_trnid[:, 0], strict=True)
    return [int(joint) if kind in ON_JOINT else -1 for kind, joint in kinds]


def driven_things(m: mujoco.MjModel) -> list[str]:
    """The kind and name of the thing that each actuator drives, as `joint FL_knee`."""
    things = []
    for kind, of in zip(m.actuator_trntype, m.actuator_trnid[:, 0], strict=True):
        of_type = DRIVEN.get(TRANSMISSION(kind), mujoco.mjtObj.mjOBJ_JOINT)
        short = of_type.name.removeprefix("mjOBJ_").lower()
        things.append(f"{short} {mujoco.mj_id2name(m, of_type, int(of))}")
    return things


def gear(m: mujoco.MjModel, i: int) -> float:
    """The torque or force on the driven thing for a force of 1 of actuator i [N m or N].

    For a site it is the length of the force, or of the torque if there is none.
    """
    whole = m.actuator_gear[i]
    if m.actuator_trntype[i] != TRANSMISSION.mjTRN_SITE:
        return float(whole[0])
    return float(np.linalg.norm(whole[:3]) or np.linalg.norm(whole[3:]))


def actuators(m: mujoco.MjModel) -> dict[str, list[Any]]:
    """The facts of the actuators that a robot's driver needs. Each value is a list over them.

    `default_pose` [rad, m] is the position of the joint in the first keyframe, else in `qpos0`.
    `kp` and `kd` are the gains of a position servo. `torque_limit` [N m, N] bounds what reaches the
    joint. An entry is None where the model sets no gain or no limit, or the actuator has no joint.
    """
    joints, motors = driven_joints(m), range(m.nu)
    servo = m.actuator_biastype == mujoco.mjtBias.mjBIAS_AFFINE
    pose = m.key_qpos[0] if m.nkey else m.qpos0
    return {
        "default_pose": [float(pose[m.jnt_qposadr[j]]) if j >= 0 else None for j in joints],
        "kp": [float(-m.actuator_biasprm[i, 1]) if servo[i] else None for i in motors],
        "kd": [float(-m.actuator_biasprm[i, 2]) if servo[i] else None for i in motors],
        "torque_limit": [torque_limit(m, i) for i in motors],
        "control_range": [
            m.actuator_ctrlrange[i].tolist() if m.actuator_ctrllimited[i] else None for i in motors
        ],
        "joint_range": [
            m.jnt_range[j].tolist() if j >= 0 and m.jnt_limited[j] else None for j in joints
        ],
    }


def safe_controls(m: mujoco.MjModel) -> np.ndarray:
    """(nu,) controls that apply no force at rest in the first keyframe, else in `qpos0`.

    A position servo's is the joint's position there. That of a motor, a velocity servo or an
    integrator is 0. All are within `ctrlrange`.
    """
    d = mujoco.MjData(m)
    if m.nkey:
        d.qpos[:] = m.key_qpos[0]
    mujoco.mj_fwdPosition(m, d)
    gain = m.actuator_gainprm[:, 0]
    servo = (m.actuator_biastype == mujoco.mjtBias.mjBIAS_AFFINE) & (gain != 0)
    servo &= m.actuator_dyntype != mujoco.mjtDyn.mjDYN_INTEGRATOR
    bias = m.actuator_biasprm[:, 0] + m.actuator_biasprm[:, 1] * d.actuator_length
    controls = np.where(servo, -bias / np.where(servo, gain, 1), 0) + 0.0  # no -0
    low, high = m.actuator_ctrlrange.T
    return np.where(m.actuator_ctrllimited, controls.clip(low, high), controls)


def torque_limit(m: mujoco.MjModel, i: int) -> float | None:
    """The largest |torque| [N m] or |force| [N] of actuator i on its joint, or what it drives.

    It is the smallest of the limits that the model sets, None if it sets none.
    """
    scale, joint, of, limits = abs(gear(m, i)), driven_joints(m)[i], m.actuator_trnid[i, 0], []
    if m.actuator_forcelimited[i]:
        limits.append(scale * float(np.abs(m.actuator_forcerange[i]).max()))
    if joint >= 0 and m.jnt_actfrclimited[joint]:
        limits.append(float(np.abs(m.jnt_actfrcrange[joint]).max()))
    tendon = m.actuator_trntype[i] == TRANSMISSION.mjTRN_TENDON
    if tendon and m.tendon_actfrclimited[of]:
        limits.append(float(np.abs(m.tendon_actfrcrange[of]).max()))
    motor = m.actuator_biastype[i] == mujoco.mjtBias.mjBIAS_NONE  # force = gain · ctrl
    if m.actuator_ctrllimited[i] and motor:
        gain = m.actuator_gainprm[i, 0]
        limits.append(scale * float(gain * np.abs(m.actuator_ctrlrange[i]).max()))
    return min(limits) if limits else None


def joint_parameters(m: mujoco.MjModel, names: list[str], key: str) -> np.ndarray:
    """(len(names),) what the model says of these joints; NaN where it says nothing.

    key: armature [kg m²], or a property of the joint's actuator: kp [N m/rad], kd [N m s/rad] or
    torque [N m], its limit.
    """
    values = np.full(len(names), np.nan)
    for i, name in enumerate(names):
        joint = m.joint(name).id
        if key == "armature":
            values[i] = m.dof_armature[m.jnt_dofadr[joint]] or np.nan
        elif key == "torque" and m.jnt_actfrclimited[joint]:
            values[i] = np.abs(m.jnt_actfrcrange[joint]).max()
        on_joint = m.actuator_trntype == mujoco.mjtTrn.mjTRN_JOINT
        for a in np.flatnonzero((m.actuator_trnid[:, 0] == joint) & on_joint):
            # of an angle gear · q, and of a torque that the gear multiplies again
            # gear²: once in the length that is measured, once in the force
            kp, kd = -m.actuator_biasprm[a, 1:3] * gear(m, int(a)) ** 2
            gains = {"kp": kp, "kd": kd, "torque": torque_limit(m, int(a)) or 0}
            value = gains.get(key, 0)
            values[i] = value if value > 0 else values[i]
    return values


def gain_reasons(
    m: mujoco.MjModel,
    names: list[str],
    robot: Robot,
    guesses: dict[str, str],
    failures: dict[str, str] | None = None,
) -> dict[str, str]:
    """Key → where its values of a robot's joints come from: the file m, or a guess.

    guesses: key → how it is guessed, for each key of `FROM_FILE`. failures: key → the guess with
    which the robot did not stand, of robots that are tried so.
    """
    reasons = {}
    for key, guess in guesses.items():
        file = joint_parameters(m, names, key)
        same, source = np.isclose(file, getattr(robot, key), rtol=1e-4), FROM_FILE[key]
        source += ", with which it stands" if failures is not None and key in ("kp", "kd") else ""
        tried = [failures[key]] if failures and key in failures else []
        if same.any():
            guess = f"{source}, where it has any; else {guess}"
        elif failures is not None and not np.isnan(file).all():
            tried.insert(0, "the file's own")
        guess += f", as it did not stand with {' or '.join(tried)}" if tried else ""
        reasons[key] = source if same.all() else guess
    return reasons


class Joints(NamedTuple):
    """The joints of a robot in the order of ctrl, and how a description lists their numbers."""

    names: list[str]
    counts: tuple[int, ...]  # of numbers in a list, which repeat; the last is that of the joints
    expected: str  # the words for these counts in an error
    first: int | None = None  # how many joints a list that repeats is of; all of them if None

    def values(self, key: str, value: Any) -> Array:
        """(n,) from as many numbers as one of `counts`; RobotError if there are others.

        Where a list is of the first joints alone, the others have NaN.
        """
        try:
            numbers = np.asarray(value, dtype=float).ravel()
        except (TypeError, ValueError):
            numbers = np.zeros(0)
        if len(numbers) not in self.counts or not np.isfinite(numbers).all():
            raise RobotError(f"robot.{key}={value}: expected {self.expected}")
        whole = self.counts[-1]
        first = whole if len(numbers) in (1, whole) else self.first or whole
        return np.append(np.resize(numbers, first), np.full(whole - first, np.nan))

    def others(self, m: mujoco.MjModel) -> list[str]:
        """The names of the other joints of the file, which do not move."""
        names = [m.joint(j).name for j in range(m.njnt) if m.jnt_type[j] != FREE]
        return [name for name in names if name not in self.names]

    def stances(self, robot: Robot, m: mujoco.MjModel) -> list[Array]:
        """The angles (n,) [rad] of the description, else those of each keyframe of the file."""
        if robot.stance is not None:
            return [np.nan_to_num(self.values("stance", robot.stance))]
        return [*m.key_qpos[:, qpos_columns(m, self.names)]]


def six_digits(values: np.ndarray) -> list[float]:
    """The values with six significant digits, as MuJoCo writes them to a file."""
    return [float(f"{x:.6g}") for x in values]


def diverges(m: mujoco.MjModel) -> str:
    """A line if the servos shake the robot apart within 0.3 s, else ""."""
    d = mujoco.MjData(m)
    mujoco.mj_resetDataKeyframe(m, d, 0)
    mujoco.mj_step(m, d, round(SETTLED / m.opt.timestep))
    if np.isfinite(d.qvel).all() and np.abs(d.qvel).max() < SPEED:
        return ""
    springs = " or softer springs of its joints" if m.jnt_stiffness.any() else ""
    return f"its simulation diverges: try a smaller robot.kp or robot.kd{springs}"
