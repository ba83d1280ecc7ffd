"""Measures of a picture of a robot: `python -m tests.pictures MODEL…` prints them."""

import contextlib
import sys
from typing import NamedTuple

import mujoco
import numpy as np

from gpusim_rl.robots.free_bodies import robot_joint
from gpusim_rl.viewer.offscreen import Camera
from gpusim_rl.viewer.stage import colors, contrast

HEIGHT, WIDTH = 240, 360  # pixels


class Look(NamedTuple):
    """What a picture of a robot is like."""

    black: float  # share of the pixels that are nearly black
    tall: float  # share of the picture's height that the robot takes
    wide: float  # share of its width
    contrast: float  # contrast ratio of the robot's pixels and the ground, in the mean
    ground: float  # spread of the ground's brightness, 0 to 255

    def faults(self) -> list[str]:
        """What is wrong with it."""
        wrong = {
            "more than 60 % is nearly black": self.black > 0.6,
            "the robot is not 15 to 60 % of the height": not 0.15 <= self.tall <= 0.6,
            "the contrast of robot and ground is below 2": self.contrast < 2,
            "the ground has no pattern": self.ground < 3,
        }
        return [fault for fault, is_so in wrong.items() if is_so]


def look(model: mujoco.MjModel, view: str | None = None) -> Look:
    """The look of a film's picture of a model in its first keyframe."""
    with contextlib.closing(Camera(model, HEIGHT, WIDTH, view)) as camera:
        picture = camera(model.key_qpos[0] if model.nkey else model.qpos0)
        camera.renderer.enable_segmentation_rendering()
        number, kind = np.moveaxis(camera.renderer.render(), 2, 0)
    geom = (kind == mujoco.mjtObj.mjOBJ_GEOM) & (number >= 0)
    root = model.body_rootid[model.jnt_bodyid[robot_joint(model)]]
    robot = geom & (model.body_rootid[model.geom_bodyid[number]] == root)
    fixed = geom & (model.geom_bodyid[number] == 0) & ~robot
    ground = fixed if fixed.any() else ~robot & (np.arange(HEIGHT) > 0.6 * HEIGHT)[:, None]
    rows, columns = np.nonzero(robot.any(1))[0], np.nonzero(robot.any(0))[0]
    solid = robot & (colors(model)[number, 3] == 1)  # the ground shines through the others
    ratio = contrast(picture[solid] / 255, np.median(picture[ground], 0) / 255)
    return Look(
        black=float((picture.max(2) < 30).mean()),
        tall=(rows[-1] - rows[0] + 1) / HEIGHT if len(rows) else 0.0,
        wide=(columns[-1] - columns[0] + 1) / WIDTH if len(columns) else 0.0,
        contrast=float(np.exp(np.log(ratio).mean())),
        ground=float(picture[ground].mean(1).std()),
    )


if __name__ == "__main__":
    for path in sys.argv[1:]:
        result = look(mujoco.MjModel.from_xml_path(path))
        print(path, result, "; ".join(result.faults()))
