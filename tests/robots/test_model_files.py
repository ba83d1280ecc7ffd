"""Meshes that collide are found where ROS names them, and a run keeps copies of them."""

import shutil
from pathlib import Path

import mujoco
import numpy as np
import pytest

from gpusim_rl.robots.model_files import check_confined, copy_model, is_copy
from tests import robot_files
from tests.robots.test_visuals import stl
from tests.worlds import make_robot

BOX = '<box size="0.4 0.16 0.1"/>'  # the trunk of `robot_files.urdf`
# What a URDF of ROS names beside meshes; MuJoCo reads none of it.
OTHERS = """<gazebo><plugin filename="libgazebo_ros_control.so"/></gazebo>
<material name="wood"><texture filename="package://hund_description/wood.png"/></material>"""


def package(folder: Path, mesh: str, others: str = OTHERS) -> Path:
    """The URDF file of a quadruped in a ROS package, whose trunk collides by a mesh."""
    for name in ("urdf", "meshes/collision"):
        (folder / "hund_description" / name).mkdir(parents=True)
    (folder / "hund_description/meshes/collision/rumpf.stl").write_bytes(stl())
    text = robot_files.urdf().replace(BOX, f'<mesh filename="{mesh}"/>', 1)
    text = text.replace("</robot>", f"{others}</robot>")
    return Path(robot_files.write(folder / "hund_description/urdf", text, "hund.urdf"))


@pytest.mark.parametrize(
    "mesh",
    [
        "package://hund_description/meshes/collision/rumpf.stl",
        "package://other_name/meshes/collision/rumpf.stl",  # the folder has another name
        "file://{}/hund_description/meshes/collision/rumpf.stl",
        "../meshes/collision/rumpf.stl",
    ],
)
def test_a_package_of_ros(tmp_path, mesh):
    """It is loaded as it is, and a run's copy has the meshes and names nothing elsewhere."""
    file = package(tmp_path / "here", mesh.format(tmp_path / "here"))
    first = make_robot(mjcf=str(file))
    assert mujoco.mjtGeom.mjGEOM_MESH in first.original.geom_type
    copy = copy_model(file, tmp_path / "run")
    assert is_copy(file, copy)
    check_confined(copy.read_text(), copy.parent, "run")
    shutil.rmtree(tmp_path / "here")
    second = make_robot(mjcf=str(copy))
    assert second.text == first.text
    np.testing.assert_array_equal(second.original.mesh_vert, first.original.mesh_vert)


def test_a_missing_mesh_names_where_it_was_searched(tmp_path):
    """A package that is not above the file is named with the folders that were searched."""
    name = "package://hund_description/meshes/none.stl"
    file = package(tmp_path, name, others="")
    fault = f"no file of the mesh '{name}' was found in {file.parent}, all folders above"
    with pytest.raises(ValueError, match=fault):
        make_robot(mjcf=str(file))
    compiler = '<mujoco><compiler meshdir="../meshes/visual"/></mujoco></robot>'
    file.write_text(file.read_text().replace("</robot>", compiler))
    with pytest.raises(ValueError, match=f"{fault}, {file.parent}/../meshes/visual"):
        make_robot(mjcf=str(file))
