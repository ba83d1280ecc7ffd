"""Load a robot: an MJCF or URDF file becomes a model that task=quadruped trains. A file that does
not fit is refused in one line."""

import dataclasses
import json
import re
import sys
from pathlib import Path

import imageio
import mujoco
import numpy as np
import pytest
import torch
import yaml

from gpusim_rl.assembly.environment import make_task, robot_arguments
from gpusim_rl.commands import play, train
from gpusim_rl.config.compose import build
from gpusim_rl.config.sections import RobotSection
from gpusim_rl.core.paths import ASSETS
from gpusim_rl.deploy import runtime
from gpusim_rl.robots.inertias import compile_mended
from gpusim_rl.robots.load import Loaded
from gpusim_rl.robots.models import compile_mjcf
from gpusim_rl.robots.robot_config import Robot
from gpusim_rl.tasks.locomotion.quadruped import Quadruped
from tests import robot_files, worlds
from tests.command_lines import EXPORTED, TINY, command, succeed
from tests.guard import reads_nothing
from tests.robot_files import NAMES, PLACE, mjcf, write
from tests.worlds import (
    ROOT,
    make_actuator,
    make_config,
    make_env,
    make_ppo,
    make_robot,
    robot_keys,
    same_model,
)

MESH = "v 0 0 0\nv 0.2 0 0\nv 0 0.1 0\nv 0 0 0.3\nf 1 3 2\nf 1 2 4\nf 1 4 3\nf 2 3 4\n"
FILE = str(ASSETS / "quadruped.xml")


@pytest.fixture
def file(tmp_path) -> str:
    return write(tmp_path, mjcf())


@pytest.fixture(scope="module")
def hund(tmp_path_factory) -> Loaded:
    return make_robot(mjcf=write(tmp_path_factory.mktemp("hund"), mjcf()))


def settings(**robot) -> dict:
    """The arguments of the task that a robot gives."""
    keys = {"name": "own", "actuator": worlds.make_actuator(), "values": robot_keys(**robot)}
    return robot_arguments(Quadruped, RobotSection(**keys))


# -- the robot of the project ----------------------------------------------------------------------


def test_the_own_robot_stays_as_it_is():
    """Without robot.mjcf the model is the file's, bit for bit, and columns are slices."""
    task = make_task(make_config("task=quadruped"), "cpu")
    assert same_model(task.mjm, mujoco.MjModel.from_xml_path(FILE))
    assert task.mjcf_text() == Path(FILE).read_text()
    assert task.joint_columns[:2] == (slice(7, 19), slice(6, 18))
    torch.testing.assert_close(task.bend, torch.tensor([[0.0, 0.3, -0.6]] * 4), rtol=0, atol=0)
    assert (task.foot_geoms, task.base_height, task.joint_scales) == (
        ("FL", "FR", "RL", "RR"),
        0.28,
        0.3,
    )


def test_the_own_robot_from_its_file():
    """The importer finds the joints, gains, limits, sensors and inertias of its file."""
    robot_model, m = make_robot(mjcf=FILE), compile_mjcf("quadruped.xml")
    robot = robot_model.robot
    assert robot.base == "trunk" and robot.feet == ["FL", "FR", "RL", "RR"]
    driven = [m.joint(j).name for j in m.actuator_trnid[:, 0]]
    assert [name for leg in robot.joints for name in leg] == driven
    fields = "actuator_gainprm actuator_biasprm actuator_forcerange dof_armature body_mass"
    for field in (*fields.split(), "body_inertia"):
        np.testing.assert_allclose(
            getattr(robot_model.mjm, field), getattr(m, field), rtol=1e-5, atol=1e-12, err_msg=field
        )
    assert [robot_model.mjm.sensor(i).name for i in range(m.nsensor)] == [
        m.sensor(i).name for i in range(m.nsensor)
    ]
    np.testing.assert_allclose(robot_model.mjm.key_qpos[0, 3:], m.key_qpos[0, 3:])
    np.testing.assert_allclose(
        np.reshape(robot_model.arguments["lift_direction"], (4, 3)), [[0, 0.5, -1]] * 4, atol=1e-6
    )
    # Under its weight, it is lower than in the keyframe.
    assert robot.height and 0.26 < robot.height < 0.3 < robot_model.mjm.key_qpos[0, 2] < 0.33


# -- another robot ---------------------------------------------------------------------------------


