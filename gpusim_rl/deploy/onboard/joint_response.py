"""Measurements in the stance and as the joints move, compared with the policy's file."""

from itertools import combinations
from typing import NamedTuple

import numpy as np

from .checks import Policy, Values, described, label

MOVE = 0.05  # [rad, m] to both sides of the stance
LARGEST_STANCE_ERROR = {"joint_pos": 0.35, "joint_vel": 0.5, "gyro": 0.3}  # from the file's
MIRRORED = 0.25  # [rad, m] a joint may be near the mirror image of its stance
NEAR_AXIS = 0.3  # the same of a unit vector
CLEAR = 0.01  # least tilt, in the file, that tells the legs apart; small ones depend on friction
SWAPPED = 1.3  # times as far from the file's tilts as from those of the other joint: honest ≤ 1
AGREES = 0.5  # least cosine between all tilts and the file's: honest robots have 0.65 or more
# Why: docs/decisions/guard.md
OWN = 0.1  # least change of a joint that is moved, as a share of the file's
SPEED = 0.35  # largest difference of the integral of joint_vel from the change, as a share
SURE, CERTAIN = 3, 4  # standard errors, before a speed is taken, and before it is refused
Array = np.ndarray


class Unclear(ValueError):
    """Noise hides the signs of speeds of these joints, by their places."""

    def __init__(self, line: str, joints: list[int]):
        super().__init__(line)
        self.joints = joints


class Answer(NamedTuple):
    """Changes of the readings as a joint went from 0.05 below the stance to 0.05 above it."""

    values: Values  # name → half of the change, without what drifts
    changed: Values  # name → a weighted sum of changes, most where the joint is fast
    turned: Values  # name of a speed → the same sum of its integral [rad, m]
    noise: Values  # name of a speed → the standard error of that sum
    delay: float  # control steps until the joint was halfway up
    times: int = 1  # that it was moved


def averaged(answers: list[Answer]) -> Answer:
    """The mean of the answers of one joint."""

    def means(rows: tuple[Values, ...], power: float = 1.0) -> Values:
        return {name: np.mean([x[name] ** power for x in rows], 0) for name in rows[0]}

    values, changed, turned, noise, delay, times = zip(*answers, strict=True)
    noise = {name: np.sqrt(x / len(answers)) for name, x in means(noise, 2.0).items()}
    delay = float(np.mean(delay))
    return Answer(means(values), means(changed), means(turned), noise, delay, sum(times))


def not_mirrored(policy: Policy, pose: Array, stance: Array) -> None:
    """ValueError if a joint is at the mirror image of its stance (nu,), before it is moved."""
    mirrored = (np.abs(pose + stance) < MIRRORED) & (np.abs(stance) > MIRRORED)
    for i in np.flatnonzero(mirrored)[:1]:
        says = f"{policy.joints[i]} is at {pose[i]:.2f}, and its stance is {stance[i]:.2f}"
        raise ValueError(f"preflight: {says}: is its sign another?")


def at_rest(policy: Policy, values: Values, hung: bool) -> None:
    """ValueError unless the robot in its stance measures what the file says."""
    pose = {"joint_pos": policy.outputs["safe_pose"]} if hung else {}
    for name, expected in (policy.description["standing"]["readings"] | pose).items():
        i, away = farthest(values[name], expected)
        if away > (NEAR_AXIS if is_axis(policy, name) else LARGEST_STANCE_ERROR.get(name, np.inf)):
            line = f"preflight: {label(policy, name, i)} is {values[name][i]:.3g} in the stance"
            sign = described(policy, name).get("sign")
            line += f", expected {expected[i]:.3g}" + (f": it is {sign}" if sign else "")
            raise ValueError(line)


def farthest(values: Array, expected: list[float]) -> tuple[int, float]:
    """Which of some numbers differs most from what is expected, and by how much."""
    away = np.abs(values - np.array(expected, float))
    return int(away.argmax()), float(away.max())


def is_axis(policy: Policy, name: str) -> bool:
    """Whether a reading is the unit vector of an axis."""
    return described(policy, name).get("sensor", "").endswith("axis")


def upright(policy: Policy, values: Values) -> None:
    """ValueError if the base tilts far from its stance as the joints move a little."""
    for name, expected in policy.description["standing"]["readings"].items():
        i, away = farthest(values[name], expected)
        if is_axis(policy, name) and away > NEAR_AXIS:
            what = f"{label(policy, name, i)} is {values[name][i]:.3g}, expected {expected[i]:.3g}"
            raise ValueError(f"preflight: the robot tips over as its joints move: {what}")


def joint_answers(policy: Policy, i: int, answer: Answer, late: float, hung: bool) -> None:
    """ValueError unless the readings changed as they do when joint i moves."""
    name, joints = policy.joints[i], policy.joints
    changes = policy.description["standing"]["changes"]
    expected_moves = np.eye(len(joints)) * MOVE if hung else np.array(changes["joint_pos"], float)
    seen = answer.values["joint_pos"]
    if np.abs(seen).max() < 0.1 * np.abs(expected_moves[i]).max():
        raise ValueError(f"preflight: {name} was moved by {MOVE} rad, but no joint_pos changed")
    if np.abs(seen).max() > 10 * MOVE:
        what = f"joint_pos of {name} changed by {seen[i]:.3g}"
        raise ValueError(f"preflight: {what}: is it in degrees?")
    expected = policy.description["standing"]["delay"][i]
    if answer.delay > expected + late and abs(seen[i]) > abs(expected_moves[i, i]) / 2:
        line = f"{name} answers after {answer.delay:g} control steps, in training {expected:g}"
        raise ValueError(f"preflight: {line}: readings or targets are late")
    best, sign = nearest(seen, expected_moves, i)
    if best != i:
        raise ValueError(f"preflight: {name} was moved, but joint_pos says that {joints[best]} was")
    if sign < 0:
        raise ValueError(f"preflight: {name} was moved up, but joint_pos fell: its sign is another")
    share = seen[i] / max(expected_moves[i, i], OWN * MOVE)
    if share < OWN:
        why = "its sign is another" if share < -OWN else "is its encoder dead?"
        what = f"its joint_pos changed by {share:.2g} of what it should"
        raise ValueError(f"preflight: {name} was moved by {MOVE} rad, but {what}: {why}")


