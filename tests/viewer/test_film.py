"""Films: what is written into the pictures, their size and their camera."""

import contextlib
import gc

import mujoco
import numpy as np
import pytest
from PIL import Image

from gpusim_rl.viewer.caption import FASTEST, SETTLED, Caption
from gpusim_rl.viewer.film import film, open_video
from gpusim_rl.viewer.offscreen import Camera
from tests.disks import fill
from tests.films import decoded

BALL = """<mujoco><worldbody><light pos='0 0 3'/>
<camera name='side' pos='0 -3 0' xyaxes='1 0 0 0 0 1'/>
<body name='ball'><{joint}/><geom size='.3' rgba='1 0 0 1'/></body></worldbody></mujoco>"""
WALK = {"names": ["forward", "turn"], "units": ["m/s", "rad/s"]}


def model(joint: str = "freejoint") -> mujoco.MjModel:
    """A ball on one joint, and a camera beside it."""
    return mujoco.MjModel.from_xml_string(BALL.format(joint=joint))


def frames(n: int | None = None):
    """A ball, or n of them, that flies along x at 2 m/s."""
    for i in range(1000):
        qpos = np.array([0.02 * i, 0, 0, 1, 0, 0, 0])
        yield i / 100, qpos if n is None else np.tile(qpos, (n, 1))


def test_a_ghost_is_translucent(tmp_path):
    """Beside the ball there is another one, through which the background shines."""
    m, qpos = model(), np.array([0.0, 0, 0, 1, 0, 0, 0])
    with contextlib.closing(Camera(m, 96, 96, "side")) as camera:
        alone = camera(qpos).astype(int)
        both = camera(qpos, qpos + np.eye(7)[0]).astype(int)
    changed = np.abs(both - alone).sum(2) > 20
    columns = np.flatnonzero(changed.any(0))
    assert columns.size and columns.min() > 48  # right of the ball, which stays as it is
    blue = (both - alone)[changed]
    assert (blue[:, 2] > blue[:, 0]).mean() > 0.9
    files = tmp_path / "ghost.mp4", tmp_path / "alone.mp4"
    film(m, frames(), files[0], 0.2, ghost=lambda: qpos)
    film(m, frames(), files[1], 0.2)
    assert files[0].read_bytes() != files[1].read_bytes()


def placed(m: mujoco.MjModel, x: float = 0.0, heading: float = 0.0) -> mujoco.MjData:
    """The ball at a place on the x axis [m], turned about z [rad]."""
    data = mujoco.MjData(m)
    data.qpos[: m.nq] = [x, 0, 0, np.cos(heading / 2), 0, 0, np.sin(heading / 2)][: m.nq]
    mujoco.mj_kinematics(m, data)
    return data


def test_a_caption_says_command_and_speed():
    """Each number of the command stands with its name and unit; the speed is the mean of 0.4 s."""
    m = model()
    caption = Caption(m, WALK, lambda t: np.array([2.1, -t]))
    for i in range(100):
        text = caption.text(0.01 * i, placed(m, 0.02 * i))
    asked, speed = ["command: forward 2.10 m/s", "turn -0.99 rad/s"], "measured: speed 2.00 m/s"
    assert text.split(caption.GAP) == [*asked, speed]
    # it has begun again
    assert 100.0 > FASTEST and caption.text(1.0, placed(m, 100.0)).endswith("speed 0.00 m/s")
    assert caption.text(1.0, None) == f"{asked[0]}{caption.GAP}turn -1.00 rad/s"
    counted = Caption(m, {"names": ["clip"], "units": ["1"]}, lambda t: np.array([1.0]))
    assert counted.text(0.0, None) == "command: clip 1"


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ([2.1, 0.0, 0.5], None),
        ([0.5, 0.0, 0.5], "measured: speed 2.00 of 0.50 m/s"),
        ([2.0, 0.0, 1.0], "turns 0.50 of 1.00 rad/s"),
    ],
)
def test_a_caption_marks_what_differs_from_the_command(command, says):
    """It says what was to be, and stands out in the picture; but not while a command is young."""
    m, walk = model(), {"names": [*"xyz"], "units": ["m/s", "m/s", "rad/s"]}
    caption = Caption(m, walk, lambda t: np.array(command) + (t >= 1.5))
    marks = []
    for i in range(300):
        marks.append(
            [x for x, lit in caption.parts(0.01 * i, placed(m, 0.02 * i, 0.005 * i)) if lit]
        )
    young = round(100 * SETTLED)
    assert not any(marks[:young]) and not any(marks[150 : 150 + young])
    assert all(marks[150 + young :])  # the last command is another one
    assert marks[149] == [says] * (says is not None)
    grey = np.full((480, 720, 3), 127, np.uint8)
    caption = Caption(m, walk, lambda t: np.array(command))
    for i in range(150):
        written = caption.write(grey, 0.01 * i, placed(m, 0.02 * i, 0.005 * i)).astype(int)
    assert ((written[..., 0] - written[..., 2] > 90).sum() > 100) == (says is not None)


def test_a_caption_says_how_far_the_goal_is():
    """Of the body that travels, or of an arm's tool; along what the command says."""
    m, goal = model(), {"names": ["x", "y"], "units": ["m", "m"], "shown_by": "goal"}
    caption = Caption(m, goal, lambda t: np.array([0.3, 0.4]))
    assert "measured: 0.50 m from the goal     speed" in caption.text(0.0, placed(m))
    arm = """<mujoco><worldbody><body><joint/><geom size='.1'/><site name='tool' pos='0 0 1'/>
        </body></worldbody><sensor>
        <framepos name='tool_position' objtype='site' objname='tool'/></sensor></mujoco>"""
    m = mujoco.MjModel.from_xml_string(arm)
    caption = Caption(m, goal | {"names": [*"xyz"], "units": ["m"] * 3}, lambda t: np.zeros(3))
    assert caption.text(0.0, placed(m)).endswith("measured: 1.00 m from the goal")