def test_what_is_guessed(hund):
    """From a bare file: base, feet, joints, torque limits, gains and a stance with bent knees."""
    robot = hund.robot
    assert robot.base == "rumpf" and robot.feet == ["vl_fuss", "vr_fuss", "hl_fuss", "hr_fuss"]
    assert robot.joints == [NAMES[i : i + 3] for i in range(0, 12, 3)]
    assert robot.torque == [25.0] * 12
    assert 15 < robot.kp[0] < 50 and 0.3 < robot.kd[0] < 2 and robot.scale is None
    stance = np.reshape(robot.stance, (4, 3))
    np.testing.assert_allclose(
        stance,
        np.array([0, 0.7954, -1.5908]) * [[1, 1, [-1, 1, -1, -1][i]] for i in range(4)],
        atol=0.01,
    )
    knees = np.reshape(hund.arguments["lift_direction"], (4, 3))[:, 2]
    assert knees.tolist() == [1, -1, 1, 1]  # 1: the angle grows when the foot lifts


def test_it_stands(hund):
    """From its keyframe, the robot keeps standing level on four feet, as the sensors show."""
    m = hund.mjm
    d = mujoco.MjData(m)
    mujoco.mj_resetDataKeyframe(m, d, 0)
    mujoco.mj_step(m, d, 400)
    assert d.qpos[2] == pytest.approx(hund.robot.height, abs=0.005)
    np.testing.assert_allclose(d.sensor("up").data, [0, 0, 1], atol=0.05)
    for i, (x, y) in enumerate([(0.2, 0.1), (0.2, -0.1), (-0.2, 0.1), (-0.2, -0.1)]):
        place = d.sensor(f"{('FL', 'FR', 'RL', 'RR')[i]}_position").data
        np.testing.assert_allclose(place, [x, y, 0.02], atol=0.03)
    balls = {m.geom(ball).id for ball in hund.shape.labels.values()}
    assert {*d.contact.geom.ravel().tolist()} == balls | {m.geom("gpusim_rl/floor").id}


def test_only_feet_collide_or_all(file, tmp_path):
    """Only the feet touch the ground, or with collide=all the file's geoms as before."""
    m = make_robot(mjcf=file).mjm
    touching = [m.geom(i).name for i in range(m.ngeom) if m.geom_contype[i]]
    assert sorted(touching) == sorted(f"gpusim_rl/{leg}" for leg in ("FL", "FR", "RL", "RR"))
    m = make_robot(mjcf=file, collide="all").mjm
    assert ((m.geom_contype > 0) & (m.geom_conaffinity > 0)).all() and m.ngeom == 14
    ground = '<geom name="boden" type="plane" size="0 0 1"/>'
    text = mjcf().replace("<worldbody>", f"<worldbody>{ground}")
    m = make_robot(mjcf=write(tmp_path, text, "scene.xml")).mjm
    assert m.ngeom == 14 and m.geom("boden").conaffinity == 1


def test_given_values_win(file):
    """Gains, limits, stance and scale that are given are the model's and the task's."""
    values = dict(
        kp=[20, 21, 40],
        kd=1.5,
        torque=30,
        armature=0.01,
        stance=[0, 0.7, 1.4, 0, 0.7, -1.4, 0, 0.7, 1.4, 0, 0.7, 1.4],
        scale=[0.1, 0.2, 0.3],
    )
    task = worlds.make_task(**settings(mjcf=file, height=0.25, **values))
    m = task.mjm
    assert m.actuator_gainprm[:, 0].tolist() == [20, 21, 40] * 4
    assert (m.actuator_biasprm[:, 2] == -1.5).all()
    assert (m.actuator_forcerange[:, 1] == 30).all() and (m.dof_armature[6:] == 0.01).all()
    assert task.stance.tolist() == pytest.approx(values["stance"])
    assert task.scale == (0.1, 0.2, 0.3) * 4 and task.base_height == 0.25


def test_order_of_joints(file):
    """Angles, speeds, starts and controls are in the order of the actuators."""
    env = make_env(num_envs=4, **settings(mjcf=file))
    task, m = env.task, env.task.mjm
    driven = [m.joint(int(j)).name for j in m.actuator_trnid[:, 0]]
    assert [m.joint(i).name for i in range(1, 13)] != NAMES and driven == NAMES
    s = env.current_state()
    for i, name in enumerate(NAMES):
        at, speed = int(m.joint(name).qposadr[0]), int(m.joint(name).dofadr[0])
        assert torch.equal(task.observe(s)["joints"][:, i], s.qpos[:, at] - task.stance[i])
        assert torch.equal(task.observe(s)["speeds"][:, i], s.qvel[:, speed])
        assert m.actuator_trnid[i, 0] == m.joint(name).id and task.stance[i] == pytest.approx(
            float(m.key_qpos[0, at])
        )
    start = task.start(4, env.rng)["qpos"][:, m.jnt_qposadr[m.actuator_trnid[:, 0]]]
    assert ((start - task.stance).abs() <= 0.1001).all()


