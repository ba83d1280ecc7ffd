"""The scores of an evaluation: how well a legged robot walked, or a pole was balanced."""

from collections.abc import Sequence

import torch
from torch import Tensor

from gpusim_rl.core.maths import mean_of
from gpusim_rl.envs.task import Scores

TOLERANCE = 0.25  # m/s, rad/s: largest errors of velocity and yaw rate of a success
UPRIGHT = 0.95  # cos θ from which a pole counts as upright: within 18°
BALANCED = 5.0  # s at the end of an episode for which the pole must be upright


def walking_scores(
    record: dict[str, Tensor], dt: float, gait: float, tolerance: float = TOLERANCE
) -> Scores:
    """`success`, errors, falls, lift of the feet, drift and energy of B episodes.

    Args:
        record: (T, B) of each measure. `tracked` is 1 where errors count, else 0. `velocity_error`
            [m²/s²] and `yaw_error` [rad²/s²] are squares, 0 where `tracked` is. `commanded` is 1
            where a motion is. `power` [W], `speed` [m/s], `x` and `y` [m] are of the robot,
            `foot_<name>` [m] heights of feet. `terminated`: it fell.
        dt, gait: control period [s], steps of each foot in a second [Hz].
        tolerance: largest errors of a success [m/s, rad/s].

    Returns:
        `success` is the share of episodes without a fall whose root mean square errors are at most
        the tolerance; `fell`, `off_velocity` and `off_yaw` are shares that fail for that reason.
        `foot_lift` [m] is the mean height of a step's highest point, of the foot that lifts least.
        `drift_still` [m/s] is of those that were told to stand, and `energy_per_metre` [J/m] of
        those told to walk. A score of which no episode tells is None.
    """
    counted = record["tracked"].sum(0)
    steps = counted.clamp(min=1)
    velocity = (record["velocity_error"].sum(0) / steps).sqrt()
    yaw = (record["yaw_error"].sum(0) / steps).sqrt()
    falls = record["terminated"].float().sum(0)
    failed = dict(fell=falls > 0, off_velocity=velocity > tolerance, off_yaw=yaw > tolerance)
    good = ~torch.stack(list(failed.values())).any(0)
    moving, stood = record["commanded"].mean(0) > 0.5, falls == 0
    walking, still = moving & stood, ~moving & stood
    drift = drift_speed(torch.stack([record["x"], record["y"]]), dt)
    return dict(
        success=good.float().mean().item(),
        velocity_rmse=mean_of(velocity, counted > 0),
        yaw_rmse=mean_of(yaw, counted > 0),
        falls_per_episode=falls.mean().item(),
        **{why: x.float().mean().item() for why, x in failed.items()},
        foot_lift=foot_lift(record, walking, dt, gait),
        drift_still=mean_of(drift, still),
        energy_per_metre=energy_per_metre(record, walking, dt),
    )


def energy_per_metre(record: dict[str, Tensor], walking: Tensor, dt: float) -> float | None:
    """Energy over distance [J/m] of the episodes walking (B,) bool; None if they walked nowhere."""
    meters = record["speed"][:, walking].sum() * dt
    energy = record["power"][:, walking].sum() * dt / meters.clamp(min=1e-6)
    return energy.item() if meters > 0 else None


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


def balance_scores(record: dict[str, Tensor], dt: float) -> dict[str, float]:
    """How well B poles were swung up and balanced.

    Args:
        record: (T, B) of each measure: `cos` of the pole's angle from upright, position `x` of the
            cart [m], square of the action as `control`, and `terminated`.
        dt: control period [s].

    Returns:
        `success` is the share of episodes whose pole is upright throughout the last 5 s.
        `upright_s` is the time [s] from which the pole stays upright. `cart_rms` [m] and
        `action_rms` are root mean squares of the cart's position and of the action in the last 5 s.
    """
    upright, last = record["cos"] > UPRIGHT, round(BALANCED / dt)
    good = upright[-last:].all(0) & ~record["terminated"].any(0)
    held = upright.flip(0).long().cumprod(0).sum(0)  # control steps from the end
    return dict(
        success=good.float().mean().item(),
        upright_s=(dt * (len(upright) - held).float()).mean().item(),
        cart_rms=(record["x"][-last:] ** 2).mean().sqrt().item(),
        furthest=record["x"].abs().amax().item(),
        action_rms=record["control"][-last:].mean().sqrt().item(),
    )


def imitation_scores(
    record: dict[str, Tensor], largest: dict[str, float], clips: Sequence[str] = ()
) -> Scores:
    """How well B robots followed a clip from its first frame to its last.

    Args:
        record: (T, B) of each measure: mean square of the errors of the `joints` [rad²], square of
            that of the `velocity` [m²/s²], and how far the base is off the clip's `place` [m] and
            `heading` [rad]. `action_rate`, the squared change of the action. `terminated`: it fell.
            `clip`: number of the clip.
        largest: of a success, over the whole episode `joints`, the root mean square [rad], and at
            its end `place` [m] and `heading` [rad].
        clips: names of several, of each of which `success_<name>` is the share.

    Returns:
        `success` is the share of episodes without a fall that stay within all of these. `fell`,
        `off_joints` and `off_base` are the shares that fail for that reason. `joints_rmse` [rad]
        and `velocity_rmse` [m/s] are means over episodes, `place_error` [m] and `heading_error`
        [rad] those at their ends.
    """
    joints, velocity = (record[x].mean(0).sqrt() for x in ("joints", "velocity"))
    place, heading = record["place"][-1], record["heading"][-1]
    off_base = (place > largest["place"]) | (heading > largest["heading"])
    failed = dict(fell=record["terminated"].bool().any(0), off_joints=joints > largest["joints"])
    failed |= dict(off_base=off_base)
    good, clip = ~torch.stack(list(failed.values())).any(0), record["clip"][0]
    return dict(
        success=good.float().mean().item(),
        **{f"success_{x}": mean_of(good.float(), clip == i) for i, x in enumerate(clips)},
        **{why: x.float().mean().item() for why, x in failed.items()},
        joints_rmse=joints.mean().item(),
        velocity_rmse=velocity.mean().item(),
        place_error=place.mean().item(),
        heading_error=heading.mean().item(),
        action_rate=record["action_rate"].mean().item(),
    )
