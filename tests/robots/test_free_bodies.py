"""The robot's base and the objects beside it, and that nothing takes one for the other."""

from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest
import torch

from gpusim_rl.core.paths import find_asset
from gpusim_rl.core.rng import Rng
from gpusim_rl.deploy.rest_measurements import fixed, lying
from gpusim_rl.envs.command_columns import command_arrow
from gpusim_rl.envs.randomization.randomization import Randomization
from gpusim_rl.envs.task import Task
from gpusim_rl.envs.terrain.patches import footprint
from gpusim_rl.gate.robot import base_body
from gpusim_rl.play.rollouts import pushed
from gpusim_rl.robots.free_bodies import driven_bodies, free_base, free_objects, robot_joint
from gpusim_rl.viewer.caption import Caption
from tests.worlds import make_actuator, make_task, with_ranges

CUBE = """<body name="cube" pos="0.4 0 0.05"><freejoint/>
<inertial mass="0.1" pos="0 0 0" diaginertia="1e-4 1e-4 1e-4"/>
<geom type="box" size=".02 .02 .02"/></body>"""
FLAG = '<option><flag autoreset="disable"/></option>'
EMPTY = "<mujoco><worldbody><geom size='1'/></worldbody></mujoco>"
ARM = """<mujoco><worldbody>{first}<body name="arm"><joint name="hinge" axis="0 1 0"/>
<geom type="capsule" size=".02" fromto="0 0 0 0 0 .3"/></body>{last}</worldbody>
<actuator><position name="hinge" joint="hinge" kp="5" kv="1"/></actuator></mujoco>"""
ROTOR = """<mujoco><worldbody>{first}<body name="frame" pos="0 0 1"><freejoint/><geom size=".1"/>
<site name="rotor"/></body></worldbody>
<actuator><general site="rotor" gear="0 0 1 0 0 0"/></actuator></mujoco>"""
PULLED = """<mujoco><worldbody>{first}<body name="trunk" pos="0 0 1"><freejoint/><geom size=".1"/>
<body><joint name="a"/><geom size=".1"/></body></body></worldbody>
<tendon><fixed name="t"><joint joint="a" coef="1"/></fixed></tendon>
<actuator><motor tendon="t"/></actuator></mujoco>"""


def compiled(text: str, first: str = "", last: str = "") -> mujoco.MjModel:
    """The model of an MJCF, with bodies before and after its own."""
    return mujoco.MjModel.from_xml_string(text.format(first=first, last=last))


def quadruped_behind_a_cube(folder: Path) -> Path:
    """Our quadruped in a file whose first body is a cube with a free joint."""
    text = Path(find_asset("quadruped.xml")).read_text()
    a = text.index("<worldbody>") + len("<worldbody>")
    text = text[:a] + CUBE.replace("0.4 0", "2 0") + text[a:]
    key = text.index('qpos="') + len('qpos="')
    file = folder / "beside.xml"
    file.write_text(text[:key] + "2 0 0.02 1 0 0 0 " + text[key:])
    return file


@pytest.mark.parametrize("first, last", [(CUBE, ""), ("", CUBE)])
def test_an_arm_beside_a_cube_has_no_base(first, last):
    """The cube is its only object, wherever it stands in the file, and no push moves it."""
    m = compiled(ARM, first, last)
    (cube,) = free_objects(m)
    assert free_base(m) is None and cube.name == "cube"
    assert m.joint(robot_joint(m)).name == "hinge"
    added = pushed(m, np.array([3.0, 4.0]))
    assert not added[cube.qvel].any() and added[m.joint("hinge").dofadr[0]] == 3.0
    assert base_body(m) == 0 and lying(m) is None and fixed(m)
    about = {"units": ["m/s"] * 2, "trained": {"low": [-1, -1], "high": [1, 1]}}
    assert command_arrow(about, np.ones(2), mujoco.MjData(m), 0.3) is None
    assert Caption(m).body is None


