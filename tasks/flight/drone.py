"""A quadrotor flies to commanded points and hovers there in wind, by the thrusts of its rotors."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from gpusim_rl.core.maths import from_euler, gauss, squared, unrotate
from gpusim_rl.core.ranges import POSITIVE, Range
from gpusim_rl.envs.declarations import Command, Reflection, Scheduled
from gpusim_rl.envs.task import Task
from gpusim_rl.tasks.common.goal_scores import hover_scores

LOWEST, FURTHEST = 0.1, 4.0  # m: a drone below this height, or further from its point, has crashed
STEEP = 0.5  # cosine of the tilt from which it is penalized: 60°
WORLD_UP = (0.0, 0.0, 1.0)


@dataclass(kw_only=True)
class Drone(Task):
    """Fly to the point c, and hover there in a steady wind that no sensor measures.

        r = w₁ (1 - tanh(d/σ)) + w₂ exp(-d²/σ_f²) - w₃ |v|² - w₄ |ω|² - w₅ max(0, ½ - u)²
            - w₆ |a - a'|² - w₇ [crash]/dt

    | symbol | meaning | unit, frame |
    |---|---|---|
    | p, c | position, and the commanded one | m; world |
    | d | abs(p - c) | m |
    | v, ω | velocity and angular velocity | m/s; world, rad/s; body |
    | u | cosine of the tilt: ½ at 60° | 1 |
    | a, a' | action, and the one before: share of `authority` times the thrust of hovering | 1 |
    | crash | 1 where it is lower than 0.1 m, 4 m from c, or tilted by more than 120° | 1 |
    | σ, σ_f | tolerances, wide and narrow | m |

    | term | part of r |
    |---|---|
    | `near`, `fine` | w₁, w₂: felt from afar, and close to the point |
    | `slow`, `spin`, `tilt`, `action_rate` | w₃ to w₆: how it flies |
    | `crash` | w₇: a bonus, so it counts once |

    The rotors follow their controls with a lag. A state estimator gives position and velocity, as
    that of a Crazyflie with a positioning system does. The robot's memory has the leaky integral of
    c - p, by which it can lean into the wind. The terms follow Kaufmann et al. (arXiv:2202.10796,
    Table I); hovering by thrusts of single rotors follows Hwangbo et al. (arXiv:1707.05110).
    """

    ranges: ClassVar = dict(
        authority=Range(0.0, 1.0, above=True),
        largest=POSITIVE,
        height=POSITIVE,
        redraw=POSITIVE,
        sigma=POSITIVE,
        sigma_fine=POSITIVE,
        leak=POSITIVE,
    )
    authority: float  # largest change of a rotor's thrust, as a share of that of hovering
    largest: Scheduled[tuple[float, float, float]]  # m: half-widths of the box of commanded points
    height: float  # m: of the middle of that box
    redraw: float  # s: time between two commands
    sigma: Scheduled[float]  # m: wide tolerance
    sigma_fine: Scheduled[float]  # m: narrow tolerance
    leak: float  # s: time constant of the integral of the error

    def __post_init__(self) -> None:
        super().__post_init__()
        weight = float(self.mjm.body_mass.sum() * -self.mjm.opt.gravity[2])  # N
        self.hover = weight / self.mjm.nu
        self.unit = self.tensor([-1.0] * 12), self.tensor([1.0] * 12)

    @property
    def command(self):
        return Command(
            names=("x", "y", "z"),
            units="m",
            largest=self.largest,
            center=(0.0, 0.0, self.height),
            redraw=self.redraw,
            mirrored=("y",),
            shown_by="target",
        )

    @property
    def mirror(self):
        return Reflection(axis=1, images=lambda s: dict(drift=s.drift * self.constant((1, -1, 1))))

    @property
    def estimated(self):
        return dict(
            position=dict(units=["m"] * 3, frame="world", meaning="position of site imu"),
            velocity=dict(units=["m/s"] * 3, frame="world", meaning="velocity of site imu"),
        )

    def start(self, n, rng):
        unit = rng.uniform("start", *self.unit)  # (n, 12), each in ±1
        place = self.constant((0.0, 0.0, self.height)) + self.command_limit * unit[:, :3]
        turned = from_euler(0.5 * unit[:, 3], 0.5 * unit[:, 4], math.pi * unit[:, 5])
        return dict(
            qpos=torch.cat([place, turned], 1),
            qvel=torch.cat([0.5 * unit[:, 6:9], unit[:, 9:]], 1),
            command=self.draw_command(rng),
            drift=0 * place,
        )

    def update(self, s, rng):
        again = (self.steps_since_command(s) == 0)[:, None]
        error = (s.command - s.position).clamp(-0.2, 0.2)  # m: a long way is no drift
        return dict(
            command=torch.where(again, self.draw_command(rng), s.command),
            drift=s.drift + self.dt * (error - s.drift / self.leak),
        )

    def control(self, s):
        return self.hover * (1 + self.authority * s.action)

    def observe(self, s):
        # the attitude is normalized, since noise is added to its four numbers
        q = torch.nn.functional.normalize(s.attitude, dim=1)
        up = self.constant(WORLD_UP).expand_as(s.gyro)
        return dict(
            up=unrotate(q, up),
            gyro=s.gyro,
            velocity=unrotate(q, s.velocity),
            goal=unrotate(q, s.command - s.position),
            drift=unrotate(q, s.drift),
            action=s.action,
        )

    def privileged(self, s):
        thrusts = s.span("FL_thrust", "RR_thrust") / self.hover - 1
        return dict(distance=self.distance(s)[:, None], thrusts=thrusts)

    def distance(self, s):
        """(B,) distance from the commanded point [m]."""
        return squared(s.command - s.qpos[:, :3]).sqrt()

    def up(self, s):
        """(B,) cosine of the tilt: the vertical component of the body's z axis."""
        return 1 - 2 * squared(s.qpos[:, 4:6])

    def reward(self, s):
        distance = self.distance(s)
        return dict(
            near=1 - torch.tanh(distance / self.sigma),
            fine=gauss(distance[:, None], self.sigma_fine),
            slow=-squared(s.qvel[:, :3]),
            spin=-squared(s.qvel[:, 3:]),
            tilt=-((STEEP - self.up(s)).clamp(min=0) ** 2),
            action_rate=-squared(s.action - s.previous),
        )

    def bonus(self, s):
        return dict(crash=-self.terminated(s).float())

    def terminated(self, s):
        return (s.qpos[:, 2] < LOWEST) | (self.distance(s) > FURTHEST) | (self.up(s) < -0.5)

    def measure(self, s):
        thrusts = s.span("FL_thrust", "RR_thrust") / self.hover
        return dict(
            distance=self.distance(s),
            speed=squared(s.qvel[:, :3]).sqrt(),
            spin=squared(s.qvel[:, 3:]).sqrt(),
            action_rate=squared(s.action - s.previous),
            saturated=(s.action.abs() >= self.clip).float().mean(1),
            # The power that a rotor takes goes with thrust to the power of 3/2 (momentum theory).
            power=(thrusts.clamp(min=0) ** 1.5).mean(1),
        )

    def score(self, record):
        return hover_scores(record, self.dt, self.steps_of_command)
