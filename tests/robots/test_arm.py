"""Load an arm: an MJCF file becomes a model that task=reach trains. A file that does not fit is
refused in one line that names what cannot be guessed."""

import math
import re
from functools import partial

import imageio
import mujoco
import numpy as np
import pytest
import torch

from gpusim_rl.assembly.environment import make_task
from gpusim_rl.config import robot_size
from gpusim_rl.config.compose import compose_plain
from gpusim_rl.config.sections import Config
from gpusim_rl.core import waiting
from gpusim_rl.core.paths import ASSETS
from gpusim_rl.envs.mirror import derive_flips
from gpusim_rl.robots.arm.shape import Arm
from gpusim_rl.robots.arm.workspace import LARGEST_BOX, REACH, Box, drawn, goals_of
from gpusim_rl.robots.bodies import tip
from gpusim_rl.robots.description import reasons
from gpusim_rl.robots.load import Loaded, load_any, load_as
from gpusim_rl.viewer.picture import picture
from tests import robot_files
from tests.arm_files import COUPLED, mjcf, solving_error
from tests.worlds import numbers, robot_keys

FILE = str(ASSETS / "arm.xml")
JOINTS = ["drehen", "heben", "beugen", "rollen", "neigen", "drillen"]


def load(folder, text: str, **keys: object) -> Loaded:
    """The arm of a file with this text."""
    loaded = load_any(**robot_keys(mjcf=robot_files.write(folder, text), **keys))
    assert isinstance(loaded.shape, Arm)  # found by its chain
    return loaded


@pytest.fixture(scope="module")
def greifer(tmp_path_factory) -> Loaded:
    return load(tmp_path_factory.mktemp("greifer"), mjcf())


def test_what_is_guessed(greifer):
    """The chain ends where the fingers begin, and the tool is between their tips."""
    robot, why = greifer.robot, reasons({}, greifer)
    assert robot.base == "sockel" and robot.joints == JOINTS and robot.tool is None
    assert greifer.shape.joints.others(greifer.original) == ["links_weg", "rechts_weg"]
    # 0.06 m to the fingers, and 0.04 m to their ends; the left one is locked at its 10 mm
    np.testing.assert_allclose(greifer.shape.tool.pos, [0, 0, 0.1], atol=6e-3)
    assert "middle of the fingertips" in why["tool"]
    assert "fixed: links_weg, rechts_weg" in why["joints"]
    assert robot.mirror == [-1, 1, 1, -1, 1, -1]


def test_gravity_is_the_tasks(tmp_path):
    """Gravity compensation of the file is not kept, and a weld between fingers does not matter."""
    weld = COUPLED.replace("/></eq", '/><weld body1="links" body2="rechts"/></eq')
    text = mjcf(more=weld).replace('<body name="oberarm"', '<body name="oberarm" gravcomp="1"')
    loaded = load(tmp_path, text)
    assert loaded.original.body_gravcomp.any() and not loaded.mjm.body_gravcomp.any()
    assert loaded.mjm.neq == 0


def test_home(greifer):
    """The arm waits in the plane y = 0, its tool before the shoulder, with x to the front or up."""
    arm, home = greifer.shape.kinematics, np.array(greifer.robot.stance)
    assert not arm.touches(home) and (home[[0, 3, 5]] == 0).all()
    position, axes = arm.chain.pose(torch.tensor(home)[None])
    ahead = position[0].numpy() - arm.shoulder
    assert ahead[0] > 0.25 * arm.reach and abs(ahead[1]) < 1e-9
    assert axes[0, 2, 2] < -0.7 and axes[0, 0, 0] > 0.7


def test_fingers_are_locked_within_their_ranges(greifer):
    """The left finger's range begins at 10 mm, so it stays there."""
    d = mujoco.MjData(greifer.mjm)
    mujoco.mj_kinematics(greifer.mjm, d)
    hand = d.body("hand")
    left = hand.xmat.reshape(3, 3).T @ (d.body("links").xpos - hand.xpos)
    np.testing.assert_allclose(left, [0, 0.04, 0.06], atol=1e-9)