def test_a_caption_leaves_out_what_says_nothing():
    """No speed, no rotation, no command; strangers' names are short and printable."""
    assert Caption(m := model("joint")).text(0.0, placed(m)) == ""
    pose = {"names": ["x", "qw", "qx", "qy", "qz"], "units": ["m", *"1111"], "lean": 0.1}
    command = np.array([0.1, 1, 0, 0, 0])
    assert Caption(model("joint"), pose, lambda t: command).text(0.0, None) == "command: x 0.10 m"
    strange = {"names": ["\x1b[31m" + "a" * 99], "units": ["m"]}
    text = Caption(model("joint"), strange, lambda t: command).text(0.0, None)
    assert text.isprintable() and len(text) < 50


def test_a_caption_is_in_the_picture():
    """Its letters stand in a dark bar at the lower edge; the rest of the picture stays."""
    grey = np.full((480, 720, 3), 127, np.uint8)
    written = Caption(m := model()).write(grey, 0.0, placed(m)).astype(int)
    bar = written[-32:]
    assert (bar[:, 200:] < 64).all() and bar[:, :160].max() > 225
    assert (written[:-32] == 127).all() and (grey == 127).all()


def test_a_long_caption_stays_within_the_picture():
    """Letters shrink until a line holds them, and a second line takes what does not fit."""
    names = [f"direction {i}" for i in range(6)]
    about = {"names": names, "units": ["rad"] * 6}
    caption = Caption(model("joint"), about, lambda t: np.zeros(6))
    for height, width in ((480, 720), (240, 360)):
        black = np.full((height, width, 3), 127, np.uint8)
        lit = caption.write(black, 0.0, None).max(2) > 150
        assert lit.any() and not lit[:, -3:].any() and not lit[: height * 3 // 4].any()
    m, walk = model(), {"names": ["forward", "left", "turn"], "units": ["m/s", "m/s", "rad/s"]}
    caption, grey = Caption(m, walk, lambda t: np.zeros(3)), np.full((480, 720, 3), 127, np.uint8)
    for i in range(100):  # two parts with discs
        written = caption.write(grey, 0.01 * i, placed(m, 0.02 * i, 0.01 * i))
    assert len(caption.parts(1.0, placed(m, 2.0, 1.0))) == 5 and written[:, -3:].max() == 127


def test_a_gif_is_small_and_keeps_its_colors(tmp_path):
    """Its pictures differ little from those that were added, without the specks of a dither."""
    path, flat = tmp_path / "flat.gif", np.full((96, 96, 3), (70, 90, 120), np.uint8)
    flat[:, 48:] = (240, 120, 20)
    with open_video(path, 12.5) as video:
        for i in range(50):
            video.append_data(np.roll(flat, i, 1))
    with Image.open(path) as gif:
        assert gif.n_frames == 48 or gif.n_frames == 50
        assert gif.info["loop"] == 0 and abs(gif.info["duration"] - 80) <= 10
        gif.seek(7)
        shown = np.asarray(gif.convert("RGB")).astype(int)
    assert np.abs(shown - np.roll(flat, 7, 1)).max() <= 4
    assert path.stat().st_size < 50_000


def test_a_gif_is_half_of_a_film(tmp_path):
    """It has half the size and half the frames, and plays for ever."""
    slow = ((t, qpos / 4) for t, qpos in frames())  # it stays in the picture
    film(model(), slow, tmp_path / "ball.gif", 1, view="side")
    with Image.open(tmp_path / "ball.gif") as gif:
        assert gif.size == (360, 240) and gif.n_frames in (12, 13)
        assert gif.info["loop"] == 0 and gif.info["duration"] == 80


@pytest.mark.parametrize("worlds", [None, 4])
def test_size_and_camera_of_a_film(tmp_path, worlds):
    """As asked for, of one world and of several, from any camera of the model."""
    path = tmp_path / "ball.mp4"
    film(model(), frames(worlds), path, 1, size=[320, 200], view="side")
    pictures = decoded(path, 200, 320).astype(int)
    red = pictures[..., 0] - pictures[..., 1] > 80
    assert len(pictures) == 25 and red[0].any()
    flight = red[-1].any(0).argmax() - red[0].any(0).argmax()
    assert flight > 10  # to the right, as seen from the side


def test_an_unknown_camera_is_refused(tmp_path):
    """The message names those that there are, and no file is left."""
    with pytest.raises(ValueError, match="camera=back: choose one of side, free, above"):
        film(model(), frames(), tmp_path / "ball.mp4", 1, view="back")
    assert not [*tmp_path.iterdir()]


# the pipe to ffmpeg, which imageio leaves to Python to close
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
@pytest.mark.filterwarnings("ignore:.*_io.FileIO:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("suffix", [".mp4", ".gif"])
@pytest.mark.parametrize("room", [0, 1])
def test_a_film_on_a_full_disk(disk, capfd, suffix, room):
    """One line names it; nothing of it is left, and an older film stays."""
    old, path = disk / f"old{suffix}", disk / f"new{suffix}"
    old.write_bytes(b"old")
    fill(disk / "filler", room)
    for file in (old, path):
        with pytest.raises(OSError) as error:
            film(model(), frames(), file, 2)
        line = str(error.value)
        assert "No space left on device" in line and str(file) in line and "\n" not in line
    gc.collect()
    assert capfd.readouterr().err == ""
    assert sorted(x.name for x in disk.iterdir()) == ["filler", old.name]
    assert old.read_bytes() == b"old"