def speeds(joints: list[str], answers: list[Answer]) -> None:
    """ValueError unless joint_vel is the speed of joint_pos; Unclear if noise hides its sign.

    All moves count, as joints of feet that stand move each other: the slope of joint_vel's integral
    t over the change c of a joint is Σ n t c / Σ n c², for n times that a joint was moved.
    """
    if "joint_vel" not in answers[0].turned:
        return
    changed = np.array([x.changed["joint_pos"] for x in answers])
    turned = np.array([x.turned["joint_vel"] for x in answers])
    noise = np.array([x.noise["joint_vel"] for x in answers])
    weights = np.array([[x.times] for x in answers]) * changed
    squares = np.maximum((weights * changed).sum(0), 1e-12)
    slopes = (weights * turned).sum(0) / squares
    errors = np.sqrt((noise**2 * weights**2).sum(0)) / squares
    for i in np.flatnonzero(np.abs(slopes - 1) > SPEED + CERTAIN * errors)[:1]:
        what = f"moved, but the integral of its joint_vel is {slopes[i]:.2g} times as much"
        raise ValueError(f"preflight: {joints[i]} {what}: another sign, order or unit")
    if unclear := np.flatnonzero(slopes + 1 < SURE * errors).tolist():
        names = ", ".join(joints[i] for i in unclear)
        raise Unclear(f"preflight: noise hides the sign of joint_vel of {names}", unclear)


def nearest(seen: Array, expected: Array, i: int) -> tuple[int, int]:
    """Which row of expected (n, width), with which sign, is clearly nearer than row i; else (i, 1).

    It is (i, 1), too, if row i is near: joints of feet that stand move each other.
    """
    away = np.array([np.linalg.norm(seen - sign * expected, axis=1) for sign in (1, -1)])
    sign, best = np.unravel_index(int(away.argmin()), away.shape)
    far = away[0, i] > max(0.5 * np.linalg.norm(expected[i]), away.min() / 0.6)
    return (int(best), 1 - 2 * int(sign)) if far else (i, 1)


def base_answers(policy: Policy, answers: list[Answer]) -> None:
    """ValueError if the base tilts otherwise than in the file, or the gyro does not show it."""
    description = policy.description["standing"]
    for axis in [x for x in description["changes"] if x != "joint_pos"]:
        expected = np.array(description["changes"][axis], float)
        tilts(policy.joints, axis, answers, expected)
        if described(policy, axis)["frame"] == described(policy, "gyro").get("frame"):
            turns(axis, answers, expected, np.array(description["readings"][axis], float))


def tilts(joints: list[str], axis: str, answers: list[Answer], expected: Array) -> None:
    """ValueError if two joints tilt the base as each other should, or all not as in the file."""
    seen, size = np.array([x.values[axis] for x in answers]), np.linalg.norm(expected, axis=1)
    clear = np.flatnonzero(size >= max(CLEAR, size.max() / 2))
    if not len(clear):
        return
    if np.abs(seen[clear]).max() < CLEAR / 4:
        why = f"does it hang (hung=True), or does {axis} not change?"
        raise ValueError(f"preflight: no joint tilts the robot: {why}")
    why = f"legs are swapped, or the axes of {axis} are others"
    for pair in combinations(clear.tolist(), 2):
        straight, crossed = expected[[*pair]], expected[[*reversed(pair)]]
        far, near = (np.linalg.norm(seen[[*pair]] - x) for x in (straight, crossed))
        if np.linalg.norm(straight - crossed) > 2 * CLEAR and far > SWAPPED * near:
            names = " and ".join(joints[i] for i in pair)
            raise ValueError(f"preflight: {names} tilt the robot as each other should: {why}")
    if (seen * expected).sum() < AGREES * np.linalg.norm(seen) * np.linalg.norm(expected):
        raise ValueError(f"preflight: the joints do not tilt the robot as in the file: {why}")


def turns(axis: str, answers: list[Answer], expected: Array, up: Array) -> None:
    """ValueError unless the integral of the gyro explains how a fixed axis (3,) tilts.

    Each number of the axis that tilts clearly in the file, (nu, 3), is compared alone.
    """
    seen = np.array([answer.changed[axis] for answer in answers])
    rotated = np.array([-np.cross(answer.turned["gyro"], up) for answer in answers])
    for k in np.flatnonzero(np.abs(expected).max(0) >= CLEAR / 2):
        # weighted by what the file says, so that noise does not make the ratio smaller
        ratio = float(expected[:, k] @ rotated[:, k] / (expected[:, k] @ seen[:, k]))
        if not 0.1 < ratio < 10:
            why = "is it in degrees" if ratio > 10 else "are its signs or axes others"
            line = f"gyro turns {ratio:.3g} times as much as {axis}[{k}] tilts: {why}?"
            raise ValueError(f"preflight: {line}")
