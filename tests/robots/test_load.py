"""Robots of every shape: what is printed is loaded again, and what does not fit is refused in one
line that names it and the choices."""

import dataclasses
import re
from pathlib import Path

import pytest
import yaml

from gpusim_rl.robots.description import as_yaml
from gpusim_rl.robots.load import load_any, load_as
from gpusim_rl.robots.model_files import check_confined, copy_model, is_copy
from tests.arm_files import mjcf as arm
from tests.humanoid_files import mjcf as humanoid
from tests.robot_files import mjcf as quadruped
from tests.robot_files import write
from tests.worlds import make_actuator, robot_keys, same_model

TEXTS = {"quadruped": quadruped(), "humanoid": humanoid(), "arm": arm()}
CUBE = (
    '<body name="wuerfel" pos="1 0 1"><freejoint/><geom type="box" size="0.1 0.1 0.1"/>'
    '<site name="oben"/></body>'
)
PART = "<body><joint/><geom size='0.05'/>"
SECOND = 6 * '<body><joint/><geom size="0.1"/>' + 6 * "</body>"  # an arm of six hinges

DESCRIPTIONS = {  # rows of keys and of words of the error
    "quadruped": """
base: trunk | robot.base: no body 'trunk': choose among rumpf, hr_huefte
feet: [FL, FR, RL, RR] | robot.feet: no geom, site or body 'FL': choose among
feet: [vl_fuss] | robot.feet=['vl_fuss']: expected four, in the order FL, FR, RL, RR
feet: [vr_fuss, vl_fuss, hl_fuss, hr_fuss] | the order is FL, FR, RL, RR
feet: [vl_ober, vr_fuss, hl_fuss, hr_fuss] | to 'vl_ober' there are 2 hinges (vl_quer, vl_hoch)
joints: [&leg [vl_quer, vl_hoch, knee], *leg, *leg, *leg] | robot.joints: no joint 'knee': choose
joints: [&leg [vl_quer, vl_hoch], *leg, *leg, *leg] | expected four lists of abduction, thigh, knee
kp: stiff | robot.kp='stiff': expected a number above 0
kp: [1, 2] | robot.kp=[1, 2]: expected a number
torque: 0 | robot.torque=0: expected a number above 0
torque: 1 | the robot does not stand
stance: [0, 3, 0.6] | the robot does not stand in robot.stance=[0, 3, 0.6]
height: -1 | robot.height=-1: expected a number above 0
collide: none | robot.collide=none: choose one of feet, all
mjcf: hundd.xml | robot.mjcf: no file
mjcf: no_such_package:hund.xml | no package 'no_such_package' is installed""",
    "humanoid": """
stance: 0.5 | cannot stand in robot.stance=0.5: a joint is beyond its limits
stance: [0, 0.3, 0.3, 0, 0, -0.3, -0.3, 0] | its soles are tilted by 34°
feet: [links_fuss] | expected two, left and right
kp: [1, 2, 3] | expected a number, 4 of a leg, or 8
torque: -1 | robot.torque
mirror: [1, 1, 1, 1, 1, 1, 1, 1] | robot.mirror: a humanoid's mirror image follows from
kp: 1.0e+6, kd: 1.0e-3, torque: 1.0e+6, armature: 1.0e-6 | its simulation diverges""",
    "arm": """
stance: 5 | robot.stance=5: a joint is beyond its limits
stance: [0, 2, 1.5, 0, 0, 0] | touch
tool: haken | robot.tool: no site or body 'haken': choose among
joints: [beugen, heben, drehen] | not in order from the base to the tool
joints: [drehen, hebel] | robot.joints: no joint 'hebel'
base: boden | robot.base: no body 'boden'
feet: [hand] | robot.feet: an arm has none
kp: [1, 2] | robot.kp=[1, 2]: expected a number, or 6
torque: 0.5 | the servos do not hold the arm:
mirror: [1, 1, 1, 1, 1, 1] | the arm is not its own mirror image so
kp: 1.0e+6, kd: 1.0e-3, torque: 1.0e+6, armature: 1.0e-6 | its simulation diverges""",
}
SCENE = "; this file may be a part: give the scene file that includes it"


def drop_joints(text: str, word: str) -> str:
    """A file without the joints and motors whose names end so."""
    return re.sub(rf'<(joint name|motor joint)="\w+_{word}"[^>]*/>', "", text)


