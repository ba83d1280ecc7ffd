"""A legged robot follows a clip: joint angles and base poses from a file. Several clips may be
followed by one policy.

The actor observes what a robot measures, and the clip's next frame.
"""

import copy
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from gpusim_rl.core.maths import conjugate, gauss, log, product, squared, unrotate, wrap, yaw
from gpusim_rl.core.maths import yaw_frame as level
from gpusim_rl.core.paths import find_data
from gpusim_rl.core.ranges import AT_LEAST_0, CHANCE, POSITIVE, SHARE
from gpusim_rl.envs.declarations import Command, Scheduled
from gpusim_rl.robots.clips import Clip, joint_angles, read_clip
from gpusim_rl.tasks.common.legged import Legged
from gpusim_rl.tasks.common.scores import imitation_scores


class Frames(NamedTuple):
    """A clip at the control steps of a task, T in number, from x = y = yaw = 0 on.

    The last frame is held, so its velocities are 0.
    """

    joints: Tensor  # (T, nu) angles [rad]
    speeds: Tensor  # (T, nu) [rad/s]
    place: Tensor  # (T, 3) of the base [m]; world
    turn: Tensor  # (T, 4) unit quaternions: base to world
    heading: Tensor  # (T, 1) [rad]; world
    way: Tensor  # (T, 3) velocity of the base [m/s]; world
    velocity: Tensor  # (T, 3) the same; base
    spin: Tensor  # (T, 3) angular velocity [rad/s]; base
    up: Tensor  # (T, 3) the world's up; base


