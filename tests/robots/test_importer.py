"""Bring a robot: a stranger's MJCF or URDF becomes a model that task=quadruped trains; what does not fit gets one line."""

import dataclasses
import json
import re
from pathlib import Path

import mujoco
import numpy as np
import pytest
import torch
import yaml

from gpusim_rl import deploy
from gpusim_rl.actuator import Actuator
from gpusim_rl.assemble import make_task, robot_numbers
from gpusim_rl.config import build
from gpusim_rl.evaluate import SEED, evaluation_env
from gpusim_rl.robot import Brought, Robot, as_yaml, bring
from gpusim_rl.task import ASSETS, compile_mjcf
from tasks.quadruped import Quadruped
from tests import robots
from tests.accept_deploy import episodes, walk_alone
from tests.commands import TINY, refused, succeed
from tests.exported import export_task
from tests.guard import guard
from tests.robots import NAMES, PLACE, mjcf, write
from tests.test_capture import exempt
from tests.worlds import ROOT, make_env, make_ppo, numbers

MESH = "v 0 0 0\nv 0.2 0 0\nv 0 0.1 0\nv 0 0 0.3\nf 1 3 2\nf 1 2 4\nf 1 4 3\nf 2 3 4\n"
PART = "<body><joint/><geom size='0.05'/>"
OWN = str(ASSETS / "quadruped.xml")


@pytest.fixture
def file(tmp_path) -> str:
    return write(tmp_path, mjcf())


@pytest.fixture(scope="module")
def hund(tmp_path_factory) -> Brought:
    return bring(mjcf=write(tmp_path_factory.mktemp("hund"), mjcf()))


def settings(**robot) -> dict:
    """What a robot changes of the task."""
    return robot_numbers(Quadruped, dataclasses.asdict(Robot(**robot)))


def same(a: mujoco.MjModel, b: mujoco.MjModel) -> bool:
    """Whether two models are bit for bit the same."""
    sizes = mujoco.mj_sizeModel(a), mujoco.mj_sizeModel(b)
    images = [np.zeros(size, np.uint8) for size in sizes]
    for model, image in zip((a, b), images, strict=True):
        mujoco.mj_saveModel(model, None, image)
    return np.array_equal(*images)


# -- the robot of the project --------------------------------------------------------------------------------------------


def test_the_own_robot_stays_as_it_is():
    """Without robot.mjcf the model is the file's, bit for bit, and the task's columns are slices."""
    task = make_task(build("config", ["task=quadruped"]), "cpu")
    assert same(task.mjm, mujoco.MjModel.from_xml_path(OWN)) and task.mjcf_text() == Path(OWN).read_text()
    assert [task.angles, task.speeds, task.back] == [slice(7, None), slice(6, None), slice(None)]
    torch.testing.assert_close(task.bend, torch.tensor([[0.0, 0.3, -0.6]] * 4), rtol=0, atol=0)
    assert (task.balls, task.height, task.drive.scale) == (("FL", "FR", "RL", "RR"), 0.28, (0.3,) * 12)


def test_the_own_robot_as_a_stranger():
    """Brought in as if unknown, the own robot is understood: joints, feet, stance, gains, limits, sensors, inertias."""
    found, m = bring(mjcf=OWN), compile_mjcf("quadruped.xml")
    robot = found.robot
    assert robot.base == "trunk" and robot.feet == ["FL", "FR", "RL", "RR"]
    assert sum(robot.joints, []) == [m.joint(j).name for j in m.actuator_trnid[:, 0]]  # noqa: RUF017
    for field in ("actuator_gainprm", "actuator_biasprm", "actuator_forcerange", "dof_armature", "body_mass", "body_inertia"):
        np.testing.assert_allclose(getattr(found.mjm, field), getattr(m, field), rtol=1e-5, atol=1e-12, err_msg=field)
    assert [found.mjm.sensor(i).name for i in range(m.nsensor)] == [m.sensor(i).name for i in range(m.nsensor)]
    np.testing.assert_allclose(found.mjm.key_qpos[0, 3:], m.key_qpos[0, 3:])
    np.testing.assert_allclose(np.reshape(found.flex, (4, 3)), [[0, 0.5, -1]] * 4, atol=1e-6)
    assert 0.26 < robot.height < 0.3 < found.mjm.key_qpos[0, 2] < 0.33  # it sags, as servos do


