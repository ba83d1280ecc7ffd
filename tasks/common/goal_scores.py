"""The scores of an evaluation: how well a robot got up, hovered, or earned its return."""

import math

import torch
from torch import Tensor

from gpusim_rl.core.maths import mean_of, squared
from gpusim_rl.envs.state import State
from gpusim_rl.envs.task import Scores

HOVER = 0.1  # m: largest distance from the commanded point of a success
# A robot stands that leans by less than 15°, is higher than 0.8 of the wanted height, and has each
# joint within 0.5 rad of the stance. It is still if root mean squares over a second are
# small: the trunk's velocity [m/s] and angular velocity [rad/s], and the joints' speeds [rad/s].
LEVEL, TALL, NEAR_DISTANCE_M = math.cos(math.radians(15)), 0.8, 0.5
STILL = dict(velocity=0.1, spin=0.3, joints=0.5)


def standing_scores(record: dict[str, Tensor], dt: float, height: float) -> Scores:
    """How many of B robots got up, how soon, and at what cost.

    Args:
        record: (T, B) of each measure: `up`, the trunk's cos of its lean, its `height` [m], the
            distance of the `furthest` joint from the stance [rad], squares of the trunk's
            `velocity` [m²/s²], of its angular velocity `spin` and of the `joints`' speeds, their
            mean [rad²/s²]. `power` [W]; `fastest` joint speed [rad/s] and largest `torque` [N m] of
            a moment; `action_rate`, the squared change of the action.
        dt: control period [s].
        height: of a trunk that stands [m].

    Returns:
        `success` is the share of episodes that stand and are still throughout the last second, and
        `success_upside_down` that of those whose trunk was upside down after 0.5 s. `upright`,
        `tall`, `near` and `still` are the shares that meet each condition. `stands_after` [s] is
        the mean time from which successes stand. `energy` [J] is of an episode. `fastest` and
        `torque` are means over episodes of their largest.
    """
    last = round(1.0 / dt)
    met = dict(upright=record["up"] > LEVEL, tall=record["height"] > TALL * height)
    met |= dict(near=record["furthest"] < NEAR_DISTANCE_M)
    stands = torch.stack(list(met.values())).all(0)
    still = torch.stack([record[x][-last:].mean(0).sqrt() < limit for x, limit in STILL.items()])
    good = stands[-last:].all(0) & still.all(0) & ~record["terminated"].bool().any(0)
    upside_down = record["up"][min(round(0.5 / dt), len(stands) - 1)] < 0
    held = stands.flip(0).long().cumprod(0).sum(0)  # control steps from the end
    return dict(
        success=good.float().mean().item(),
        success_upside_down=mean_of(good.float(), upside_down),
        **{name: x[-last:].all(0).float().mean().item() for name, x in met.items()},
        still=still.all(0).float().mean().item(),
        stands_after=mean_of(dt * (len(stands) - held).float(), good),
        energy=dt * record["power"].sum(0).mean().item(),
        fastest=record["fastest"].amax(0).mean().item(),
        torque=record["torque"].amax(0).mean().item(),
        action_rate=record["action_rate"].mean().item(),
    )


def hover_scores(record: dict[str, Tensor], dt: float, redraw: int) -> Scores:
    """How well B drones flew to points and hovered there.

    Args:
        record: (T, B) of each measure: `distance` from the point [m], `speed` [m/s], `spin`
            [rad/s], `action_rate` and `saturated` of the action, `power`, and `terminated`.
        dt: control period [s].
        redraw: control steps between two points.

    Returns:
        `success` is the share of episodes without a crash that stay within 0.1 m for the last
        second. `points` is the share of all points at which that is so for their last second; after
        a crash none counts as reached. `distance` [m], `spin` [rad/s] and `action_rate` are root
        mean squares in these seconds.
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
        action_rate=last["action_rate"].mean().sqrt().item(),
        saturated=record["saturated"].mean().item(),
        power=record["power"].mean().item(),
    )


def return_measures(s: State, gear: Tensor, limits: Tensor) -> dict[str, Tensor]:
    """Measures (B,) for `return_scores`, of a state of B worlds with the memory `speed`.

    Args:
        s: the state.
        gear: (nu,) torque of an action of 1 [N m].
        limits: (2, nu) least and greatest positions of the joints [rad].
    """
    low, high = limits
    return dict(
        speed=s.speed,
        power=(gear * s.action * s.joint_vel).abs().sum(1),
        action_rate=squared(s.action - s.previous),
        limit=((s.joint_pos < low) | (s.joint_pos > high)).any(1).float(),
    )


def return_scores(record: dict[str, Tensor], dt: float, solved: float) -> Scores:
    """Returns of B episodes of a task of Gymnasium, and what they would cost a robot.

    Only the first episode of each world counts, with its last step.

    Args:
        record: (T, B): `reward` of each step, `terminated`, and of each measure: `speed` forward
            [m/s], `power` [W], `action_rate` (square of the action's change), `limit` (1 where a
            joint is beyond its range).
        dt: control period [s].
        solved: the return of a success.

    Returns:
        `success` is the share of episodes with a return of at least `solved`. `return_std` is the
        returns' standard deviation, `steps` the mean length of an episode, `falls` the share that
        ended early. `speed` [m/s], `action_rate` and `limit` are means over all steps.
        `energy_per_metre` [J/m] is None if nothing moved forward.
    """
    ended = record["terminated"].float()
    counts = (ended.cumsum(0) - ended == 0).float()  # (T, B) 1 until the first end
    total, steps = (record["reward"] * counts).sum(0), counts.sum()
    means = ("speed", "action_rate", "limit")
    mean = {x: ((record[x] * counts).sum() / steps).item() for x in means}
    energy, meters = ((record[x] * counts).sum().item() * dt for x in ("power", "speed"))
    return dict(
        success=(total >= solved).float().mean().item(),
        return_std=total.std(correction=0).item(),
        steps=counts.sum(0).mean().item(),
        falls=ended.amax(0).mean().item(),
        energy_per_metre=energy / meters if meters > 1e-6 else None,
        **mean,
    )
