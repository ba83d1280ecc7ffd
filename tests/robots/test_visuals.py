"""Pictures show the visual geometry of a URDF file, and the simulated model has none of it."""

import contextlib
import io
import re
import shutil
import struct
from pathlib import Path
from types import SimpleNamespace

import mujoco
import numpy as np
import pytest

from gpusim_rl.assembly.iteration import make_iteration
from gpusim_rl.assembly.models import make_picture_model
from gpusim_rl.commands import play
from gpusim_rl.config import compose
from gpusim_rl.play.rollouts import RunRollout
from gpusim_rl.robots import model_files
from gpusim_rl.robots.load import read_spec
from gpusim_rl.robots.model_files import check_confined, copy_model, is_copy, read_root
from gpusim_rl.robots.visuals import add_mesh, is_urdf, picture_model, simulated_geoms
from gpusim_rl.viewer.offscreen import Camera
from tests import robot_files
from tests.robot_files import write
from tests.worlds import make_config, make_robot, same_model

CORNERS = np.array([[0, 0, 0], [0.1, 0, 0], [0, 0.1, 0], [0, 0, 0.2]])  # m, of a mesh
FACES = np.array([[0, 2, 1], [0, 1, 3], [1, 2, 3], [0, 3, 2]])
INERTIA = '<inertia ixx="0.01" iyy="0.01" izz="0.01" ixy="0" ixz="0" iyz="0"/>'
LINK = f'<link name="{{}}"><inertial><mass value="1"/>{INERTIA}</inertial>{{}}</link>'
JOINT = """<joint name="to_{1}" type="revolute"><parent link="{0}"/><child link="{1}"/>
<origin xyz="0 0 0.3"/><axis xyz="0 1 0"/><limit lower="-1" upper="1" effort="9" velocity="9"/>
</joint>"""
VISUAL = """<visual><origin xyz="0 0 0.1"/><geometry><mesh filename="{}" scale="1 1 2"/></geometry>
<material name="{}"><color rgba="{}"/></material></visual>"""
COLLISION = '<collision><geometry><box size="0.05 0.05 0.2"/></geometry></collision>'
RED, BLUE = "1 0 0 1", "0 0 1 1"


def obj() -> str:
    """A tetrahedron as an .obj file."""
    lines = [f"v {x} {y} {z}" for x, y, z in CORNERS]
    return "\n".join([*lines, *(f"f {a + 1} {b + 1} {c + 1}" for a, b, c in FACES)])


def stl() -> bytes:
    """The same as a binary .stl file."""
    faces = [struct.pack("<12fH", 0, 0, 0, *CORNERS[face].ravel(), 0) for face in FACES]
    return bytes(80) + struct.pack("<I", len(faces)) + b"".join(faces)


def three_links(folder: Path, last: str = "none.dae", name: str = "drei.urdf") -> Path:
    """A URDF of three links with an .obj, an .stl and another mesh; the first also collides."""
    meshes = folder / "meshes"
    meshes.mkdir(exist_ok=True)
    (meshes / "foot.obj").write_text(obj())
    (meshes / "rod.stl").write_bytes(stl())
    text = LINK.format("foot", VISUAL.format("meshes/foot.obj", "red", RED) + COLLISION)
    text += LINK.format("rod", VISUAL.format("package://drei/meshes/rod.stl", "blue", BLUE))
    text += LINK.format("tip", VISUAL.format(last, "red", RED).replace("0 0 0.1", "0 0 0"))
    text = text.replace('"tip"><inertial>', '"tip"><inertial><origin xyz="0 0 0.2"/>')
    text += JOINT.format("foot", "rod") + JOINT.format("rod", "tip")
    return Path(write(folder, f'<robot name="drei">{text}</robot>', name))


def dog(folder: Path, visual: str = VISUAL.format("foot.obj", "red", RED)) -> Path:
    """A URDF file of a quadruped with a visual mesh for its trunk."""
    (folder / "foot.obj").write_text(obj())
    text = robot_files.urdf().replace("<collision>", f"{visual}<collision>", 1)
    return Path(write(folder, text, "hund.urdf"))


