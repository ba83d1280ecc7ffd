"""Load a humanoid: an MJCF file becomes a model that task=humanoid trains. A file that does not fit
is refused in one line that names what cannot be guessed."""

import math
from pathlib import Path

import mujoco
import numpy as np
import pytest

from gpusim_rl.assembly.environment import make_task
from gpusim_rl.config import robot_size
from gpusim_rl.core.paths import ASSETS
from gpusim_rl.envs.mirror import derive_flips
from gpusim_rl.robots.description import reasons
from gpusim_rl.robots.humanoid.shape import Humanoid, WholeHumanoid
from gpusim_rl.robots.humanoid.soles import fit_sole
from gpusim_rl.robots.load import Loaded, load_any, load_as
from gpusim_rl.robots.quadruped.shape import Quadruped
from tests import robot_files
from tests.humanoid_files import mjcf
from tests.worlds import make_config, robot_keys

FILE = str(ASSETS / "humanoid.xml")


def keys(folder: Path, text: str, **further: object) -> dict:
    """The description of the robot of a file with this text."""
    return robot_keys(mjcf=robot_files.write(folder, text), **further)


@pytest.fixture(scope="module")
def mensch(tmp_path_factory) -> Loaded:
    loaded = load_any(**keys(tmp_path_factory.mktemp("mensch"), mjcf()))
    assert isinstance(loaded.shape, Humanoid)  # found by its legs
    return loaded


def test_what_is_guessed(mensch):
    """Legs are found by places, knees bend whichever way they turn, and soles stay level."""
    robot = mensch.robot
    order = [
        [f"{leg}_{j}" for j in ("quer", "hoch", "knie", "sprung")] for leg in ("links", "rechts")
    ]
    assert robot.joints == order and robot.base == "rumpf"
    assert robot.feet == ["links_fuss", "rechts_fuss"]
    left, right = np.array(robot.stance).reshape(2, 4)
    assert left[2] == pytest.approx(0.64) and left[0] == 0
    assert left[1:].sum() == pytest.approx(0, abs=1e-3)
    np.testing.assert_allclose(right, -left)  # as its axes are turned round
    assert mensch.shape.joints.others(mensch.original) == ["rechts_schulter", "links_schulter"]
    assert mensch.shape.size == pytest.approx(0.3 + math.hypot(0.34, 0.03), abs=2e-3)


def test_gains(mensch):
    """Torques follow weight times leg, the rotors the torques, and the gains the rotors."""
    robot, scale = mensch.robot, 29 * 9.81 * mensch.shape.size
    torque = np.array([0.5, 0.5, 0.5, 0.25] * 2) * scale
    np.testing.assert_allclose(robot.torque, torque, rtol=1e-3)
    np.testing.assert_allclose(robot.armature, 1.5e-4 * torque, rtol=1e-3)
    np.testing.assert_allclose(robot.kp, 1.5e-4 * torque * (20 * math.pi) ** 2, rtol=1e-3)
    np.testing.assert_allclose(robot.kd, 1.5e-4 * torque * 80 * math.pi, rtol=1e-3)


def test_a_whole_body(tmp_path, capsys):
    """All hinges get servos, the legs' first; numbers of the legs leave the others' to the guess.

    A quadruped's legs are all that moves, and an arm is refused.
    """
    stance = [0.0, 0.1, 0.2, -0.3, 0.0, -0.1, -0.2, 0.3]
    described = keys(tmp_path, mjcf(), kp=[30.0, 40.0, 50.0, 20.0], stance=stance)
    whole = load_as("whole", **described | dict(scale=[0.1, 0.2, 0.3, 0.4]))
    assert "robot.scale is of the legs alone: task.action_scale" in capsys.readouterr().err
    legs = load_as("humanoid", **described)
    arms = ["rechts_schulter", "links_schulter"]
    assert type(whole.shape) is WholeHumanoid
    assert whole.shape.joints.names == [*legs.shape.joints.names, *arms]
    assert whole.mjm.nu == 10 and whole.mjm.nq == 17
    assert whole.robot.kp[:8] == legs.robot.kp and whole.robot.torque[:8] == legs.robot.torque
    torque = 0.25 * 29 * 9.81 * whole.shape.size
    assert whole.robot.torque[8:] == pytest.approx([torque] * 2, rel=1e-3)
    assert whole.robot.stance == [*legs.robot.stance, 0, 0]
    assert whole.robot.scale is None and legs.robot.scale is None
    each = load_as("whole", **described | dict(kp=[*range(1, 11)], scale=0.3))
    assert each.robot.kp == [*range(1, 11)] and each.robot.scale == [0.3] * 10
    with pytest.raises(ValueError, match=r"expected a number, 4 of a leg, 8 of both or 10$"):
        load_as("whole", **described | dict(kp=[1.0, 2.0]))
    four = load_as("whole", **robot_keys(mjcf=str(ASSETS / "quadruped.xml")))
    assert type(four.shape) is Quadruped
    with pytest.raises(ValueError, match=r"task=reach may take this robot$"):
        load_as("whole", **robot_keys(mjcf=str(ASSETS / "arm.xml")))


