"""A second, translucent robot in a picture, in the pose that the first one should have."""

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from mujoco import MjModel, MjvScene

OPACITY = 0.35
COLOR = (0.2, 0.6, 1.0)  # blue, which no robot of ours is


def add_ghost(scene: "MjvScene", model: "MjModel", qpos: np.ndarray) -> None:
    """Add the robot of a model in the state qpos (nq,) to a scene."""
    import mujoco

    data, first = mujoco.MjData(model), scene.ngeom
    data.qpos[:] = qpos
    mujoco.mj_kinematics(model, data)
    drawn, moves = mujoco.MjvOption(), mujoco.mjtCatBit.mjCAT_DYNAMIC
    mujoco.mjv_addGeoms(model, data, drawn, mujoco.MjvPerturb(), moves, scene)
    for geom in scene.geoms[first : scene.ngeom]:
        geom.rgba[:] = (*COLOR, OPACITY * geom.rgba[3])
        geom.matid = -1
