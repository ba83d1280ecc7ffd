"""The ground of B worlds: each has a patch of its own, which changes when an episode begins."""

from collections.abc import Mapping
from typing import Any

import mujoco
import numpy as np
import torch
from torch import Tensor

from gpusim_rl.core.graphs import rows_on_host
from gpusim_rl.core.maths import rotate
from gpusim_rl.core.rng import Rng
from gpusim_rl.envs.terrain.kinds import Kind
from gpusim_rl.envs.terrain.library import BOXES, CELL, POINTS, Library, make_library
from gpusim_rl.envs.terrain.slots import FIELDS, find_slots
from gpusim_rl.robots.free_bodies import free_base, free_objects
from gpusim_rl.sim.base import Sim

FRICTION = "geom_friction.0"


# Why: docs/decisions/terrain.md
class Patches:
    """Patches of `levels` × `kinds` in `variants`, and where the worlds of a model have them.

    Args:
        mjm: the model, with boxes from `slots.add_boxes`.
        kinds: names of kinds. Worlds have them in equal shares.
        levels: of difficulty; the first is 0.
        variants: patches of each level of each kind.
        seed: of the patches.
        friction: least and largest sliding friction of a patch.
        first_level: highest level on which a world begins.
        level: of all worlds, instead of one up to `first_level`.
        choices: name → kind.

    Raises:
        ValueError: a kind is unknown or makes no patch, or the model has no boxes.
    """

    fields = (*FIELDS, "geom_friction")  # of the model, with a value per world

    def __init__(
        self,
        mjm: mujoco.MjModel,
        *,
        kinds: tuple[str, ...],
        levels: int,
        variants: int,
        seed: int,
        friction: tuple[float, float],
        first_level: int,
        device: str,
        level: int | None = None,
        choices: Mapping[str, Kind],
    ):
        if not kinds:
            raise ValueError(f"terrain.kinds=[]: choose among {', '.join(choices)}")
        if not 0 <= (level or 0) < levels:
            raise ValueError(f"level={level}: expected a level below {levels}")
        if not 0 <= first_level < levels:
            raise ValueError(f"terrain.first_level={first_level}: expected a level below {levels}")
        for name in kinds:
            if name not in choices:
                raise ValueError(f"terrain.kinds: {name!r}: choose among {', '.join(choices)}")
        self.kinds, self.levels, self.variants = kinds, levels, variants
        self.first_level, self.level = first_level, level
        named = tuple((name, choices[name]) for name in kinds)
        self._store(library := make_library(named, levels, variants, seed), device)
        first, self.plane = find_slots(mjm)
        self.boxes = slice(first, first + BOXES)
        low, high = friction
        drawn = np.random.default_rng([seed, 1]).uniform(low, high, len(library.floor))

        def tensor(values: Any) -> Tensor:
            return torch.as_tensor(values, dtype=torch.float32, device=device)

        self.friction = tensor(drawn)
        self.file_friction = tensor(mjm.geom_friction[:, 0]).clamp(min=1e-6)
        self.pose = pose_columns(mjm)  # of the base, in qpos
        self.footprint = tensor(footprint(mjm))
        self.unit = tensor([-1.0] * 2), tensor([1.0] * 2)

    def _store(self, library: Library, device: str) -> None:
        """Make tensors of a library. Those that the Sim gets are as exact as the Sim's own."""
        size = library.size
        values = {
            "geom_pos": library.pos,
            "geom_quat": library.quat,
            "geom_size": size,
            "geom_rbound": np.linalg.norm(size, axis=-1),
            "geom_aabb": np.concatenate([np.zeros_like(size), size], -1),
            "floor": library.floor,
        }
        # a float32 pose would differ from the boxes that MuJoCo C compiles
        exact = torch.float64 if device == "cpu" else torch.float32
        self.values = {
            name: torch.as_tensor(value, dtype=exact, device=device)
            for name, value in values.items()
        }
        self.start = torch.as_tensor(library.start, dtype=torch.float32, device=device)
        planes = torch.as_tensor(library.planes, dtype=torch.float32, device=device)
        self.planes = planes.flatten(0, 1)
        self.top = torch.as_tensor(library.top, device=device).flatten()

    def draw(self, rng: Rng) -> dict[str, Tensor]:
        """Memory of worlds that begin for the first time: their `kind` and `level` (B,) int64."""
        kind = rng.integers("terrain/kind", len(self.kinds))[:, 0]
        level = rng.integers("terrain/level", self.first_level + 1)[:, 0]
        return dict(kind=kind, level=level if self.level is None else 0 * level + self.level)

    def place_on_patches(self, start: dict[str, Tensor], rng: Rng) -> dict[str, Tensor]:
        """First states on patches of their kind and level, with `patch` (B,) int64.

        The robot is moved within the patch, and up onto what is highest below it.
        """
        variant = rng.integers("terrain/variant", self.variants)[:, 0]
        patch = (start["kind"] * self.levels + start["level"]) * self.variants + variant
        patch = patch.clamp(0, len(self.start) - 1)  # a fault may write anything
        qpos = start["qpos"].clone()
        pose = qpos[:, self.pose]
        pose[:, :2] += rng.uniform("terrain/start", *self.unit) * self.start[patch][:, None]
        points = rotate(pose[:, None, 3:], self.footprint.expand(len(qpos), -1, 3))
        pose[:, 2] += self.height(patch, pose[:, None, :2] + points[..., :2]).amax(1)
        return start | {"qpos": qpos, "patch": patch}

    def scale_friction(self, start: dict[str, Tensor]) -> dict[str, Tensor]:
        """First states with the friction of their patch, times what the model's was scaled by."""
        scaled = start.get(FRICTION, self.file_friction) / self.file_friction
        return start | {FRICTION: self.friction[start["patch"]][:, None] * scaled}

    def height(self, patch: Tensor, xy: Tensor) -> Tensor:
        """(B, n) height of the ground [m] of patches (B,) at points xy (B, n, 2) [m].

        It is not finite where a point is not. No index leaves the library, whatever is asked.
        """
        half = POINTS // 2
        cell = (xy / CELL).round_().nan_to_num_(0.0).clamp_(-half, half)
        first = patch.clamp(0, len(self.start) - 1)[:, None]
        place = (cell[..., 0] * POINTS + cell[..., 1]).long()  # exact: below 2²⁴
        place += first * POINTS**2 + half * (POINTS + 1)
        # index_select takes half the time of indices in brackets
        box = self.top.index_select(0, place.flatten()).view(place.shape)
        row = box + first * (BOXES + 1)
        planes = self.planes.index_select(0, row.flatten()).view(*row.shape, 3)
        a, b, c = planes.unbind(-1)
        return a + b * xy[..., 0] + c * xy[..., 1]

    def write(self, sim: Sim, patch: Tensor, mask: Tensor) -> None:
        """Write the boxes and the plane of patches (B,) to the worlds of mask (B,) bool."""
        rows = rows_on_host(mask)
        chosen = patch if rows is None else patch[rows]
        for name in FIELDS:
            field = sim.model(name)
            boxes = field[:, self.boxes]
            value = self.values[name][chosen].to(field.dtype).view(-1, *boxes.shape[1:])
            write_rows(boxes, rows, mask, value)
        height = sim.model("geom_pos")[:, self.plane, 2]
        write_rows(height, rows, mask, self.values["floor"][chosen].to(height.dtype))


