"""Bodies that show a command, and what strangers' files may say of a command."""

from pathlib import Path

import mujoco
import numpy as np
import pytest

from gpusim_rl.deploy.describe import describe_command
from gpusim_rl.envs.command_columns import check_command, command_arrow, place_target
from gpusim_rl.envs.declarations import Command
from gpusim_rl.play.rollouts import show_fields
from tests.envs.test_commands import TURN, altered
from tests.worlds import make_actuator, make_sim_of, make_task

MODEL = """<mujoco><worldbody>
  <body name="target" pos="7 8 9"><geom size="0.1"/></body>
  <body name="moved" mocap="true"><geom size="0.1"/></body>
  <body><geom size="0.1"/></body>
  <body name="root"><body name="robot"><joint/><geom size="0.1"/></body></body>
</worldbody></mujoco>"""
NAMES = ["x", "y", "z", "qw", "qx", "qy", "qz"]
GOOD = {
    "names": NAMES,
    "units": ["m"] * 3 + ["1"] * 4,
    "trained": {"low": [-1.0] * 7, "high": [1.0] * 7},
    "center": [0.5, 0, 0, 1, 0, 0, 0],
    "lean": 0.5,
    "shown_by": "target",
}


def checked(model: mujoco.MjModel, about: dict) -> None:
    check_command(about, model, Path("policy.onnx"))


@pytest.mark.parametrize("count", [1, 2, 7])
def test_a_body_is_moved_to_the_command(count):
    """It has the command's pose; x, or x and y, keep the rest; without a body nothing moves."""
    model = mujoco.MjModel.from_xml_string(MODEL)
    ranges = {"low": [-1.0] * count, "high": [1.0] * count}
    about = {"names": NAMES[:count], "trained": ranges, "shown_by": "target"}
    about = GOOD if count == 7 else about
    checked(model, about)
    command = [0.1, 0.2, 0.3, 0.0, 1.0, 0.0, 0.0][:count]
    pose = command + [7.0, 8.0, 9.0, 1.0, 0.0, 0.0, 0.0][count:]
    for shown in (about, {"names": NAMES}):
        place_target(model, shown, np.array(command))
        assert [*model.body("target").pos, *model.body("target").quat] == pose


@pytest.mark.parametrize(
    "others",
    [
        {"shown_by": ""},
        {"shown_by": None},
        {"shown_by": "nobody"},
        {"shown_by": "moved"},  # its pose is not the model's
        {"shown_by": "root"},  # it carries the robot
        {"shown_by": "robot"},
        {"lean": "x"},
        {"lean": None},
        {"lean": float("nan")},
        {"lean": 4.0},
        {"center": 5},
        {"center": None},
        {"center": [10**400] + [0] * 6},
        {"center": [0.5, 0, 0, 0, 0, 0, 0]},
        {"center": [0.5]},
        {"trained": {"low": ["1"] * 7, "high": [1.0] * 7}},
        {"trained": {"low": [-1.0] * 7}},
        {"trained": {"low": [1.0] * 7, "high": [-1.0] * 7}},
        {"trained": {"low": [-1e300] * 7, "high": [1e300] * 7}},
        {"names": 3},
        {"names": "xyzwabc"},
        {"names": [*NAMES[:6], 7]},
        {"units": 5},
        {"units": None},
        {"units": ["m", None]},
        {"rotations": 3},
        {"rotations": [{"first": 1, "lean": 0.5}]},
        {"rotations": [{"first": "0", "lean": 0.5}]},
        {"rotations": [{"first": 0}]},
        {"rotations": [{"first": 0, "lean": 0.5}] * 2},
    ],
)
def test_a_broken_command_is_one_line(others):
    """Whatever a stranger's file says, the answer is a ValueError in one line with the file."""
    about = GOOD | others
    if "rotations" in others:  # a command of four numbers, which is one rotation
        rotation = altered(command=Command(parts=(TURN,)))
        about = describe_command(rotation) | others
        del about["lean"], about["spin"]
    with pytest.raises(ValueError, match=r"^policy\.onnx: ") as error:
        checked(mujoco.MjModel.from_xml_string(MODEL), about)
    assert "\n" not in str(error.value)


def test_fields_of_a_world_are_shown():
    """A model gets what a world has of its own; gains of a PD controller are no part of it."""
    task = make_task(actuator=make_actuator(kind="pd"))
    sim = make_sim_of(task, 3)
    assert "kp" in task.fields and "geom_friction" in task.fields
    sim.model("geom_friction")[2] = 0.25
    show_fields(task.mjm, sim, task.fields, 2)
    assert (task.mjm.geom_friction == 0.25).all()


def test_the_arrow_of_a_command():
    """A velocity is an arrow over the base, in its direction; a goal, or a small one, has none."""
    model = mujoco.MjModel.from_xml_string(
        '<mujoco><worldbody><body pos="0 0 1" quat="0.7071068 0 0 0.7071068"><freejoint/>'
        '<geom size="0.1"/></body></worldbody></mujoco>'
    )
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    ranges = {"low": [-2.0, -1.0], "high": [2.0, 1.0]}
    about = {"names": ["forward", "left"], "units": ["m/s", "m/s"], "trained": ranges}
    start, end = command_arrow(about, np.array([1.0, 0.0]), data, 0.5)
    np.testing.assert_allclose(start, [0, 0, 1.45])
    np.testing.assert_allclose(end - start, [0, 0.375, 0], atol=1e-6)  # it looks along y
    assert command_arrow(about, np.array([0.01, 0.0]), data, 0.5) is None
    turns = about | {"trained": {"low": [0.0, 0.0, -1.0], "high": [0.0, 0.0, 1.0]}}
    assert command_arrow(turns, np.array([0.0, 0.0, 1.0]), data, 0.5) is None  # it has no velocity
    assert command_arrow(about | {"units": ["m", "m"]}, np.ones(2), data, 0.5) is None
