"""The commands of the keyboard and of the tour in the viewer window."""

import math
from types import SimpleNamespace

import glfw
import mujoco
import numpy as np
import pytest

from gpusim_rl.viewer.gamepad import DEAD_ZONE
from gpusim_rl.viewer.window import Keys, gamepad_state, tour


def test_commands_stay_in_their_range():
    """Tour and keyboard ask for what was trained, whatever the number of commands."""
    low, high = (-2.0, 0.0), (1.0, 0.5)
    command = tour({"names": ["a", "b"], "trained": {"low": low, "high": high}}, 10.0)
    assert {tuple(command(t).tolist()) for t in np.linspace(0, 10, 50)} == {
        (0, 0),
        (0.8, 0),
        (-1.6, 0),
        (0, 0.4),
    }
    # in a short film, 2 s for each of what fits: one end of each number, and no standing
    ends = [tour({"names": [*"ab"], "trained": {"low": low, "high": high}}, 4.0)(t) for t in (0, 3)]
    assert [x.tolist() for x in ends] == [[0.8, 0], [0, 0.4]]
    keys = Keys(low, high)
    keys.press(265)
    assert keys(0.0).tolist() == pytest.approx([0.3, 0])
    for key in (*[264] * 20, *[44] * 20, 262, 999):
        keys.press(key)
    assert keys(0.0).tolist() == [-2, 0.5]
    keys.press(32)
    assert keys(0.0).tolist() == [0, 0]


def test_keys_pause_and_push():
    """Enter pauses and goes on, slash asks for a push; the help names what each key changes."""
    keys = Keys((-1.0,), (1.0,), names=("forward",))
    for key in (257, 47, 47):
        keys.press(key)
    assert (keys.paused, keys.pushes, keys(0.0).tolist()) == (True, 2, [0])
    keys.press(257)
    assert not keys.paused
    assert keys.help == (
        "arrows up and down: forward; space: back; Enter: pause; slash: push; Backspace: reset; "
        "gamepad: sticks, two buttons to pause and reset"
    )


def test_a_gamepad_drives_the_window(monkeypatch):
    """Sticks go from the center to the ends, else the keys' value stays."""
    axes, pads = [0.0] * 4, {}
    monkeypatch.setattr(glfw, "get_gamepad_state", pads.get)
    keys = Keys((-1.0, -0.5, -2.0), (3.0, 0.5, 2.0), (1.0, 0.0, 0.0))
    keys.press(265)
    keys.follow(*gamepad_state())
    assert keys(0.0).tolist() == [1.4, 0, 0]
    pads[3] = SimpleNamespace(axes=axes, buttons=[0] * 15)
    axes[:] = [1.0, -1.0, -1.0, 0.0]  # left stick up and right, right stick to the left
    keys.follow(*gamepad_state())
    assert keys(0.0).tolist() == [3, -0.5, 2]
    axes[:] = [-0.575, 1.0, DEAD_ZONE, 1.0]
    pads[3].buttons[:2] = 1, 1
    for _ in range(2):
        keys.follow(*gamepad_state())
    assert keys(0.0).tolist() == pytest.approx([-1, 0.25, 0])
    assert (keys.paused, keys.resets) == (True, 1)
    pads.clear()
    keys.follow(*gamepad_state())
    keys.press(265)
    keys.follow(*gamepad_state())
    assert keys(0.0).tolist() == pytest.approx([1.4, 0, 0])
    fixed = Keys((), ())  # of command=
    fixed.follow([1.0] * 4, [True, False])
    assert fixed(0.0).tolist() == [] and fixed.paused


def test_commands_about_a_center():
    """A tour ends at the center. A rotation leans 0.8 of what it may, another way each time."""
    center = [0.5, 1.0, 0.0, 1.0, 0.0, 0.0]
    ranges = {"low": [0.0, 0.5, -1, -1, -1, -1], "high": [1.0, 1.5, 1, 1, 1, 1]}
    about = {"names": list("xyabcd"), "trained": ranges, "center": center, "lean": 0.3}
    command = tour(about, 10.0)
    places = [command(t).tolist() for t in (0, 2.1, 4.1, 6.1, 8.1)]
    assert places[-1] == center
    z, axes = np.zeros(3), set()
    for row in places[:-1]:  # the center turns z downwards
        mujoco.mju_rotVecQuat(z, np.array([0.0, 0.0, 1.0]), np.array(row[2:]))
        assert z[2] == pytest.approx(-math.cos(0.8 * 0.3))
        axes.add(tuple(z.round(3)))
    assert len(axes) == 4
    assert [row[:2] for row in places] == [
        pytest.approx(x) for x in ([0.9, 1.0], [0.5, 1.4], [0.1, 1.0], [0.5, 0.6], [0.5, 1.0])
    ]
    ranges = {"low": [-1.0] * 4, "high": [1.0] * 4}
    about = {"names": list("abcd"), "trained": ranges, "center": center[2:], "lean": 0.3}
    command = tour(about, 10.0)  # of a rotation alone
    assert command(9).tolist() == center[2:]
    assert len({tuple(command(t).round(3)) for t in (0, 4, 8)}) == 3


def test_keys_about_a_center():
    """The space bar goes back to it."""
    center = [0.5, 1.0, 0.0, 1.0, 0.0, 0.0]
    low, high = [0.0, 0.5, -1, -1, -1, -1], [1.0, 1.5, 1, 1, 1, 1]
    keys = Keys(low, high, center)
    keys.press(265)
    assert keys(0.0).tolist() == pytest.approx([0.6, *center[1:]])
    keys.press(32)
    assert keys(0.0).tolist() == center
