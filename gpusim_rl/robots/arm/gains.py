"""The servos of an arm: gains and limits of its file, or guessed from weights and inertias."""

import math
from collections.abc import Callable
from typing import NamedTuple

import mujoco
import numpy as np

from gpusim_rl.robots.arm.kinematics import Kinematics
from gpusim_rl.robots.bodies import Array
from gpusim_rl.robots.robot_config import Robot

# Why: docs/decisions/arms.md
POSES = 200  # in which weights and inertias are measured
# The joint's largest torque: so often that of the weight, and rad/s² of acceleration more.
LIFT, ACCELERATION = 2.0, 10.0
# Of the largest torque, as of the joints of Franka Emika's Panda: 12 of 87 N m.
LEAST_TORQUE_FRACTION = 1 / 7
ROTOR = 1.5e-4  # s²: armature over torque, of the motors of Unitree G1's legs, as for humanoids
FREQUENCY, DAMPING = 2 * math.pi * 3.0, 1.0  # rad/s, 1: of a servo with all that it moves
SAG = 0.1  # rad, by which weights may pull a servo away, at most
# Of the targets: share of what the torques allow, largest acceleration, time to the largest speed
SHARE, FASTEST, RISE = 0.7, 20.0, 0.25  # 1, rad/s², s
SPEED = 2.175  # rad/s, the largest, of the large joints of Franka Emika's Panda
REASONS = {
    "torque": "twice that of the weights it lifts, and 10 rad/s² of acceleration; a seventh of the "
    "largest at least",
    "armature": "1.5e-4 s² times the torque, as of the motors of Unitree G1's legs",
    "kp": "(armature + inertia of what it moves) · (2π · 3 Hz)², or 10 times the weights' torque",
    "kd": "2 · √(kp · (armature + inertia of what it moves)): a damping ratio of 1",
}


class Loads(NamedTuple):
    """Loads of the joints, the largest over many poses. All are (n,)."""

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


def fill_gains(filled: Callable[..., Array], loads: Loads, rotor: Array, servo: Array) -> None:
    """Fill in gains and limits, each by `filled(key, guess)`, by the loads of the joints.

    rotor: (n,) armature [kg m²] that the description or the file has, else 0. servo: (n,) bool: the
    file has a servo, whose kd counts.
    """
    need = LIFT * loads.weight + ACCELERATION * (loads.inertia + rotor)
    torque = filled("torque", np.maximum(need, LEAST_TORQUE_FRACTION * need.max()))
    moved = loads.inertia + filled("armature", ROTOR * torque)
    kp = filled("kp", np.maximum(moved * FREQUENCY**2, loads.weight / SAG))
    filled("kd", 2 * DAMPING * np.sqrt(kp * moved), servo)


def largest_speeds(robot: Robot, loads: Loads) -> tuple[Array, Array]:
    """(n,) largest speed [rad/s] and acceleration [rad/s²] of the targets."""
    spare = np.array(robot.torque) - loads.weight
    moved = loads.inertia + np.array(robot.armature)
    acceleration = np.clip(SHARE * spare / moved, SHARE, FASTEST)
    return np.minimum(SPEED, RISE * acceleration), acceleration
