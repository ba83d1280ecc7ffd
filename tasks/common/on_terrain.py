"""`OnTerrain`: a legged task whose worlds each have a patch of rough ground."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from gpusim_rl.core.maths import squared, yaw
from gpusim_rl.core.ranges import POSITIVE, Range
from gpusim_rl.core.rng import Rng
from gpusim_rl.envs.state import State
from gpusim_rl.envs.task import Task
from gpusim_rl.envs.terrain.kinds import KINDS, Kind, flat
from gpusim_rl.envs.terrain.patches import Patches
from gpusim_rl.envs.terrain.slots import add_boxes

JUDGED = 1 << 20  # added to the seed of the patches of an evaluation
SLOWEST = 0.15  # m/s: a slower command counts as none
SHORTEST_WALK_M = 2.0  # m: of an episode that was told to walk less, the distance decides nothing
Values = dict[str, Tensor]


@dataclass(kw_only=True)
class OnTerrain(Task):
    """Rough ground for a legged task, in addition to what one on flat ground has.

    It stands before that task among the base classes: `class Rough(OnTerrain, Quadruped)`. The task
    has a command in m/s, forward and to the left, and its state a sensor `velocity` (B, 3).

    Each world has a `kind` of ground for ever, and a `level`, which moves when an episode ends. It
    goes up after an episode that lasted to its time limit, in which the robot made good `up` of the
    distance that it was told to walk. It goes down after a fall, or where it made good less than
    `down`. Beyond the highest level a world gets any. The distance counts along the command at each
    moment, because commands change (after Rudin et al. 2022, https://arxiv.org/abs/2109.11978).

    Args:
        terrain: the arguments of `Patches`; `up` and `down` (0 to 1), and whether levels change
            (`moves`).
        scan: points of the height scan, along and across the robot.
        scan_size: lengths of its grid along and across [m].
    """

    takes_terrain: ClassVar = True
    kinds: ClassVar[Mapping[str, Kind]] = KINDS
    ranges: ClassVar = dict(scan=Range(1, 64, whole=True), scan_size=POSITIVE)
    terrain: dict[str, Any]
    scan: tuple[int, int]
    scan_size: tuple[float, float]

    def __post_init__(self) -> None:
        super().__post_init__()
        x, y = (
            torch.linspace(-size / 2, size / 2, points)
            for size, points in zip(self.scan_size, self.scan, strict=True)
        )
        self.grid = self.tensor(torch.cartesian_prod(x, y))  # (n, 2)
        self.patches.fields  # noqa: B018  made before the task is copied

    def change_spec(self, spec: Any) -> Any:
        return add_boxes(spec)

    @cached_property
    def patches(self) -> Patches:
        values = {k: v for k, v in self.terrain.items() if k not in ("up", "down", "moves")}
        choices = {**self.kinds, "flat": flat}  # of `on_level_ground`
        return Patches(self.mjm, device=self.device, choices=choices, **values)

    def evaluation(self) -> Self:
        """Other patches of all levels, which stay."""
        judged = dict(seed=self.terrain["seed"] + JUDGED, moves=False)
        judged["first_level"] = self.terrain["levels"] - 1
        return replace(super().evaluation(), terrain=self.terrain | judged)

    def on_level_ground(self) -> Self:
        """On level ground, with the mean of `terrain.friction`."""
        friction = (sum(self.terrain["friction"]) / 2,) * 2
        level = dict(kinds=("flat",), levels=1, variants=1, first_level=0, level=None, moves=False)
        return replace(self, terrain=self.terrain | level | dict(friction=friction))

    def begin(self, n: int, rng: Rng, ended: State | None = None) -> Values:
        return self.patches.place_on_patches(super().begin(n, rng, ended), rng)

    def start(self, n: int, rng: Rng) -> Values:
        zero = torch.zeros(n, device=self.device)
        distances = dict(progress=zero, wanted=zero.clone(), relevelled=zero > 0)
        return super().start(n, rng) | self.patches.draw(rng) | distances

    # Why: docs/decisions/curricula.md
    def next_start(self, start: Values, ended: State, rng: Rng) -> Values:
        start = super().next_start(start, ended, rng) | {"kind": ended.kind}
        if not self.terrain["moves"]:
            return start | {"level": ended.level}
        decides = ended.wanted > SHORTEST_WALK_M
        share = ended.progress / ended.wanted.clamp(min=1e-6)
        lasted = ended.time >= self.horizon
        up = lasted & decides & (share > self.terrain["up"])
        down = ~lasted | (decides & (share < self.terrain["down"]))
        level = (ended.level + up.long() - down.long()).clamp(min=0)
        beyond = level >= self.patches.levels
        anywhere = rng.integers("terrain/beyond", self.patches.levels)[:, 0]
        return start | dict(
            level=torch.where(beyond, anywhere, level), relevelled=ended.relevelled | beyond
        )

    def update(self, s: State, rng: Rng) -> Values:
        planar = s.command[:, :2]
        speed = squared(planar).sqrt()
        along = (s.velocity[:, :2] * planar).sum(1) / speed.clamp(min=1e-6)
        moving = self.dt * (speed > SLOWEST)
        return super().update(s, rng) | dict(
            progress=s.progress + moving * torch.minimum(along, speed),
            wanted=s.wanted + moving * speed,
        )

    @property
    def estimated(self) -> dict[str, dict[str, Any]]:
        """The height scan is a reading: noise, bias, delay and drop-out are those of others."""
        length, width = self.scan_size
        along, across = self.scan
        description = dict(
            meaning="how far the base is above the ground, at points of a grid below it",
            frame="base, turned by its yaw alone",
            grid=dict(points=[along, across], size=[length, width]),
            order="from the rear to the front, and at each of these places from right to left",
        )
        return super().estimated | {"scan": dict(units=["m"] * (along * across)) | description}

    @property
    def derived(self) -> dict[str, Any]:
        return super().derived | {"scan": self.height_scan}

    def height_scan(self, s: State) -> Tensor:
        """(B, n) how far the base is above the ground [m], at points of a grid below the robot.

        The grid turns with the robot's yaw. Its points run from the rear to the front, and at each
        of these places from the right to the left.
        """
        pose = s.qpos[:, self.patches.pose]
        turn = yaw(pose[:, 3:])[:, None]
        cos, sin = turn.cos(), turn.sin()
        along, across = self.grid.unbind(1)
        points = torch.stack([cos * along - sin * across, sin * along + cos * across], -1)
        return pose[:, 2:3] - self.patches.height(s.patch, pose[:, None, :2] + points)

    def mirrored_scan(self, scan: Tensor) -> Tensor:
        """(B, n) the height scan with left and right exchanged."""
        return scan.unflatten(1, self.scan).flip(2).flatten(1)

    def measure(self, s: State) -> Values:
        """Beside `level`, the share of worlds on each, and the mean level of each kind.

        The means of kinds leave out worlds that were beyond the last level once: `relevelled`.
        Where all worlds of a kind were, its mean is the last level.
        """
        level, climbs, last = s.level.float(), ~s.relevelled, self.patches.levels - 1
        measures = super().measure(s) | dict(level=level, progress=s.progress, wanted=s.wanted)
        measures["relevelled"] = s.relevelled.float()
        for i in range(self.patches.levels):
            measures[f"level/{i}"] = (s.level == i).float()
        for i, kind in enumerate(self.patches.kinds):
            of_kind = s.kind == i
            which = of_kind & climbs
            mean = (which * level).sum() / which.sum().clamp(min=1)
            mean = torch.where(of_kind.any() & ~which.any(), last, mean)
            measures[f"level/{kind}"] = mean.expand(len(level))
        return measures
