"""A robot on two wheels stays upright and drives as it is told."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from gpusim_rl.core.maths import from_euler, gauss, squared
from gpusim_rl.core.ranges import POSITIVE
from gpusim_rl.envs.declarations import Command, Reflection, Scheduled
from gpusim_rl.envs.task import Task


@dataclass(kw_only=True)
class Balancer(Task):
    """r = w₁ exp(-(v - v_c)²/σ²) + w₂ exp(-(ω - ω_c)²/σ²) - w₃ |a - a'|² - w₄ [fall]/dt"""

    ranges: ClassVar = dict(fastest=POSITIVE, redraw=POSITIVE, sigma=POSITIVE)
    fastest: tuple[float, ...]  # largest commands: speed [m/s], turn [rad/s]
    redraw: float  # time between two commands [s]
    sigma: Scheduled[float]  # tolerance [m/s, rad/s]

    @property
    def command(self):
        names, how = ("speed", "turn"), dict(largest=self.fastest, mirrored=("turn",))
        return Command(names=names, units=("m/s", "rad/s"), redraw=self.redraw, **how)

    @property
    def mirror(self):
        return Reflection(axis=1)  # left and right

    def start(self, n, rng):
        lean, yaw = rng.uniform("start", *self.constant(((-0.2, -3.1), (0.2, 3.1)))).unbind(1)
        place = self.nominal("qpos0")[:3].expand(n, 3)
        qpos = torch.cat([place, from_euler(0 * lean, lean, yaw), 0 * place[:, :2]], 1)
        return dict(qpos=qpos, qvel=0 * qpos[:, 1:], command=self.draw_command(rng))

    def update(self, s, rng):
        again = (self.steps_since_command(s) == 0)[:, None]
        return dict(command=torch.where(again, self.draw_command(rng), s.command))

    def observe(self, s):
        return dict(up=s.up, gyro=s.gyro, wheels=s.joint_vel, command=s.command, action=s.action)

    def privileged(self, s):
        return dict(velocity=s.velocity, loads=torch.cat([s.left_load, s.right_load], 1))

    def errors(self, s):
        """(B, 2) of the axle's speed, 0.1 m below the IMU [m/s], and of the turn [rad/s]."""
        speed = s.velocity[:, 0] - 0.1 * s.gyro[:, 1]
        return torch.stack([speed, s.gyro[:, 2]], 1) - s.command

    def reward(self, s):
        speed, turn = (gauss(x, self.sigma) for x in self.errors(s).split(1, 1))
        return dict(speed=speed, turn=turn, action_rate=-squared(s.action - s.previous))

    def terminated(self, s):
        return s.up[:, 2] < 0.5  # it leans by more than 60°

    def bonus(self, s):
        return dict(fall=-self.terminated(s).float())

    def measure(self, s):
        tracked = (self.steps_since_command(s) * self.dt > 2.0).float()  # it had two seconds
        speed, turn = (tracked[:, None] * self.errors(s).square()).unbind(1)
        return dict(speed=speed, turn=turn, tracked=tracked)

    def score(self, record):
        count, fell = record["tracked"].sum(0).clamp(min=1), record["terminated"].any(0)
        speed, turn = ((record[x].sum(0) / count).sqrt() for x in ("speed", "turn"))
        good = ~fell & (speed < 0.15) & (turn < 0.15)  # root mean squares of an episode
        scores = dict(success=good, fell=fell, speed_error=speed, turn_error=turn)
        return {name: x.float().mean().item() for name, x in scores.items()}