@pytest.mark.parametrize("text, name", [(ROTOR, "frame"), (PULLED, "trunk")])
def test_the_base_carries_what_is_driven(text, name):
    """A rotor on a site, or a joint on a tendon, makes its free body the base."""
    m = compiled(text, CUBE)
    base, objects = free_base(m), free_objects(m)
    assert base and base.name == name and [x.name for x in objects] == ["cube"]
    assert (base.qpos, base.qvel) == (slice(7, 14), slice(6, 12))
    assert base_body(m) == base.body == m.jnt_bodyid[robot_joint(m)] and driven_bodies(m)


def test_a_model_without_actuators():
    """Its first free body counts as the base; without joints there is none of a robot."""
    passive = mujoco.MjModel.from_xml_string(f"<mujoco><worldbody>{CUBE}</worldbody></mujoco>")
    empty = mujoco.MjModel.from_xml_string(EMPTY)
    assert free_base(passive) and not free_objects(passive)
    assert robot_joint(passive) == 0 and robot_joint(empty) is None


@pytest.mark.parametrize("field", ["push", "force", "start_velocity", "start_height", "payload"])
def test_what_moves_a_base_is_refused_beside_a_cube(field, tmp_path):
    """An arm beside a cube is answered in one line, as is a robot without any free joint."""
    file = tmp_path / "arm.xml"
    file.write_text(ARM.format(first=CUBE, last="").replace("</worldbody>", f"</worldbody>{FLAG}"))
    numbers: Any = dict(dt=0.02, episode=1.0, clip=1.0, observation_delay=(0, 0), share_at_ends=0.0)
    entry = with_ranges({field: {"kind": "uniform"}})
    task = Task(mjcf=str(file), actuator=make_actuator(), randomise=entry, **numbers)
    assert task.base is None and [x.name for x in task.objects] == ["cube"]
    with pytest.raises(ValueError, match=f"task.randomise.{field}: this model has no free base"):
        task.randomization.push  # noqa: B018  made when it is asked for


def test_the_base_behind_a_cube(tmp_path):
    """Of a quadruped behind a cube, pushes and starts move the trunk, and the cube stays."""
    m = mujoco.MjModel.from_xml_path(str(quadruped_behind_a_cube(tmp_path)))
    own = mujoco.MjModel.from_xml_path(str(find_asset("quadruped.xml")))
    base = free_base(m)
    assert base and base.name == "trunk" and base.qpos == slice(7, 14)
    assert base_body(m) == base.body
    assert np.flatnonzero(pushed(m, np.ones(2))).tolist() == [6, 7]
    np.testing.assert_allclose(lying(m), lying(own), atol=0.02)
    np.testing.assert_allclose(footprint(m), footprint(own), atol=1e-6)
    with pytest.raises(ValueError, match="the first joint of a robot that walks"):
        make_task(mjcf=str(tmp_path / "beside.xml"))


def test_randomized_starts_move_the_base_alone(tmp_path):
    """Height, velocity, spin and pushes are added to the trunk's columns behind a cube."""
    m = mujoco.MjModel.from_xml_path(str(quadruped_behind_a_cube(tmp_path)))
    names = ("start_height", "start_velocity", "start_spin", "push", "payload")
    entries = with_ranges({name: {"kind": "uniform"} for name in names})
    entries["push"]["every"] = 0.02
    made = Randomization(m, entries, actuator=make_actuator(), dt=0.02, readings={}, device="cpu")
    rng = Rng(1, torch.arange(64))
    start = {"qpos": torch.zeros(64, m.nq), "qvel": torch.zeros(64, m.nv)}
    after = made.restart(start, rng)
    moved = {key: (after[key] != 0).any(0).nonzero()[:, 0].tolist() for key in ("qpos", "qvel")}
    assert moved == {"qpos": [9], "qvel": [6, 7, 8, 9, 10, 11]}
    kick = made.push(rng, torch.zeros(64, m.nv), None)["kick"]
    assert (kick != 0).any(0).nonzero()[:, 0].tolist() == [6, 7]
    changed = made.world(rng)["body_mass"] != torch.as_tensor(m.body_mass).float()
    assert changed.any(0).nonzero()[:, 0].tolist() == [m.body("trunk").id]
