"""A cart swings its pole up and balances it: a small task, learned in half a minute."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from gpusim_rl.core.maths import gauss
from gpusim_rl.core.ranges import AT_LEAST_0, POSITIVE
from gpusim_rl.envs.declarations import Reflection, Scheduled
from gpusim_rl.envs.task import Task
from gpusim_rl.tasks.common.scores import balance_scores

UPRIGHT_COSINE = math.cos(math.radians(18))  # of the angle within which a sparse reward is paid


@dataclass(kw_only=True)
class Cartpole(Task):
    """Swing the pole up from hanging by pushing the cart, and balance it in the middle of the rail.

        r = w₁ u + w₂ u exp(-x²/σ²) + w₃ u exp(-θ̇²/σ_θ²) - w₄ a²,   u = (1 + cos θ)/2

    | symbol | meaning | unit, frame |
    |---|---|---|
    | x | cart position; middle of the rail: 0 | m; world |
    | θ, θ̇ | pole angle from upright (hanging: π), speed | rad, rad/s |
    | u | how upright: 1 upright, 0 hanging; with `sparse` 1 within 18° of upright, else 0 | 1 |
    | a | action: share of the largest force on the cart, 10 N | 1 |
    | σ, σ_θ | tolerances | m, rad/s |

    | term | part of r |
    |---|---|
    | `upright`, `centred`, `calm` | w₁, w₂, w₃ |
    | `control` | w₄ |

    Episodes end by time alone; the ends of the rail are stops. The task is the cartpole swingup of
    dm_control's suite (Tassa et al., arXiv:1801.00690), whose reward is a product of the same four
    terms. Here they are added; two are multiplied by u, so that a hanging pole earns neither. The
    model goes back to Barto, Sutton and Anderson, IEEE Trans. SMC 13 (1983).
    """

    ranges: ClassVar = dict(sigma=POSITIVE, sigma_speed=POSITIVE, spread=AT_LEAST_0)
    sigma: Scheduled[float]  # m: tolerance of the cart's position
    sigma_speed: Scheduled[float]  # rad/s: tolerance of the pole's speed
    # rad, m: half-width of the first pole angle about π, and of the first position
    spread: Scheduled[float]
    sparse: bool = False  # u is 1 within NEAR of upright, else 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.rest = self.nominal("key_qpos")[0]  # hanging
        self.bounds = self.tensor([-1.0] * 4), self.tensor([1.0] * 4)

    @property
    def mirror(self):
        return Reflection(axis=0)

    def start(self, n, rng):
        unit = rng.uniform("start", *self.bounds)  # (n, 4), each in ±1
        return dict(qpos=self.rest + self.spread * unit[:, :2], qvel=0.1 * unit[:, 2:])

    def observe(self, s):
        return dict(
            cart=s.joint_pos,
            pole=torch.cat([s.pole_angle.cos(), s.pole_angle.sin()], 1),
            speeds=torch.cat([s.joint_vel, s.pole_speed], 1),
        )

    def reward(self, s):
        cos = s.qpos[:, 1].cos()
        upright = (cos > UPRIGHT_COSINE).float() if self.sparse else (1 + cos) / 2
        return dict(
            upright=upright,
            centred=upright * gauss(s.qpos[:, :1], self.sigma),
            calm=upright * gauss(s.qvel[:, 1:], self.sigma_speed),
            control=-(s.action[:, 0] ** 2),
        )

    def measure(self, s):
        return dict(cos=s.qpos[:, 1].cos(), x=s.qpos[:, 0], control=s.action[:, 0] ** 2)

    def score(self, record):
        return balance_scores(record, self.dt)
