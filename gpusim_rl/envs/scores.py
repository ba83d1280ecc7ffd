"""The scores of an evaluation: how well a robot walked, ran or balanced."""

import math

import torch
from torch import Tensor

TOLERANCE = 0.25  # m/s, rad/s: largest errors of velocity and yaw rate of a success
UPRIGHT = 0.95  # cos θ from which a pole counts as upright: within 18°
BALANCED = 5.0  # s at the end of an episode for which the pole must be upright


Scores = dict[str, float | None]  # None: no episode says anything about it


def walking_scores(
    record: dict[str, Tensor], dt: float, gait: float, tolerance: float = TOLERANCE
) -> Scores:
    """`success`, errors, falls, lift of the feet, drift and energy of B episodes.

    Args:
        record: (T, B) of each measure, one row for each control step. `settled` is 1 where errors
            count, else 0. `velocity_error` [m²/s²] and `yaw_error` [rad²/s²] are squares, 0 where
            `settled` is. `moving` is 1 where a motion is commanded. `power` [W], `speed` [m/s], `x`
            and `y` [m] are of the robot, `foot_<name>` [m] heights of feet. `terminated`: it fell.
        dt: control period [s].
        gait: steps of each foot in a second [Hz].
        tolerance: largest errors of a success [m/s, rad/s].

    Returns:
        `success` is the share of episodes without a fall whose root mean square errors are at most
        the tolerance. `foot_lift` [m] is the mean height of a step's highest point, of the foot
        that lifts least. `drift_still` [m/s] is of those that were told to stand, and
        `energy_per_metre` [J/m] of those told to walk. A score of which no episode tells is None.
    """
    counted = record["settled"].sum(0)
    settled = counted.clamp(min=1)
    velocity = (record["velocity_error"].sum(0) / settled).sqrt()
    yaw = (record["yaw_error"].sum(0) / settled).sqrt()
    falls = record["terminated"].float().sum(0)
    good = (falls == 0) & (velocity <= tolerance) & (yaw <= tolerance)
    moving = record["moving"].mean(0) > 0.5
    walking, still = moving & (falls == 0), ~moving & (falls == 0)
    drift = drift_speed(torch.stack([record["x"], record["y"]]), dt)
    meters = record["speed"][:, walking].sum() * dt
    energy = record["power"][:, walking].sum() * dt / meters.clamp(min=1e-6)
    return dict(
        success=good.float().mean().item(),
        velocity_rmse=mean_of(velocity, counted > 0),
        yaw_rmse=mean_of(yaw, counted > 0),
        falls_per_episode=falls.mean().item(),
        foot_lift=foot_lift(record, walking, dt, gait),
        drift_still=mean_of(drift, still),
        energy_per_metre=energy.item() if meters > 0 else None,
    )


def wilson(count: int, of: int) -> tuple[float, float]:
    """Least and greatest chance of an event that happened `count` times `of` all, at 95 %.

    The score interval of Wilson (1927), https://doi.org/10.1080/01621459.1927.10502953.
    """
    if not of:
        return 0.0, 1.0
    z2, share = 1.96**2, count / of
    center = (share + z2 / (2 * of)) / (1 + z2 / of)
    half = math.sqrt(z2 * share * (1 - share) / of + (z2 / (2 * of)) ** 2) / (1 + z2 / of)
    return max(center - half, 0.0), min(center + half, 1.0)


def mean_of(x: Tensor, which: Tensor) -> float | None:
    """The mean of x (B,) over the episodes of which (B,) bool; None if there are none."""
    return x[which].mean().item() if which.any() else None


