"""A quadruped of 12 joints walks on rough ground at commanded velocities, blind or seeing."""

from dataclasses import dataclass, replace

import torch

from gpusim_rl.core.maths import squared
from gpusim_rl.core.ranges import AT_LEAST_0
from gpusim_rl.tasks.common.on_terrain import OnTerrain
from gpusim_rl.tasks.locomotion.quadruped import Quadruped

BESIDE = 0.07  # m: how far from a foot the ground is looked at
BELLY = 0.3  # of the wanted height: a base closer to the ground lies on it


@dataclass(kw_only=True)
class RoughQuadruped(OnTerrain, Quadruped):
    """Walk as `Quadruped` does, on patches of rough ground; heights are above the ground below.

        r = r_flat - w₁₂ Σ_f s_f max(0, h_f + m - z_f)² - w₁₃ Σ_f [z_f < h_f] |ṗ_f| - w₁₄ b

    | symbol | meaning | unit, frame |
    |---|---|---|
    | r_flat | the reward of `Quadruped`; its z_f and z are above the ground below the feet | 1/s |
    | z_f, ṗ_f | foot height; foot velocity in the plane | m, m/s; world |
    | s_f | how far the clock lifts the foot, in [0, 1] | 1 |
    | h_f | highest ground within 7 cm of the foot: what it would stumble over | m; world |
    | m | `margin` | m |
    | b | 1 where a motion is commanded and the robot makes less than a tenth of it | 1 |

    | term | part of r |
    |---|---|
    | `clearance`, `stumble`, `stuck` | w₁₂ to w₁₄ |

    The clock of `Quadruped` says how long a foot is in the air.

    An observed term, `scan`, is the height scan minus the wanted height, within ±1 m. The actor is
    blind where `task.hide` names it; the critic always sees it.
    """

    ranges = Quadruped.ranges | OnTerrain.ranges | dict(margin=AT_LEAST_0)
    margin: float  # m: how much higher than the ground beside it a swinging foot should be

    def __post_init__(self) -> None:
        super().__post_init__()
        self.inner = squared(self.grid).argsort()[:4]  # of the scan, below the trunk
        self.around = self.tensor([(BESIDE, 0), (-BESIDE, 0), (0, BESIDE), (0, -BESIDE)])

    @property
    def derived(self):
        return super().derived | {"below": self.ground_below, "beside": self.ground_beside}

    @property
    def mirror(self):
        flat = super().mirror

        def images(s):
            feet = dict(below=s.below[:, [1, 0, 3, 2]], beside=s.beside[:, [1, 0, 3, 2]])
            return flat.images(s) | dict(scan=self.mirrored_scan(s.scan)) | feet

        return replace(flat, images=images)

    def ground_below(self, s):
        """(B, 4) height of the ground below each foot [m]."""
        return self.patches.height(s.patch, self.places(s)[..., :2])

    def ground_beside(self, s):
        """(B, 4) the highest ground about each foot [m]."""
        points = (self.places(s)[:, :, None, :2] + self.around).flatten(1, 2)
        return self.patches.height(s.patch, points).unflatten(1, (4, 4)).amax(2)

    def feet(self, s):
        return super().feet(s) - s.below

    def height_above_ground(self, s):
        return super().height_above_ground(s) - s.below.mean(1)

    def observe(self, s):
        return super().observe(s) | dict(scan=(s.scan - self.base_height).clamp(-1, 1))

    def reward(self, s):
        lowest = super().feet(s) - s.beside  # of each foot, above what is beside it
        velocities = s.span("FL_velocity", "RR_velocity").unflatten(1, (4, 3))
        speed = squared(velocities[..., :2]).sqrt()
        goal = self.goal(s)[:, :2]
        along = (s.velocity[:, :2] * goal).sum(1)
        return super().reward(s) | dict(
            clearance=-(self.swing(s) * (self.margin - lowest).clamp(min=0) ** 2).sum(1),
            stumble=-((lowest < 0) * speed).sum(1),
            stuck=-(self.commanded(s) * (along < 0.1 * squared(goal))),
        )

    def terminated(self, s):
        return super().terminated(s) | (s.scan[:, self.inner].amin(1) < BELLY * self.base_height)

    def score(self, record):
        """`success` is the share of episodes without a fall that made 0.75 of their distance.

        `off_distance` is the share that did not, and takes the place of the errors' shares.
        """
        arrived = record["progress"][-1] >= 0.75 * record["wanted"][-1]
        good = ~record["terminated"].bool().any(0) & arrived
        scores = super().score(record) | dict(
            success=torch.mean(good.float()).item(),
            off_distance=torch.mean(1 - arrived.float()).item(),
        )
        return {name: x for name, x in scores.items() if name not in ("off_velocity", "off_yaw")}
