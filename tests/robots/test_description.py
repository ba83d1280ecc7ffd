"""Reasons of a loaded robot: where its values come from, and why it does not stand."""

import random
import re

import imageio
import mujoco
import numpy as np
import pytest

from gpusim_rl.robots.description import reasons
from gpusim_rl.viewer.picture import picture
from tests.strangers.robots import Shape, draw, mjcf
from tests.worlds import make_robot


def stranger(seed: int = 4, **changes) -> Shape:
    """A good robot of 12 kg."""
    shape = Shape(random.Random(seed))
    plain = dict(foot="sphere", servo="position", nested=False, free=True, flags="", degrees=False)
    vars(shape).update(plain | changes)
    return shape


@pytest.fixture
def load(tmp_path):
    """A loader of a robot's text."""

    def robot(text: str, **keys):
        (tmp_path / "robot.xml").write_text(text)
        return make_robot(mjcf=str(tmp_path / "robot.xml"), **keys)

    return robot


def test_reasons(load):
    """Each guessed value has a reason, which changes with what the file and the user say."""
    text = mjcf(stranger())
    loaded = load(text)
    why = reasons({}, loaded)
    assert why["base"] == "the body with the free joint"
    assert why["feet"] == "the spheres at the ends of the legs"
    bare = load(mjcf(stranger(foot="capsule")))
    assert reasons({}, bare)["feet"] == "new spheres at the ends of the legs"
    assert why["stance"] == "bent legs with the feet below the hips"
    assert why["kp"] == "the gains of the file's servos, with which it stands"
    assert why["torque"] == "the limits in the file" and "the inertia of a leg" in why["armature"]
    values = {"kp": 20.0, "base": loaded.robot.base}
    why = reasons(values, load(text, **values))
    assert not {"kp", "base"} & why.keys()

    weak = re.sub(r'kp="[^"]+" kv="[^"]+"', 'kp="0.01" kv="0.001"', text)
    why = reasons({}, load(weak))
    assert why["kp"] == "weight times height, as it did not stand with the file's own"

    loaded = load(text.replace("<joint name", '<joint armature="0.01" name'))
    assert reasons({}, loaded)["armature"] == "as in the file"

    angles = np.zeros(19)
    m = mujoco.MjModel.from_xml_string(text)
    columns = [m.joint(name).qposadr[0] for leg in loaded.robot.joints for name in leg]
    angles[2:4], angles[columns] = (loaded.robot.height, 1), loaded.robot.stance
    key = f"<keyframe><key name='home' qpos='{' '.join(map(str, angles))}'/></keyframe>"
    why = reasons({}, load(text.replace("</mujoco>", f"{key}</mujoco>")))
    assert why["stance"] == "the keyframe 'home', in which it stands"


def test_stiffer_servos(load):
    """Tall legs below a short body tip over on servos of weight times height."""
    text = draw(random.Random(84), faulty=0).text
    loaded = load(text)
    why = reasons({}, loaded)
    assert loaded.shape.guess.kp == 2 and why["kp"].startswith(
        "twice weight times height, as it did not"
    )
    assert why["armature"] == "a fifth of the inertia of a leg about its hip"
    soft = [x / 2 for x in loaded.robot.kp]
    with pytest.raises(ValueError, match=r"does not stand: it falls over"):
        load(text, kp=soft)
    assert reasons({}, load(mjcf(stranger(servo="none"))))["kp"] == "weight times height"


@pytest.mark.parametrize(
    "keys, says",
    [
        ({"stance": [0, 3, 0.6]}, r"the origin of its base is only -0\.\d+ m above"),
        ({"torque": 0.3}, r"it sinks from 0\.\d+ m: try a larger robot\.torque"),
        ({"kp": 0.01, "kd": 0.001}, r"it sinks from 0\.\d+ m"),
        ({"stance": [*[0.8, 0.8, -1.6] * 1, *[0, 0.8, -1.6] * 3]}, "it falls over"),
    ],
)
def test_why_it_does_not_stand(load, keys, says):
    """The line says what the robot did."""
    with pytest.raises(ValueError, match=f"does not stand.*({says})"):
        load(mjcf(stranger(mass=12)), **keys)


