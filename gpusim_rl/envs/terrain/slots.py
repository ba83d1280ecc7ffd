"""Boxes in a model that each world moves to where its own patch has them."""

from collections.abc import Sequence

import mujoco
import numpy as np

from gpusim_rl.envs.terrain.kinds import rubble
from gpusim_rl.envs.terrain.library import BOXES, as_arrays

PLANE = mujoco.mjtGeom.mjGEOM_PLANE
BOX = mujoco.mjtGeom.mjGEOM_BOX
# Model fields that have a value per world where the ground has
FIELDS = ("geom_pos", "geom_quat", "geom_size", "geom_rbound", "geom_aabb")
PREFIX = "ground box"


def add_boxes(spec: mujoco.MjSpec) -> mujoco.MjSpec:
    """Add BOXES boxes to the world of a model, as the hardest rubble has them. In place.

    A probe of the model then finds as many contacts as there can be. No box has the pose zero: if
    it had, the compiler would take its frame for that of the world, and ignore later turns.
    ValueError unless the world has one plane.
    """
    plane = find_plane(spec.geoms)
    library = as_arrays([rubble(1.0, np.random.default_rng(0))])
    boxes = zip(library.pos[0], library.quat[0], library.size[0], strict=True)
    highest = library.planes[0, :BOXES, 0].max()
    for i, (pos, quat, size) in enumerate(boxes):
        pos = pos - [0, 0, highest]  # a robot at height 0 stands on it
        box = spec.worldbody.add_geom(name=f"{PREFIX} {i}", type=BOX, pos=pos, quat=quat, size=size)
        for name in ("contype", "conaffinity", "condim", "friction", "priority", "group"):
            setattr(box, name, getattr(plane, name))
        box.rgba = plane.rgba if not plane.material else [0.34, 0.38, 0.44, 1]
    plane.pos = [0, 0, -highest - 1e-3]
    return spec


def find_plane(geoms: Sequence[mujoco.MjsGeom]) -> mujoco.MjsGeom:
    """The plane of the world that is the ground; ValueError unless there is one."""
    planes = [geom for geom in geoms if geom.type == PLANE and geom.parent.name == "world"]
    if len(planes) != 1:
        raise ValueError(f"terrain: the model has {len(planes)} planes in the world, expected one")
    return planes[0]


def find_slots(mjm: mujoco.MjModel) -> tuple[int, int]:
    """The ids of the first box and of the plane; ValueError if the model has none."""
    named = [i for i in range(mjm.ngeom) if mjm.geom(i).name.startswith(PREFIX)]
    planes = np.flatnonzero((mjm.geom_type == PLANE) & (mjm.geom_bodyid == 0))
    if len(named) != BOXES or len(planes) != 1:
        raise ValueError("terrain: the model has no boxes for the ground; see add_boxes")
    return named[0], int(planes[0])
