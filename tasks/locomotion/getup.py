"""A quadruped that fell gets up: from any rotation, and from any angles of its joints.

The actor observes only what a robot measures.
"""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import mujoco
import torch

from gpusim_rl.core.maths import gauss, rotate, squared, to_matrix, uniform_rotation, yaw_frame
from gpusim_rl.core.ranges import AT_LEAST_0, CHANCE, POSITIVE
from gpusim_rl.core.symmetry import MirrorModule
from gpusim_rl.envs.declarations import Reflection, Scheduled
from gpusim_rl.robots.quadruped.symmetry import leg_mirror
from gpusim_rl.tasks.common.actions import integrated
from gpusim_rl.tasks.common.goal_scores import standing_scores
from gpusim_rl.tasks.common.legged import Legged

FEET = ("FL", "FR", "RL", "RR")


@dataclass(kw_only=True)
class Getup(Legged):
    """Get up from a fall, and stand still in the stance q̄.

        r = w₁ (1 + u_z)/2 + g (w₂ h + w₃ p
            + w₄ h exp(-|q - q̄|²/σ_q² - |v|²/σ_v² - (|ω|² + |q̇|²)/σ² - |a|²/σ_a²))
            - w₅ |a - a'|² - w₆ Σ|τ q̇| - w₇ Σ max(0, |q̇| - q̇_max)² - w₈ Σ_i b_i²

    | symbol | meaning | unit, frame |
    |---|---|---|
    | u | world's up, seen from the trunk (minus projected gravity) | 1; body |
    | g | how far upright: max(0, u_z)² | 1 |
    | h | how tall: min(z/ẑ, 1) of the trunk's height z | 1; world |
    | p | how near the stance: mean over joints of 1 - ln(1 + d_i²)/ln(1 + (π/q₀)²) | 1 |
    | d_i | how far joint i is off the stance, (q_i - q̄_i)/q₀ | 1 |
    | v, ω | velocity and angular velocity of the trunk | m/s, rad/s |
    | q, q̇, q̄, τ | joint angle, speed, stance, torque | rad, rad/s, N m |
    | a, a' | action, and the one before | 1 |
    | b_i | how far joint i is within a margin of a limit, or beyond it | rad |

    | term | of the reward |
    |---|---|
    | `upright` | w₁: half of 1 + u_z, so a robot on its back has a way to go, too |
    | `height`, `posture` | w₂, w₃: only where the trunk is upright |
    | `still` | w₄: stands, and neither robot nor targets move |
    | `action_rate`, `power` | w₅, w₆: costs of changes of the action, and of mechanical power |
    | `fast`, `limits` | w₇, w₈: costs of joint speeds beyond q̇_max, and of angles near a limit |

    An action moves the target of each servo, at most a little ahead of the joint's measured angle;
    the first target is that angle. So with zero actions the robot stays as it fell, while servos
    that hold the stance would get up from one start in seven by themselves. Righting and standing
    up follow Lee et al. 2019 (arXiv:1901.07517), the terms also Go1's getup in MuJoCo Playground
    (arXiv:2502.08844).
    """

    ranges: ClassVar = dict(action_scale=POSITIVE, ahead=POSITIVE, near=POSITIVE, easy=CHANCE)
    ranges |= dict(base_height=POSITIVE, drop=AT_LEAST_0, fastest=AT_LEAST_0, margin=AT_LEAST_0)
    ranges |= dict(sigma=POSITIVE, sigma_pose=POSITIVE)
    ranges |= dict(sigma_velocity=POSITIVE, sigma_action=POSITIVE)
    action_scale: float  # rad that a joint's target moves in a control step, per unit of action
    ahead: float  # rad: largest distance of a target from the measured angle
    drop: Scheduled[float]  # m: height of the robot's lowest point at the start
    easy: float  # share of the episodes, while learning, that start level and near the stance
    base_height: float  # m: height of a trunk that stands
    sigma_velocity: Scheduled[float]  # m/s: of the trunk's velocity where it stands still
    sigma: Scheduled[float]  # rad/s: of all angular velocities there
    sigma_pose: Scheduled[float]  # rad: tolerance of the stance, of all joints together
    sigma_action: Scheduled[float]  # tolerance of the actions of a robot that stands still
    near: float  # rad: a joint that is nearer to the stance counts as there
    fastest: Scheduled[float]  # rad/s: faster joints cost
    margin: Scheduled[float]  # rad: from a joint's limits, within which its angle costs

    def __post_init__(self) -> None:
        super().__post_init__()
        self.stance = self.nominal("key_qpos")[0][self.joint_columns.qpos]
        joints = self.mjm.actuator_trnid[:, 0]
        self.limits = self.joint_limits
        self.unit = self.tensor([-1.0] * 23), self.tensor([1.0] * 23)
        bodies = self.mjm.jnt_bodyid[joints]
        # hip, thigh and calf of each leg: where each is on the one before, its joint's axis
        self.links = self.nominal("body_pos")[bodies].view(4, 3, 3)
        self.axes = self.nominal("jnt_axis")[joints].view(4, 3, 3)
        self.foot = self.tensor(self.mjm.geom("FL").pos)
        corners = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0])] * 3)
        self.corners = self.tensor(corners) * self.tensor(self.mjm.geom("trunk").size)
        motors = self.mjm.geom_type == int(mujoco.mjtGeom.mjGEOM_CYLINDER)
        self.thickest = float(self.mjm.geom_size[motors, 0].max())  # m: radius of a leg

    def change_spec(self, spec):
        """Head, deck and all geoms of the legs touch the ground, legs the trunk and one another."""
        geoms = {geom.name: geom for geom in spec.geoms}
        if missing := {"trunk", *FEET} - geoms.keys():
            expected = "expected those of tasks/assets/quadruped.xml"
            raise ValueError(f"task.mjcf: task=getup finds no geom {min(missing)!r}: {expected}")
        trunk = geoms["trunk"]
        trunk.conaffinity = 2
        for geom in spec.geoms:
            kind = geom.classname.name if geom.classname else ""
            if kind in ("motor", "thigh", "calf") or geom.name in ("head", "deck"):
                geom.contype, geom.conaffinity = 1, 0
                geom.condim, geom.priority, geom.friction = 3, 1, trunk.friction
            if kind in ("thigh", "calf", "foot"):  # a motor cannot reach anything else
                geom.contype, geom.conaffinity = 3, 2
        return spec

    def mjcf_text(self):
        spec = self.change_spec(mujoco.MjSpec.from_string(super().mjcf_text()))
        spec.compile()
        return spec.to_xml()

    @property
    def mirror(self):
        flip = leg_mirror(self.mjm, FEET, (), self.actuator)
        swap = MirrorModule(flip).to(self.device)
        images = lambda s: dict(target=swap(s.target), begun=s.begun)  # noqa: E731
        return Reflection(axis=1, joints=flip, images=images)

    def start(self, n, rng):
        unit = rng.uniform("start", *self.unit)  # (n, 23), each in ±1
        easy = unit[:, 21:22] < 2 * self.easy - 1
        level = yaw_frame(turned := uniform_rotation((1 + unit[:, :3]) / 2))
        low, high = self.limits
        joints = (low + high) / 2 + (high - low) / 2 * unit[:, 3:15]
        share = torch.where(easy, (1 + unit[:, 22:]) / 2, 1.0)  # of the way from the stance
        joints, turned = torch.lerp(self.stance, joints, share), torch.where(easy, level, turned)
        up = to_matrix(turned)[:, 2]  # world's up, seen from the trunk
        lowest = (self.points(joints) * up[:, None]).sum(2).amin(1) - self.thickest
        height = (self.drop - lowest)[:, None]
        return dict(
            qpos=torch.cat([0 * unit[:, :2], height, turned, joints], 1),
            qvel=torch.cat([0.3 * unit[:, 15:21], 0 * joints], 1),
            target=0 * joints,
            begun=0 * height,  # 0 until there is a target; the joints are held until then
        )

    def evaluation(self):
        """No start is easy."""
        return replace(super().evaluation(), easy=0.0)

    def points(self, joints):
        """(B, 20, 3) corners of the trunk, hips, knees and feet [m], in the trunk's frame."""
        half = joints.view(-1, 4, 3, 1) / 2
        hip, thigh, knee = torch.cat([half.cos(), half.sin() * self.axes], -1).unbind(2)
        foot = self.links[:, 2] + rotate(knee, self.foot.expand_as(knee[..., 1:]))
        legs = [0 * foot, self.links[:, 2].expand_as(foot), foot]  # of the thigh
        legs = [self.links[:, 1] + rotate(thigh, x) for x in legs]
        legs = [self.links[:, 0] + rotate(hip, x) for x in legs]
        return torch.cat([self.corners.expand(len(joints), -1, 3), *legs], 1)

    def control(self, s):
        held = torch.where(s.begun > 0, s.target, s.joint_pos)
        return integrated(held, self.action_scale * s.action, self.limits, s.joint_pos, self.ahead)

    def update(self, s, rng):
        return dict(target=self.control(s), begun=torch.ones_like(s.begun))

    def privileged(self, s):
        return dict(
            velocity=s.velocity,
            height=s.qpos[:, 2:3],
            feet=s.span("FL_position", "RR_position")[:, 2::3],  # m: their heights
            torques=s.span(*self.torques),
            lag=s.begun * (s.target - s.joint_pos),
        )

    def reward(self, s):
        off, (low, high) = s.joint_pos - self.stance, self.limits
        upright = s.up[:, 2].clamp(min=0) ** 2
        tall = (s.qpos[:, 2] / self.base_height).clamp(max=1)
        away = torch.log1p((off / self.near) ** 2) / math.log1p((math.pi / self.near) ** 2)
        calm = gauss(s.qvel[:, :3], self.sigma_velocity) * gauss(s.qvel[:, 3:], self.sigma)
        calm = calm * gauss(s.action, self.sigma_action)
        beyond = torch.maximum(low - s.joint_pos, s.joint_pos - high) + self.margin
        return dict(
            upright=(1 + s.up[:, 2]) / 2,
            height=upright * tall,
            posture=upright * (1 - away.mean(1)),
            still=upright * tall * gauss(off, self.sigma_pose) * calm,
            action_rate=-squared(s.action - s.previous),
            power=-self.power(s),
            fast=-squared((s.joint_vel.abs() - self.fastest).clamp(min=0)),
            limits=-squared(beyond.clamp(min=0)),
        )

    def measure(self, s):
        return dict(
            up=s.up[:, 2],
            height=s.qpos[:, 2],
            furthest=(s.joint_pos - self.stance).abs().amax(1),
            velocity=squared(s.velocity),
            spin=squared(s.gyro),
            joints=(s.joint_vel**2).mean(1),
            power=self.power(s),
            fastest=s.joint_vel.abs().amax(1),
            torque=s.span(*self.torques).abs().amax(1),
            action_rate=squared(s.action - s.previous),
        )

    def score(self, record):
        return standing_scores(record, self.dt, self.base_height)
