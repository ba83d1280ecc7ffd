"""Move each joint a little, and refuse a robot that does not answer as its policy's file says.

    guard = Guard(Policy("policy.onnx"), task="quadruped", robot="quadruped")
    preflight(guard, robot.read, robot.send)  # standing, or hung=True

It finds joints in another order, signs, degrees, swapped legs, another gravity and late readings.
The folder of this file can be copied to the robot. It needs NumPy alone.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress

import numpy as np

from . import joint_response as responses
from .checks import Readings, Values, check_preflight, read
from .guard import Guard
from .joint_response import MOVE, Answer, Unclear
from .rate import Rate, wrong_rate

RAMP, HOLD, LAST = 0.1, 0.4, 0.16  # [s] of the way; in all; at the end, which is averaged
FAST = 0.16  # [s] after a move begins, until a joint of a robot that stands is about fastest
REST = 2.0  # [s] in the stance before the first move; noise of joint_vel needs as much
WRONG, NOISY = 5, 14  # times that joints are moved, if an answer is wrong, or hidden by noise
Array = np.ndarray


class Stopped(Exception):
    """The guard was asked to stop, as by Ctrl-C."""


def preflight(
    guard: Guard,
    read_robot: Callable[[], Readings],
    send: Callable[[Array], object],
    wait: Callable[[], object] | None = None,
    *,
    hung: bool = False,
) -> None:
    """Stand up slowly, compare the readings with the file's, then move each joint by 0.05 rad.

    At the end the robot is in its stance, and the guard's phase is `run`. If `wait` stops the
    guard, preflight ends at once; the phase is `stop`, and `Guard.act` lets the robot lie down.
    Feet slip and readings are noisy: before it refuses a robot, all joints are moved five times.
    If noise hides the sign of a joint's speed, that joint is moved up to 14 times.
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
        values, wrong = read(policy, read_robot())
        if wrong:
            raise ValueError(f"preflight: {wrong[0]}")
        return values

    with suppress(Stopped):
        stand(guard, step, hung)
        move_joints(guard, step, hung)
        guard.times.clear()
        if hung:
            guard.reset()


def stand(guard: Guard, step: Callable[[Array | None], Values], hung: bool) -> None:
    """Go to the stance, and compare the readings with the file's. Raises as `preflight` does."""
    policy, values = guard.policy, step(None)
    responses.not_mirrored(policy, values["joint_pos"], guard.stance)
    while guard.phase == "rise":
        values = step(guard.act(values))
    if guard.phase != "run":
        raise ValueError(f"preflight: {guard.why}")
    steps, begin = max(2, round(REST / policy.dt)), guard.clock()
    rest = [step(guard.stance) for _ in range(steps)]
    for wrong in wrong_rate((guard.clock() - begin) / steps, policy.dt, guard.rate):
        raise ValueError(f"preflight: {wrong}")
    end = rest[steps // 2 :]
    means = {name: np.mean([x[name] for x in end], 0) for name in policy.needs}
    responses.at_rest(policy, means, hung)


def move_joints(guard: Guard, step: Callable[[Array | None], Values], hung: bool) -> None:
    """Move all joints until their mean answers are clear. Raises as `preflight` does."""
    everyone = range(len(guard.policy.joints))
    answers, joints = [list[Answer]() for _ in everyone], everyone
    for time in range(1, NOISY + 1):
        try:
            return move_each(guard, step, hung, answers, joints)
        except ValueError as error:
            if not hung:
                responses.upright(guard.policy, step(None))
            if time >= (NOISY if isinstance(error, Unclear) else WRONG):
                raise
            joints = error.joints if isinstance(error, Unclear) else everyone
            guard.say(f"{error}; moves {'them' if joints is not everyone else 'all'} once more")


def move_each(
    guard: Guard,
    step: Callable[[Array | None], Values],
    hung: bool,
    answers: list[list[Answer]],
    joints: Iterable[int],
) -> None:
    """Move these joints, one after the other, and compare the mean answers. Raises as `preflight`.

    The answers of each joint, from the times before, grow in place.
    """
    policy = guard.policy

    def step_upright(targets: Array) -> Values:
        values = step(targets)
        if not hung:
            responses.upright(policy, values)
        return values

    for i in joints:
        first = 1 if len(answers[i]) % 2 else -1
        answers[i].append(moved(policy.dt, guard.stance, i, step_upright, first))
        responses.joint_answers(policy, i, responses.averaged(answers[i]), guard.late, hung)
    means = [responses.averaged(joint) for joint in answers]
    if not hung:
        responses.base_answers(policy, means)
    responses.speeds(policy.joints, means)


def moved(
    dt: float, stance: Array, i: int, step: Callable[[Array], Values], first: int = -1
) -> Answer:
    """How a robot answers as joint i goes down, up and down again; up first if `first` is 1.

    The others stay in the stance (nu,); `step` gives the readings after a control step of dt [s].
    """
    hold, last, ramp = (max(2, round(seconds / dt)) for seconds in (HOLD, LAST, RAMP))
    path, unit = np.minimum(1, np.arange(1, hold + 1) / ramp), np.arange(len(stance)) == i
    rows, at = [], 0.0
    for way in (first * MOVE, -first * MOVE, first * MOVE):
        rows += [step(stance + (at + (way - at) * share) * unit) for share in path]
        at = way
    for share in path[:ramp]:  # a jump would let feet slip
        step(stance + at * (1 - share) * unit)
    ends = np.tile(np.arange(hold) >= hold - last, 3) / last
    # a robot that sinks meanwhile does so on both sides
    weights = -first * ends * np.repeat([-0.25, 0.5, -0.25], hold)  # of the readings, (3 hold,)
    series = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    values = {name: weights @ x for name, x in series.items()}
    # the change between two readings counts most where the joint is fast, and noise matters least
    bump = np.maximum(0.0, 1 - np.abs((np.arange(hold) + 0.5) * dt / FAST - 1))
    after = -first * np.kron([-0.5, 1.0, -1.0], bump)
    before = np.append(0.0, after[:-1])
    areas = dt * (before + after) / 2
    changed = {name: (before - after) @ x for name, x in series.items()}
    turned = {name: areas @ series[name] for name in ("joint_vel", "gyro") if name in series}
    noise = {name: np.std(series[name][ends > 0], 0) * np.linalg.norm(areas) for name in turned}
    angles = series["joint_pos"][hold : 2 * hold, i]
    center = series["joint_pos"][: 2 * hold, i] @ ends[: 2 * hold] / 2
    passed = np.flatnonzero((center - angles) * np.sign(first * values["joint_pos"][i]) > 0)
    delay = float(passed[0] if len(passed) else hold) + 1
    return Answer(values, changed, turned, noise, delay)