def geoms(model: mujoco.MjModel) -> dict[str, list[tuple[int, int]]]:
    """The type and the group of the geoms of each body."""
    rows: dict[str, list[tuple[int, int]]] = {}
    for i in range(model.ngeom):
        body = model.body(model.geom_bodyid[i]).name
        rows.setdefault(body, []).append((int(model.geom_type[i]), int(model.geom_group[i])))
    return rows


def test_meshes_are_shown(tmp_path, capsys):
    """Meshes are shown at their places, scaled and colored; where one is missing is a capsule."""
    file = three_links(tmp_path)
    model = picture_model(read_spec(file), file)
    kinds = mujoco.mjtGeom
    assert geoms(model) == {
        "foot": [(kinds.mjGEOM_BOX, 3), (kinds.mjGEOM_MESH, 1)],
        "rod": [(kinds.mjGEOM_MESH, 1)],
        "tip": [(kinds.mjGEOM_CAPSULE, 1)],
    }
    (line,) = capsys.readouterr().err.splitlines()
    assert line == (
        f"warning: {file}: pictures lack none.dae (no such file); "
        "capsules between joints stand for links without shapes: tip"
    )
    data = mujoco.MjData(model)
    mujoco.mj_kinematics(model, data)
    for geom, color, height in ((1, RED, 0.1), (2, BLUE, 0.4)):
        np.testing.assert_array_equal(model.geom_rgba[geom], [float(x) for x in color.split()])
        mesh = model.geom_dataid[geom]
        first, count = model.mesh_vertadr[mesh], model.mesh_vertnum[mesh]
        corners = model.mesh_vert[first : first + count] @ data.geom_xmat[geom].reshape(3, 3).T
        corners = corners + data.geom_xpos[geom]
        expected = CORNERS * [1, 1, 2] + [0, 0, height]
        for corner in expected:
            assert np.linalg.norm(corners - corner, axis=1).min() < 1e-6


def test_a_link_without_shapes_reaches_to_the_next_joint(tmp_path, capsys):
    """A capsule goes to the joints of the links it carries, the last to its center of mass."""
    file = three_links(tmp_path)
    text = re.sub("<visual>.*?</visual>|<collision>.*?</collision>", "", file.read_text(), flags=16)
    file.write_text(text.replace("</robot>", f"{LINK.format('hand', '')}{FIXED}</robot>"))
    model = picture_model(read_spec(file), file)
    assert "links without shapes: foot, rod, tip" in capsys.readouterr().err
    assert [*geoms(model)] == ["foot", "rod", "tip"]
    lengths = [0.3, 0.3, 0.1]  # m; the median gives the radius
    np.testing.assert_allclose(model.geom_size[:, 1], np.array(lengths) / 2)
    np.testing.assert_allclose(model.geom_size[:, 0], 0.03)
    np.testing.assert_allclose(model.geom_pos, [[0, 0, 0.15], [0, 0, 0.15], [0, 0, 0.05]])


FIXED = """<joint name="held" type="fixed"><parent link="tip"/><child link="hand"/>
<origin xyz="0 0 0.1"/></joint>"""


