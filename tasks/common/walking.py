"""`Walking`: what tasks of legged robots share that walk at commanded velocities by a clock."""

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from gpusim_rl.core.maths import from_euler, gauss, squared
from gpusim_rl.core.ranges import AT_LEAST_0, CHANCE, POSITIVE, Range
from gpusim_rl.core.rng import Rng
from gpusim_rl.envs.declarations import Command, Scheduled
from gpusim_rl.envs.state import State
from gpusim_rl.tasks.common.legged import Legged

SHARES = (0.1, 0.25, 0.5, 0.75, 1.0), (0.2, 0.6, 1.0), (0.2, 0.6, 1.0)  # of the largest commands
PAIRS = (0.5, 0, 0.5), (-0.5, 0, 0.5), (0.5, 0.6, 0), (-0.5, 0.6, 0), (0, 0.6, 0.6), (0.75, 0, -0.3)
AVERAGE = 0.5  # s: time constant of the mean error of the velocity
# m/s, rad/s: δ, from which a mean error costs no more: else falling would be cheaper
ERROR_KNEE = 0.5


class StartSpread(NamedTuple):
    """How far first states are from the stance: half-widths of uniform draws."""

    height: float = 0.02  # m, all of it upwards
    tilt: float = 0.1  # rad, of roll and of pitch
    speed: float = 0.3  # m/s and rad/s, of the base
    joints: float = 0.1  # rad