# -- a stranger ----------------------------------------------------------------------------------------------------------


def test_what_is_guessed(hund):
    """Base, feet, joints in the order FL, FR, RL, RR, limits of geared motors, gains from weight, a stance with bent knees."""
    robot = hund.robot
    assert robot.base == "rumpf" and robot.feet == ["vl_fuss", "vr_fuss", "hl_fuss", "hr_fuss"]
    assert robot.joints == [NAMES[i : i + 3] for i in range(0, 12, 3)]
    assert robot.torque == [25.0] * 12
    assert 15 < robot.kp[0] < 50 and 0.3 < robot.kd[0] < 2 and robot.scale is None
    stance = np.reshape(robot.stance, (4, 3))
    np.testing.assert_allclose(
        stance, np.array([0, 0.7954, -1.5908]) * [[1, 1, [-1, 1, -1, -1][i]] for i in range(4)], atol=0.01
    )
    knees = np.reshape(hund.flex, (4, 3))[:, 2]
    assert knees.tolist() == [1, -1, 1, 1]  # they bend further


def test_it_stands(hund):
    """In its keyframe it stands level on four feet and keeps standing; the sensors say so."""
    m = hund.mjm
    d = mujoco.MjData(m)
    mujoco.mj_resetDataKeyframe(m, d, 0)
    mujoco.mj_step(m, d, 400)
    assert d.qpos[2] == pytest.approx(hund.robot.height, abs=0.005)
    np.testing.assert_allclose(d.sensor("up").data, [0, 0, 1], atol=0.05)
    for i, (x, y) in enumerate([(0.2, 0.1), (0.2, -0.1), (-0.2, 0.1), (-0.2, -0.1)]):
        place = d.sensor(f"{('FL', 'FR', 'RL', 'RR')[i]}_position").data
        np.testing.assert_allclose(place, [x, y, 0.02], atol=0.03)
    assert {d.contact[i].geom[1] for i in range(d.ncon)} | {d.contact[i].geom[0] for i in range(d.ncon)} == {
        m.geom("gpusim_rl/floor").id,
        *(m.geom(ball).id for ball in hund.balls),
    }


def test_only_feet_collide_or_all(file, tmp_path):
    """collide=feet lets the feet meet the ground and nothing else; collide=all keeps the file's rules, pairs of its own too."""
    m = bring(mjcf=file).mjm
    touching = [m.geom(i).name for i in range(m.ngeom) if m.geom_contype[i]]
    assert sorted(touching) == sorted(f"gpusim_rl/{leg}" for leg in ("FL", "FR", "RL", "RR"))
    m = bring(mjcf=file, collide="all").mjm
    assert ((m.geom_contype > 0) & (m.geom_conaffinity > 0)).all() and m.ngeom == 14
    ground = '<geom name="boden" type="plane" size="0 0 1"/>'
    text = mjcf().replace("<worldbody>", f"<worldbody>{ground}")
    m = bring(mjcf=write(tmp_path, text, "scene.xml")).mjm
    assert m.ngeom == 14 and m.geom("boden").conaffinity == 1


def test_what_is_printed_is_the_robot(hund, tmp_path):
    """The printed YAML gives the same model, with nothing left to guess but the scale, which is the task's."""
    said = yaml.safe_load(as_yaml(hund.robot, "hund"))
    assert (
        said.pop("name") == "hund"
        and said.pop("actuator") == dataclasses.asdict(Actuator())
        and [key for key, value in said.items() if value is None] == ["scale"]
    )
    again = bring(**said)
    assert same(again.mjm, hund.mjm) and again.text == hund.text and again.flex == pytest.approx(hund.flex)