def test_an_iteration_with_reordered_joints_reads_nothing_on_the_host(file):
    """Nothing is read on the host either where the task's columns are indices."""
    ppo = make_ppo(make_env(num_envs=8, **settings(mjcf=file)), num_steps=4)
    ppo.iteration()
    reads_nothing(ppo)
    assert isinstance(ppo.env.task.joint_columns.qpos, torch.Tensor)


def test_arms_and_heads_keep_their_place(tmp_path):
    """Joints outside of the legs are removed, with the equalities and keyframes that use them."""
    head = '<joint name="nicken" axis="0 1 0"/><geom size="0.05" mass="0.3"/>'
    head = f'<body name="kopf" pos="0.3 0 0">{head}</body>'
    more = '<equality><joint joint1="nicken"/></equality>'
    more += '<keyframe><key qpos="0.3 0 0 0 0 0 0 0 0 0 0 0 0"/></keyframe>'
    robot_model = make_robot(mjcf=write(tmp_path, mjcf(inside=head, more=more)))
    m = robot_model.mjm
    assert m.nq == 19 and m.body("kopf").mass == 0.3 and m.neq == 0


def test_keyframe_of_the_file(tmp_path):
    """The stance is the first keyframe in which the robot stands."""
    pose = {"hr": "0 0.6 1.2", "hl": "0 0.6 1.2", "vr": "0 0.6 -1.2", "vl": "0 0.6 1.2"}
    keys = "".join(f'<key qpos="{q}"/>' for q in ("0 3 0.5 " * 4, " ".join(pose.values())))
    robot_model = make_robot(mjcf=write(tmp_path, mjcf(more=f"<keyframe>{keys}</keyframe>")))
    np.testing.assert_allclose(
        robot_model.robot.stance, [0, 0.6, 1.2, 0, 0.6, -1.2, 0, 0.6, 1.2, 0, 0.6, 1.2]
    )


def test_feet_beside_the_hips(tmp_path):
    """Feet outside of the hips, as ANYmal's, stay there: abductions are at rest."""
    text = mjcf()
    for leg, (_, y) in PLACE.items():
        knee = f'<body name="{leg}_unter" pos="0 '
        text = text.replace(f"{knee}0 -0.2", f"{knee}{np.sign(y) * 0.06} -0.2")
    stance = np.reshape(make_robot(mjcf=write(tmp_path, text)).robot.stance, (4, 3))
    np.testing.assert_allclose(stance[:, 0], 0, atol=0.01)


@pytest.mark.parametrize(
    "servo, kp, kd, torque",
    [
        ('kp="40" kv="1"', 40, 1, 30),
        ('kp="2" kv="1"', None, None, 30),  # with which it does not stand
        ('kp="10" kv="0.25" gear="2"', 40, 1, 60),  # gains at the joint are times the gear squared
    ],
)
def test_servos_of_the_file(tmp_path, servo, kp, kd, torque):
    """The file's gains are used only if the robot stands with them, its torque limits always."""
    servos = "".join(f'<position joint="{x}" {servo} forcerange="-30 30"/>' for x in NAMES)
    text = re.sub("<actuator>.*</actuator>", f"<actuator>{servos}</actuator>", mjcf())
    robot = make_robot(mjcf=write(tmp_path, text)).robot
    assert robot.torque == [torque] * 12
    if kp is None:
        assert robot.kp != [2] * 12
    else:
        assert (robot.kp, robot.kd) == ([kp] * 12, [kd] * 12)