@dataclass(kw_only=True)
class Imitate(Legged):
    """Follow a clip: the angles q̂ of its joints, and the place p̂ and the rotation of its base.

        r = w₁ exp(-|q - q̂|²/σ_q²) + w₂ exp(-|q̇ - q̂'|²/σ_q̇²) + w₃ exp(-|v_xy - v̂_xy|²/σ_v²)
            + w₄ exp(-|ω - ω̂|²/σ_ω²) + w₅ exp(-|u - û|²/σ_u²) + w₆ exp(-(p_z - p̂_z)²/σ_z²)
            + w₇ exp(-ψ²/σ_ψ²) + w₈ exp(-ψ²/(k σ_ψ)²)
            + w₉ exp(-d²/σ_p²) + w₁₀ exp(-d²/(k σ_p)²) - w₁₁ |a - a'|² - w₁₂ Σ|τ q̇|

    | symbol | meaning | unit, frame |
    |---|---|---|
    | q, q̇, τ | joint angle, speed, torque | rad, rad/s, N m |
    | v, ω | velocity and angular velocity of the base | m/s, rad/s; base |
    | u | world's up, seen from the base (minus projected gravity) | 1; base |
    | p_z | height of the base | m; world |
    | ψ | how far the base's heading is off the clip's | rad; world |
    | d | how far the base is off the clip's place in the plane | m; world |
    | k | `far`: how much wider the second term of ψ and of d is | 1 |
    | a, a' | action, and the one before | 1 |

    | term | part of r |
    |---|---|
    | `joints`, `speeds` | w₁, w₂: the joints as the clip has them |
    | `velocity`, `spin`, `up`, `height` | w₃ to w₆: how the base moves |
    | `heading`, `place` | w₇, w₉: where it looks and where it is; narrow, so that both are exact |
    | `far_heading`, `far_place` | w₈, w₁₀: the same and wide, so that there is a way back |
    | `action_rate`, `power` | w₁₁, w₁₂: what wears a robot |

    Actions move the targets of the servos about the clip's next angles. An episode begins at the
    first frame or at any, and one that follows a fall perhaps shortly before the frame of the fall.
    The last frame is held. Of several clips each episode has one, and the command is its number.

    After BeyondMimic (Liao et al., arXiv:2508.08241, section III) and DeepMimic (Peng et al.,
    arXiv:1804.02717): here joints and base stand for the bodies, whose poses follow from them.
    """

    takes_robot: ClassVar = "whole"
    ranges: ClassVar = dict(action_scale=POSITIVE, anywhere=SHARE, retry=CHANCE, back=AT_LEAST_0)
    ranges |= dict(sigma_joints=POSITIVE, sigma_speeds=POSITIVE, sigma_velocity=POSITIVE)
    ranges |= dict(sigma_spin=POSITIVE, sigma_up=POSITIVE)
    ranges |= dict(sigma_height=POSITIVE, sigma_heading=POSITIVE, sigma_place=POSITIVE)
    ranges |= dict(far=POSITIVE, fall_height=POSITIVE, fall_tilt=POSITIVE)
    ranges |= {f"largest.{x}": POSITIVE for x in ("joints", "place", "heading")}
    # .npz, as `robots.clips.read_clip` reads it, or name → file of several clips
    clip_file: str | dict[str, str]
    action_scale: float  # rad that a unit of action moves a joint's target off the clip
    anywhere: float  # share of the episodes that begin at any frame; the others at the first
    retry: float  # share of the episodes after a fall that begin shortly before it
    back: float  # s: how long before a fall, at most
    sigma_joints: Scheduled[float]  # rad: of all joints together
    sigma_speeds: Scheduled[float]  # rad/s: of all joints together
    sigma_velocity: Scheduled[float]  # m/s
    sigma_spin: Scheduled[float]  # rad/s
    sigma_up: Scheduled[float]
    sigma_height: Scheduled[float]  # m
    sigma_heading: Scheduled[float]  # rad
    sigma_place: Scheduled[float]  # m
    far: Scheduled[float]  # how much wider `far_heading` and `far_place` are
    fall_height: float  # m: a base this much higher or lower than the clip's has fallen
    fall_tilt: float  # rad: so has one whose up is this far off the clip's
    largest: dict[str, float]  # of a success: `joints` [rad], `place` [m], `heading` [rad]
    # rad that a unit of action moves each joint's target; from `action_scale` unless given
    scale: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.base or self.base.joint:
            raise ValueError("task.mjcf: the first joint of a robot that imitates is its free base")
        files = self.clip_file if isinstance(self.clip_file, dict) else {"": self.clip_file}
        self.names, clips = (*files,), [self.read(*file) for file in files.items()]
        if not clips:
            raise ValueError("task.clip_file has no clip: expected NAME: FILE")
        # one clip after another, each from x = y = yaw = 0 on
        self.frames = Frames(*[self.tensor(torch.cat(x)) for x in zip(*clips, strict=True)])
        lengths = torch.tensor([len(clip.joints) for clip in clips])
        self.lasts = self.tensor(lengths.cumsum(0) - 1)  # (K,) frames of the table, as the others
        self.firsts = self.lasts - self.tensor(lengths - 1)
        self.clip_of = self.tensor(torch.arange(len(clips)).repeat_interleave(lengths))  # (T,)
        self.last = len(self.clip_of) - 1
        self.longest = int(lengths.max()) - 1  # control steps
        # s: a servo's damping over its stiffness, by which it would lag behind a moving target
        lag = -self.nominal("actuator_biasprm")[:, 2] / self.nominal("actuator_gainprm")[:, 0]
        self.targets = self.frames.joints + lag * self.frames.speeds
        self.joint_scales = self.tensor(self.scale) if self.scale else self.action_scale
        # the pose in which a robot begins, and to which its guard brings it
        self.rest, self.stance = self.nominal("key_qpos")[0], self.frames.joints[0]
        self.mjm = copy.copy(self.mjm)
        self.mjm.key_qpos[0] = self.posed(self.rest.new_zeros(1), self.stance[None])[0].cpu()
        bound = [1.0] * (self.mjm.nu + 9)
        self.unit = -self.tensor(bound), self.tensor(bound)

    def read(self, name: str, file: str) -> Frames:
        """The frames of a file; ValueError or FileNotFoundError in one line if it does not fit."""
        key = f"task.clip_file.{name}" if name else "task.clip_file"
        clip = read_clip(find_data(key, file))
        try:
            return frames_of(clip, torch.from_numpy(joint_angles(clip, self.mjm)), self.dt)
        except ValueError as error:
            raise ValueError(f"{file}: {error}") from None

    @property
    def command(self):
        """Which of several clips is followed: its number, from 0 on."""
        if len(self.names) < 2:
            return None
        half = (len(self.names) - 1) / 2
        return Command(names=("clip",), units="1", largest=(half,), center=(half,))

    @property
    def estimated(self):
        meaning = "angle about the vertical since the start, the clip's at its first frame"
        return dict(heading=dict(units=["rad"], frame="world", meaning=meaning))

    @property
    def derived(self):
        return dict(heading=lambda s: yaw(s.qpos[:, 3:7])[:, None])

    def at(self, frames, frame):
        """(B, …) rows of a table (T, …) at the frames (B,)."""
        return frames[frame.long().clamp(0, self.last)]

    def next_frame(self, s):
        """(B,) the frame after that of the state, of the clip that is commanded; or its last."""
        if not self.command:
            return (s.frame + 1).clamp(max=self.last)
        clip = s.command[:, 0].round().long().clamp(0, len(self.names) - 1)
        same = self.at(self.clip_of, s.frame) == clip
        frame = torch.where(same, s.frame, self.firsts[clip])
        return torch.minimum(frame + 1, self.lasts[clip])

    def start(self, n, rng):
        unit = rng.uniform("start", *self.unit)
        anywhere = (unit[:, 0] < 2 * self.anywhere - 1).float()
        share = anywhere * (0.5 + 0.5 * unit[:, 1])
        if not self.command:
            return self.pose((share * self.last).floor(), unit)
        clip = rng.integers("clip", len(self.names))[:, 0]
        first = self.firsts[clip]
        return self.pose(first + (share * (self.lasts[clip] - first)).floor(), unit)

    def pose(self, frame, unit):
        """First values near a frame (B,). unit (B, nu + 9) in ±1: how far they are off."""
        goal, joints = self.frames, unit[:, 9:]
        velocity = torch.cat([self.at(goal.way, frame), self.at(goal.spin, frame)], 1)
        low, high = self.joint_limits
        angles = self.at(goal.joints, frame) + 0.05 * joints
        qpos = self.posed(frame, torch.minimum(torch.maximum(angles, low), high))
        qpos = torch.cat([qpos[:, :2], qpos[:, 2:3] + 0.01 * (1 + unit[:, 2:3]), qpos[:, 3:]], 1)
        speeds = self.at(goal.speeds, frame)
        command = dict(command=self.at(self.clip_of, frame)[:, None]) if self.command else {}
        return command | dict(
            qpos=qpos,
            qvel=torch.cat([velocity + 0.2 * unit[:, 3:9], speeds], 1),
            frame=frame,
        )

    def posed(self, frame, angles):
        """(B, nq) the base as at a frame (B,), the joints at angles (B, nu) [rad]."""
        place, turn = self.at(self.frames.place, frame), self.at(self.frames.turn, frame)
        base = torch.cat([place, turn, self.rest[7:].expand(len(place), -1)], 1)
        return self.joint_columns.put(base, angles)

    def next_start(self, start, ended, rng):
        chance, back = rng.uniform("retry", *(x[:2] for x in self.unit)).unbind(1)
        again = (ended.time < self.horizon) & (chance < 2 * self.retry - 1)
        first = self.firsts[self.at(self.clip_of, ended.frame).long()]
        before = ended.frame - (0.5 + 0.5 * back) * (self.back / self.dt)
        frame = torch.where(again, torch.maximum(before, first).floor(), start["frame"])
        return self.pose(frame, rng.uniform("start", *self.unit))

    def evaluation(self):
        """From the first frame to the last, of the longest clip."""
        whole = self.longest * self.dt
        return replace(super().evaluation(), anywhere=0.0, retry=0.0, episode=whole)

    def control(self, s):
        return self.at(self.targets, self.next_frame(s)) + self.joint_scales * s.action

    def update(self, s, rng):
        return dict(frame=self.next_frame(s))

    def off_heading(self, s, frame):
        """(B, 1) how far the heading is off the clip's [rad], in [-π, π)."""
        return wrap(s.heading - self.at(self.frames.heading, frame))

    def off_place(self, s):
        """(B, 2) how far the base is off the clip's place [m]; world."""
        return (s.qpos[:, :3] - self.at(self.frames.place, s.frame))[:, :2]

    def observe(self, s):
        after, goal = self.next_frame(s), self.frames
        return super().observe(s) | dict(
            heading=self.off_heading(s, after),
            goal_joints=self.at(goal.joints, after) - self.stance,
            goal_speeds=self.at(goal.speeds, after),
            goal_velocity=self.at(goal.velocity, after),
            goal_spin=self.at(goal.spin, after),
            goal_up=self.at(goal.up, after),
        )

    def privileged(self, s):
        height = s.qpos[:, 2:3]
        c, sine = s.heading.cos(), s.heading.sin()
        x, y = self.off_place(s).split(1, 1)
        return dict(
            velocity=s.velocity,
            height=height - self.at(self.frames.place, s.frame)[:, 2:3],
            place=torch.cat([c * x + sine * y, c * y - sine * x], 1),  # m; level, along the base
            frame=s.frame[:, None] / self.last,
        )

    def reward(self, s):
        goal = Frames(*[self.at(x, s.frame) for x in self.frames])
        heading, place = self.off_heading(s, s.frame), self.off_place(s)
        return dict(
            joints=gauss(s.joint_pos - goal.joints, self.sigma_joints),
            speeds=gauss(s.joint_vel - goal.speeds, self.sigma_speeds),
            velocity=gauss((s.velocity - goal.velocity)[:, :2], self.sigma_velocity),
            spin=gauss(s.gyro - goal.spin, self.sigma_spin),
            up=gauss(s.up - goal.up, self.sigma_up),
            height=gauss(s.qpos[:, 2:3] - goal.place[:, 2:3], self.sigma_height),
            heading=gauss(heading, self.sigma_heading),
            far_heading=gauss(heading, self.far * self.sigma_heading),
            place=gauss(place, self.sigma_place),
            far_place=gauss(place, self.far * self.sigma_place),
            action_rate=-squared(s.action - s.previous),
            power=-self.power(s),
        )

    def terminated(self, s):
        lag = s.qpos[:, 2] - self.at(self.frames.place, s.frame)[:, 2]
        upright = (s.up * self.at(self.frames.up, s.frame)).sum(1)
        return (lag.abs() > self.fall_height) | (upright < torch.cos(self.constant(self.fall_tilt)))

    def measure(self, s):
        goal = self.frames
        return dict(
            joints=((s.joint_pos - self.at(goal.joints, s.frame)) ** 2).mean(1),
            velocity=squared((s.velocity - self.at(goal.velocity, s.frame))[:, :2]),
            place=squared(self.off_place(s)).sqrt(),
            heading=self.off_heading(s, s.frame).abs()[:, 0],
            action_rate=squared(s.action - s.previous),
            clip=self.at(self.clip_of, s.frame),
        )

    def ghost(self, s):
        """The clip's frame."""
        return self.posed(s.frame, self.at(self.frames.joints, s.frame))

    def score(self, record):
        return imitation_scores(record, self.largest, self.names if self.command else ())