def test_what_is_said_wins(file):
    """Gains, limits, stance and scale of the description are those of the model and of the drive."""
    said = dict(
        kp=[20, 21, 40], kd=1.5, torque=30, armature=0.01, stance=[0, 0.7, -1.4, 0, 0.7, 1.4] * 2, scale=[0.1, 0.2, 0.3]
    )
    said["stance"] = [0, 0.7, 1.4, 0, 0.7, -1.4, 0, 0.7, 1.4, 0, 0.7, 1.4]
    task = Quadruped(**settings(mjcf=file, height=0.25, **said))
    m = task.mjm
    assert m.actuator_gainprm[:, 0].tolist() == [20, 21, 40] * 4 and (m.actuator_biasprm[:, 2] == -1.5).all()
    assert (m.actuator_forcerange[:, 1] == 30).all() and (m.dof_armature[6:] == 0.01).all()
    assert task.drive.offset == pytest.approx(said["stance"]) and task.drive.scale == (0.1, 0.2, 0.3) * 4
    assert task.height == 0.25


def test_order_of_joints(file):
    """Angles, speeds, start states and controls go by joint, though the model has its legs in another order."""
    env = make_env(num_envs=4, **settings(mjcf=file))
    task, m = env.task, env.task.mjm
    assert [m.joint(i).name for i in range(1, 13)] != NAMES and list(task.drive.names) == NAMES
    s = env.look()
    for i, name in enumerate(NAMES):
        at, speed = int(m.joint(name).qposadr[0]), int(m.joint(name).dofadr[0])
        assert torch.equal(task.observe(s)["joints"][:, i], s.qpos[:, at] - task.stance[i])
        assert torch.equal(task.observe(s)["speeds"][:, i], s.qvel[:, speed])
        assert m.actuator_trnid[i, 0] == m.joint(name).id and task.stance[i] == pytest.approx(float(m.key_qpos[0, at]))
    start = task.start(4, env.noise)["qpos"][:, m.jnt_qposadr[m.actuator_trnid[:, 0]]]
    assert ((start - task.stance).abs() <= 0.1001).all()


def test_an_iteration_with_reordered_joints_reads_nothing_on_the_host(file):
    """Columns that are indices, not slices, keep the contract of capture."""
    ppo = make_ppo(make_env(num_envs=8, **settings(mjcf=file)), num_steps=4)
    ppo.iteration()  # what is made at the first call, such as Adam's moments, is building
    with guard(*exempt(ppo)) as switch:
        ppo.iteration()
    assert switch.seen > 1000
    assert isinstance(ppo.env.task.angles, torch.Tensor)


def test_arms_and_heads_keep_their_place(tmp_path):
    """Joints that are no leg's are taken out, with what hangs on them."""
    head = '<body name="kopf" pos="0.3 0 0"><joint name="nicken" axis="0 1 0"/><geom size="0.05" mass="0.3"/></body>'
    more = '<equality><joint joint1="nicken"/></equality><keyframe><key qpos="0.3 0 0 0 0 0 0 0 0 0 0 0 0"/></keyframe>'
    found = bring(mjcf=write(tmp_path, mjcf(inside=head, more=more)))
    assert found.mjm.nq == 19 and found.mjm.body("kopf").mass == 0.3 and found.mjm.neq == 0


def test_keyframe_of_the_file(tmp_path):
    """The first keyframe in which it stands is the stance; one in which it lies is not."""
    pose = {"hr": "0 0.6 1.2", "hl": "0 0.6 1.2", "vr": "0 0.6 -1.2", "vl": "0 0.6 1.2"}
    keys = "".join(f'<key qpos="{q}"/>' for q in ("0 3 0.5 " * 4, " ".join(pose.values())))
    found = bring(mjcf=write(tmp_path, mjcf(more=f"<keyframe>{keys}</keyframe>")))
    np.testing.assert_allclose(found.robot.stance, [0, 0.6, 1.2, 0, 0.6, -1.2, 0, 0.6, 1.2, 0, 0.6, 1.2])


def test_feet_beside_the_hips(tmp_path):
    """Legs whose feet are outside of their hips, as Barkour's and ANYmal's, stand as wide as that, abductors at rest."""
    text = mjcf()
    for leg, (_, y) in PLACE.items():
        knee = f'<body name="{leg}_unter" pos="0 '
        text = text.replace(f"{knee}0 -0.2", f"{knee}{np.sign(y) * 0.06} -0.2")
    stance = np.reshape(bring(mjcf=write(tmp_path, text)).robot.stance, (4, 3))
    np.testing.assert_allclose(stance[:, 0], 0, atol=0.01)


