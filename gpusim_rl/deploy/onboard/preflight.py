"""Move each joint a little, and refuse a robot that does not answer as its policy's file says.

    guard = Guard(Policy("policy.onnx"), task="quadruped", robot="quadruped")
    preflight(guard, robot.read, robot.send)  # standing, or hung=True

It finds joints in another order, signs, degrees, swapped legs, another gravity and late readings.
The folder of this file can be copied to the robot. It needs NumPy alone.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from .checks import Values, check_preflight, described, label, read
from .guard import Guard
from .rate import Rate

MOVE = 0.05  # [rad, m] to both sides of the stance
RAMP, HOLD, LAST = 0.1, 0.4, 0.16  # [s] of the way; in all; at the end, which is averaged
REST = 1.0  # [s] in the stance before the first move
NEAR = {"joint_pos": 0.35, "joint_vel": 0.5, "gyro": 0.3}  # largest distance from the file's stance
MIRRORED = 0.25  # [rad, m] a joint may be near the mirror image of its stance
NEAR_AXIS = 0.3  # the same of a unit vector
CLEAR = 0.01  # least tilt, in the file, that tells the legs apart; small ones depend on friction
Array = np.ndarray


class Answer(NamedTuple):
    """What changed as a joint went from 0.05 below the stance to 0.05 above it."""

    values: Values  # name → half of the change, without what drifts
    changed: Array  # (nu,) of joint_pos, on the way up
    turned: Values  # name of a speed → its integral over that way [rad, m]
    noise: Values  # name of a speed → the standard deviation of that integral
    delay: float  # control steps until the joint passed the middle of its way up


class Stopped(Exception):
    """The guard was asked to stop, as by Ctrl-C."""


def preflight(
    guard: Guard,
    read_robot: Callable[[], Any],
    send: Callable[[Array], Any],
    wait: Callable[[], Any] | None = None,
    *,
    hung: bool = False,
) -> None:
    """Stand up slowly, compare the readings with the file's, then move each joint by 0.05 rad.

    At the end the robot is in its stance, and the guard's phase is `run`. If `wait` stops the
    guard, preflight ends at once; the phase is `stop`, and `Guard.act` lets the robot lie down.
    Raises ValueError, which says in one line what is wrong; the robot keeps the last targets.

    Args:
        guard: of a robot with position servos, which has not moved it yet.
        read_robot, send: () → readings, as for `Policy.act`; takes targets (nu,).
        wait: returns when the next control step begins; that of `Rate` unless given.
        hung: the legs are in the air, so the base does not tilt.
    """
    check_preflight(guard, hung, read_robot=read_robot, send=send, wait=wait or send)
    policy, pause = guard.policy, wait or Rate(guard.policy.dt).sleep

    def step(targets: Array | None) -> Values:
        if targets is not None:
            phase = guard.phase
            send(targets)
            pause()
            if guard.phase != phase:
                raise Stopped
        return checked(policy, read_robot())

    with suppress(Stopped):
        stand(guard, step, hung)
        answers: list[Answer] = []
        for i in range(len(policy.joints)):
            answers.append(moved(policy.dt, guard.stance, i, step))
            joint_answers(policy, i, answers[i], guard.late, hung)
        if not hung:
            base_answers(policy, answers)


def stand(guard: Guard, step: Callable[[Array | None], Values], hung: bool) -> None:
    """Go to the stance, and compare the readings with the file's. Raises as `preflight` does."""
    policy, values = guard.policy, step(None)
    not_mirrored(policy, values["joint_pos"], guard.stance)
    while guard.phase == "rise":
        values = step(guard.act(values))
    if guard.phase != "run":
        raise ValueError(f"preflight: {guard.why}")
    steps, begin = max(2, round(REST / policy.dt)), guard.clock()
    rest = [step(guard.stance) for _ in range(steps)]
    if wrong := guard.wrong_rate((guard.clock() - begin) / steps):
        raise ValueError(f"preflight: {wrong}")
    at_rest(policy, {name: mean(rest[steps // 2 :], name) for name in policy.needs}, hung)


def checked(policy: Any, readings: Any) -> Values:
    """The readings in order; ValueError if one is missing or not finite."""
    values, wrong = read(policy, readings)
    if wrong:
        raise ValueError(f"preflight: {wrong[0]}")
    return values


def mean(rows: list[Values], name: str) -> Array:
    """(width,) the mean of a reading."""
    return np.mean([row[name] for row in rows], 0)


def not_mirrored(policy: Any, pose: Array, stance: Array) -> None:
    """ValueError if a joint is at the mirror image of its stance (nu,), before it is moved."""
    mirrored = (np.abs(pose + stance) < MIRRORED) & (np.abs(stance) > MIRRORED)
    for i in np.flatnonzero(mirrored)[:1]:
        says = f"{policy.joints[i]} is at {pose[i]:.2f}, and its stance is {stance[i]:.2f}"
        raise ValueError(f"preflight: {says}: is its sign another?")


def at_rest(policy: Any, values: Values, hung: bool) -> None:
    """ValueError unless the robot in its stance measures what the file says."""
    known = policy.about["standing"]["readings"]
    known = known | ({"joint_pos": policy.outputs["safe_pose"]} if hung else {})
    for name, expected in known.items():
        axis = described(policy, name).get("sensor", "").endswith("axis")
        if name not in NEAR and not axis:
            continue
        away = np.abs(values[name] - np.array(expected))
        i = int(away.argmax())
        if away[i] > (NEAR_AXIS if axis else NEAR[name]):
            line = f"preflight: {label(policy, name, i)} is {values[name][i]:.3g} in the stance"
            sign = described(policy, name).get("sign")
            line += f", expected {expected[i]:.3g}" + (f": it is {sign}" if sign else "")
            raise ValueError(line)


def moved(dt: float, stance: Array, i: int, step: Callable[[Array], Values]) -> Answer:
    """How a robot answers as joint i goes down, up and down again.

    Args:
        dt: control period [s].
        stance: (nu,) the targets of the other joints.
        step: targets → readings after a control step.
    """
    hold, last, ramp = (max(2, round(seconds / dt)) for seconds in (HOLD, LAST, RAMP))
    path, unit = np.minimum(1, np.arange(1, hold + 1) / ramp), np.arange(len(stance)) == i
    rows, at = [], 0.0
    for way in (-MOVE, MOVE, -MOVE):
        rows.append([step(stance + (at + (way - at) * share) * unit) for share in path])
        at = way
    step(stance)
    ends = [{name: mean(part[-last:], name) for name in part[0]} for part in rows]
    # a robot that sinks meanwhile does so on both sides
    values = {name: (ends[1][name] - (ends[0][name] + ends[2][name]) / 2) / 2 for name in ends[0]}
    up, still = rows[1], rows[0][-last:]
    speeds = [name for name in ("joint_vel", "gyro") if name in values]
    turned = {name: mean(up, name) * hold * dt for name in speeds}
    changed = mean(up[-2:], "joint_pos") - mean(still[-2:], "joint_pos")
    calm = [x for part in rows for x in part[-last:]]
    noise = {name: np.std([x[name] for x in calm], 0) * dt * hold**0.5 for name in speeds}
    angles = np.array([x["joint_pos"][i] for x in up])
    middle = (ends[0]["joint_pos"][i] + ends[1]["joint_pos"][i]) / 2
    passed = np.flatnonzero((angles - middle) * np.sign(values["joint_pos"][i]) > 0)
    late = float(passed[0] if len(passed) else hold) + 1
    return Answer(values, changed, turned, noise, late)


def joint_answers(policy: Any, i: int, answer: Answer, late: float, hung: bool) -> None:
    """ValueError unless the readings changed as they do when joint i moves."""
    name, joints = policy.joints[i], policy.joints
    changes = policy.about["standing"]["changes"]
    own = np.eye(len(joints)) * MOVE if hung else np.array(changes["joint_pos"])
    seen = answer.values["joint_pos"]
    if np.abs(seen).max() < 0.2 * np.abs(own[i]).max():
        raise ValueError(f"preflight: {name} was moved by {MOVE} rad, but no joint_pos changed")
    if np.abs(seen).max() > 10 * MOVE:
        raise ValueError(
            f"preflight: joint_pos of {name} changed by {seen[i]:.3g}: is it in degrees?"
        )
    expected = policy.about["standing"]["delay"][i]
    if answer.delay > expected + late and abs(seen[i]) > abs(own[i, i]) / 2:
        line = f"{name} answers after {answer.delay:g} control steps, in training {expected:g}"
        raise ValueError(f"preflight: {line}: readings or targets are late")
    best, sign = nearest(seen, own, i)
    if best != i:
        raise ValueError(f"preflight: {name} was moved, but joint_pos says that {joints[best]} was")
    if sign < 0:
        raise ValueError(f"preflight: {name} was moved up, but joint_pos fell: its sign is another")
    if "joint_vel" in answer.turned:
        way, turned = answer.changed[i], answer.turned["joint_vel"][i]
        if abs(turned - way) > max(abs(way), MOVE) + 5 * answer.noise["joint_vel"][i]:
            what = f"by {way:.3g} rad, but the integral of its joint_vel is {turned:.3g}"
            raise ValueError(f"preflight: {name} moved {what}: another sign, order or unit")


def nearest(seen: Array, known: Array, i: int) -> tuple[int, int]:
    """Which row of known (n, width), with which sign, is clearly nearer than row i; else (i, 1)."""
    away = np.array([np.linalg.norm(seen - sign * known, axis=1) for sign in (1, -1)])
    sign, best = np.unravel_index(int(away.argmin()), away.shape)
    return (int(best), 1 - 2 * int(sign)) if away.min() < 0.6 * away[0, i] else (i, 1)


def base_answers(policy: Any, answers: list[Answer]) -> None:
    """ValueError if the base tilts otherwise than in the file, or the gyro does not show it."""
    about = policy.about["standing"]
    for axis in [x for x in about["changes"] if x != "joint_pos"]:
        known = np.array(about["changes"][axis])
        tilts(policy.joints, axis, answers, known)
        if described(policy, axis)["frame"] == described(policy, "gyro").get("frame"):
            turns(axis, answers, known, np.array(about["readings"][axis]))


def tilts(joints: list[str], axis: str, answers: list[Answer], known: Array) -> None:
    """ValueError if most joints that tilt the base clearly do so as another joint should."""
    size = np.linalg.norm(known, axis=1)
    clear = np.flatnonzero(size >= max(CLEAR, size.max() / 2))
    if len(clear) and max(np.abs(answers[i].values[axis]).max() for i in clear) < CLEAR / 4:
        why = f"does it hang (hung=True), or does {axis} not change?"
        raise ValueError(f"preflight: no joint tilts the robot: {why}")
    best = {int(i): nearest(answers[i].values[axis], known, int(i)) for i in clear}
    wrong = [i for i, said in best.items() if said != (i, 1)]
    if 2 * len(wrong) > len(clear):
        j, sign = best[wrong[0]]
        other = joints[j] + ("" if sign > 0 else " the other way")
        line = f"{joints[wrong[0]]} tilts the robot as {other} should"
        raise ValueError(f"preflight: {line}: legs are swapped, or the axes of {axis} are others")


def turns(axis: str, answers: list[Answer], known: Array, up: Array) -> None:
    """ValueError unless the integral of the gyro explains how a fixed axis (3,) tilts.

    Each number of the axis that tilts clearly in the file, (nu, 3), is compared alone.
    """
    seen = np.array([2 * answer.values[axis] for answer in answers])
    expected = np.array([-np.cross(answer.turned["gyro"], up) for answer in answers])
    for k in np.flatnonzero(np.abs(known).max(0) >= CLEAR / 2):
        # weighted by what the file says, so that noise does not make the ratio smaller
        ratio = float(known[:, k] @ expected[:, k] / (known[:, k] @ seen[:, k]))
        if not 0.2 < ratio < 5:
            why = "is it in degrees" if ratio > 10 else "are its signs or axes others"
            line = f"gyro turns {ratio:.3g} times as much as {axis}[{k}] tilts: {why}?"
            raise ValueError(f"preflight: {line}")
