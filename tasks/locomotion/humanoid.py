"""A humanoid walks on flat ground at commanded velocities, with all joints of its two legs.

The actor observes only what a robot measures.
"""

from dataclasses import dataclass
from typing import ClassVar

import mujoco
import torch

from gpusim_rl.core.maths import squared
from gpusim_rl.envs.declarations import Reflection
from gpusim_rl.tasks.common.scores import walking_scores
from gpusim_rl.tasks.common.walking import StartSpread, Walking

LEGS = ("left", "right")
TOLERANCE = 0.3  # m/s, rad/s: largest errors of velocity and yaw rate of a success
UPRIGHT = 0.5  # least cosine of the base's tilt: beyond 60° it has fallen
FULL = 0.99  # of its largest torque: a joint with more is saturated
LOW = 0.6  # of the wanted height: a base that is lower has fallen


@dataclass(kw_only=True)
class Humanoid(Walking):
    """Walk at a commanded planar velocity and yaw rate c = (c_x, c_y, c_ω); stand still at c = 0.

        r = w₁ exp(-|v_xy - c_xy|²/σ²) + w₂ exp(-(ω_z - c_ω)²/σ²)
            + w₃ exp(-Σ_f (z_f - ẑ_f)²/σ_z²) - w₄ v_z² - w₅ |ω_xy|² - w₆ |u_xy|² - w₇ (z - ẑ)²
            - w₈ |a - a'|² - w₉ Σ|τ q̇| + w₁₀ - w₁₁ Σ_j s_j (q_j - q̄_j)² - w₁₂ Σ_f |n_xy,f|²
            - w₁₃ Σ_f n_f |ṗ_f|² - w₁₄ (min(|ē_xy|, δ) + min(|ē_ω|, δ))

    | symbol | meaning | unit, frame |
    |---|---|---|
    | v, ω | velocity and angular velocity of the base | m/s, rad/s; body |
    | c | command, or what moves to it by `acceleration` | m/s, m/s, rad/s; body |
    | z_f, ẑ_f | height of a sole; the clock's: `swing_height` · max(0, sin 2πφ_f) | m; world |
    | u | world's up, seen from the base (minus projected gravity) | 1; body |
    | z, ẑ | height of the base, and the wanted one | m; world |
    | a, a' | action, and the one before | 1 |
    | τ, q, q̇, q̄ | joint torque, angle, speed, stance | N m, rad, rad/s |
    | s_j | 1 - (e_j · y)² of a joint's axis e_j: 1 if it bends no leg forward | 1 |
    | n_xy,f | horizontal part of a sole's normal | 1; world |
    | n_f, ṗ_f | 1 where the clock has the foot stand; foot velocity in the plane | 1, m/s; world |
    | ē | mean of (v, ω) - c, over about half a second | m/s, rad/s; body |

    | term | part of r |
    |---|---|
    | `velocity`, `yaw`, `feet` | w₁ to w₃: what is commanded, and what the clock asks for |
    | `vertical_speed`, `roll_pitch_rate`, `tilt`, `height` | w₄ to w₇: how the base moves |
    | `action_rate`, `power` | w₈, w₉: what wears a robot |
    | `alive` | w₁₀: paid until it falls |
    | `joint_deviation`, `level`, `feet_slide` | w₁₁ to w₁₃: legs, soles and feet that stand |
    | `mean_error` | w₁₄: that of half a second, which w₁ and w₂ hardly feel; δ is 0.5 |

    The clock moves the two feet in antiphase. A unit of action moves the target of a joint by as
    much as makes `action_scale` of its largest torque τ_max, as in mjlab: by action_scale · τ_max
    / kp.

    Terms follow legged_gym (arXiv:2109.11978, table 3); the clocked feet follow Siekmann et al.
    (arXiv:2011.01387).
    """

    takes_robot: ClassVar = "humanoid"
    feet_names: ClassVar = LEGS
    knee: ClassVar = 3
    offsets: ClassVar = (0.0, 0.5)
    spread: ClassVar = StartSpread(height=0.01, tilt=0.05, speed=0.2)
    least_command: ClassVar = 0.05

    def __post_init__(self) -> None:
        super().__post_init__()
        m = self.mjm
        full = m.actuator_forcerange[:, 1] / m.actuator_gainprm[:, 0]  # rad, to the largest torque
        self.joint_scales = self.tensor(self.scale or self.action_scale * full)
        self.torque_limit = self.nominal("actuator_forcerange")[:, 1]  # N m
        joints = m.actuator_trnid[:, 0]
        self.low, self.high = self.joint_limits
        d = mujoco.MjData(m)
        mujoco.mj_resetDataKeyframe(m, d, 0)
        mujoco.mj_kinematics(m, d)
        self.sideways = self.tensor(1 - d.xaxis[joints, 1] ** 2)

    @property
    def mirror(self):
        return Reflection(axis=1, images=self.images)

    def feet(self, s):
        return self.places(s)[..., 2]

    def level(self, s):
        """(B,) Σ sin² of the angles between the soles and the ground."""
        return squared(s.span("left_up", "right_up").unflatten(1, (2, 3))[..., :2]).sum(1)

    def reward(self, s):
        return super().reward(s) | dict(
            joint_deviation=-((s.joint_pos - self.stance) ** 2 * self.sideways).sum(1),
            level=-self.level(s),
            feet_slide=-self.slide(s),
        )

    def terminated(self, s):
        return (s.up[:, 2] < UPRIGHT) | (self.height_above_ground(s) < LOW * self.base_height)

    def measure(self, s):
        """Measures of walking, and of what wears a robot down, each a mean over its joints."""
        torque = s.span(*self.torques).abs()
        beyond = torch.relu(self.low - s.joint_pos) + torch.relu(s.joint_pos - self.high)
        return super().measure(s) | dict(
            saturated=(torque > FULL * self.torque_limit).float().mean(1),
            beyond=(beyond > 0).float().mean(1),
        )

    def score(self, record):
        """Scores of walking; means of joints at full torque or beyond limits, and of the squared
        change of the action."""
        wear = {name: record[name].mean().item() for name in ("saturated", "beyond")}
        wear["action_rate"] = (record["action_rate"] ** 2).mean().item()
        return walking_scores(record, self.dt, self.gait, TOLERANCE) | wear
