"""A picture of a robot in its stance, with labels."""

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gpusim_rl.core.files import write_whole
from gpusim_rl.robots.free_bodies import free_base
from gpusim_rl.viewer.offscreen import Camera, bounds, whole

if TYPE_CHECKING:
    from mujoco import MjModel, MjvScene

HEIGHT, WIDTH = 720, 960  # pixels


def picture(model: "MjModel", labels: Mapping[str, str], path: Path) -> None:
    """Write a PNG of the first keyframe, rendered off screen.

    labels: label → the geom or site that it is written at. An arrow shows x of a free base above
    it, else that of the world on the ground beside the robot. Raises ValueError where there is no
    off-screen OpenGL.
    """
    import imageio
    import mujoco

    with contextlib.closing(Camera(model, HEIGHT, WIDTH)) as camera:
        data, scene = camera.data, camera.renderer.scene
        mujoco.mj_resetDataKeyframe(model, data, 0)
        mujoco.mj_forward(model, data)
        view = whole(model, data)
        camera.update_scene(view)
        for label, name in labels.items():
            sites = [model.site(i).name for i in range(model.nsite)]
            thing = data.site(name) if name in sites else data.geom(name)
            add_label(scene, label, thing.xpos)
        base = free_base(model)
        if base:
            start = data.qpos[base.qpos][:3] + np.array([0, 0, 0.15 * view.distance])
        else:  # on the left, where the camera is
            low, high = bounds(model, data)
            x = data.xpos[model.body_rootid[model.jnt_bodyid[0]], 0]
            start = np.array([x, high[1] + 0.05 * view.distance, low[2] + 0.02 * view.distance])
        ahead = start + np.array([0.25 * view.distance, 0, 0])
        add_arrow(scene, start, ahead)
        add_label(scene, "forward", ahead)
        image = camera.render()
    write_whole(path, imageio.v3.imwrite("<bytes>", image, extension=".png"))


def add_label(scene: "MjvScene", text: str, at: np.ndarray) -> None:
    """Add a text to a scene, at a point (3,) [m]."""
    import mujoco

    geom, frame, color = scene.geoms[scene.ngeom], np.eye(3).ravel(), np.ones(4, np.float32)
    mujoco.mjv_initGeom(geom, mujoco.mjtGeom.mjGEOM_LABEL, np.zeros(3), at, frame, color)
    geom.label = text
    scene.ngeom += 1


def add_arrow(scene: "MjvScene", start: np.ndarray, end: np.ndarray) -> None:
    """Add an arrow to a scene, between two points (3,) [m]."""
    import mujoco

    kind, color = mujoco.mjtGeom.mjGEOM_ARROW, np.array([1, 0.7, 0, 1], np.float32)
    geom = scene.geoms[scene.ngeom]
    mujoco.mjv_initGeom(geom, kind, np.zeros(3), np.zeros(3), np.eye(3).ravel(), color)
    mujoco.mjv_connector(geom, kind, 0.05 * float(np.linalg.norm(end - start)), start, end)
    scene.ngeom += 1