def test_gains(greifer):
    """Torques carry twice the weights and 10 rad/s² more; gains follow the inertias."""
    robot, (weight, inertia) = greifer.robot, greifer.shape.loads
    need = 2 * weight + 10 * inertia
    torque = np.maximum(need, need.max() / 7)
    np.testing.assert_allclose(robot.torque, torque, rtol=1e-3)
    np.testing.assert_allclose(robot.armature, 1.5e-4 * torque, rtol=1e-3)
    moved = inertia + 1.5e-4 * torque
    kp = np.maximum(moved * (6 * math.pi) ** 2, 10 * weight)
    np.testing.assert_allclose(robot.kp, kp, rtol=1e-3)
    np.testing.assert_allclose(robot.kd, 2 * np.sqrt(kp * moved), rtol=1e-3)
    # stretched to the front: 2 kg at 0.165 m, 1 kg at 0.44 m, 0.3 kg at 0.55 m and so on, in N m
    lever = 2 * 0.165 + 0.44 + 0.3 * 0.55 + 0.2 * 0.6 + 0.3 * 0.69 + 0.1 * 0.73
    assert weight[1] == pytest.approx(9.81 * lever, rel=0.05) and weight[0] < 1e-9


@pytest.mark.parametrize("lean", [None, 0.5])
def test_the_box_can_be_reached(greifer, lean):
    """MuJoCo's own Jacobian leads to goals of the box, which lies before the arm."""
    found_box = greifer.shape.task_numbers(greifer.robot, lean, {})
    box = Box(*(found_box.get(key, 0.0) for key in Box._fields))
    assert box.center[0] > 0.2 and box.center[1] == 0 and box.center[2] - box.largest[2] >= 0.05
    size = greifer.shape.kinematics.reach / REACH
    share = np.array(box.largest) / (size * np.array(LARGEST_BOX))
    assert (share > 0.3).all() and (share < 1.01).all()
    places, unit = drawn()
    goals, turns = (x.numpy() for x in goals_of(box, places[:4], unit[:4]))
    low, high = greifer.mjm.jnt_range.T
    starts = np.random.default_rng(0).uniform(low, high, (40, len(low)))
    for goal, turn in zip(goals, turns, strict=True):
        quat = np.zeros(4)
        mujoco.mju_mat2Quat(quat, turn.ravel())
        solve = partial(solving_error, greifer.mjm, "gpusim_rl/tool", (low, high), starts)
        assert solve(goal, quat if lean else None, lever=0.1) < 1e-3


def test_the_picture_shows_what_is_forward(greifer, tmp_path):
    """The arm does not hide the arrow."""
    picture(greifer.mjm, {}, tmp_path / "arm.png")
    r, g, b = np.moveaxis(imageio.v3.imread(tmp_path / "arm.png").astype(int), -1, 0)
    assert ((r > 150) & (g > r / 2) & (b < r / 3)).sum() > 500  # of the gold of the arrow


def test_what_a_user_says_of_the_box_stays(greifer, monkeypatch, capsys):
    """A given center keeps its place, and the rest is found for it. A long search says so."""
    box = greifer.shape.task_numbers(greifer.robot, None, dict(center=[0.3, 0.1, 0.3]))
    assert box["center"] == [0.3, 0.1, 0.3] and box["largest"][0] > 0
    assert "center" not in greifer.shape.task_numbers(
        greifer.robot, None, dict(center=[9, 9, 9], largest=[1, 1, 1])
    )
    with pytest.raises(ValueError, match=r"set task\.center and task\.largest"):
        monkeypatch.setattr(waiting, "EVERY", 0.01)  # s
        greifer.shape.task_numbers(greifer.robot, None, dict(center=[9.0, 9.0, 9.0]))
    out, error = capsys.readouterr()  # `mode=robot` prints a file on the first
    assert out == "" and error.startswith("looking for goals that the arm can reach: 0:0")


def test_the_task_takes_it(tmp_path, capsys):
    """The task has six joints, a box of goals, a mirror image, and its sensors in order."""
    file = robot_files.write(tmp_path, mjcf())
    words = ["task=reach_pose", f"robot.mjcf={file}", "task.spread=0.1"]
    cfg = robot_size.fit_to_robot(compose_plain("config", words), ["task", "task.spread"])
    said = capsys.readouterr().err
    assert "reach of 0.7" in said and said.count("\n") == 1
    assert re.search(
        r": goals within (\d+ × ){2}\d+ cm, \d+ cm before the shoulder; the hand", said
    )
    assert re.search(r"; joints up to \d\.\d+ rad/s \(--cfg job shows all \d+\)", said)
    assert cfg["task"]["spread"] == 0.1
    assert cfg["task"]["randomise"]["payload"]["only"] == ["hand"]
    task = make_task(Config.of(cfg), "cpu")
    assert task.mjm.nu == 6 and task.mjm.nq == 6
    assert derive_flips(task)["action"].signs == (-1, 1, 1, -1, 1, -1)
    assert task.sensors == ("drehen_torque", "drillen_torque")
    wrong = cfg | {"task": cfg["task"] | {"largest_speed": [2.0] * 7}}
    with pytest.raises(ValueError, match="largest_speed has 7 numbers, and the arm 6 joints"):
        make_task(Config.of(wrong), "cpu")