def write_rows(target: Tensor, rows: Tensor | None, mask: Tensor, value: Tensor) -> None:
    """Write value to the rows of a tensor, in place: to those of numbers `rows`, or of a mask."""
    if rows is not None:
        target[rows] = value
    else:
        mask = mask.view(-1, *[1] * (target.ndim - 1))
        torch.where(mask, value, target, out=target)


def pose_columns(mjm: mujoco.MjModel) -> slice:
    """The seven columns of the base in `qpos`, which are the first of a robot without one."""
    base = free_base(mjm)
    return base.qpos if base else slice(7)


def footprint(mjm: mujoco.MjModel) -> np.ndarray:
    """(9, 3) points about the base [m], below which the ground may not be higher than a robot.

    They are the corners, edges and center of the rectangle about all that collides, in the first
    keyframe; z is 0.
    """
    data = mujoco.MjData(mjm)
    mujoco.mj_resetDataKeyframe(mjm, data, 0)
    mujoco.mj_kinematics(mjm, data)
    touching = (mjm.geom_bodyid > 0) & ((mjm.geom_contype | mjm.geom_conaffinity) > 0)
    others = [x.body for x in free_objects(mjm)]
    touching &= ~np.isin(mjm.body_rootid[mjm.geom_bodyid], others)
    centers = data.geom_xpos[touching, :2] - data.qpos[pose_columns(mjm)][:2]
    x, y = (np.abs(centers) + 0.02).max(0)
    return np.array([(i * x, j * y, 0.0) for i in (-1, 0, 1) for j in (-1, 0, 1)])