def frames_of(clip: Clip, angles: Tensor, dt: float) -> Frames:
    """The clip at control steps of dt [s], in float64. angles (T, nu) of its joints [rad].

    Between the clip's frames numbers are linear, and quaternions linear and made unit.
    """
    steps = int(clip.seconds / dt + 1e-6)
    if steps < 1:
        raise ValueError(f"task.clip_file: {clip.seconds:g} s are shorter than task.dt={dt}")
    at = torch.arange(steps + 1, dtype=torch.float64) * dt * clip.fps
    low = at.long().clamp(max=len(angles) - 2)

    def between(x: Tensor) -> Tensor:
        return torch.lerp(x[low], x[low + 1], (at - low)[:, None])

    place, turn = torch.from_numpy(clip.base_pos), torch.from_numpy(clip.base_quat)
    joints, place = between(angles), between(place)
    turn = torch.nn.functional.normalize(between(same_side(turn)), dim=1)
    ahead = conjugate(level(turn[:1]))  # from the first frame's heading to yaw 0
    turn = product(ahead.expand_as(turn), turn)
    shift = torch.cat([place[:1, :2], torch.zeros(1, 1, dtype=place.dtype)], 1)
    place = unrotate(conjugate(ahead).expand_as(turn), place - shift)

    def rate(x: Tensor) -> Tensor:
        return torch.cat([x[1:] - x[:-1], torch.zeros_like(x[:1])]) / dt

    spin = log(product(conjugate(turn[:-1]), turn[1:])) / dt
    way, up = rate(place), torch.zeros_like(place)
    up[:, 2] = 1
    return Frames(
        joints=joints,
        speeds=rate(joints),
        place=place,
        turn=turn,
        heading=yaw(turn)[:, None],
        way=way,
        velocity=unrotate(turn, way),
        spin=torch.cat([spin, torch.zeros_like(spin[:1])]),
        up=unrotate(turn, up),
    )


def same_side(q: Tensor) -> Tensor:
    """(T, 4) the same rotations, each quaternion on the side of the one before."""
    flips = torch.where((q[1:] * q[:-1]).sum(1) < 0, -1.0, 1.0).to(q.dtype)
    return q * torch.cat([flips.new_ones(1), flips.cumprod(0)])[:, None]
