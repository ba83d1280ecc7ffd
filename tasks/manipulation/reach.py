"""An arm moves its tool to commanded points and holds it there."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from gpusim_rl.core.maths import squared
from gpusim_rl.core.ranges import AT_LEAST_0, POSITIVE, Range
from gpusim_rl.core.symmetry import Flip
from gpusim_rl.envs.declarations import Command, Reflection, Scheduled
from gpusim_rl.envs.task import Task
from gpusim_rl.robots.arm.posture import mirror_signs
from gpusim_rl.robots.chain import Chain
from gpusim_rl.robots.servos import driven_joints
from gpusim_rl.tasks.common.actions import integrated

SECOND = 1.0  # s: at the end of each goal's time, in which the tool must stay within the tolerance


@dataclass(kw_only=True)
class Reach(Task):
    """Move the tool to the point c and hold it there; c changes every few seconds.

        r = w₁ exp(-d/σ) + w₂ exp(-d/σ_f) - w₃ Σ(q̇/q̇_max)² - w₄ |a - a'|² - w₅ Σ((q - q̄)/h)²

    with d = |p(q) - c|. With `sparse`, the terms of w₁ and w₂ are zero outside of the tolerance.

    | symbol | meaning | unit, frame |
    |---|---|---|
    | `near` | exp(-d/σ): felt from everywhere | 1 |
    | `fine` | exp(-d/σ_f): felt close to the goal | 1 |
    | `speed` | -Σ(q̇/q̇_max)² | 1 |
    | `action_rate` | -abs(a - a')² | 1 |
    | `joint_centering` | -Σ((q - q̄)/h)²: 1 for each joint at an end of its range | 1 |
    | p(q), c | the tool's position, and the command | m; world |
    | d | distance of the tool from the goal | m |
    | q, q̇, q̇_max | joint angles, speeds, and the largest speeds, `largest_speed` | rad, rad/s |
    | q̄, h | middles and half-widths of the joints' ranges | rad |
    | a, a' | action, and the one before: joint speeds as shares of q̇_max | 1 |
    | σ, σ_f | lengths, `sigma` and `sigma_fine` | m |

    The action is the speed of the servos' targets, as a share of q̇_max. It changes by at most
    `largest_acceleration` in time: v ← v + clip(q̇_max a - v), θ ← θ + dt v. The targets stay
    within the ranges of the joints, less `margin`, and within `ahead` of the measured angles. So
    the arm is asked for nothing that it cannot do. It computes p(q) of its joints' angles.

    Goals are drawn and drawn again as in Isaac Lab's reach task (Mittal et al., arXiv:2301.04195).
    """

    ranges: ClassVar = dict(center=Range(), largest=POSITIVE, redraw=POSITIVE, tolerance=POSITIVE)
    ranges |= dict(largest_speed=POSITIVE, largest_acceleration=POSITIVE, ahead=POSITIVE)
    ranges |= dict(margin=AT_LEAST_0, spread=AT_LEAST_0, sigma=POSITIVE, sigma_fine=POSITIVE)
    center: tuple[float, ...]  # m: middle of the box of goals
    largest: tuple[float, ...]  # m: half-widths of the box
    redraw: float  # s: time between two goals
    largest_speed: tuple[float, ...]  # rad/s: largest speed of each joint's target
    largest_acceleration: tuple[float, ...]  # rad/s²: its largest acceleration
    margin: float  # rad: how far targets keep from the ends of the joints' ranges
    ahead: float  # rad: how far targets may be from the measured angles
    spread: Scheduled[float]  # rad: half-width of the first angles about the keyframe's
    sigma: Scheduled[float]  # m
    sigma_fine: Scheduled[float]  # m
    tolerance: float  # m: largest distance of a success
    sparse: bool = False  # `near` and `fine` are earned within the tolerance alone
    # signs of the joints in the mirror image of a pose; from the model unless given
    signs: tuple[float, ...] = ()
    takes_robot: ClassVar = "arm"
    shown_by: ClassVar[str] = "goal_point"  # body of the model that shows the goal

    def __post_init__(self) -> None:
        super().__post_init__()
        m = self.mjm
        tool = m.site(m.sensor("tool_position").objid[0]).name
        self.chain = Chain(m, tool, self.device)
        self.home = self.nominal("key_qpos")[0]
        names = [m.joint(joint).name for joint in self.chain.joints]
        check_joints(self, names)
        self.sensors = f"{names[0]}_torque", f"{names[-1]}_torque"
        inwards = self.tensor([[self.margin], [-self.margin]])
        self.limits = self.joint_limits + inwards  # (2, n)
        self.center_pose = self.joint_limits.mean(0).nan_to_num()  # of a joint without limits
        self.half = self.joint_limits.diff(dim=0)[0] / 2
        self.speed_limit = self.tensor(self.largest_speed)
        self.acceleration_limit = self.tensor(self.largest_acceleration)
        self.torque_limit = self.nominal("actuator_forcerange")[:, 1]
        self.unit = self.tensor([-1.0] * m.nu), self.tensor([1.0] * m.nu)
        self.even = mirror_signs(m, Chain(m, tool), m.key_qpos[0], self.signs)  # on the CPU

    @property
    def command(self):
        return Command(
            names=("x", "y", "z"),
            units="m",
            center=self.center,
            largest=self.largest,
            redraw=self.redraw,
            mirrored=("y",),
            shown_by=self.shown_by,
        )

    @property
    def mirror(self):
        if self.even is None:
            return None
        joints, signs = Flip(tuple(range(len(self.even))), self.even), self.tensor(self.even)

        def images(s):
            target = self.home + signs * (s.target - self.home)
            return dict(target=target, rate=signs * s.rate)

        return Reflection(axis=1, joints=joints, images=images)

    def start(self, n, rng):
        angles = self.home + self.spread * rng.uniform("start", *self.unit)
        angles = angles.clamp(*self.limits)
        return dict(
            qpos=angles,
            qvel=0 * angles,
            command=self.draw_command(rng),
            target=angles,
            rate=0 * angles,
        )

    def control(self, s):
        limit = self.dt * self.acceleration_limit
        change = (self.speed_limit * s.action - s.rate).clamp(-limit, limit)
        step = self.dt * (s.rate + change)
        return integrated(s.target, step, self.limits, s.joint_pos, self.ahead)

    def update(self, s, rng):
        again = (self.steps_since_command(s) == 0)[:, None]
        target = self.control(s)
        return dict(
            command=torch.where(again, self.draw_command(rng), s.command),
            target=target,
            rate=(target - s.target) / self.dt,
        )

    def observe(self, s):
        return self.observe_at(s, self.chain.pose(s.joint_pos)[0])

    def observe_at(self, s, position):
        """What is observed with the tool at a position (B, 3) [m]."""
        return dict(
            joints=s.joint_pos - self.home,
            speeds=s.joint_vel,
            lag=s.target - s.joint_pos,
            command=s.command[:, :3],
            error=s.command[:, :3] - position,
            rate=s.rate / self.speed_limit,
        )

    def privileged(self, s):
        since = self.steps_since_command(s)[:, None] * (self.dt / self.redraw)
        return dict(torques=self.torques(s) / self.torque_limit, since=since)

    def torques(self, s):
        """(B, n) the servos' torques [N m]."""
        return s.span(*self.sensors)

    def distance(self, s):
        """(B,) distance of the tool from the goal [m]."""
        return squared(s.command[:, :3] - s.tool_position).sqrt()

    def error(self, s):
        """(B,) d of the reward [m]."""
        return self.distance(s)

    def reward(self, s):
        error = self.error(s)
        near, fine = torch.exp(-error / self.sigma), torch.exp(-error / self.sigma_fine)
        if self.sparse:
            there = self.within(self.measure(s)).float()
            near, fine = near * there, fine * there
        return dict(
            near=near,
            fine=fine,
            speed=-squared(s.joint_vel / self.speed_limit),
            action_rate=-squared(s.action - s.previous),
            joint_centering=-squared((s.joint_pos - self.center_pose) / self.half),
        )

    def measure(self, s):
        again, second = round(self.redraw / self.dt), round(SECOND / self.dt)
        torques, (low, high) = self.torques(s), self.joint_limits
        margin = torch.minimum(s.joint_pos - low, high - s.joint_pos)
        return dict(
            scored=(self.steps_since_command(s) >= again - second).float(),
            distance=self.distance(s),
            power=(torques * s.joint_vel).abs().sum(1),
            torque=(torques.abs() / self.torque_limit).amax(1),
            joint_margin=margin.amin(1),
            **{f"speed_{i + 1}": s.joint_vel[:, i] for i in range(self.mjm.nu)},
        )

    def within(self, record):
        """(…, B) bool: the tool is where it should be, by what `measure` gives."""
        return record["distance"] <= self.tolerance

    def score(self, record):
        """`success` is the share of episodes within the tolerance, the last second of each goal.

        `error` [m] is the mean distance then. The rest is of the whole episodes: `energy` [J] spent
        for a goal, `torque` and `speed` as the largest shares of what the joints bear, root mean
        squares of `acceleration` [rad/s²] and `jerk` [rad/s³], and `joint_margin` [rad], the least
        distance of a joint from the ends of its range.
        """
        scored = record["scored"] > 0.5
        good = (self.within(record) | ~scored).all(0) & scored.any(0)
        good &= ~record["terminated"].bool().any(0)
        names = [f"speed_{i + 1}" for i in range(self.mjm.nu)]
        speeds = torch.stack([record[name] for name in names], -1)  # (T, B, n)
        acceleration = speeds.diff(dim=0) / self.dt
        jerk = acceleration.diff(dim=0) / self.dt
        return dict(
            success=good.float().mean().item(),
            error=record["distance"][scored].mean().item() if scored.any() else None,
            energy=record["power"].mean().item() * self.redraw,
            torque=record["torque"].amax().item(),
            speed=(speeds.abs() / self.speed_limit).amax().item(),
            acceleration=(acceleration**2).mean().sqrt().item(),
            jerk=(jerk**2).mean().sqrt().item(),
            joint_margin=record["joint_margin"].amin().item(),
        )


def check_joints(task: Reach, names: list[str]) -> None:
    """ValueError unless the model's servos drive the chain's joints, in order, and each joint has
    its numbers."""
    driven = [task.mjm.joint(joint).name for joint in driven_joints(task.mjm)]
    if driven != names:
        raise ValueError(
            f"task.mjcf: expected servos of {', '.join(names)}, from the base to the tool; there "
            f"are those of {', '.join(driven)}"
        )
    for key in ("largest_speed", "largest_acceleration"):
        count = len(getattr(task, key))
        if count != len(names):
            raise ValueError(f"task.{key} has {count} numbers, and the arm {len(names)} joints")
