"""An arm moves its tool to commanded poses: to a point, and turned as told."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from gpusim_rl.core.maths import conjugate, log, product, squared, to_6d, to_matrix
from gpusim_rl.core.ranges import POSITIVE, Range
from gpusim_rl.envs.declarations import Command, Rotation, Scheduled
from gpusim_rl.robots.arm.workspace import pointing
from gpusim_rl.tasks.manipulation.reach import Reach


@dataclass(kw_only=True)
class ReachPose(Reach):
    """Move the tool to the point c_p, turn it to the rotation c_r, and hold it so.

        r = as of `Reach`, with d = √(|p(q) - c_p|² + ℓ² θ²)

    | symbol | meaning | unit, frame |
    |---|---|---|
    | `near`, `fine`, `speed`, `action_rate` | as in `Reach`, with this d | 1 |
    | θ | angle of the rotation from the tool's to the commanded one | rad |
    | ℓ | `lever`: how much of a distance a radian is | m/rad |
    | c_p | commanded position | m; world |
    | c_r | commanded rotation: a unit quaternion (w, x, y, z) | 1; world |

    The commanded rotation is uniform over all rotations whose tool axis leans at most `lean` from
    a middle one: straight down, or tilted by `tilt` to the front. It turns about its own axis by at
    most `spin`, from where x points forward. The arm observes it as the first two columns of its
    matrix, and in the same way the rotation from the tool's to the commanded one (Zhou et al.,
    arXiv:1812.07035).
    """

    ranges = Reach.ranges | dict(
        tilt=Range(-3.1416, 3.1416),
        lean=Range(0.0, 3.1416),
        spin=Range(0.0, 3.1416),
        lever=POSITIVE,
        tolerance_angle=POSITIVE,
    )
    tilt: float  # rad: of the middle of the commanded tool axes, from straight down to forward
    lean: float  # rad: how far a commanded tool axis is from their middle, at most
    spin: float  # rad: how far the commanded tool is turned about its axis, at most
    lever: Scheduled[float]  # m/rad
    tolerance_angle: float  # rad: largest angle of a success
    shown_by: ClassVar[str] = "goal_pose"

    @property
    def command(self):
        (point,) = super().command.parts
        turn = Rotation(lean=self.lean, spin=self.spin, center=pointing(self.tilt))
        return Command(parts=(point, turn), redraw=self.redraw, shown_by=self.shown_by)

    def observe(self, s):
        position, axes = self.chain.pose(s.joint_pos)
        goal = to_matrix(s.command[:, 3:])
        turn = (goal[:, :, None] * axes[:, None]).sum(-1)  # goal · axesᵀ: from the tool's rotation
        return self.observe_at(s, position) | dict(
            command=torch.cat([s.command[:, :3], to_6d(s.command[:, 3:])], 1),
            turn=turn[..., :2].transpose(1, 2).flatten(1),
        )

    def angle(self, s):
        """(B,) angle θ of the rotation from the tool's to the commanded one [rad]."""
        return squared(log(product(s.command[:, 3:], conjugate(s.tool_rotation)))).sqrt()

    def error(self, s):
        return (self.distance(s) ** 2 + (self.lever * self.angle(s)) ** 2).sqrt()

    def measure(self, s):
        return super().measure(s) | dict(angle=self.angle(s))

    def within(self, record):
        return super().within(record) & (record["angle"] <= self.tolerance_angle)

    def score(self, record):
        """Scores of `Reach`, and `angle`, the mean angle in the last second of each goal [rad]."""
        scored = record["scored"] > 0.5
        return super().score(record) | dict(angle=record["angle"][scored].mean().item())
