"""Move each joint a little, and refuse a robot that does not answer as its policy's file says.

    guard = Guard(Policy("policy.onnx"), task="quadruped", robot="quadruped")
    preflight(guard, robot.read, robot.send)  # standing, or hung=True

It finds joints in another order, signs, degrees, swapped legs, another gravity and late readings.
The folder of this file can be copied to the robot. It needs NumPy alone.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

from .checks import Values, check_preflight, read
from .guard import Guard
from .joint_response import (
    MOVE,
    Answer,
    at_rest,
    base_answers,
    joint_answers,
    not_mirrored,
    upright,
)
from .rate import Rate, wrong_rate

RAMP, HOLD, LAST = 0.1, 0.4, 0.16  # [s] of the way; in all; at the end, which is averaged
REST = 2.0  # [s] in the stance before the first move; noise of joint_vel needs as much
Array = np.ndarray


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
    Feet slip and readings are noisy: before it refuses a robot, all joints are moved once more.
    Raises ValueError, which says in one line what is wrong; the robot keeps the last targets.

    Args:
        guard: of a robot with position servos, which has not moved it yet.
        read_robot, send: () → readings, as for `Policy.act`; takes targets (nu,).
        wait: returns when the next control step begins; that of `Rate` unless given.
        hung: the legs are in the air, so the base does not tilt. At the end the guard is reset:
            put the robot down, and `Guard.act` stands up from the measured pose.
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
        move_twice(guard, step, hung)
        guard.times.clear()
        if hung:
            guard.reset()


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
    for wrong in wrong_rate((guard.clock() - begin) / steps, policy.dt, guard.rate):
        raise ValueError(f"preflight: {wrong}")
    at_rest(policy, {name: mean(rest[steps // 2 :], name) for name in policy.needs}, hung)


def move_twice(guard: Guard, step: Callable[[Array | None], Values], hung: bool) -> None:
    """Move all joints, and once more if an answer is wrong. Raises as `preflight` does."""
    try:
        move_all(guard, step, hung)
    except ValueError as error:
        if not hung:
            upright(guard.policy, step(None))
        guard.say(f"{error}; moves all joints once more")
        move_all(guard, step, hung)


def move_all(guard: Guard, step: Callable[[Array | None], Values], hung: bool) -> None:
    """Move one joint after the other, and compare the answers. Raises as `preflight` does."""
    policy, answers = guard.policy, list[Answer]()

    def step_upright(targets: Array) -> Values:
        values = step(targets)
        if not hung:
            upright(policy, values)
        return values

    for i in range(len(policy.joints)):
        answers.append(moved(policy.dt, guard.stance, i, step_upright))
        joint_answers(policy, i, answers[i], guard.late, hung)
    if not hung:
        base_answers(policy, answers)


def checked(policy: Any, readings: Any) -> Values:
    """The readings in order; ValueError if one is missing or not finite."""
    values, wrong = read(policy, readings)
    if wrong:
        raise ValueError(f"preflight: {wrong[0]}")
    return values


def mean(rows: list[Values], name: str) -> Array:
    """(width,) the mean of a reading."""
    return np.mean([row[name] for row in rows], 0)


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
    center = (ends[0]["joint_pos"][i] + ends[1]["joint_pos"][i]) / 2
    passed = np.flatnonzero((angles - center) * np.sign(values["joint_pos"][i]) > 0)
    late = float(passed[0] if len(passed) else hold) + 1
    return Answer(values, changed, turned, noise, late)
