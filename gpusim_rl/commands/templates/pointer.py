"""An arm with two joints moves its tip to a commanded point."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from gpusim_rl.core.maths import squared
from gpusim_rl.core.ranges import AT_LEAST_0, POSITIVE
from gpusim_rl.envs.declarations import Command, Reflection, Scheduled
from gpusim_rl.envs.task import Task


@dataclass(kw_only=True)
class Pointer(Task):
    """Move the tip to the point c and keep it there.

        r = w₁ exp(-|p(q) - c|/σ) - w₂ |q̇|²

    q are the joints' angles [rad] and q̇ their speeds [rad/s]. p(q) is the tip's position and c the
    command [m], both in the world's x and y.
    """

    ranges: ClassVar = dict(sigma=POSITIVE, largest=AT_LEAST_0)
    sigma: Scheduled[float]  # tolerance [m]
    largest: tuple[float, ...]  # largest command [m]

    def __post_init__(self):
        super().__post_init__()
        self.shoulder = self.tensor(self.mjm.body("arm").pos[:2])
        self.links = self.tensor([self.mjm.body("forearm").pos[0], self.mjm.site("tip").pos[0]])

    @property
    def command(self):
        return Command(names=("x", "y"), units="m", largest=self.largest, mirrored=("y",))

    @property
    def mirror(self):
        return Reflection(axis=1)  # left and right

    def tip(self, q):
        """(B, 2) the tip's position [m] at the joints' angles (B, 2) [rad]."""
        angles = q.cumsum(1)  # of each link, from the x axis
        x, y = (self.links * angles.cos()).sum(1), (self.links * angles.sin()).sum(1)
        return self.shoulder + torch.stack([x, y], 1)

    def start(self, n, rng):
        low, high = 0.5 * self.nominal("jnt_range").T  # each (2,)
        angles = rng.uniform("start", low, high)  # (n, 2)
        return dict(qpos=angles, qvel=0 * angles, command=self.draw_command(rng))

    def control(self, s):
        return s.joint_pos + 0.1 * s.action  # targets of the servos [rad]

    def observe(self, s):
        tip = self.tip(s.joint_pos)
        return dict(angles=s.joint_pos, speeds=s.joint_vel, tip=tip, command=s.command)

    def error(self, s):
        """(B,) distance [m] of the tip from the commanded point."""
        return (self.tip(s.qpos) - s.command).norm(dim=1)

    def reward(self, s):
        return dict(near=torch.exp(-self.error(s) / self.sigma), calm=-squared(s.qvel))

    def measure(self, s):
        return dict(error=self.error(s))

    def score(self, record):
        last = record["error"][-20:].mean(0)  # mean error of the last second, for each episode
        return dict(success=(last < 0.03).float().mean().item())
