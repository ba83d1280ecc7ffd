"""A quadruped of 12 joints walks on flat ground at commanded velocities.

The actor observes only what a robot measures.
"""

from dataclasses import dataclass
from typing import ClassVar

from gpusim_rl.core.maths import squared
from gpusim_rl.envs.declarations import Reflection
from gpusim_rl.robots.quadruped.symmetry import leg_mirror
from gpusim_rl.tasks.common.scores import walking_scores
from gpusim_rl.tasks.common.walking import Walking

FEET = ("FL", "FR", "RL", "RR")


@dataclass(kw_only=True)
class Quadruped(Walking):
    """Walk at a commanded planar velocity and yaw rate c = (c_x, c_y, c_ω); stand still at c = 0.

        r = w₁ exp(-|v_xy - c_xy|²/σ²) + w₂ exp(-(ω_z - c_ω)²/σ²)
            + w₃ exp(-Σ_f (z_f - ẑ_f)²/σ_z²) - w₄ v_z² - w₅ |ω_xy|² - w₆ |u_xy|² - w₇ (z - ẑ)²
            - w₈ |a - a'|² - w₉ Σ|τ q̇| - w₁₀ |q - q̄|² - w₁₁ Σ_f n_f |ṗ_f|²
            - w₁₂ (min(|ē_xy|, δ) + min(|ē_ω|, δ)) + w₁₃

    | symbol | meaning | unit, frame |
    |---|---|---|
    | v, ω | trunk velocity and angular velocity | m/s, rad/s; body |
    | c | command, or what moves to it by `acceleration` | m/s, m/s, rad/s; body |
    | z_f, ẑ_f | foot height; the clock's: `swing_height` · max(0, sin 2πφ_f) | m; world |
    | u | world's up, seen from the trunk (minus projected gravity) | 1; body |
    | z, ẑ | trunk height, and the wanted one | m; world |
    | a, a' | action, and the one before | 1 |
    | τ, q, q̇, q̄ | joint torque, angle, speed, stance | N m, rad, rad/s |
    | n_f, ṗ_f | 1 where the clock has the foot stand; foot velocity in the plane | 1, m/s; world |
    | ē | mean of (v, ω) - c, over about half a second | m/s, rad/s; body |

    | term | part of r |
    |---|---|
    | `velocity`, `yaw`, `feet` | w₁ to w₃: what is commanded, and what the clock asks for |
    | `vertical_speed`, `roll_pitch_rate`, `tilt`, `height` | w₄ to w₇: how the trunk moves |
    | `action_rate`, `power` | w₈, w₉: what wears a robot |
    | `joint_deviation`, `feet_slide` | w₁₀, w₁₁: how it stands |
    | `mean_error` | w₁₂: that of half a second, which w₁ and w₂ hardly feel; δ is 0.5 |
    | `alive` | w₁₃: paid until it falls |

    The clock moves diagonal pairs of legs in antiphase: a trot.

    Terms follow legged_gym (arXiv:2109.11978, table 3); the clocked feet follow Siekmann et al.
    (arXiv:2011.01387).
    """

    takes_robot: ClassVar = "quadruped"
    feet_names: ClassVar = FEET
    knee: ClassVar = 2
    offsets: ClassVar = (0.0, 0.5, 0.5, 0.0)  # FL and RR move together
    foot_geoms: tuple[str, ...] = FEET  # the feet's geoms, spheres
    # signs of the joints in a mirror, in the order of ctrl; from the model unless given
    signs: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        # m, height of the center of a foot that stands: its radius
        self.ground = float(self.mjm.geom(self.foot_geoms[0]).size[0])
        # `action_scale` is in rad of joint target per unit of action
        self.joint_scales = self.tensor(self.scale) if self.scale else self.action_scale

    @property
    def mirror(self):
        joints = leg_mirror(self.mjm, self.foot_geoms, self.signs, self.actuator)
        return Reflection(axis=1, joints=joints, images=self.images)

    def feet(self, s):
        return self.places(s)[..., 2] - self.ground

    def reward(self, s):
        return super().reward(s) | dict(
            joint_deviation=-squared(s.joint_pos - self.stance),
            feet_slide=-self.slide(s),
        )

    def terminated(self, s):
        return (s.up[:, 2] < 0.3) | (self.height_above_ground(s) < self.base_height / 2)

    def score(self, record):
        return walking_scores(record, self.dt, self.gait)