def test_soles(mensch):
    """Four spheres touch the ground at the corners of each sole, and nothing else does."""
    m, d = mensch.mjm, mujoco.MjData(mensch.mjm)
    mujoco.mj_resetDataKeyframe(m, d, 0)
    mujoco.mj_forward(m, d)
    solid = [g for g in range(m.ngeom) if m.geom_contype[g] and m.geom_bodyid[g]]
    assert len(solid) == 8
    bottom = d.geom_xpos[solid, 2] - m.geom_size[solid, 0]
    np.testing.assert_allclose(bottom, 0, atol=1e-3)
    np.testing.assert_allclose(np.ptp(d.geom_xpos[solid[:4], :2], 0), [0.18, 0.06], atol=1e-6)
    center = d.subtree_com[1]
    assert d.geom_xpos[solid, 0].min() < center[0] < d.geom_xpos[solid, 0].max()


def test_the_task_takes_it(tmp_path):
    """The task has its sensors, its joints in order, and a mirror image."""
    file = robot_files.write(tmp_path, mjcf())
    task = make_task(make_config("task=humanoid", f"robot.mjcf={file}"), "cpu")
    assert task.mjm.nu == 8 and task.mjm.nq == 15
    flips = derive_flips(task)
    assert flips["joints"].order == (4, 5, 6, 7, 0, 1, 2, 3)
    # their axes are turned round already, but for the one about x
    assert flips["joints"].signs == (-1, -1, -1, -1) * 2
    lifts = task.bend.reshape(2, 4)
    assert lifts[0, 2] == -lifts[1, 2] > 0 and lifts[0, 1] < 0


def test_the_own_robot_from_its_file():
    """The importer finds the stance, gains and soles that tasks/assets/humanoid.xml has."""
    loaded = load_as("humanoid", **robot_keys(mjcf=FILE))
    m, robot = loaded.original, loaded.robot
    np.testing.assert_allclose(robot.stance, m.key_qpos[0, 7:])
    np.testing.assert_allclose(robot.kp, m.actuator_gainprm[:, 0])
    corners = [m.geom(f"left_{x}").pos for x in ("heel_in", "heel_out", "toe_in", "toe_out")]
    np.testing.assert_allclose(loaded.shape.soles[0].corners, corners, atol=4e-3)
    assert loaded.shape.size == pytest.approx(robot_size.DEFAULTS["humanoid"][1], abs=1e-3)
    assert "the keyframe 'stance'" in reasons({}, loaded)["stance"]


def test_given_values_win(tmp_path):
    """A number for all joints, or one for each joint of a leg."""
    kp = [10.0, 20.0, 30.0, 40.0]
    robot = load_any(**keys(tmp_path, mjcf(), kp=kp, torque=50, scale=0.3)).robot
    assert robot.kp == kp * 2 and robot.torque == [50.0] * 8 and robot.scale == [0.3] * 8


def test_a_ball_is_a_small_sole(tmp_path):
    """The sole of a sphere is its part within 15 mm of the ground: √(2 · 75 · 15 - 15²) = 45 mm."""
    text = (
        '<mujoco><worldbody><body name="b"><freejoint/><geom type="sphere" size="0.075"/></body>'
        "</worldbody></mujoco>"
    )
    sole = fit_sole(mujoco.MjModel.from_xml_string(text), "b", "b")
    assert np.abs(sole.corners[:, :2]).max() < 0.045
    assert np.abs(sole.corners[:, :2]).min() > 0.015


def test_smaller_humanoids_are_asked_for_less(tmp_path, capsys):
    """The task's numbers follow the legs, as a quadruped's do."""
    from gpusim_rl.config.compose import compose_plain

    file = robot_files.write(tmp_path, mjcf())
    words = ["task=humanoid", f"robot.mjcf={file}"]
    cfg = robot_size.fit_to_robot(compose_plain("config", words), ["task", "robot.mjcf"])
    leg = load_any(**robot_keys(mjcf=file)).shape.size / robot_size.DEFAULTS["humanoid"][1]
    assert cfg["task"]["swing_height"] == pytest.approx(0.1 * leg, rel=1e-2)
    assert "has legs of" in capsys.readouterr().err
