"""A quadruped of 12 joints walks on rough ground at commanded velocities, and may see it."""

from dataclasses import dataclass, replace

import torch

from gpusim_rl.envs.on_terrain import OnTerrain
from gpusim_rl.tasks.locomotion.quadruped import Quadruped


@dataclass(kw_only=True)
class RoughQuadruped(OnTerrain, Quadruped):
    """`Quadruped` on patches of rough ground; heights are above the ground below each foot.

    The critic sees a height scan.
    """

    @property
    def derived(self):
        return super().derived | {"below": self.ground_below}

    @property
    def mirror(self):
        flat = super().mirror

        def images(s):
            below = s.below[:, [1, 0, 3, 2]]
            return flat.images(s) | dict(scan=self.mirrored_scan(s.scan), below=below)

        return replace(flat, images=images)

    def ground_below(self, s):
        """(B, 4) height of the ground below each foot [m]."""
        feet = s.span("FL_position", "RR_position").unflatten(1, (4, 3))
        return self.patches.height(s.patch, feet[..., :2])

    def feet(self, s):
        return super().feet(s) - s.below

    def tall(self, s):
        return super().tall(s) - s.below.mean(1)

    def privileged(self, s):
        return super().privileged(s) | dict(scan=(s.scan - self.height).clamp(-1, 1))

    def score(self, record):
        asked, made = record["wanted"][-1], record["progress"][-1]
        stays = ~record["terminated"].bool().any(0)
        good = stays & (made >= 0.75 * asked)
        return super().score(record) | dict(success=good.float().mean().item())