@dataclass(kw_only=True)
class Walking(Legged):
    """A base on legs walks at a commanded velocity, its feet lifted in turn by a clock.

    A subclass names its feet and when each is lifted, and says what else counts in `reward`. The
    model has the sensors `gyro`, `up`, `velocity`, for each foot `<foot>_position` and
    `<foot>_velocity`, and a torque sensor of each joint, each kind one after another. Its first
    keyframe is the stance.

    With `acceleration` the velocity to follow is `goal`, which begins at 0 and moves to the command
    as fast as that allows. Terms then see and judge it in the command's place.
    """

    feet_names: ClassVar[tuple[str, ...]]  # in the order of the legs' joints in ctrl
    knee: ClassVar[int]  # which number of `gait_pose` bends the knee
    offsets: ClassVar[tuple[float, ...]]  # turns of the clock by which each foot is late
    spread: ClassVar[StartSpread] = StartSpread()
    least_command: ClassVar[float] = 0.1  # a command of a smaller norm asks to stand
    ranges: ClassVar = dict(fastest=AT_LEAST_0, swing_height=AT_LEAST_0, share_standing=CHANCE)
    ranges |= dict(gait_pose=Range(-3.1416, 3.1416), gait=POSITIVE, action_scale=POSITIVE)
    ranges |= dict(redraw=POSITIVE, acceleration=POSITIVE, base_height=POSITIVE)
    ranges |= dict(sigma=POSITIVE, sigma_feet=POSITIVE)
    # how far a unit of action moves a joint's target; each task says in which unit
    action_scale: float
    fastest: Scheduled[tuple[float, float, float]]  # m/s, m/s, rad/s: commands are uniform within ±
    redraw: float  # s: time between two commands
    # m/s², m/s², rad/s²: how fast the velocity to follow moves to a new command; at once if empty
    acceleration: tuple[float, ...] = ()
    share_standing: Scheduled[float]  # share of worlds whose command stays zero
    sigma: Scheduled[float]  # m/s, rad/s: tolerance of the tracking terms
    sigma_feet: Scheduled[float]  # m: tolerance of the height of the feet
    base_height: Scheduled[float]  # m: height of the base
    swing_height: Scheduled[float]  # m: highest point of a swinging foot
    gait: Scheduled[float]  # Hz: frequency of the clock
    gait_pose: tuple[float, ...]  # rad: how far the clock bends each joint of a swinging leg
    # rad of each joint's target per unit of action; from `action_scale` unless given
    scale: tuple[float, ...] = ()
    # (nu,) direction of the joints that lifts each foot, times the knee's number of `gait_pose`;
    # from `gait_pose` unless given
    lift_direction: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.gait > 0.5 / self.dt:
            expected = "expected two control steps a turn at least"
            raise ValueError(f"task.gait={self.gait} Hz: {expected}")
        self.weight = max(float(-self.mjm.opt.gravity[2] * self.mjm.body_mass.sum()), 1e-6)  # N
        if not self.base or self.base.joint:
            raise ValueError("task.mjcf: the first joint of a robot that walks is its free base")
        key = self.nominal("key_qpos")[0]
        self.rest, self.stance = key, key[self.joint_columns.qpos]
        self.lateness = self.tensor(self.offsets)
        if len(self.acceleration) not in (0, 3):
            raise ValueError(
                f"task.acceleration={[*self.acceleration]}: expected 3 numbers or none"
            )
        self.goal_step = self.tensor(self.acceleration) * self.dt  # of a control step
        legs, nu = len(self.feet_names), self.mjm.nu
        if not self.lift_direction and len(self.gait_pose) * legs != nu:
            expected = f"expected {nu // legs} numbers, one for each joint of a leg"
            raise ValueError(f"task.gait_pose={list(self.gait_pose)}: {expected}")
        lifts = self.tensor(self.lift_direction or self.gait_pose * legs).view(legs, -1)
        bent = abs(self.gait_pose[self.knee])
        self.bend = bent * lifts if self.lift_direction else lifts
        # bounds of the numbers that `start` draws
        self.unit = self.tensor([-1.0] * (nu + 8)), self.tensor([1.0] * (nu + 8))

    @property
    def command(self) -> Command:
        return Command(
            names=("forward", "left", "turn"),
            units=("m/s", "m/s", "rad/s"),
            mirrored=("left", "turn"),
            largest=self.fastest,
            redraw=self.redraw,
        )

    def start(self, n: int, rng: Rng) -> dict[str, Tensor]:
        unit, joints, spread = rng.uniform("start", *self.unit), slice(6, -2), self.spread
        quantile = 0.5 + 0.5 * unit[:, -2]
        tilt = spread.tilt
        turned = from_euler(tilt * unit[:, 3], tilt * unit[:, 4], math.pi * unit[:, 5])
        height = self.rest[2] + spread.height * (1 + unit[:, 2:3])
        qpos = torch.cat([0 * unit[:, :2], height, turned, self.rest[7:].expand(n, -1)], 1)
        goal = dict(goal=torch.zeros_like(qpos[:, :3])) if self.acceleration else {}
        return goal | dict(
            qpos=self.joint_columns.put(qpos, self.stance + spread.joints * unit[:, joints]),
            qvel=torch.cat([spread.speed * unit[:, :6], 0 * unit[:, joints]], 1),
            command=self.next_command(quantile, rng),
            quantile=quantile,
            mean_error=torch.zeros_like(qpos[:, :3]),
            phase=0.5 + 0.5 * unit[:, -1],
        )

    # Why: docs/decisions/walking.md
    def next_start(self, start: dict[str, Tensor], ended: State, rng: Rng) -> dict[str, Tensor]:
        """A world keeps its quantile, so that a fall does not change whether it stands."""
        start = super().next_start(start, ended, rng)
        command = self.next_command(ended.quantile, rng)
        return start | dict(quantile=ended.quantile, command=command)

    def next_command(self, quantile: Tensor, rng: Rng) -> Tensor:
        """(B, 3) a command of each world: 0 where its quantile is below `share_standing`."""
        return self.draw_command(rng) * (quantile >= self.share_standing)[:, None]

    def update(self, s: State, rng: Rng) -> dict[str, Tensor]:
        again = (self.steps_since_command(s) == 0)[:, None]
        command = torch.where(again, self.next_command(s.quantile, rng), s.command)
        goal = dict(goal=self.next_goal(s)) if self.acceleration else {}
        error = self.followed(s) - goal.get("goal", command)
        mean_error = torch.lerp(s.mean_error, error, self.dt / AVERAGE)
        return goal | dict(
            command=command,
            mean_error=torch.where(again, 0.0, mean_error),
            phase=(s.phase + self.dt * self.gait) % 1.0,
        )

    def control(self, s: State) -> Tensor:
        return self.stance + self.joint_scales * s.action + self.bends(s)

    def images(self, s: State) -> dict[str, Tensor]:
        """Entries in the mirror: the legs change sides, so the clock is half a turn on."""
        signs = self.tensor([1.0, -1.0, -1.0])
        goal = dict(goal=s.goal * signs) if self.acceleration else {}
        return goal | dict(phase=s.phase + 0.5, mean_error=s.mean_error * signs)

    @property
    def drives(self) -> Tensor | None:
        return drives(self.tensor(self.fastest))

    def followed(self, s: State) -> Tensor:
        return torch.cat([s.velocity[:, :2], s.gyro[:, 2:]], 1)

    def commanded(self, s: State) -> Tensor:
        """(B,) 1 where the command or the goal asks for a motion, else 0."""
        square = squared(s.command)
        if self.acceleration:
            square = torch.maximum(square, squared(s.goal))
        return (square > self.least_command**2).float()

    def next_goal(self, s: State) -> Tensor:
        """(B, 3) `s.goal`, moved to the command by as much as a control step allows."""
        # not to the one that `update` draws: no robot knows it (envs/tracing.py)
        return s.goal + (s.command - s.goal).clamp(-self.goal_step, self.goal_step)

    # Why: docs/decisions/walking.md
    def goal(self, s: State) -> Tensor:
        """(B, 3) the velocity to follow now: the command, or what moves to it."""
        return s.goal if self.acceleration else s.command

    def observe(self, s: State) -> dict[str, Tensor]:
        angle = 2 * math.pi * s.phase[:, None]
        return super().observe(s) | dict(
            command=self.goal(s),
            clock=self.commanded(s)[:, None] * torch.cat([angle.cos(), angle.sin()], 1),
        )

    def privileged(self, s: State) -> dict[str, Tensor]:
        return dict(
            velocity=s.velocity,
            height=self.height_above_ground(s)[:, None],
            feet=self.feet(s),
            mean_error=s.mean_error,
        )

    def places(self, s: State) -> Tensor:
        """(B, F, 3) where the feet are [m]."""
        first, last = self.feet_names[0], self.feet_names[-1]
        return s.span(f"{first}_position", f"{last}_position").unflatten(1, (-1, 3))

    def feet(self, s: State) -> Tensor:
        """(B, F) height of each foot's lowest point above the ground [m]."""
        raise NotImplementedError  # contract

    def height_above_ground(self, s: State) -> Tensor:
        """(B,) height of the base above the ground [m]."""
        return s.qpos[:, 2]

    def swing(self, s: State) -> Tensor:
        """(B, F) how far the clock lifts each foot, in [0, 1]: 0 stands, 1 is a swing's top."""
        turned = 2 * math.pi * (s.phase[:, None] + self.lateness)
        return self.commanded(s)[:, None] * turned.sin().clamp(min=0)

    # Why: docs/decisions/walking.md
    def bends(self, s: State) -> Tensor:
        """(B, nu) how far the clock bends the joints of swinging legs [rad]."""
        return (self.swing(s)[:, :, None] * self.bend).flatten(1)

    def slide(self, s: State) -> Tensor:
        """(B,) Σ |ṗ|² in the plane [m²/s²] of the feet that the clock has stand."""
        first, last = self.feet_names[0], self.feet_names[-1]
        velocities = s.span(f"{first}_velocity", f"{last}_velocity").unflatten(1, (-1, 3))
        return (squared(velocities[..., :2]) * (self.swing(s) == 0)).sum(1)

    def reward(self, s: State) -> dict[str, Tensor]:
        goal = self.goal(s)
        return dict(
            velocity=gauss(s.velocity[:, :2] - goal[:, :2], self.sigma),
            yaw=gauss(s.gyro[:, 2:] - goal[:, 2:], self.sigma),
            feet=gauss(self.feet(s) - self.swing_height * self.swing(s), self.sigma_feet),
            vertical_speed=-(s.velocity[:, 2] ** 2),
            roll_pitch_rate=-squared(s.gyro[:, :2]),
            tilt=-squared(s.up[:, :2]),
            height=-((self.height_above_ground(s) - self.base_height) ** 2),
            action_rate=-squared(s.action - s.previous),
            mean_error=-self.bounded_error(s),
            power=-self.power(s),
            alive=torch.ones_like(s.phase),
        )

    # Why: docs/decisions/walking.md
    def bounded_error(self, s: State) -> Tensor:
        """(B,) min(|ē_xy|, δ) + min(|ē_ω|, δ) of the mean error ē, as steep at 0 as elsewhere."""
        planar, turn = squared(s.mean_error[:, :2]).sqrt(), s.mean_error[:, 2].abs()
        return planar.clamp(max=ERROR_KNEE) + turn.clamp(max=ERROR_KNEE)

    def measure(self, s: State) -> dict[str, Tensor]:
        # The first second after a draw is ignored.
        tracked = (self.steps_since_command(s) >= round(1.0 / self.dt)).float()
        error = squared(s.velocity[:, :2] - s.command[:, :2])
        feet = self.feet(s)
        return dict(
            tracked=tracked,
            action_rate=((s.action - s.previous) ** 2).mean(1).sqrt(),
            roll_pitch_rate=squared(s.gyro[:, :2]).sqrt(),
            power_per_weight=self.power(s) / self.weight,
            joint_speed_standing=(1 - self.commanded(s)) * (s.joint_vel**2).mean(1).sqrt(),
            velocity_error=tracked * error,
            yaw_error=tracked * (s.gyro[:, 2] - s.command[:, 2]) ** 2,
            commanded=self.commanded(s),
            power=self.power(s),
            speed=squared(s.velocity[:, :2]).sqrt(),
            x=s.qpos[:, 0],
            y=s.qpos[:, 1],
            **{f"foot_{foot}": feet[:, i] for i, foot in enumerate(self.feet_names)},
        )


def drives(fastest: Tensor) -> Tensor:
    """(n, 3) constant commands: along each axis alone, along two of them, and none.

    fastest (3,): the largest forward, left and turn.
    """
    rows = [
        [sign * share * (k == axis) for k in range(3)]
        for axis, shares in enumerate(SHARES)
        for share in shares
        for sign in (1, -1)
    ]
    rows += [[a, sign * b, sign * c] for a, b, c in PAIRS for sign in (1, -1)]
    return fastest * fastest.new_tensor([*rows, [0.0, 0.0, 0.0]]) + 0.0  # no -0
