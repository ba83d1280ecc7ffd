"""The servos of an arm: gains and limits of its file, or guessed from weights and inertias."""

import math
from dataclasses import replace
from typing import Any, NamedTuple

import mujoco
import numpy as np

from gpusim_rl.robots.arm.kinematics import Kinematics
from gpusim_rl.robots.bodies import Array
from gpusim_rl.robots.robot_config import Robot
from gpusim_rl.robots.servos import complete, joint_parameters, joint_values

# Why: docs/decisions/0074-servos-of-an-arm.md
POSES = 200  # in which weights and inertias are measured
# The joint's largest torque: so often that of the weight, and rad/s² of acceleration more.
LIFT, ACCELERATION = 2.0, 10.0
LEAST = 1 / 7  # of the largest torque, as of the joints of Franka Emika's Panda: 12 of 87 N m
ROTOR = 1.5e-4  # s²: armature over torque, of the motors of Unitree G1's legs, as for humanoids
FREQUENCY, DAMPING = 2 * math.pi * 3.0, 1.0  # rad/s, 1: of a servo with all that it moves
SAG = 0.1  # rad, by which weights may pull a servo away, at most
# Of the targets: share of what the torques allow, largest acceleration, time to the largest speed
SHARE, FASTEST, RISE = 0.7, 20.0, 0.25  # 1, rad/s², s
SPEED = 2.175  # rad/s, the largest, of the large joints of Franka Emika's Panda


class Loads(NamedTuple):
    """What each joint bears, the largest over many poses. All are (n,)."""

    weight: Array  # N m: torque of the weights of what it moves
    inertia: Array  # kg m², of what it moves, without armature


def measure(arm: Kinematics) -> Loads:
    """The loads of the joints."""
    m, d, full = arm.m, mujoco.MjData(arm.m), np.zeros((arm.m.nv, arm.m.nv))
    weights, inertias = [], []
    for angles in arm.samples[:POSES].numpy():
        d.qpos[:], d.qvel[:] = angles, 0
        mujoco.mj_forward(m, d)
        mujoco.mj_fullM(m, d, full)
        weights.append(np.abs(d.qfrc_bias))
        inertias.append(np.diag(full) - m.dof_armature)
    return Loads(np.max(weights, 0), np.max(inertias, 0))


def arm_values(key: str, value: Any, count: int) -> Array:
    """(count,) from one number, or as many."""
    return joint_values(key, value, (1, count), f"a number, or {count}")


def fill_gains(robot: Robot, original: mujoco.MjModel, loads: Loads) -> Robot:
    """The description with gains and limits where it had None."""
    count, names = len(robot.joints), robot.joints
    servo = ~np.isnan(joint_parameters(original, names, "kp"))  # others have no kd to keep

    def fill(key: str, guess: Array) -> Array:
        value = getattr(robot, key)
        if value is not None:
            values = arm_values(key, value, count)
        else:
            values = joint_parameters(original, names, key)
            values = np.where(servo, values, np.nan) if key == "kd" else values
        return np.array(complete(key, value, values, guess))

    given = robot.armature is not None
    known = arm_values("armature", robot.armature, count) if given else 0
    known = known if given else np.nan_to_num(joint_parameters(original, names, "armature"))
    need = LIFT * loads.weight + ACCELERATION * (loads.inertia + known)
    torque = fill("torque", np.maximum(need, LEAST * need.max()))
    armature = fill("armature", ROTOR * torque)
    moved = loads.inertia + armature
    kp = fill("kp", np.maximum(moved * FREQUENCY**2, loads.weight / SAG))
    kd = fill("kd", 2 * DAMPING * np.sqrt(kp * moved))
    gains = dict(torque=torque, armature=armature, kp=kp, kd=kd)
    return replace(robot, **{key: values.tolist() for key, values in gains.items()})


def speeds(robot: Robot, loads: Loads) -> tuple[Array, Array]:
    """(n,) largest speed [rad/s] and acceleration [rad/s²] of the targets that are asked for."""
    spare = np.array(robot.torque) - loads.weight
    moved = loads.inertia + np.array(robot.armature)
    acceleration = np.clip(SHARE * spare / moved, SHARE, FASTEST)
    return np.minimum(SPEED, RISE * acceleration), acceleration