def foot_lift(record: dict[str, Tensor], walking: Tensor, dt: float, gait: float) -> float | None:
    """The mean highest point of each foot in each period of the gait; the least of all feet [m].

    walking (B,) bool: the episodes that count. None if there are none.
    """
    if not walking.any():
        return None
    feet = torch.stack([x for name, x in record.items() if name.startswith("foot_")])  # (F, T, B)
    steps = feet.shape[1]
    period = min(round(1 / (gait * dt)), steps)
    cycles = feet[:, : steps // period * period].unflatten(1, (-1, period)).amax(2)
    return cycles[:, :, walking].mean((1, 2)).min().item()


def drift_speed(path: Tensor, dt: float) -> Tensor:
    """(B,) distance over time [m/s] of a path (2, T, B) [m], without its first second."""
    steps = path.shape[1]
    second = min(round(1.0 / dt), steps - 1)
    return (path[:, -1] - path[:, second]).norm(dim=0) / (max(steps - 1 - second, 1) * dt)


HOVER = 0.1  # m: largest distance from the commanded point of a success


def hover_scores(record: dict[str, Tensor], dt: float, redraw: int) -> Scores:
    """How well B drones flew to points and hovered there.

    Args:
        record: (T, B) of each measure: `distance` from the point [m], `speed` [m/s], `spin`
            [rad/s], `jerk` and `saturated` of the action, `power`, and `terminated`.
        dt: control period [s].
        redraw: control steps between two points.

    Returns:
        `success` is the share of episodes without a crash that stay within 0.1 m for the last
        second. `points` is the share of all points at which that is so for their last second; after
        a crash none counts as reached. `distance` [m], `spin` [rad/s] and `jerk` are root mean
        squares in these seconds.
        `saturated` is the share of rotors at the limit of their action, and `power` that of
        hovering without wind, over the whole episode.
    """
    second, falls = round(1.0 / dt), record["terminated"].float().sum(0)
    steps = len(record["distance"])
    # the state before each next point; of a shorter episode, the last one
    ends = range(redraw - 1, steps, redraw) or range(steps, steps + 1)
    last = {
        name: torch.stack([x[max(0, end - second) : end] for end in ends])
        for name, x in record.items()
    }  # (points, steps, B)
    within = (last["distance"] < HOVER).all(1)
    within &= record["terminated"].cumsum(0)[[end - 1 for end in ends]] == 0
    return dict(
        success=(within[-1] & (falls == 0)).float().mean().item(),
        points=within.float().mean().item(),
        crashes_per_episode=falls.mean().item(),
        distance=(last["distance"] ** 2).mean().sqrt().item(),
        spin=(last["spin"] ** 2).mean().sqrt().item(),
        jerk=last["jerk"].mean().sqrt().item(),
        saturated=record["saturated"].mean().item(),
        power=record["power"].mean().item(),
    )


def balance_scores(record: dict[str, Tensor], dt: float) -> dict[str, float]:
    """How well B poles were swung up and balanced.

    Args:
        record: (T, B) of each measure: `cos` of the pole's angle from upright, position `x` of the
            cart [m], square of the action as `control`, and `terminated`.
        dt: control period [s].

    Returns:
        `success` is the share of episodes whose pole is upright throughout the last 5 s.
        `upright_s` is the time [s] from which the pole stays upright. `cart_rms` [m] and `effort`
        are root mean squares of the cart's position and of the action in the last 5 s.
    """
    upright, last = record["cos"] > UPRIGHT, round(BALANCED / dt)
    good = upright[-last:].all(0) & ~record["terminated"].any(0)
    held = upright.flip(0).long().cumprod(0).sum(0)  # control steps from the end
    return dict(
        success=good.float().mean().item(),
        upright_s=(dt * (len(upright) - held).float()).mean().item(),
        cart_rms=(record["x"][-last:] ** 2).mean().sqrt().item(),
        furthest=record["x"].abs().amax().item(),
        effort=record["control"][-last:].mean().sqrt().item(),
    )


def return_scores(record: dict[str, Tensor], dt: float, solved: float) -> Scores:
    """What B episodes of a task of Gymnasium earned, and what they would cost a robot.

    Only the first episode of each world counts, with its last step.

    Args:
        record: (T, B): `reward` of each step, `terminated`, and of each measure: `speed` forward
            [m/s], `power` [W], `jerk` (square of the action's change), `limit` (1 where a joint is
            beyond its range).
        dt: control period [s].
        solved: the return of a success.

    Returns:
        `success` is the share of episodes with a return of at least `solved`. `return_std` is the
        returns' standard deviation, `steps` the mean length of an episode, `falls` the share that
        ended early. `speed` [m/s], `jerk` and `limit` are means over all steps.
        `energy_per_metre` [J/m] is None if nothing moved forward.
    """
    ended = record["terminated"].float()
    counts = (ended.cumsum(0) - ended == 0).float()  # (T, B) 1 until the first end
    total, steps = (record["reward"] * counts).sum(0), counts.sum()
    mean = {x: ((record[x] * counts).sum() / steps).item() for x in ("speed", "jerk", "limit")}
    energy, meters = ((record[x] * counts).sum().item() * dt for x in ("power", "speed"))
    return dict(
        success=(total >= solved).float().mean().item(),
        return_std=total.std(correction=0).item(),
        steps=counts.sum(0).mean().item(),
        falls=ended.amax(0).mean().item(),
        energy_per_metre=energy / meters if meters > 1e-6 else None,
        **mean,
    )
