"""Every robot is in a good light, with or without a scene of its own, and simulated as ever."""

import contextlib
from functools import cache

import mujoco
import numpy as np
import pytest

from gpusim_rl.robots.load import load_any
from gpusim_rl.viewer.offscreen import Camera, make_stage
from tests.pictures import Look, look
from tests.robot_files import mjcf, write
from tests.worlds import ROOT

FLOOR, LIGHT = '<geom type="plane" size="0 0 1"/>', '<light pos="0 0 1"/>'
BALANCER = """
<mujoco><worldbody>{floor}{light}
<body pos="0 0 {height}"><freejoint/><geom type="box" size="{box}" rgba="{color}"/></body>
</worldbody></mujoco>"""
BOXES = {"small": "0.02 0.01 0.02", "usual": "0.2 0.1 0.2", "large": "2 1 2"}  # half sides [m]


def box(size: str = "usual", color: str = ".9 .9 .9 1", floor: str = FLOOR, light: str = ""):
    """A box that stands on the ground."""
    half = BOXES[size]
    words = dict(box=half, height=half.split()[2], color=color, floor=floor, light=light)
    return mujoco.MjModel.from_xml_string(BALANCER.format(**words))


@pytest.mark.parametrize("color", [".9 .9 .9 1", ".05 .05 .05 1", ".5 .5 .5 1", ".5 .1 .1 1"])
@pytest.mark.parametrize("floor", [True, False])
def test_a_model_without_a_scene_is_seen_well(color, floor):
    """A light or dark robot, with or without ground and light of its own."""
    light = LIGHT if floor == (color in (".05 .05 .05 1", ".5 .1 .1 1")) else ""
    result = look(box(color=color, floor=FLOOR if floor else "", light=light))
    assert not result.faults(), result
    assert result.black < 0.15  # a black robot has shade


@cache
def usual_look() -> Look:
    """That of a box of the usual size."""
    return look(box())


@pytest.mark.parametrize("size", ["small", "large"])
def test_a_robot_is_framed_by_its_size(size):
    """A robot of 4 cm and one of 4 m take the same part of their pictures."""
    usual, result = usual_look(), look(box(size))
    assert abs(result.tall - usual.tall) < 0.03 and abs(result.wide - usual.wide) < 0.03


def test_a_robot_of_a_file_is_seen_well(tmp_path):
    """A robot of a stranger's file, as a task takes it."""
    result = look(load_any(mjcf=write(tmp_path, mjcf()), collide="feet").mjm)
    assert not result.faults(), result


@pytest.mark.parametrize("name", ["quadruped", "humanoid", "hopper", "ant", "arm", "drone"])
def test_our_robots_are_seen_well(name):
    """Our own models have a scene, and a drone fills a fifth of its picture."""
    model = mujoco.MjModel.from_xml_path(str(ROOT / f"tasks/assets/{name}.xml"))
    if name == "drone":
        model.body("target").pos = 0.4, 0.4, 1.2  # it begins around the drone
    result = look(model)
    assert not result.faults(), result
    if name == "drone":
        assert 0.15 <= (result.wide + result.tall) / 2 <= 0.25


def test_a_scene_of_the_model_stays():
    """Neither pattern nor lamps replace those of a model that has its own."""
    path = str(ROOT / "tasks/assets/quadruped.xml")
    with contextlib.closing(Camera(mujoco.MjModel.from_xml_path(path), 48, 64)) as camera:
        camera(camera.model.key_qpos[0])
        stage, scene = camera.stage, camera.renderer.scene
        assert (stage.sky, stage.lamps, stage.height, len(stage.planes)) == (False, False, None, 0)
        assert scene.nlight == camera.model.nlight + 1  # and the headlight


def test_the_simulated_model_stays(tmp_path):
    """A picture changes no array and no count of the model, only how large a picture may be."""
    model = load_any(mjcf=write(tmp_path, mjcf()), collide="feet").mjm
    names = [x for x in dir(model) if isinstance(getattr(model, x), np.ndarray | int)]
    before = {x: np.copy(getattr(model, x)) for x in names}
    look(model)
    assert len(names) > 300
    for name in names:
        np.testing.assert_array_equal(getattr(model, name), before[name], name)


def test_the_pattern_stays_where_it_is():
    """Ground does not move with the camera, which MuJoCo moves an endless plane along with."""
    for floor in (FLOOR, ""):
        model = box(floor=floor)
        with contextlib.closing(Camera(model, 96, 128, "free")) as camera:
            shown = [camera(model.qpos0).astype(int) for _ in range(2)]
            np.testing.assert_allclose(shown[0], shown[1], atol=2)
            period = 2 * camera.stage.cell
            for far in (0.3, 7.9, -55.5):
                camera.data.qpos[0] = far
                camera.renderer.update_scene(camera.data, camera.camera)
                camera.renderer.scene.camera[0].pos[0] = far
                camera.stage.dress(camera.renderer.scene)
                geoms = camera.renderer.scene.geoms[: camera.renderer.scene.ngeom]
                (ground,) = [x for x in geoms if x.type == mujoco.mjtGeom.mjGEOM_PLANE]
                steps = ground.pos[:2] / period
                np.testing.assert_allclose(steps, np.round(steps), atol=1e-4)


def test_a_window_has_ground_and_light():
    """Tiles in two shades at the ground, and a raised headlight; our own stay."""
    for floor, count in ((FLOOR, 2), ("", 2), (None, 0)):
        model = box(floor=floor or "")
        if floor is None:
            model = mujoco.MjModel.from_xml_path(str(ROOT / "tasks/assets/quadruped.xml"))
        data, scene = mujoco.MjData(model), mujoco.MjvScene(model, 1000)
        mujoco.mj_forward(model, data)
        before = model.vis.headlight.diffuse.copy()
        stage = make_stage(model, data)
        stage.brighten()
        stage.add_tiles(scene, data)
        tiles = scene.geoms[: scene.ngeom]
        assert len({tuple(x.rgba) for x in tiles}) == count and 300 * count <= 2 * len(tiles) < 2000
        assert (model.vis.headlight.diffuse > before).all() == bool(count)
        assert all(abs(x.pos[2] + x.size[2]) < 1e-3 for x in tiles)


def test_cameras_one_after_another_have_their_textures():
    """The sky is not lost when an earlier camera was closed, or still draws."""
    cameras = [Camera(box(), 48, 64) for _ in range(2)]
    first = [camera(camera.model.qpos0) for camera in cameras]
    cameras[0].close()
    with contextlib.closing(Camera(box(), 48, 64)) as third:
        pictures = [*first, cameras[1](cameras[1].model.qpos0), third(third.model.qpos0)]
    cameras[1].close()
    pictures = [x.astype(int) for x in pictures]
    for picture in pictures[1:]:
        np.testing.assert_allclose(picture, pictures[0], atol=2)