def test_weak_servos(tmp_path):
    """A file's servos in which it does not stand are not taken over, but those in which it does; torques are in either case."""
    for kp, same in ((40, True), (2, False)):
        servos = "".join(f'<position joint="{name}" kp="{kp}" kv="1" forcerange="-30 30"/>' for name in NAMES)
        text = re.sub("<actuator>.*</actuator>", f"<actuator>{servos}</actuator>", mjcf(), flags=re.DOTALL)
        robot = bring(mjcf=write(tmp_path, text)).robot
        assert (robot.kp == [kp] * 12, robot.torque) == (same, [30] * 12)


def test_urdf(tmp_path):
    """A URDF works: a free joint is added, efforts are the limits, and balls are put at the ends of legs without a sphere."""
    found = bring(mjcf=write(tmp_path, robots.urdf(), "hund.urdf"))
    assert found.robot.joints[0] == NAMES[:3] and found.robot.torque == [25.0] * 12 and found.mjm.nq == 19
    assert found.balls == ("gpusim_rl/FL", "gpusim_rl/FR", "gpusim_rl/RL", "gpusim_rl/RR")
    stance = np.reshape(found.robot.stance, (4, 3))
    assert (stance[:, 1] > 0.5).all() and (stance[:, 2] < -1).all()


def test_menagerie(tmp_path, monkeypatch):
    """menagerie:NAME is a model of MuJoCo Menagerie's package; what it has not, or cannot download, is one line."""
    package = pytest.importorskip("mujoco_menagerie", reason="pip install 'gpusim_rl[robots]'")
    folder = tmp_path / "unitree_go2"
    folder.mkdir()
    (folder / "go2.xml").write_text(mjcf())
    monkeypatch.setenv("MENAGERIE_ROOT", str(tmp_path))
    assert bring(mjcf="menagerie:unitree_go2").robot.base == bring(mjcf=str(folder / "go2.xml")).robot.base
    assert "\nname: unitree_go2\n" in succeed("play.py", "mode=robot", "robot.mjcf=menagerie:unitree_go2", cwd=tmp_path)
    monkeypatch.delenv("MENAGERIE_ROOT")
    monkeypatch.setenv("MENAGERIE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("MENAGERIE_BASE_URL", "http://127.0.0.1:9")
    for name, says in (
        ("unitree_go2", "cannot be downloaded"),
        ("go2", "no such robot, choose one of anybotics_anymal_b, "),
        ("unitree_go2/nothing", "'unitree_go2' has no entry point 'nothing'"),
    ):
        with pytest.raises(ValueError, match=re.escape(f"robot.mjcf=menagerie:{name}")) as error:
            bring(mjcf=f"menagerie:{name}")
        assert says in str(error.value) and "\n" not in str(error.value)
    assert package.names()


@pytest.mark.parametrize("collide", ["feet", "all"])
def test_meshes_are_shown_but_not_embedded(tmp_path, collide):
    """Meshes stay in the model that is shown; the text has none, as many geoms, and the same masses, inertias and motion."""
    write(tmp_path, MESH, "keil.obj")
    geoms = (
        '<geom type="mesh" mesh="keil" mass="1.5" pos="0.1 0 0" contype="0" conaffinity="0"/><geom type="mesh" mesh="keil"/>'
    )
    hull = f'<body name="haube" pos="0 0 0.1">{geoms}</body>'
    found = bring(mjcf=write(tmp_path, mjcf(inside=hull, assets='<mesh file="keil.obj"/>')), collide=collide)
    m = found.mjm
    meshes = (m.geom_type == mujoco.mjtGeom.mjGEOM_MESH).sum()
    assert meshes == (1 if collide == "all" else 2)  # what collides is a box
    assert "keil" not in found.text and "<mesh" not in found.text
    alone = mujoco.MjModel.from_xml_string(found.text)
    assert alone.ngeom == m.ngeom and alone.nmesh == 0
    for field in ("body_mass", "body_inertia", "body_ipos", "geom_contype", "key_qpos", "dof_armature", "actuator_gainprm"):
        np.testing.assert_allclose(getattr(alone, field), getattr(m, field), rtol=1e-5, atol=1e-6, err_msg=field)
    touching = m.geom_contype > 0
    for field in ("geom_type", "geom_size", "geom_pos", "geom_conaffinity", "geom_priority", "geom_friction"):
        np.testing.assert_allclose(getattr(alone, field)[touching], getattr(m, field)[touching], atol=1e-6, err_msg=field)
    states = []
    for model in (m, alone):
        model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_CONTACT  # that the last digit may make or break
        d = mujoco.MjData(model)
        mujoco.mj_resetDataKeyframe(model, d, 0)
        d.ctrl[:] += 0.1
        mujoco.mj_step(model, d, 40)
        states.append(d.qpos.copy())
    np.testing.assert_allclose(*states, atol=1e-4)


# -- training, export ----------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_the_exported_file_walks_alone(file, tmp_path):
    """deploy.py, which knows the ONNX file alone, has the gains, stance and joint order, and does in it what the task does."""
    done = export_task("quadruped", tmp_path / "policy.onnx", episode=2.0, **settings(mjcf=file))
    policy, task = deploy.Policy(done.path), done.task
    assert policy.joints == NAMES and policy.about["kp"] == pytest.approx([task.mjm.actuator_gainprm[0, 0]] * 12)
    assert policy.about["default_pose"] == pytest.approx(task.stance.tolist()) and policy.about["torque_limit"] == [25.0] * 12
    yaml = numbers("quadruped")
    env = evaluation_env(task, 4, weights=yaml["weights"], noise=yaml["noise"], seed=SEED)
    episodes(env, tmp_path / "given.npz")
    walked = walk_alone(done.path, tmp_path / "given.npz", tmp_path / "walked.npz")
    env = evaluation_env(task, 4, weights=yaml["weights"], noise=yaml["noise"], seed=SEED)
    for t in range(25):
        env.step(done.actor(env.views.obs))
        np.testing.assert_allclose(walked["path"][t], env.sim.qpos, atol=2e-3, err_msg=str(t))


def test_commands(tmp_path):
    """train.py learns with it for an iteration and exports; play.py prints it, evaluates and exports the run."""
    here = tmp_path / "here"
    here.mkdir()
    write(here, mjcf())
    said = succeed("play.py", "mode=robot", "robot.mjcf=hund.xml", "out=hund.yaml", cwd=here)
    assert (here / "hund.yaml").read_text() == said and yaml.safe_load(said)["base"] == "rumpf"
    succeed("train.py", "task=quadruped", "robot.mjcf=hund.xml", *TINY, "iterations=1", "log=none", "run_dir=run", cwd=here)
    about = deploy.Policy(here / "run" / "policy.onnx").about
    assert about["action"]["names"] == NAMES
    said = succeed("play.py", "run=run", "mode=evaluate", "episodes=4", cwd=here)
    assert json.loads(said)["success"] == json.loads((here / "run" / "eval.json").read_text())["success"]


# -- mistakes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "key, value, says",
    [
        ("base", "trunk", "robot.base: no body 'trunk': choose among rumpf, hr_huefte"),
        ("feet", ["FL", "FR", "RL", "RR"], "robot.feet: no geom, site or body 'FL': choose among"),
        ("feet", ["vl_fuss"], "robot.feet=['vl_fuss']: expected four, in the order FL, FR, RL, RR"),
        ("feet", ["vr_fuss", "vl_fuss", "hl_fuss", "hr_fuss"], "the order is FL, FR, RL, RR"),
        (
            "feet",
            ["vl_ober", "vr_fuss", "hl_fuss", "hr_fuss"],
            "from 'rumpf' to 'vl_ober' there are 2 hinges (vl_quer, vl_hoch)",
        ),
        ("joints", [["vl_quer", "vl_hoch", "knee"]] * 4, "robot.joints: no joint 'knee': choose among"),
        ("joints", [["vl_quer", "vl_hoch"]] * 4, "expected four lists of abduction, thigh, knee"),
        ("kp", "stiff", "robot.kp=stiff: expected a number, three (abduction, thigh, knee) or twelve"),
        ("kp", [1, 2], "robot.kp=[1, 2]: expected a number"),
        ("torque", 0, "robot.torque=0: expected more than 0"),
        ("torque", 1, "it does not stand"),
        ("stance", [0, 3, 0.6], "it does not stand in robot.stance=[0, 3, 0.6]"),
        ("height", -1, "robot.height=-1: expected a number of metres above 0"),
        ("collide", "none", "robot.collide=none: choose one of feet, all"),
        ("mjcf", "hundd.xml", "robot.mjcf: no file"),
        ("mjcf", "no_such_package:hund.xml", "no package 'no_such_package' is installed"),
    ],
)
def test_a_description_that_does_not_fit(file, key, value, says):
    """A wrong name or number of the description gets one line that names it and the choices."""
    keys = {"mjcf": file, key: str(Path(file).parent / value) if value == "hundd.xml" else value}
    with pytest.raises((ValueError, FileNotFoundError), match=re.escape(says)) as error:
        bring(**keys)
    assert "\n" not in str(error.value)
    assert value != "hundd.xml" or "hund.xml" in str(error.value)  # what is there


