"""Robots of strangers. `python -m tests.strangers` tries as many as wanted, and trains them."""

import random
from pathlib import Path

import mujoco
import pytest

from tests.strangers.robots import FAULTS, Shape, draw
from tests.worlds import make_robot

COUNT = 12


def load(text: str, suffix: str, folder: Path) -> mujoco.MjModel:
    """The model that a file becomes; ValueError if it is refused."""
    file = folder / f"robot{suffix}"
    file.write_text(text)
    return make_robot(mjcf=str(file)).mjm


def test_good_robots_are_accepted(tmp_path):
    """Whatever its format, size and mass, order, names, axes, feet, servos and flags are."""
    pick = random.Random(20)
    for _ in range(COUNT):
        robot = draw(pick, faulty=0)
        mjm = load(robot.text, robot.suffix, tmp_path)
        assert mjm.nu == 12 and mjm.nq == 19


@pytest.mark.parametrize("kind", FAULTS)
def test_a_fault_is_named(tmp_path, kind):
    """A robot with a fault is refused in one line that names the fault."""
    make, says = FAULTS[kind]
    with pytest.raises(ValueError) as error:
        load(make(Shape(random.Random(4))), ".xml", tmp_path)
    line = str(error.value)
    assert any(part in line for part in says) and "\n" not in line
