"""A quadruped that fell gets up: from any rotation and any angles of its joints.

The actor observes only what a robot measures.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import mujoco
import torch

from gpusim_rl.core.maths import gauss, rotate, squared, to_matrix, uniform_rotation
from gpusim_rl.core.ranges import AT_LEAST_0, POSITIVE
from gpusim_rl.envs.declarations import Reflection, Scheduled
from gpusim_rl.envs.task import Task
from gpusim_rl.robots.quadruped.symmetry import leg_mirror

FEET = ("FL", "FR", "RL", "RR")
LEGS = ("motor", "thigh", "calf")  # classes of the geoms of legs that touch the ground here
THICKEST = 0.045  # m: radius of the motors, the thickest geoms of a leg


@dataclass(kw_only=True)
class Getup(Task):
    """Get up from a fall, and stand still in the stance q̄.

        r = w₁ (1 + u_z)/2 + h (w₂ min(z/ẑ, 1) + w₃ exp(-|q - q̄|²/σ²)
            + w₄ min(z/ẑ, 1) exp(-(|q̇|² + |v|² + |ω|²)/σ_v²))
            - w₅ |a - a'|² - w₆ Σ|τ q̇| - w₇ Σ max(0, |q̇| - q̇_max)² - w₈ Σ max(0, |q - q_m| - ρ)²

    """

    ranges: ClassVar = dict(
        reach=POSITIVE,
        drop=AT_LEAST_0,
        height=POSITIVE,
        sigma=POSITIVE,
        sigma_speed=POSITIVE,
        fastest=POSITIVE,
        margin=AT_LEAST_0,
    )
    reach: float  # rad between a joint's target and its measured angle, per unit of action
    drop: Scheduled[float]  # m: height of the lowest point at the start
    height: Scheduled[float]  # m: height of the trunk that stands
    sigma: Scheduled[float]  # rad: tolerance of the stance
    sigma_speed: Scheduled[float]  # rad/s, m/s: tolerance of speeds
    fastest: Scheduled[float]  # rad/s: joint speeds beyond it cost
    margin: Scheduled[float]  # rad: distance from a joint's limits within which angles cost

    def __post_init__(self) -> None:
        super().__post_init__()
        self.stance = self.nominal("key_qpos")[0][self.joint_columns.qpos]
        joints = self.mjm.actuator_trnid[:, 0]
        self.low, self.high = self.nominal("jnt_range")[joints].unbind(1)
        self.span = torch.maximum(self.stance - self.low, self.high - self.stance)
        self.unit = self.tensor([-1.0] * 21), self.tensor([1.0] * 21)
        bodies = self.mjm.jnt_bodyid[joints]
        self.links = self.nominal("body_pos")[bodies].view(4, 3, 3)  # leg, hip thigh knee, xyz
        self.axes = self.nominal("jnt_axis")[joints].view(4, 3, 3)
        self.foot = self.tensor(self.mjm.geom("FL").pos)
        corners = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0])] * 3)
        self.corners = self.tensor(corners) * self.tensor(self.mjm.geom("trunk").size)  # (8, 3)

    def change_spec(self, spec):
        """The legs collide with the ground, and with the trunk and each other's."""
        for geom in spec.geoms:
            if geom.classname.name in LEGS:
                geom.contype, geom.conaffinity, geom.condim, geom.priority = 1, 0, 3, 1
                geom.friction = [0.8, 0.005, 0.0001]
            if geom.classname.name in ("thigh", "calf", "foot"):
                geom.contype, geom.conaffinity = 3, 2
            if geom.name == "trunk":
                geom.conaffinity = 2
        return spec

    def mjcf_text(self):
        spec = self.change_spec(mujoco.MjSpec.from_string(super().mjcf_text()))
        spec.compile()
        return spec.to_xml()

    @property
    def mirror(self):
        return Reflection(axis=1, joints=leg_mirror(self.mjm, FEET, (), self.actuator))

    def start(self, n, rng):
        unit = rng.uniform("start", *self.unit)  # (n, 21), each in ±1
        turned = uniform_rotation((1 + unit[:, :3]) / 2)
        joints = (self.low + self.high) / 2 + (self.high - self.low) / 2 * unit[:, 3:15]
        up = to_matrix(turned)[:, 2]  # world's up in the trunk's frame
        z = self.drop - (self.points(joints) * up[:, None]).sum(2).amin(1, keepdim=True)
        qpos = torch.cat([0 * unit[:, :2], z, turned, joints], 1)
        speeds = torch.cat([0.3 * unit[:, 15:], 0 * joints], 1)
        return dict(qpos=qpos, qvel=speeds)

    def points(self, joints):
        """(B, 20, 3) corners of the trunk, knees, hips and feet, in the trunk's frame."""
        n = len(joints)
        q = joints.view(n, 4, 3)
        half = q / 2
        turns = torch.cat([half.cos()[..., None], half.sin()[..., None] * self.axes], -1)
        foot = self.foot.expand(n, 4, 3)
        knee = self.links[:, 2] + rotate(turns[:, :, 2], foot)
        out = []
        for p in (0 * knee, self.links[:, 2].expand(n, 4, 3), knee):
            p = self.links[:, 1] + rotate(turns[:, :, 1], p)
            out.append(self.links[:, 0] + rotate(turns[:, :, 0], p))
        legs = torch.cat(out, 1)
        return torch.cat([self.corners.expand(n, -1, 3), legs], 1)

    def control(self, s):
        return (s.joint_pos + self.reach * s.action).clamp(self.low, self.high)

    def observe(self, s):
        return dict(
            gyro=s.gyro,
            up=s.up,
            joints=s.joint_pos - self.stance,
            speeds=s.joint_vel,
            action=s.action,
        )

    def privileged(self, s):
        feet = s.span("FL_position", "RR_position")[:, 2::3]
        torques = s.span("FL_abduction_torque", "RR_knee_torque")
        return dict(velocity=s.velocity, height=s.qpos[:, 2:3], feet=feet, torques=torques / 20)

    def power(self, s):
        """(B,) mechanical power, Σ|τ q̇| [W]."""
        return (s.span("FL_abduction_torque", "RR_knee_torque") * s.joint_vel).abs().sum(1)

    def reward(self, s):
        upright = (1 + s.up[:, 2]) / 2
        gate = s.up[:, 2].clamp(min=0) ** 2
        tall = (s.qpos[:, 2] / self.height).clamp(max=1)
        posture = 1 - ((s.joint_pos - self.stance).abs() / self.span).mean(1).clamp(max=1)
        beyond = (s.joint_vel.abs() - self.fastest).clamp(min=0)
        near = torch.maximum(self.low + self.margin - s.joint_pos, s.joint_pos - self.high + self.margin)
        return dict(
            upright=upright,
            height=gate * tall,
            pose=gate * posture,
            still=gate * (tall * posture) ** 2 * gauss(s.qvel, self.sigma_speed),
            jerk=-squared(s.action - s.previous),
            power=-self.power(s),
            fast=-squared(beyond),
            limits=-squared(near.clamp(min=0)),
        )

    def measure(self, s):
        torque = s.span("FL_abduction_torque", "RR_knee_torque").abs()
        return dict(
            up=s.up[:, 2],
            z=s.qpos[:, 2],
            pose=(s.joint_pos - self.stance).abs().amax(1),
            base=squared(s.velocity),
            spin=squared(s.gyro),
            joints=squared(s.joint_vel) / 12,
            power=self.power(s),
            fastest=s.joint_vel.abs().amax(1),
            torque=torque.amax(1),
            jerk=squared(s.action - s.previous),
        )

    def score(self, record):
        last = round(1.0 / self.dt)
        stands = (record["up"] > math.cos(math.radians(15))) & (record["z"] > 0.8 * self.height)
        stands = stands & (record["pose"] < 0.5)
        rms = {x: record[x][-last:].mean(0).sqrt() for x in ("base", "spin", "joints")}
        still = (rms["base"] < 0.1) & (rms["spin"] < 0.3) & (rms["joints"] < 0.5)
        good = stands[-last:].all(0) & still
        held = stands.flip(0).long().cumprod(0).sum(0)
        return dict(
            success=good.float().mean().item(),
            up_share=(record["up"][-last:] > math.cos(math.radians(15))).all(0).float().mean().item(),
            tall_share=(record["z"][-last:] > 0.8 * self.height).all(0).float().mean().item(),
            pose_share=(record["pose"][-last:] < 0.5).all(0).float().mean().item(),
            still_share=still.float().mean().item(),
            up_s=(self.dt * (len(stands) - held).float()).mean().item(),
            energy=(self.dt * record["power"].sum(0)).mean().item(),
            rms_base=rms["base"].median().item(), rms_spin=rms["spin"].median().item(), rms_joints=rms["joints"].median().item(),
            fastest=record["fastest"].amax(0).mean().item(),
            torque=record["torque"].amax(0).mean().item(),
            jerk=record["jerk"].mean().item(),
        )