@pytest.mark.parametrize(
    "text, says",
    [
        ("<mujoco><worldbody>", "robot.mjcf: {file}: XML parse error"),
        ("<mujoco/>", "robot.base: 0 bodies could be the base"),
        (mjcf(inside="<body><freejoint/><geom size='0.1'/></body>"), "free joint"),
        (
            mjcf(inside=PART + PART + PART + "</body>" * 3),
            "wanted four legs of three hinges, found 5; hinges from 'rumpf': 3 to",
        ),
        (
            mjcf(free="<freejoint/>", beside="<body name='ball'><freejoint/><geom size='0.1'/></body>"),
            "rumpf, ball are all free",
        ),
        (
            mjcf(beside="<body name='tor'><joint/><geom size='0.1'/></body>"),
            "2 bodies could be the base, name one of rumpf, tor",
        ),
        (mjcf().replace('"vl_huefte" pos="0.2', '"vl_huefte" pos="-0.3'), "but by position"),
    ],
)
def test_a_model_that_is_no_quadruped(tmp_path, text, says):
    """A file that is broken, or a robot that is not a quadruped of twelve joints, gets one line."""
    file = write(tmp_path, text)
    with pytest.raises(ValueError, match=re.escape(says.format(file=file))) as error:
        bring(mjcf=file)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "line, says",
    [
        ("train.py robot=go3", "unknown robot 'go3': choose one of go1, own"),
        ("train.py robot.feat=[a]", "unknown key 'robot.feat': did you mean robot.feet"),
        ("train.py robot.mjcf=nowhere.xml", "robot.mjcf: no file 'nowhere.xml'"),
        ("train.py robot.base=trunk", "robot.base describes a robot: say which with robot.mjcf=FILE"),
        ("train.py task=cartpole robot.mjcf=x.xml", "robot.mjcf: this task has a robot of its own"),
        ("train.py robot.mjcf=hund.xml robot.base=trunk", "robot.mjcf=hund.xml: robot.base: no body 'trunk'"),
        ("play.py mode=robot", "mode=robot needs robot.mjcf="),
        ("play.py mode=robot robot.mjcf=nowhere.xml", "robot.mjcf: no file 'nowhere.xml'"),
    ],
)
def test_a_mistake_gets_one_line(tmp_path, line, says):
    """train.py and play.py answer a mistake in one line, exit with 2, and leave nothing behind."""
    here = tmp_path / "here"
    here.mkdir()
    write(here, mjcf())
    script, *words = line.split()
    assert says in refused(script, *words, *((*TINY, "run_dir=run") if script == "train.py" else ()), cwd=here)


def test_every_robot_of_conf_says_what_own_says():
    """conf/robot/*.yaml have the keys of Robot, no more and no fewer; own.yaml has its defaults."""
    files = list((ROOT / "conf" / "robot").glob("*.yaml"))
    assert len(files) >= 2
    for file in files:
        said = yaml.safe_load(file.read_text())
        assert said.pop("name") == file.stem
        assert said.pop("actuator") == dataclasses.asdict(Actuator()), file
        assert list(said) == [field.name for field in dataclasses.fields(Robot)], file
    own = yaml.safe_load((ROOT / "conf" / "robot" / "own.yaml").read_text())
    assert {key: value for key, value in own.items() if key not in ("name", "mjcf", "actuator")} == {
        field.name: field.default for field in dataclasses.fields(Robot) if field.name != "mjcf"
    }
