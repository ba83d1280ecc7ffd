"""Four legs run forward: Gymnasium's Ant-v5, with its observation, reward and termination."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from gpusim_rl.core.maths import squared
from gpusim_rl.core.ranges import AT_LEAST_0, POSITIVE
from gpusim_rl.envs.declarations import Reflection
from gpusim_rl.envs.task import Task
from gpusim_rl.tasks.common.goal_scores import return_measures, return_scores

MIRRORED_LEGS = (3, 2, 1, 0)  # the leg that each leg is in the mirror: legs 1 and 4 are in front


@dataclass(kw_only=True)
class Ant(Task):
    """Run forward as fast as possible on four legs with eight motors.

        r = w₁ v + w₂ h - w₃ |a|² - w₄ Σ_b |f_b|²,   v = (x - x') / dt

    | symbol | term | meaning | unit, frame |
    |---|---|---|---|
    | v | `forward` | mean velocity in a control step | m/s; world |
    | x, x' | | place of the torso, and that of the step before | m; world |
    | h | `healthy` | 1 while the episode goes on: it ends where h is 0 | 1 |
    | a | `control` | action: share of the largest torque, 150 N m | 1 |
    | f_b | `contact` | force and torque of the ground on body b, each number within ±1 | N, N m |

    h is 1 if the torso is from 0.2 m to 1 m high. With weights of 1, 1, 0.5 and 0.0005, each over
    dt, the reward of a step is that of Gymnasium's package (`gymnasium/envs/mujoco/ant_v5.py`, MIT
    license). The model goes back to Schulman et al. (arXiv:1506.02438).

    The package takes x and the forces from MjData as mj_step leaves it: with the integrator RK4
    they belong to its last stage. Torques are about the center of mass of the whole body.

    The package's observation has the height and the velocity of the torso, and the forces on all
    bodies. No sensor gives them at the right moment: they are the readings of a state estimator.
    """

    ranges: ClassVar = dict(
        spread=AT_LEAST_0, lowest=POSITIVE, highest=POSITIVE, strongest=POSITIVE, solved=POSITIVE
    )
    spread: float  # m, rad, m/s, rad/s: noise of the first state
    lowest: float  # m: the torso of a healthy ant is at least this high
    highest: float  # m: and at most this high
    strongest: float  # N, N m: contact forces and torques are clamped to ± this
    solved: float  # return from which an episode counts as a success

    def __post_init__(self) -> None:
        super().__post_init__()
        self.rest = self.nominal("qpos0")
        self.unit = self.tensor([-1.0] * 15), self.tensor([1.0] * 15)
        self.gear = self.nominal("actuator_gear")[:, 0]  # N m: torque of action 1
        self.limits = self.joint_limits  # made here: a report may not wait for the device

    @property
    def mirror(self):
        return Reflection(axis=1, images=self.images)

    @property
    def estimated(self):
        base = dict(meaning="height and orientation (w, x, y, z) of the torso", frame="world")
        moves = dict(meaning="velocity of the torso in the world, then its angular velocity")
        forces = dict(meaning="torque about the center of mass and force of the ground on a body")
        forces |= dict(frame="world", order="torso, then leg by leg from the hip to the foot")
        bodies = self.mjm.nbody - 1
        return super().estimated | dict(
            base=dict(units=["m", "1", "1", "1", "1"]) | base,
            base_velocity=dict(units=["m/s"] * 3 + ["rad/s"] * 3, frame="world; torso") | moves,
            contact=dict(units=(["N m"] * 3 + ["N"] * 3) * bodies) | forces,
        )

    @property
    def derived(self):
        return super().derived | dict(
            base=lambda s: s.qpos[:, 2:7],
            base_velocity=lambda s: s.qvel[:, :6],
            contact=lambda s: s.cfrc_ext[:, 6:].clamp(-self.strongest, self.strongest),
        )

    def images(self, s):
        """Mirror images of the readings that no sensor gives; forward stays forward."""
        place, turn = s.base.new_tensor([1, 1, -1, 1, -1]), s.base.new_tensor([1, -1, 1])
        moves = torch.cat([turn, -turn])
        torques = torch.cat([-turn, turn])
        forces = s.contact.unflatten(1, (13, 6)) * torques
        legs = forces[:, 1:].unflatten(1, (4, 3))[:, list(MIRRORED_LEGS)].flatten(1, 2)
        contact = torch.cat([forces[:, :1], legs], 1).flatten(1)
        moves = s.base_velocity * moves
        return dict(base=s.base * place, base_velocity=moves, contact=contact, speed=s.speed)

    def start(self, n, rng):
        qpos = self.rest + self.spread * rng.uniform("start", *self.unit)
        turn = torch.nn.functional.normalize(qpos[:, 3:7], dim=1)
        qpos = torch.cat([qpos[:, :3], turn, qpos[:, 7:]], 1)
        return self.begin_at(qpos, self.spread * rng.normal("start/speed", 14))

    def begin_at(self, qpos, qvel):
        """First values of an episode at qpos (n, 15) and qvel (n, 14)."""
        return dict(qpos=qpos, qvel=qvel, x=qpos[:, 0].float(), speed=0 * qvel[:, 0].float())

    def update(self, s, rng):
        return dict(x=s.xpos[:, 0], speed=(s.xpos[:, 0] - s.x) / self.dt)

    def observe(self, s):
        return dict(
            base=s.base,
            joints=s.joint_pos.roll(-2, 1),  # from leg 1 on, as the package has them
            velocity=s.base_velocity,
            speeds=s.joint_vel.roll(-2, 1),
            contact=s.contact,
        )

    def privileged(self, s):
        return dict(progress=s.speed[:, None])

    def reward(self, s):
        return dict(
            forward=s.speed,
            healthy=1.0 - self.terminated(s).float(),
            control=-squared(s.action),
            contact=-squared(s.contact),
        )

    def terminated(self, s):
        return ~((s.qpos[:, 2] >= self.lowest) & (s.qpos[:, 2] <= self.highest))

    def measure(self, s):
        return return_measures(s, self.gear, self.limits)

    def score(self, record):
        return return_scores(record, self.dt, self.solved)