def test_the_own_arm_from_its_file():
    """The importer finds home, gains, tool and mirror of tasks/assets/arm.xml, and its reach."""
    loaded = load_as("arm", **robot_keys(mjcf=FILE))
    assert isinstance(loaded.shape, Arm)
    m, robot = loaded.original, loaded.robot
    np.testing.assert_allclose(robot.stance, m.key_qpos[0])
    np.testing.assert_allclose(robot.kp, m.actuator_gainprm[:, 0])
    assert robot.tool == "tool" and loaded.shape.turn == 0
    assert robot.mirror == [-1, 1, -1, 1, -1, 1, -1]
    assert loaded.shape.kinematics.reach == pytest.approx(REACH, abs=1e-3) == robot_size.OWN_REACH
    assert tuple(numbers("reach")["largest"]) == LARGEST_BOX
    assert "the keyframe 'home'" in reasons({}, loaded)["stance"]


def test_contact(tmp_path, greifer):
    """Nothing collides unless collide=all, and then nothing touches at home."""
    m = greifer.mjm
    assert not m.geom_contype.any() and not m.geom_conaffinity.any()
    m = load(tmp_path, mjcf(), collide="all").mjm
    d = mujoco.MjData(m)
    mujoco.mj_resetDataKeyframe(m, d, 0)
    mujoco.mj_forward(m, d)
    assert m.geom_contype.any() and d.ncon == 0
    d.qpos[1:3] = 2.0, 0.6  # the forearm in the ground
    mujoco.mj_forward(m, d)
    assert d.ncon > 0


@pytest.mark.parametrize(
    ("keys", "tool", "why"),
    [
        (dict(hand='<site name="tcp"/><site name="grasp" pos="0 0 0.1"/>'), "grasp", "'grasp'"),
        (dict(hand='<site name="screw_1"/><site name="Tip" pos="0 0 0.1"/>'), "Tip", "'Tip'"),
        (dict(hand='<site name="nail"/>', fingers="", more=""), "nail", "the only one"),
        (dict(hand='<site name="nail"/>'), None, "fingertips"),
        (dict(hand="<site/>", fingers="", more=""), None, "far end of the last body's geoms"),
        (
            dict(fingers='<body name="flansch" pos="0 0 0.1"/>', more=""),
            "flansch",
            "the origin of the last body",
        ),
        (
            dict(fingers='<body name="kl"><joint name="jaw"/><geom size="0.01"/></body>', more=""),
            None,
            "fingertips",
        ),
    ],
)
def test_tools(tmp_path, keys, tool, why):
    """A site is a tool by its name; else the fingertips are, an only site, or the last body."""
    loaded = load(tmp_path, mjcf(**keys))
    assert loaded.robot.tool == tool and why in loaded.shape.tool.why
    if "far end" in why:
        np.testing.assert_allclose(loaded.shape.tool.pos, [0, 0, 0.06], atol=1e-9)  # of the box
    assert loaded.robot.joints == JOINTS


def test_given_values_win(tmp_path, capsys):
    """Joints, tool and gains; hinges that are not named are fixed. A tool on a joint is told."""
    keys = dict(joints=JOINTS[:3], tool="unterarm", kp=[900.0, 800.0, 700.0], torque=60)
    loaded = load(tmp_path, mjcf(), **keys)
    assert loaded.robot.kp == keys["kp"] and loaded.robot.torque == [60.0] * 3
    assert loaded.mjm.nq == 3 and loaded.robot.tool == "unterarm"
    line = capsys.readouterr().err
    assert "the tool lies on the joint beugen" in line and line.count("\n") == 1


def test_tips_of_round_geoms():
    """The farthest point of a capsule is on its round end, and that of a sphere on its surface."""
    m = mujoco.MjModel.from_xml_string(
        "<mujoco><worldbody><geom type='capsule' size='0.05' fromto='0 0 0 0 0 1'/>"
        "<geom type='sphere' size='0.2' pos='0 0.5 0'/></worldbody></mujoco>"
    )
    d = mujoco.MjData(m)
    mujoco.mj_kinematics(m, d)
    anchor = np.array([0, 0, -0.1])
    point, radius = tip(m, d, 0, anchor)
    np.testing.assert_allclose([*point, radius], [0, 0, 1.05, 0.05], atol=1e-9)
    point, radius = tip(m, d, 1, np.zeros(3))
    np.testing.assert_allclose([*point, radius], [0, 0.7, 0, 0.2], atol=1e-9)