FILES = {
    None: [  # any shape
        (drop_joints(quadruped(), "quer"), "four legs of three hinges, the model has 0; hinges"),
        (
            drop_joints(humanoid(joint="<freejoint/>"), "(quer|sprung|schulter)"),
            "two legs of as many hinges, three at least: [['links_hoch', 'links_knie'],",
        ),
    ],
    "quadruped": [
        (arm(), "6 to 'hand'; task=reach may take this robot"),
        (humanoid(), "1 to 'links_arm'; task=humanoid may take this robot"),
        ("<mujoco><worldbody>", "robot.mjcf: {file}: XML parse error"),
        (quadruped(more="<contact><pair geom1='floor' geom2='x'/></contact>"), SCENE),
        ("<mujoco><worldbody><geom/></worldbody></mujoco>", SCENE),
        ("<mujoco/>", "robot.base: 0 bodies could be the base"),
        (quadruped(inside="<body><freejoint/><geom size='0.1'/></body>"), "free joint"),
        (
            quadruped(inside=PART + PART + PART + "</body>" * 3),
            "expected four legs of three hinges, the model has 5; hinges from 'rumpf': 3 to",
        ),
        (
            quadruped(
                free="<freejoint/>",
                beside="<body name='ball'><freejoint/><geom size='0.1'/></body>",
            ),
            "the bodies rumpf, ball have a free joint each",
        ),
        (
            quadruped(beside="<body name='tor'><joint/><geom size='0.1'/></body>"),
            "2 bodies could be the base, name one of rumpf, tor",
        ),
        (quadruped().replace('"vl_huefte" pos="0.2', '"vl_huefte" pos="-0.3'), "but by position"),
    ],
    "humanoid": [
        (quadruped(), "expected two legs, found four; task=quadruped may take this robot"),
        (
            drop_joints(humanoid().replace("0.03 0 -0.03", "0.2 0 -0.03"), "sprung"),
            "on legs without an ankle, a third hinge about y, which are kept straight: its center",
        ),
        (
            humanoid(joint='<joint name="hoehe" type="slide" axis="0 0 1"/>'),
            "robot.base: 'rumpf' moves along hoehe: expected a free joint or none",
        ),
        (humanoid(legs=("links",)), "robot.joints: expected two legs, the lowest chains of hinges"),
        (humanoid(foot="0.1 0.002 0.01"), "robot.feet: the sole of 'links_fuss' is 200 by 4 mm"),
        (humanoid(trunk="2 0 0.2"), "robot.stance: the robot cannot stand: its center of mass is"),
        (
            re.sub(r'(links_(knie|sprung)") axis="0 1 0"', r'\1 axis="1 0 0"', humanoid()),
            "expected two or three to turn about the base's y",
        ),
    ],
    "arm": [
        (quadruped(), "'hr_unter' and 'hl_unter'; task=quadruped may take this robot"),
        (arm(base="<freejoint/>"), "'sockel' has a free joint: expected an arm on a fixed base"),
        (arm(world=CUBE), "'wuerfel' has a free joint"),
        (arm(world=CUBE.replace("<freejoint/>", "<joint/>")), "2 bodies carry joints: name one"),
        (arm(elbow='type="slide" range="0 0.1"'), "'beugen' is a slide: expected hinges"),
        (arm(wrist='type="ball"'), "'neigen' is a ball joint: expected hinges"),
        (
            arm(base='<joint/><joint axis="1 0 0"/>'),
            "'sockel' has several joints",
        ),
        (
            arm(more='<equality><joint joint1="heben" joint2="beugen"/></equality>'),
            "an equality couples heben, beugen",
        ),
        (
            arm(
                more='<tendon><fixed name="t"><joint joint="heben" coef="1"/>'
                '<joint joint="beugen" coef="-1"/></fixed></tendon>'
            ),
            "a tendon couples heben, beugen",
        ),
        (
            arm(more='<equality><connect body1="hand" anchor="0 0 0"/></equality>'),
            "an equality couples hand and world",
        ),
        (
            "<mujoco><worldbody><body name='a'><geom size='0.1'/></body></worldbody></mujoco>",
            "the model has no hinge",
        ),
        (
            "<mujoco><worldbody><body name='a'><joint name='j'/><geom size='0.1'/></body>"
            "</worldbody></mujoco>",
            "expected 3 hinges or more from 'a' to 'a', there are 1: j",
        ),
        (
            arm().replace('<body name="schulter"', f'{SECOND}<body name="schulter"'),
            "2 chains begin at 'sockel', which arm is it?",
        ),
    ],
}
PRINTED = {
    "quadruped": (),
    "humanoid": (
        "# armature · (2π · 10 Hz)²",
        "180 by 60 mm",
        "fixed at 0: rechts_schulter, links_schulter",
    ),
    "arm": ("# (armature + inertia of what it moves) · (2π · 3 Hz)²",),
}
LACKING = {
    "quadruped": ["scale", "tool"],
    "humanoid": ["scale", "mirror", "tool"],
    "arm": ["feet", "scale", "height", "tool"],
}


