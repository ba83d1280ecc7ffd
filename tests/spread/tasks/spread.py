"""Three discs in one world cover a point each, without touching: a team with one reward."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from gpusim_rl.core.ranges import POSITIVE
from gpusim_rl.envs.declarations import Command
from gpusim_rl.envs.task import Task

AGENTS = 3


@dataclass(kw_only=True)
class Spread(Task):
    """What a disc observes and what its effort costs is its own; the other terms are shared."""

    ranges: ClassVar = dict(arena=POSITIVE, sigma=POSITIVE, sight=POSITIVE)
    agents: ClassVar = AGENTS
    arena: float  # m: half-width of where points and discs are
    sigma: float  # m: how near a disc is to be
    sight: float  # m: discs that are further away are not seen
    central: bool  # whether the critic of each disc sees what all discs see

    def __post_init__(self) -> None:
        super().__post_init__()
        self.unit = self.tensor([-1.0] * 6), self.tensor([1.0] * 6)

    @property
    def command(self):
        names = tuple(f"{axis}{i}" for i in range(AGENTS) for axis in "xy")
        return Command(names=names, units=("m",) * 6, largest=(self.arena,) * 6, redraw=100.0)

    def start(self, n, rng):
        place = self.arena * rng.uniform("start", *self.unit)
        return dict(qpos=place, qvel=0 * place, command=self.draw_command(rng))

    def observe(self, s):
        """(B, A, k) each: where a disc is, and its point and the others from there."""
        place, speed = s.joint_pos.view(-1, AGENTS, 2), s.joint_vel.view(-1, AGENTS, 2)
        seen = dict(place=place, speed=speed, point=s.command.view(-1, AGENTS, 2) - place)
        for k in range(1, AGENTS):
            other, moves = place.roll(-k, 1) - place, speed.roll(-k, 1)
            near = (other.square().sum(2, keepdim=True) < self.sight**2).float()
            seen[f"other{k}"] = torch.cat([near, near * other, near * moves], 2)
        return seen

    def privileged(self, s):
        """(B, k) is of the world, so of each disc."""
        team = torch.cat([*self.observe(s).values()], 2).flatten(1)
        return dict(team=team) if self.central else {}

    def off(self, s):
        """(B, A) how far each disc is from its point [m]."""
        return (s.qpos - s.command).view(-1, AGENTS, 2).square().sum(2).sqrt()

    def touching(self, s):
        """(B,) pairs of discs that touch."""
        place = s.qpos.view(-1, AGENTS, 2)
        apart = (place[:, :, None] - place[:, None]).square().sum(3).sqrt()
        return ((apart < 0.25).float().sum((1, 2)) - AGENTS) / 2

    def reward(self, s):
        off = self.off(s)
        return dict(
            cover=-off.sum(1),
            fine=torch.exp(-off / self.sigma).sum(1),
            touch=-self.touching(s),
            effort=-AGENTS * s.action.square().sum(2),
        )

    def measure(self, s):
        judged = (s.time >= self.horizon - round(1.0 / self.dt)).float()
        return dict(furthest=self.off(s).amax(1), judged=judged)

    def score(self, record):
        judged = record["judged"] > 0.5
        good = ((record["furthest"] < 0.15) | ~judged).all(0) & judged.any(0)
        return dict(success=good.float().mean().item())