@pytest.mark.parametrize(
    "name, content, reason",
    [
        ("a.step", b"solid", "its format is none of .obj, .stl, .dae"),
        ("a.stl", b"not a mesh", "STL file"),
        ("a.obj", b"v 0 0 0", "vert"),
        ("a.dae", b"<COLLADA/>", "trimesh and pycollada|no surface|not COLLADA"),
    ],
)
def test_what_cannot_be_shown_is_said(tmp_path, name, content, reason, capsys):
    """A mesh that cannot be read costs one line, and the others are shown."""
    (tmp_path / name).write_bytes(content)
    file = three_links(tmp_path, name)
    assert len(geoms(picture_model(read_spec(file), file))["rod"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(rf"pictures lack {name} \(.*({reason}).*\); capsules .*: tip", line)


def test_wrong_numbers_of_visuals_are_said(tmp_path, capsys):
    """Numbers that MuJoCo never read before cost a line, not the picture."""
    file = three_links(tmp_path)
    text = file.read_text()
    file.write_text(text.replace('scale="1 1 2"', 'scale="one"'))
    picture_model(read_spec(file), file)
    assert (
        "pictures lack foot.obj, rod.stl (could not convert string to float"
        in capsys.readouterr().err
    )
    file.write_text(text.replace('<mesh filename="none.dae" scale="1 1 2"/>', '<box size="1"/>'))
    assert len(geoms(picture_model(read_spec(file), file))["foot"]) == 1
    assert "lack all visual geometry (XML Error: attribute 'size'" in capsys.readouterr().err


def test_collada_needs_its_readers(tmp_path, monkeypatch):
    """Without pycollada a .dae file is refused with the command that installs it."""
    (tmp_path / "a.dae").write_text("<COLLADA/>")
    monkeypatch.setattr("gpusim_rl.robots.visuals.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"needs trimesh and pycollada: .*pip install .*meshes"):
        add_mesh(mujoco.MjSpec(), "a.dae", "1 1 1", tmp_path / "a.dae")
    monkeypatch.undo()
    monkeypatch.setattr("gpusim_rl.robots.visuals.find_spec", lambda name: True)
    (tmp_path / "a.dae").write_text('<!DOCTYPE a [<!ENTITY b "c">]><COLLADA/>')
    with pytest.raises(ValueError, match="declares XML entities"):
        add_mesh(mujoco.MjSpec(), "a.dae", "1 1 1", tmp_path / "a.dae")


def test_collada_is_converted(tmp_path):
    """The parts of a .dae file keep their colors and their unit of length."""
    pytest.importorskip("collada")
    (tmp_path / "a.dae").write_text(DAE)
    spec = mujoco.MjSpec()
    ((mesh, color),) = add_mesh(spec, "a.dae", "1 1 1", tmp_path / "a.dae")
    assert color is not None
    np.testing.assert_allclose(color, [0.1, 0.8, 0.2, 1], atol=0.01)
    height = np.reshape(spec.mesh(mesh).uservert, (-1, 3))[:, 2]
    assert height.min() == pytest.approx(-0.2)


def test_the_simulated_model_stays(tmp_path):
    """With visuals or without, from a file or a copy, the simulated model has the same bits."""
    (tmp_path / "plain").mkdir()
    color = re.sub("<geometry>.*?</geometry>", "", VISUAL.format("", "red", RED))  # MuJoCo reads it
    plain = make_robot(mjcf=str(dog(tmp_path / "plain", color)))
    file = dog(tmp_path)
    loaded = make_robot(mjcf=str(file))
    copied = make_robot(mjcf=str(copy_model(file, tmp_path / "copy")))
    picture = picture_model(loaded.spec, file)
    for other in (loaded, copied):
        assert same_model(plain.mjm, other.mjm) and plain.text == other.text
    assert same_model(loaded.spec.compile(), plain.spec.compile())
    shared = simulated_geoms(picture)
    assert picture.ngeom == loaded.mjm.ngeom + 1 == len(shared) + 1
    for name in ("geom_pos", "geom_size", "geom_bodyid", "geom_contype"):
        np.testing.assert_array_equal(getattr(picture, name)[shared], getattr(loaded.mjm, name))
    for name in ("body_mass", "body_inertia", "body_pos", "jnt_pos", "key_qpos", "dof_armature"):
        np.testing.assert_array_equal(getattr(picture, name), getattr(loaded.mjm, name))
    added = np.setdiff1d(np.arange(picture.ngeom), shared)
    assert not (picture.geom_contype[added] | picture.geom_conaffinity[added]).any()


def test_the_camera_sees_them(tmp_path):
    """The picture of a robot has a mesh for its trunk, and not the box that is simulated."""
    file = dog(tmp_path)
    loaded = make_robot(mjcf=str(file))
    kinds = []
    for model in (loaded.mjm, picture_model(loaded.spec, file)):
        with contextlib.closing(Camera(model, 120, 160)) as camera:
            camera(model.key_qpos[0])
            camera.renderer.enable_segmentation_rendering()
            number, kind = np.moveaxis(camera.renderer.render(), 2, 0)
        seen = np.unique(number[(kind == mujoco.mjtObj.mjOBJ_GEOM) & (number >= 0)])
        trunk = model.geom_bodyid[seen] == model.body("rumpf").id
        kinds.append(model.geom_type[seen[trunk]].tolist())
    assert kinds == [[mujoco.mjtGeom.mjGEOM_BOX], [mujoco.mjtGeom.mjGEOM_MESH]]


def test_the_copy_of_a_run_has_the_meshes(tmp_path, capsys):
    """A run's copy shows the same where the file is gone, and names no file elsewhere."""
    (tmp_path / "here").mkdir()
    file = three_links(tmp_path / "here")
    first = picture_model(read_spec(file), file)
    copy = copy_model(file, tmp_path / "run")
    assert is_copy(file, copy)
    check_confined(copy.read_text(), copy.parent, "run")
    assert sorted(x.name for x in copy.parent.rglob("*.*")) == ["foot.obj", "model.xml", "rod.stl"]
    shutil.rmtree(tmp_path / "here")
    second = picture_model(read_spec(copy), copy)
    assert geoms(first) == geoms(second)
    np.testing.assert_array_equal(first.mesh_vert, second.mesh_vert)
    assert f"{copy}: pictures lack none.dae" in capsys.readouterr().err


def test_the_copy_of_a_run_is_not_too_large(tmp_path, monkeypatch, capsys):
    """Meshes that are too large together are left out, and a line names them."""
    file = three_links(tmp_path)
    monkeypatch.setattr(model_files, "MAX_VISUALS", len(stl()))
    copy = copy_model(file, tmp_path / "run")
    line = capsys.readouterr().err
    assert "visual meshes at most, so its films do not show rod.stl" in line
    assert line.count("\n") == 1 and not [*copy.parent.rglob("*.stl")]


def test_a_strangers_run_finds_no_package():
    """A model of a run may not name a package, which would be looked for outside of the run."""
    text = '<robot name="a"><link name="a"><visual><geometry><mesh filename="{}"/></geometry>'
    text += "</visual></link></robot>"
    check_confined(text.format("visual/0/a.obj"), Path("run"), "model")
    for name in ("package://a/b.obj", "file:///b.obj", "../b.obj"):
        with pytest.raises(ValueError, match="outside"):
            check_confined(text.format(name), Path("run"), "model")


def test_only_a_urdf_has_a_picture_of_its_own(tmp_path):
    """A URDF that lets MuJoCo read its visuals, and MJCF, are shown as they are."""
    file = three_links(tmp_path)
    assert is_urdf(file)
    extension = '<mujoco><compiler discardvisual="false"/></mujoco></robot>'
    file.write_text(file.read_text().replace("</robot>", extension))
    assert not is_urdf(file) and not model_files.visual_meshes(read_root(file))
    assert not is_urdf(Path(write(tmp_path, robot_files.mjcf())))
    assert make_picture_model(make_config("task=quadruped")) is None


@pytest.mark.slow
@pytest.mark.parametrize("task", ["quadruped", "quadruped_rough"])
def test_a_film_of_worlds(tmp_path, task):
    """What is shown of a world has its rough ground, and moves as the simulated robot does."""
    words = ("sim=native", "sim.threads=1", "device=cpu", "algo.hidden=[16]", "num_steps=1")
    words += ("algo.num_minibatches=1", f"robot.mjcf={dog(tmp_path)}")
    cfg = make_config(f"task={task}", *words)
    iteration = make_iteration(cfg, num_envs=1)
    how = dict(weights=cfg.task.weights, noise=cfg.task.noise, seed=0)
    picture = make_picture_model(cfg)
    assert picture is not None
    rollout = RunRollout(iteration.policy, iteration.env.task, 2, **how, picture=picture)
    plain = RunRollout(iteration.policy, iteration.env.task, 2, **how)
    assert rollout.model is picture and "foot" not in [*geoms(plain.model)]
    for world in (0, 1):
        rollout.step(None)
        plain.step(None)
        np.testing.assert_array_equal(rollout.pose(), plain.pose())
        rollout.show_world(world)
        plain.show_world(world)
        for name in ("geom_pos", "geom_size", "geom_friction"):
            ours, theirs = getattr(picture, name), getattr(plain.model, name)
            np.testing.assert_array_equal(ours[simulated_geoms(picture)], theirs)


def test_the_page_shows_them(tmp_path):
    """A page draws the mesh of the trunk instead of its box."""
    trimesh = pytest.importorskip("trimesh")
    scene = pytest.importorskip("gpusim_rl.web.scene")
    open_server = pytest.importorskip("gpusim_rl.web.server").open_server
    file = dog(tmp_path)
    loaded = make_robot(mjcf=str(file))
    server, *_ = open_server(0)
    try:
        sizes = []
        for model in (loaded.mjm, picture_model(loaded.spec, file)):
            rollout = SimpleNamespace(
                model=model,
                worlds=1,
                show_world=lambda _: None,
                pose=lambda m=model: m.key_qpos,
                ghost=lambda: None,
            )
            page = scene.Scene(server, f"/{len(sizes)}", rollout)
            trunk = model.body("rumpf").id
            (drawn,) = [handle for body, handle in page.meshes if body == trunk]
            mesh = trimesh.load_scene(io.BytesIO(drawn.glb_data), file_type="glb")
            sizes.append(sorted(mesh.extents))
        np.testing.assert_allclose(sizes, [[0.1, 0.16, 0.4], [0.1, 0.1, 0.4]], rtol=1e-4)
    finally:
        server.stop()


def test_the_picture_of_mode_robot(tmp_path, capsys):
    """`mode=robot report=` writes a picture with the meshes, and says what is missing."""
    missing = VISUAL.format("none.obj", "red", RED) + VISUAL.format("no.obj", "red", RED)
    file = dog(tmp_path, missing)
    words = ["mode=robot", f"robot.mjcf={file}", f"report={tmp_path}/a.png"]
    play.play(compose.compose_plain("play", words))
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("pictures lack none.obj, no.obj (no such file)")
    assert (tmp_path / "a.png").is_file()


DAE = """<?xml version="1.0"?>
<COLLADA xmlns="http://www.collada.org/2005/11/COLLADASchema" version="1.4.1">
<asset><unit name="centimeter" meter="0.01"/><up_axis>Z_UP</up_axis></asset>
<library_effects><effect id="e"><profile_COMMON><technique sid="c"><phong>
<diffuse><color>0.1 0.8 0.2 1</color></diffuse></phong></technique></profile_COMMON></effect>
</library_effects>
<library_materials><material id="m"><instance_effect url="#e"/></material></library_materials>
<library_geometries><geometry id="g"><mesh><source id="p">
<float_array id="pa" count="12">-2 -2 0 2 -2 0 0 2 0 0 0 -20</float_array><technique_common>
<accessor source="#pa" count="4" stride="3"><param name="X" type="float"/>
<param name="Y" type="float"/><param name="Z" type="float"/></accessor></technique_common></source>
<vertices id="v"><input semantic="POSITION" source="#p"/></vertices>
<triangles count="4" material="mm"><input semantic="VERTEX" source="#v" offset="0"/>
<p>0 1 2 0 3 1 1 3 2 2 3 0</p></triangles></mesh></geometry></library_geometries>
<library_visual_scenes><visual_scene id="s"><node id="n"><instance_geometry url="#g">
<bind_material><technique_common><instance_material symbol="mm" target="#m"/></technique_common>
</bind_material></instance_geometry></node></visual_scene></library_visual_scenes>
<scene><instance_visual_scene url="#s"/></scene></COLLADA>"""