def test_a_trunk_that_is_fixed_to_a_body(load):
    """A base that cannot float is refused, with the name of the body that can."""
    start, trunk, rest = mjcf(stranger(free=False)).partition("<body")
    text = f'{start}<body name="shell">{trunk}{rest}'.replace("</worldbody>", "</body></worldbody>")
    name = re.search(r'^ name="(\w+)"', rest)
    assert name
    with pytest.raises(ValueError, match=r"is inside of 'shell', .*: name 'shell'"):
        load(text, base=name[1])


@pytest.mark.parametrize("free", [True, False])
def test_an_empty_base_on_the_ground(load, free):
    """A root such as base_footprint is put where the trunk is: the robot is the same as without."""
    text = mjcf(stranger(free=free))
    turn = 'quat="0.6 0 0 0.8"'  # of the outer one, undone by the inner one
    start, trunk, rest = text.partition("<body")
    joint, bare = ("<freejoint/>", rest.replace("<freejoint/>", "")) if free else ("", rest)
    outer = f'<body name="footprint" pos="0.3 0 -0.1" {turn}>{joint}'
    inner = f'<body name="link" pos="0 0 0.05" euler="0 0 {-2 * np.arctan2(0.8, 0.6)}">'
    closed = bare.replace("</worldbody>", "</body></body></worldbody>")
    robot, plain = load(f"{start}{outer}{inner}{trunk}{closed}"), load(text)
    assert robot.robot.base == "footprint" and robot.mjm.nbody == plain.mjm.nbody + 2
    for key in ("height", "stance", "kp", "kd", "torque", "armature", "joints", "mirror"):
        assert getattr(robot.robot, key) == getattr(plain.robot, key), key


@pytest.mark.parametrize(
    "front, rear, warned",
    [
        ("rear_{}", "front_{}", True),
        ("R{}_hip", "F{}_hip", True),
        ("{}H_HAA", "{}F_HAA", True),
        ("front_{}", "rear_{}", False),
        ("front_to_back_{}", "back_to_front_{}", False),
        ("a{}", "b{}", False),
    ],
)
def test_names_of_a_robot_that_looks_backward(load, capsys, front, rear, warned):
    """Where all joints are named after the other end of the robot, a warning says so."""
    shape = stranger()
    shape.names = {leg: (front if leg[0] == "F" else rear).format(leg[1]) for leg in shape.names}
    load(mjcf(shape))
    said = capsys.readouterr().err
    name = f"{front.format('L')}_0' is taken for the front left leg"
    assert ("points backward" in said) == warned and (name in said) == warned


def test_picture(load, tmp_path):
    """The picture shows the robot, with a label at each leg's foot."""
    loaded = load(mjcf(stranger()))
    m, feet = loaded.mjm, loaded.shape.labels
    d = mujoco.MjData(m)
    mujoco.mj_resetDataKeyframe(m, d, 0)
    mujoco.mj_kinematics(m, d)
    for leg, name in feet.items():
        assert np.sign(d.geom(name).xpos[:2]).tolist() == [
            1 if leg[0] == "F" else -1,
            1 if leg[1] == "L" else -1,
        ]

    def drawn(labels, name="robot.png"):
        picture(m, labels, tmp_path / name)
        return imageio.v3.imread(tmp_path / name)

    whole, bare = drawn(feet), drawn({})
    assert whole.shape == (720, 960, 3)
    assert 100 < (whole != bare).any(-1).sum() < 10_000  # four short texts
    light = m.vis.headlight.ambient.copy()
    m.geom_rgba[m.geom_bodyid > 0, 3] = 0  # the robot is not there
    assert (drawn({}) != bare).any(-1).sum() > 10_000
    np.testing.assert_array_equal(m.vis.headlight.ambient, light)