@pytest.mark.parametrize(
    "head, name",
    [
        ('mujoco model="xArm 7: (left)"', "xArm_7_left"),
        ('mujoco model="MuJoCo Model"', "greifer-2.1"),
        ("mujoco", "greifer-2.1"),
    ],
)
def test_the_name_of_a_model(tmp_path, head, name):
    """It is the model's own, else that of its file, and the same in a run's copy."""
    text = arm().replace('mujoco model="greifer"', head)
    file = Path(write(tmp_path, text, "greifer-2.1.xml"))
    for path in (file, copy_model(file, tmp_path / "run")):
        loaded = load_any(**robot_keys(mjcf=str(path)))
        assert loaded.spec.modelname == name
        assert loaded.mjm.names.startswith(f"{name}\0".encode())
        assert f'<mujoco model="{name}">' in loaded.text
    assert is_copy(file, path)


def refusal(shape: str | None, text: str, folder, **keys) -> str:
    """The line with which a file or a description is refused."""
    name = keys.pop("mjcf", "hund.xml")
    path = name if ":" in name else str(folder / name)
    write(folder, text)
    with pytest.raises((ValueError, FileNotFoundError)) as error:
        load_as(shape, **robot_keys(mjcf=path, **keys))
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("shape", TEXTS)
def test_what_is_printed_is_the_robot(tmp_path, shape):
    """The printed description gives the model again, bit for bit, and the task's arguments."""
    file, actuator = write(tmp_path, TEXTS[shape]), dataclasses.asdict(make_actuator())
    loaded = load_any(**robot_keys(mjcf=file))
    described = {"mjcf": file, "collide": "feet"}
    text = as_yaml(loaded, described, "hund", actuator)
    assert all(words in text for words in PRINTED[shape])
    printed = yaml.safe_load(text)
    assert (printed.pop("name"), printed.pop("actuator")) == ("hund", actuator)
    short = yaml.safe_load(as_yaml(loaded, described, "hund", actuator, whole=False))
    assert ("collide" in short) == (shape != "arm")  # it tells what feet do
    lacking = [key for key, value in printed.items() if value is None]
    assert lacking == LACKING[shape]
    again = load_any(**printed)
    assert same_model(again.mjm, loaded.mjm) and again.text == loaded.text
    assert again.robot == loaded.robot and again.arguments == loaded.arguments


@pytest.mark.parametrize(
    ("angle", "factor", "says"),
    [
        ("degree", 1.0, 'ends at 2.5 degrees: perhaps the file means <compiler angle="radian"/>'),
        ("radian", 57.3, 'ends at 143 radians: perhaps the file means <compiler angle="degree"/>'),
        ("degree", 57.3, ""),
        ("radian", 2.51, ""),  # of the knees: nearly a turn
    ],
)
def test_ranges_in_another_unit_are_told(tmp_path, capsys, angle, factor, says):
    """Ranges that look like radians read as degrees, or the reverse, are named in one line."""

    def scaled(match: re.Match[str]) -> str:
        return f'range="{factor * float(match[1])} {factor * float(match[2])}"'

    text = re.sub(r'range="(\S+) (\S+)"', scaled, humanoid()).replace("radian", angle)
    load_any(**robot_keys(mjcf=write(tmp_path, text)))
    said = capsys.readouterr().err
    assert says in said and said.count("\n") == ("links_knie" in said) == bool(says)


@pytest.mark.parametrize("shape", TEXTS)
def test_the_model_of_an_exported_file_names_no_folder(tmp_path, shape):
    """A robot whose file names folders of meshes is gated and played from its exported file."""
    text = TEXTS[shape].replace("<compiler ", '<compiler meshdir="a" texturedir="b" ', 1)
    assert text != TEXTS[shape]
    loaded = load_any(**robot_keys(mjcf=write(tmp_path, text)))
    check_confined(loaded.text, None, "policy.onnx")


@pytest.mark.parametrize(
    "shape, row", [(shape, x) for shape, text in DESCRIPTIONS.items() for x in text.split("\n")[1:]]
)
def test_a_description_that_does_not_fit(tmp_path, shape, row):
    """A wrong name or number in the description is refused in one line."""
    text, _, says = row.partition(" | ")
    keys = yaml.safe_load(f"{{{text}}}")
    line = refusal(shape, TEXTS[shape], tmp_path, **keys)
    assert says in line
    assert keys.get("mjcf") != "hundd.xml" or "hund.xml" in line  # the file that is there


@pytest.mark.parametrize(
    "shape, text, says", [(shape, *case) for shape, cases in FILES.items() for case in cases]
)
def test_a_file_that_does_not_fit(tmp_path, shape, text, says):
    """A broken file, or a robot of another shape, is refused in one line."""
    assert says.format(file=tmp_path / "hund.xml") in refusal(shape, text, tmp_path)