SURROUNDINGS = {
    "flags": dict(
        more='<option><flag sensor="disable" contact="disable" limit="disable"/></option>'
    ),
    "override": dict(
        more='<option o_solref="0.5 1"><flag override="enable" actuation="disable"/></option>'
    ),
    "gravity": dict(more='<option gravity="3 0 9" wind="9 9 9" density="1000" viscosity="1"/>'),
    "groups": dict(more='<option actuatorgroupdisable="0 1 2"/>'),
    "a picture of ground": dict(
        beside='<geom type="plane" size="9 9 1" contype="0" conaffinity="0"/>'
    ),
    "a wall": dict(beside='<geom type="plane" size="9 9 1" pos="0.1 0 0" euler="0 1.57 0"/>'),
    "a slope": dict(beside='<geom type="plane" size="9 9 1" zaxis="0.3 0 1"/>'),
    "a steep slope": dict(beside='<geom type="plane" size="9 9 1" quat="2 1 0 0"/>'),
    "a frame": dict(beside='<frame pos="0 0 1"><geom type="plane" size="9 9 1"/></frame>'),
    "a pit": dict(beside='<geom type="plane" size="9 9 1" pos="0 0 -1"/>'),
}


@pytest.mark.parametrize("what", SURROUNDINGS)
def test_surroundings_are_the_task_s(hund, tmp_path, what):
    """Flags, gravity, wind, fluids and planes that are no level ground are not the file's."""
    loaded = make_robot(mjcf=write(tmp_path, mjcf(**SURROUNDINGS[what])))
    assert dataclasses.replace(loaded.robot, mjcf=hund.robot.mjcf) == hund.robot
    assert loaded.mjm.ngeom == hund.mjm.ngeom
    for key in ("disableflags", "enableflags", "density", "viscosity", "disableactuator"):
        assert getattr(loaded.mjm.opt, key) == getattr(hund.mjm.opt, key)
    assert (loaded.mjm.opt.gravity == [0, 0, -9.81]).all()


@pytest.mark.parametrize("turned", ["", 'euler="0 0 0"', 'zaxis="0 0 2"', 'axisangle="0 0 1 1"'])
def test_level_ground_is_the_file_s(tmp_path, turned):
    """Level ground at height 0 keeps its friction, whatever says that it is level."""
    plane = f'<geom type="plane" size="9 9 1" friction="0.3 0.1 0.1" {turned}/>'
    m = make_robot(mjcf=write(tmp_path, mjcf(beside=plane))).mjm
    (ground,) = np.flatnonzero(m.geom_type == mujoco.mjtGeom.mjGEOM_PLANE)
    assert m.geom_friction[ground, 0] == 0.3


def test_gravity_pulls_every_body(hund, tmp_path):
    """Gravity compensation of the file is left out."""
    text = mjcf().replace('<body name="rumpf">', '<body name="rumpf" gravcomp="1">')
    loaded = make_robot(mjcf=write(tmp_path, text))
    assert not loaded.mjm.body_gravcomp.any() and loaded.robot.height == hund.robot.height


def test_urdf(tmp_path):
    """It gets a free joint, torque limits by effort, and spheres at the ends of its legs."""
    robot_model = make_robot(mjcf=write(tmp_path, robot_files.urdf(), "hund.urdf"))
    assert robot_model.robot.joints[0] == NAMES[:3] and robot_model.mjm.nq == 19
    assert robot_model.robot.torque == [25.0] * 12
    feet = tuple(f"gpusim_rl/{leg}" for leg in ("FL", "FR", "RL", "RR"))
    assert robot_model.arguments["foot_geoms"] == feet
    stance = np.reshape(robot_model.robot.stance, (4, 3))
    assert (stance[:, 1] > 0.5).all() and (stance[:, 2] < -1).all()


@pytest.mark.parametrize(
    "moments, inertia, says",
    [
        ((0.001, 0.001, 0.004), 0.002, "no rigid body has the inertia of rumpf, hr_a, hr_b, hr_c"),
        ((0, 0, 0), 1e-6, "bodies almost without mass or inertia get 0.001 kg and 1e-06 kg m²: r"),
        ((100, 100, 100), 100.0, "rumpf, hr_a, hr_b, hr_c and 9 more turn as if their mass lay"),
    ],
)
def test_impossible_inertias_are_said(tmp_path, capsys, moments, inertia, says):
    """Inertias that MuJoCo refuses are mended, those that no such robot has are kept: in a line."""
    new = 'ixx="{}" iyy="{}" izz="{}"'.format(*moments)
    text = robot_files.urdf().replace('ixx="0.002" iyy="0.002" izz="0.002"', new)
    loaded = make_robot(mjcf=write(tmp_path, text, "hund.urdf"))
    line = capsys.readouterr().err
    assert line.startswith("warning: ") and line.count("\n") == 1 and says in line
    np.testing.assert_allclose(loaded.mjm.body("vl_c").inertia, inertia, rtol=1e-6)


