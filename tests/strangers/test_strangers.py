"""Robots of strangers. `python -m tests.strangers` tries as many as wanted, and trains them."""

import random
from pathlib import Path

import mujoco
import pytest

from tests.strangers.robots import FAULTS, Shape, draw
from tests.worlds import make_robot


def load(text: str, suffix: str, folder: Path) -> mujoco.MjModel:
    """The model that a file becomes; ValueError if it is refused."""
    file = folder / f"robot{suffix}"
    file.write_text(text)
    return make_robot(mjcf=str(file)).mjm


def test_most_good_robots_are_accepted(tmp_path):
    """Twelve robots of other formats, sizes, masses, orders, axes, feet, servos and flags: at most
    two are refused, and only since they do not stand."""
    pick, refused = random.Random(20), []
    for _ in range(12):
        robot = draw(pick, faulty=0)
        try:
            mjm = load(robot.text, robot.suffix, tmp_path)
        except ValueError as error:
            refused.append(str(error))
            continue
        assert mjm.nu == 12 and mjm.nq == 19
    assert len(refused) <= 2 and all("the robot does not stand" in line for line in refused)


@pytest.mark.parametrize("kind", FAULTS)
def test_a_fault_is_named(tmp_path, kind):
    """A robot with a fault is refused in one line that names the fault."""
    make, says = FAULTS[kind]
    with pytest.raises(ValueError) as error:
        load(make(Shape(random.Random(4))), ".xml", tmp_path)
    line = str(error.value)
    assert any(part in line for part in says) and "\n" not in line
