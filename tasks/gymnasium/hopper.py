"""A leg hops forward: Gymnasium's Hopper-v5, with its observation, reward and termination."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from gpusim_rl.core.maths import squared
from gpusim_rl.core.ranges import AT_LEAST_0, POSITIVE
from gpusim_rl.envs.task import Task
from gpusim_rl.tasks.common.goal_scores import return_measures, return_scores


@dataclass(kw_only=True)
class Hopper(Task):
    """Hop forward as fast as possible with three motors, and do not fall.

        r = w₁ v + w₂ h - w₃ |a|²,   v = (x - x') / dt

    | symbol | term | meaning | unit, frame |
    |---|---|---|---|
    | v | `forward` | mean velocity in a control step | m/s; world |
    | x, x' | | place of the torso, and that of the step before | m; world |
    | h | `healthy` | 1 while the episode goes on: it ends where h is 0 | 1 |
    | a | `control` | action: share of the largest torque, 200 N m | 1 |

    h is 1 if the torso is higher than 0.7 m and its angle within ±0.2 rad, and if all speeds and
    other positions are within ±100. With weights of 1, 1 and 0.001, each over dt, the reward of a
    step is that of Gymnasium's package (`gymnasium/envs/mujoco/hopper_v5.py`, MIT license). It goes
    back to Erez, Tassa and Todorov, "Infinite-horizon model predictive control" (2011).

    The package's observation has the height, the angle and the velocity of the torso. No sensor of
    the model gives them at the right moment: they are the readings of a state estimator.
    """

    ranges: ClassVar = dict(
        spread=AT_LEAST_0,
        largest_speed=POSITIVE,
        lowest=POSITIVE,
        steepest=POSITIVE,
        largest=POSITIVE,
        solved=POSITIVE,
    )
    spread: float  # m, rad, m/s, rad/s: half-width of the noise of the first state
    largest_speed: float  # m/s, rad/s: observed speeds are clamped to ± this
    lowest: float  # m: the torso of a healthy hopper is higher
    steepest: float  # rad: and its angle is smaller
    largest: float  # rad, m/s, rad/s: and all other numbers of its state are smaller
    solved: float  # return from which an episode counts as a success

    def __post_init__(self) -> None:
        super().__post_init__()
        self.rest = self.nominal("qpos0")
        self.unit = self.tensor([-1.0] * 12), self.tensor([1.0] * 12)
        self.gear = self.nominal("actuator_gear")[:, 0]  # N m: torque of action 1
        self.limits = self.joint_limits  # made here: a report may not wait for the device

    @property
    def estimated(self):
        base = dict(units=["m", "rad"], meaning="height and angle of the torso")
        moves = dict(meaning="velocity of the torso forward and up, and its angle's speed")
        moves |= dict(units=["m/s", "m/s", "rad/s"])
        frame = dict(frame="world; a positive angle leans forward")
        return super().estimated | dict(base=base | frame, base_velocity=moves | frame)

    @property
    def derived(self):
        readings = dict(base=lambda s: s.qpos[:, 1:3], base_velocity=lambda s: s.qvel[:, :3])
        return super().derived | readings

    def start(self, n, rng):
        unit = rng.uniform("start", *self.unit)  # (n, 12), each in ±1
        return self.begin_at(self.rest + self.spread * unit[:, :6], self.spread * unit[:, 6:])

    def begin_at(self, qpos, qvel):
        """First values of an episode at qpos (n, 6) and qvel (n, 6)."""
        return dict(qpos=qpos, qvel=qvel, x=qpos[:, 0].float(), speed=0 * qvel[:, 0].float())

    def update(self, s, rng):
        return dict(x=s.qpos[:, 0], speed=(s.qpos[:, 0] - s.x) / self.dt)

    def observe(self, s):
        return dict(
            base=s.base,
            joints=s.joint_pos,
            velocity=s.base_velocity.clamp(-self.largest_speed, self.largest_speed),
            speeds=s.joint_vel.clamp(-self.largest_speed, self.largest_speed),
        )

    def privileged(self, s):
        return dict(progress=s.speed[:, None])

    def reward(self, s):
        return dict(
            forward=s.speed,
            healthy=1.0 - self.terminated(s).float(),
            control=-squared(s.action),
        )

    def terminated(self, s):
        low, steep = s.qpos[:, 1] <= self.lowest, s.qpos[:, 2].abs() >= self.steepest
        return low | steep | (torch.cat([s.qpos[:, 2:], s.qvel], 1).abs().amax(1) >= self.largest)

    def measure(self, s):
        return return_measures(s, self.gear, self.limits)

    def score(self, record):
        return return_scores(record, self.dt, self.solved)
