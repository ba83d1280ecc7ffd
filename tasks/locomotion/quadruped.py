"""A quadruped of 12 joints walks on flat ground at commanded velocities.

The actor observes only what a robot measures.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from gpusim_rl.core.maths import from_euler, gauss, squared
from gpusim_rl.core.ranges import AT_LEAST_0, CHANCE, POSITIVE, Range
from gpusim_rl.envs.declarations import Command, Reflection, Scheduled
from gpusim_rl.envs.scores import walking_scores
from gpusim_rl.envs.task import Task
from gpusim_rl.robots.quadruped.symmetry import leg_mirror

FEET = ("FL", "FR", "RL", "RR")
GATE = 0.1  # a command of a smaller norm asks to stand


@dataclass(kw_only=True)
class Quadruped(Task):
    """Walk at a commanded planar velocity and yaw rate c = (c_x, c_y, c_ω); stand still at c = 0.

        r = w₁ exp(-|v_xy - c_xy|²/σ²) + w₂ exp(-(ω_z - c_ω)²/σ²)
            + w₃ exp(-Σ_f (z_f - ẑ_f)²/σ_z²) - w₄ v_z² - w₅ |ω_xy|² - w₆ |u_xy|² - w₇ (z - ẑ)²
            - w₈ |a - a'|² - w₉ Σ|τ q̇| - w₁₀ |q - q̄|² - w₁₁ Σ_f n_f |ṗ_f|²

    | symbol | meaning | unit, frame |
    |---|---|---|
    | v, ω | trunk velocity and angular velocity | m/s, rad/s; body |
    | c | command | m/s, m/s, rad/s; body |
    | z_f, ẑ_f | foot height, and that of the gait clock: lift · max(0, sin 2πφ_f) | m; world |
    | u | world's up, seen from the trunk (minus projected gravity) | 1; body |
    | z, ẑ | trunk height, and the wanted one | m; world |
    | a, a' | action, and the one before | 1 |
    | τ, q, q̇, q̄ | joint torque, angle, speed, stance | N m, rad, rad/s |
    | n_f, ṗ_f | 1 where the clock has the foot stand; foot velocity in the plane | 1, m/s; world |

    The terms are `velocity`, `yaw`, `feet`, `vertical`, `tumble`, `tilt`, `height`, `jerk`,
    `power`, `pose` and `slip`, in this order. The clock moves diagonal pairs of legs in antiphase:
    a trot.

    Terms follow legged_gym (arXiv:2109.11978, table 3); the clocked feet follow Siekmann et al.
    (arXiv:2011.01387).
    """

    takes_robot: ClassVar = True
    ranges: ClassVar = dict(
        reach=POSITIVE,
        fastest=AT_LEAST_0,
        redraw=POSITIVE,
        still=CHANCE,
        sigma=POSITIVE,
        sigma_feet=POSITIVE,
        height=POSITIVE,
        lift=AT_LEAST_0,
        gait=POSITIVE,
        step=Range(-3.1416, 3.1416),
    )
    reach: float  # rad of joint target per unit of action
    fastest: Scheduled[tuple[float, float, float]]  # m/s, m/s, rad/s: commands are uniform within ±
    redraw: float  # s: time between two commands
    still: Scheduled[float]  # share of episodes whose command stays zero
    sigma: Scheduled[float]  # m/s, rad/s: tolerance of the tracking terms
    sigma_feet: Scheduled[float]  # m: tolerance of the height of the feet
    height: Scheduled[float]  # m: height of the trunk
    lift: Scheduled[float]  # m: highest point of a swinging foot
    gait: Scheduled[float]  # Hz: frequency of the clock
    step: tuple[float, float, float]  # rad: how far the clock bends a swinging leg's joints
    foot_geoms: tuple[str, ...] = FEET  # the feet's geoms, spheres
    # rad of each joint's target per unit of action; `reach` unless given
    scale: tuple[float, ...] = ()
    # (12,) direction of the joints that lifts each foot, times the knee's step; `step` unless given
    lift_direction: tuple[float, ...] = ()
    # signs of the joints in a mirror, in the order of ctrl; from the model unless given
    signs: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.gait > 0.5 / self.dt:
            expected = "expected two control steps a turn at least"
            raise ValueError(f"task.gait={self.gait} Hz: {expected}")
        key = self.nominal("key_qpos")[0]
        self.rest, self.stance = key, key[self.joint_columns.qpos]
        # m, height of the center of a foot that stands: its radius
        self.ground = float(self.mjm.geom(self.foot_geoms[0]).size[0])
        self.reaches = self.tensor(self.scale) if self.scale else self.reach
        # turns of the clock, per foot: FL and RR move together
        self.offsets = self.tensor([0.0, 0.5, 0.5, 0.0])
        lifts = self.tensor(self.lift_direction or self.step * 4).view(4, 3)
        self.bend = abs(self.step[2]) * lifts if self.lift_direction else lifts
        # bounds of the numbers that `start` draws
        self.unit = self.tensor([-1.0] * 20), self.tensor([1.0] * 20)

    @property
    def command(self):
        return Command(
            names=("forward", "left", "turn"),
            units=("m/s", "m/s", "rad/s"),
            mirrored=("left", "turn"),
            largest=self.fastest,
            redraw=self.redraw,
        )

    @property
    def mirror(self):
        joints = leg_mirror(self.mjm, self.foot_geoms, self.signs, self.actuator)
        # The legs change sides, so the clock is half a turn on.
        return Reflection(axis=1, joints=joints, images=lambda s: dict(phase=s.phase + 0.5))

    def start(self, n, rng):
        unit = rng.uniform("start", *self.unit)  # (n, 20), each in ±1
        still = (unit[:, 18] < 2 * self.still - 1).float()
        turned = from_euler(0.1 * unit[:, 3], 0.1 * unit[:, 4], math.pi * unit[:, 5])
        height, joints = self.rest[2] + 0.02 * (1 + unit[:, 2:3]), self.rest[7:].expand(n, -1)
        qpos = torch.cat([0 * unit[:, :2], height, turned, joints], 1)
        return dict(
            qpos=self.joint_columns.put(qpos, self.stance + 0.1 * unit[:, 6:18]),
            qvel=torch.cat([0.3 * unit[:, :6], 0 * unit[:, 6:18]], 1),
            command=self.draw_command(rng) * (1 - still)[:, None],
            still=still,
            phase=0.5 + 0.5 * unit[:, 19],
        )

    def update(self, s, rng):
        again = (self.steps_since_command(s) == 0)[:, None]
        fresh = self.draw_command(rng) * (1 - s.still)[:, None]
        return dict(
            command=torch.where(again, fresh, s.command),
            phase=(s.phase + self.dt * self.gait) % 1.0,
        )

    def control(self, s):
        bend = (self.swing(s)[:, :, None] * self.bend).flatten(1)
        return self.stance + self.reaches * s.action + bend

    def moving(self, s):
        """(B,) 1 where a motion is commanded, else 0."""
        return (squared(s.command) > GATE**2).float()

    def observe(self, s):
        angle = 2 * math.pi * s.phase[:, None]
        return dict(
            gyro=s.gyro,
            up=s.up,
            joints=s.joint_pos - self.stance,
            speeds=s.joint_vel,
            action=s.action,
            command=s.command,
            clock=self.moving(s)[:, None] * torch.cat([angle.cos(), angle.sin()], 1),
        )

    def privileged(self, s):
        return dict(velocity=s.velocity, height=self.tall(s)[:, None], feet=self.feet(s))

    def feet(self, s):
        """(B, 4) height of each foot's lowest point above the ground [m]."""
        return s.span("FL_position", "RR_position")[:, 2::3] - self.ground

    def tall(self, s):
        """(B,) height of the trunk above the ground [m]."""
        return s.qpos[:, 2]

    def swing(self, s):
        """(B, 4) how far the clock lifts each foot, in [0, 1]: 0 stands, 1 is a swing's top."""
        turned = 2 * math.pi * (s.phase[:, None] + self.offsets)
        return self.moving(s)[:, None] * turned.sin().clamp(min=0)

    def power(self, s):
        """(B,) mechanical power, Σ|τ q̇| [W]."""
        return (s.span("FL_abduction_torque", "RR_knee_torque") * s.joint_vel).abs().sum(1)

    def reward(self, s):
        swing = self.swing(s)
        velocities = s.span("FL_velocity", "RR_velocity").unflatten(1, (4, 3))
        slide = squared(velocities[..., :2])  # (B, 4)
        return dict(
            velocity=gauss(s.velocity[:, :2] - s.command[:, :2], self.sigma),
            yaw=gauss(s.gyro[:, 2:] - s.command[:, 2:], self.sigma),
            feet=gauss(self.feet(s) - self.lift * swing, self.sigma_feet),
            vertical=-(s.velocity[:, 2] ** 2),
            tumble=-squared(s.gyro[:, :2]),
            tilt=-squared(s.up[:, :2]),
            height=-((self.tall(s) - self.height) ** 2),
            jerk=-squared(s.action - s.previous),
            power=-self.power(s),
            pose=-squared(s.joint_pos - self.stance),
            slip=-(slide * (swing == 0)).sum(1),
        )

    def terminated(self, s):
        return (s.up[:, 2] < 0.3) | (self.tall(s) < self.height / 2)

    def measure(self, s):
        # The first second after a draw is ignored.
        settled = (self.steps_since_command(s) >= round(1.0 / self.dt)).float()
        error = squared(s.velocity[:, :2] - s.command[:, :2])
        feet = self.feet(s)
        return dict(
            settled=settled,
            velocity_error=settled * error,
            yaw_error=settled * (s.gyro[:, 2] - s.command[:, 2]) ** 2,
            moving=self.moving(s),
            power=self.power(s),
            speed=squared(s.velocity[:, :2]).sqrt(),
            x=s.qpos[:, 0],
            y=s.qpos[:, 1],
            **{f"foot_{foot}": feet[:, i] for i, foot in enumerate(FEET)},
        )

    def score(self, record):
        return walking_scores(record, self.dt, self.gait)