@pytest.mark.parametrize(
    "moments", ['diaginertia="0.1 0.7 0.8"', 'fullinertia="0.1 0.7 0.8 0 0 0"']
)
def test_a_flat_body_stays_flat(moments):
    """Beside a body that is mended, a plate keeps its moments, whose rounding MuJoCo may refuse."""
    body = '<body name="{}"><joint/><inertial pos="0 0 0" mass="1" {}/></body>'
    bodies = body.format("plate", moments) + body.format("bad", 'diaginertia="1 1 4"')
    spec = mujoco.MjSpec.from_string(f"<mujoco><worldbody>{bodies}</worldbody></mujoco>")
    said: list[str] = []
    model = compile_mended(spec, said.append)
    np.testing.assert_allclose(sorted(model.body_inertia[1]), (0.1, 0.7, 0.8), rtol=1e-4)
    np.testing.assert_allclose(model.body_inertia[2], 2.0)
    assert said == ["no rigid body has the inertia of bad: it gets the mean of its moments"]


def test_menagerie(tmp_path, monkeypatch):
    """menagerie:NAME loads a model; an unknown name or a failed download is one line."""
    package = pytest.importorskip("mujoco_menagerie", reason="pip install 'gpusim_rl[robots]'")
    folder = tmp_path / "unitree_go2"
    folder.mkdir()
    (folder / "go2.xml").write_text(mjcf())
    monkeypatch.setenv("MENAGERIE_ROOT", str(tmp_path))
    assert make_robot(mjcf="menagerie:unitree_go2").robot.base == "rumpf"
    assert "\nname: hund\n" in succeed(
        "play.py", "mode=robot", "robot.mjcf=menagerie:unitree_go2", cwd=tmp_path
    )
    monkeypatch.delenv("MENAGERIE_ROOT")
    monkeypatch.setenv("MENAGERIE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("MENAGERIE_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # between its attempts
    for name, says in (
        ("unitree_go2", "cannot be downloaded"),
        ("go2", "no such robot, choose one of anybotics_anymal_b, "),
        ("unitree_go2/nothing", "'unitree_go2' has no entry point 'nothing'"),
    ):
        with pytest.raises(ValueError, match=re.escape(f"robot.mjcf=menagerie:{name}")) as error:
            make_robot(mjcf=f"menagerie:{name}")
        assert says in str(error.value) and "\n" not in str(error.value)
    assert package.names()


@pytest.mark.parametrize("collide", ["feet", "all"])
def test_meshes_are_shown_but_not_embedded(tmp_path, collide):
    """The MJCF text has no meshes, but the same geoms, masses, inertias and motion."""
    write(tmp_path, MESH, "keil.obj")
    geoms = (
        '<geom type="mesh" mesh="keil" mass="1.5" pos="0.1 0 0" contype="0" conaffinity="0"/>'
        '<geom type="mesh" mesh="keil"/>'
    )
    hull = f'<body name="haube" pos="0 0 0.1">{geoms}</body>'
    text = mjcf(inside=hull, assets='<mesh file="keil.obj"/>')
    robot_model = make_robot(mjcf=write(tmp_path, text), collide=collide)
    m = robot_model.mjm
    meshes = (m.geom_type == mujoco.mjtGeom.mjGEOM_MESH).sum()
    assert meshes == (1 if collide == "all" else 2)  # what collides is a box
    assert "keil" not in robot_model.text and "<mesh" not in robot_model.text
    alone = mujoco.MjModel.from_xml_string(robot_model.text)
    assert alone.ngeom == m.ngeom and alone.nmesh == 0
    fields = "body_mass body_inertia body_ipos geom_contype key_qpos dof_armature actuator_gainprm"
    for field in fields.split():
        np.testing.assert_allclose(
            getattr(alone, field), getattr(m, field), rtol=1e-5, atol=1e-6, err_msg=field
        )
    touching = m.geom_contype > 0
    parts = ("type", "size", "pos", "conaffinity", "priority", "friction")
    for field in (f"geom_{part}" for part in parts):
        np.testing.assert_allclose(
            getattr(alone, field)[touching], getattr(m, field)[touching], atol=1e-6, err_msg=field
        )
    states = []
    for model in (m, alone):
        # the last digit may make or break a contact
        model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_CONTACT
        d = mujoco.MjData(model)
        mujoco.mj_resetDataKeyframe(model, d, 0)
        d.ctrl[:] += 0.1
        mujoco.mj_step(model, d, 40)
        states.append(d.qpos.copy())
    np.testing.assert_allclose(*states, atol=1e-4)


# -- training ------------------------------------------------------------------------------


@pytest.mark.slow
def test_commands(tmp_path):
    """train.py trains and exports a robot; play.py prints its description and evaluates it."""
    here = tmp_path / "here"
    here.mkdir()
    write(here, mjcf().replace(' model="hund"', ""))
    words = ("mode=robot", "robot.mjcf=hund.xml", "out=hund.yaml", "report=hund.png")
    output = succeed("play.py", *words, cwd=here)
    first, *_, last = output.splitlines()
    assert re.fullmatch(r"# quadruped, 12 joints, stands at 0\.\d\d m", first)
    assert last == "# train it: python train.py task=quadruped robot.mjcf=hund.xml"
    whole, said = yaml.safe_load((here / "hund.yaml").read_text()), yaml.safe_load(output)
    assert whole["base"] == "rumpf" and whole["tool"] is None  # a file needs all keys
    whole["actuator"] = {key: x for key, x in whole["actuator"].items() if x is not None}
    assert said == {key: x for key, x in whole.items() if x is not None}
    assert imageio.v3.imread(here / "hund.png").shape == (720, 960, 3)
    words = ("task=quadruped", "robot.mjcf=hund.xml", *TINY, EXPORTED, "iterations=1")
    done = command("train.py", *words, "log=none", "run_dir=run", cwd=here)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"hund\.xml has legs of 0\.4 m, so its .*\n", done.stderr)
    about = runtime.Policy(here / "run" / "policy.onnx").description
    assert about["outputs"][0]["joints"] == NAMES
    assert about["robot"] == whole["name"] == "hund"  # the file's, as the model has none
    output = succeed("play.py", "run=run", "mode=evaluate", "episodes=4", cwd=here)
    scores = json.loads((here / "run" / "eval.json").read_text())
    assert json.loads(output)["success"] == scores["success"]


# -- mistakes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line, says",
    [
        ("train.py robot=go3", "unknown robot 'go3': choose one of g1, go1, own"),
        ("train.py robot.feat=[a]", "unknown key 'robot.feat': did you mean robot.feet"),
        ("train.py robot.mjcf=nowhere.xml", "robot.mjcf: no file 'nowhere.xml'"),
        (
            "train.py robot.base=trunk",
            "robot.base describes a robot: set robot.mjcf=FILE as well",
        ),
        ("train.py task=cartpole robot.mjcf=x.xml", "and arms that reach, take another"),
        (
            "train.py robot.mjcf=hund.xml robot.base=trunk",
            "robot.mjcf=hund.xml: robot.base: no body 'trunk'",
        ),
        ("play.py mode=robot", "mode=robot needs robot.mjcf="),
        (
            f"play.py mode=robot robot.mjcf={ROOT}/tasks/assets/cartpole.xml",
            "python play.py mode=new-task name=my_robot writes a task for any other body",
        ),
        ("play.py mode=robot robot.mjcf=hund.xml robot.kp=1e6", "the robot does not stand"),
        ("play.py mode=robot robot.mjcf=5", "robot.mjcf=5: expected a path"),
        ("play.py mode=robot robot.mjcf=hund.xml report=a.jpg", "a name that ends in .png"),
        ("play.py mode=evaluate report=a.png", "report=a.png needs mode=grid"),
    ],
)
def test_a_mistake_gets_one_line(file, tmp_path, monkeypatch, capsys, line, says):
    """train.py and play.py answer a mistake in one line, exit with 2, and leave nothing behind."""
    monkeypatch.chdir(tmp_path)
    main, words = (train.main, [*TINY, "run_dir=run"]) if line[0] == "t" else (play.main, [])
    program, *typed = line.split()
    monkeypatch.setattr(sys, "argv", [program])
    with pytest.raises(SystemExit) as stop:
        main([*typed, *words])
    error = capsys.readouterr().err
    assert stop.value.code == 2 and says in error and re.fullmatch("error: .*\n", error), error
    assert [*tmp_path.iterdir()] == [Path(file)]


def test_every_robot_of_conf_has_the_keys_of_robot():
    """Every robot=<name> has the keys of Robot, no more and no fewer."""
    files = list((ROOT / "conf" / "robot").glob("*.yaml"))
    assert len(files) >= 2
    for file in files:
        keys = build("config", [f"robot={file.stem}"])["robot"]
        assert keys.pop("name") == file.stem
        assert keys.pop("actuator") == dataclasses.asdict(make_actuator()), file
        assert list(keys) == [field.name for field in dataclasses.fields(Robot)], file
