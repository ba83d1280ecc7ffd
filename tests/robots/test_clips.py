"""Clips: what a file may be, files of others and back, and what a clip says of itself."""

import io
import re
import zipfile
from pathlib import Path

import mujoco
import numpy as np
import pytest

from gpusim_rl.core.paths import ASSETS, find_data
from gpusim_rl.robots import clip_formats
from gpusim_rl.robots.clips import Clip, joint_angles, packed, read_clip, write_clip

TROT = ASSETS / "trot.npz"


@pytest.fixture(scope="module")
def robot() -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_path(str(ASSETS / "quadruped.xml"))


def arrays() -> dict[str, np.ndarray]:
    """Those of our trot."""
    with np.load(TROT) as file:
        return dict(file)


def changed(name: str, place: tuple[int, ...], value: float) -> dict[str, np.ndarray]:
    """Those of our trot, with another number at a place of one of them."""
    every = arrays()
    every[name][place] = value
    return every


class Evil:
    """What a pickle would run."""

    def __reduce__(self):
        return Path.write_text, (Path("executed"), "yes")


def bomb() -> bytes:
    """A small `.npz` file whose array unpacks to 128 MiB."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("joint_pos.npy", b"\0" * (1 << 27))
    return data.getvalue()


NAMES = arrays()["joint_names"]


def claims(shape: str) -> bytes:
    """A file whose base_pos has a header with a shape, and no numbers."""
    header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return entries({"base_pos.npy": b"\x93NUMPY\x01\x00" + bytes([118, 0]) + header.encode()})


def entries(files: dict[str, bytes]) -> bytes:
    """A ZIP file with these entries."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as file:
        for name, content in files.items():
            file.writestr(name, content)
    return data.getvalue()


BAD = {  # what is wrong → the file, and what the line says
    "empty": (b"", "no .npz file"),
    "text": (b"x,y,z\n1,2,3\n", "no .npz file"),
    "cut": (TROT.read_bytes()[:5000], "no .npz file"),
    "huge": (claims("(100000000000, 12)"), r"base_pos.npy has the shape \(100000000000, 12\), and"),
    "huger": (claims(f"({10**23}, 12)"), "and fewer numbers"),
    "no array": (entries({"readme.txt": b"hello"}), "magic string"),
    "scalar": (
        arrays() | {"base_pos": np.array(1.0)},
        r"base_pos has shape \(\), expected \(1, 3\)",
    ),
    "slow": (arrays() | {"fps": np.array(1e-4)}, r"lasts 4e\+06 s, expected 1800 s at most"),
    "bomb": (bomb(), r"larger than \d+ bytes"),
    "pickle": (packed(arrays() | {"licence": np.array(Evil(), object)}), "pickle"),
    "no joints": ({x: y for x, y in arrays().items() if x != "joint_pos"}, "lacks joint_pos; it h"),
    "fps 0": (arrays() | {"fps": np.array(0)}, r"fps=0: expected a number above 0, up to 1000"),
    "fps many": (arrays() | {"fps": np.ones(3)}, r"fps has shape \(3,\), expected one number"),
    "fps nan": (arrays() | {"fps": np.array(np.nan)}, "fps is not finite"),
    "fps text": (arrays() | {"fps": np.array("50")}, "fps has the type <U2, expected numbers"),
    "nan": (changed("joint_pos", (7, 3), np.nan), "joint_pos is not finite in frame 7"),
    "norm": (changed("base_quat", (9, 0), 0.5), "base_quat of frame 9 has the norm"),
    "far": (changed("base_pos", (3, 0), 1e6), r"base_pos is 1e\+06 m from the origin"),
    "one frame": (
        {x: y[:1] if y.ndim > 1 else y for x, y in arrays().items()},
        "it has 1 frames, expected 2 or more",
    ),
    "lengths": (arrays() | {"base_pos": np.zeros((400, 3))}, r"base_quat has shape \(401, 4\)"),
    "widths": (arrays() | {"joint_pos": np.zeros((401, 11))}, r"shape \(401, 11\), expected \(401"),
    "names": (arrays() | {"joint_names": np.arange(12)}, "joint_names has the type int64"),
    "twice": (arrays() | {"joint_names": NAMES[[0, *range(11)]]}, "has 'FL_abduction' twice"),
    "unknown": (
        arrays() | {"joint_names": np.array([*NAMES[:-1], "tail"])},
        "'tail' is no joint of the robot: expected FL_abduction",
    ),
    "few": (
        arrays() | {"joint_names": NAMES[1:], "joint_pos": arrays()["joint_pos"][:, 1:]},
        "'FL_abduction' is a joint of the robot, which the clip lacks",
    ),
    "limit": (changed("joint_pos", (5, 2), 1.0), r"joint 'FL_knee' is from -\d.* to 1.000, its"),
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_clip_is_one_line(what, robot, tmp_path, monkeypatch):
    """The line names the file and what is wrong, and nothing in the file is executed."""
    monkeypatch.chdir(tmp_path)
    content, says = BAD[what]
    file = tmp_path / "bad.npz"
    file.write_bytes(content if isinstance(content, bytes) else packed(content))
    with pytest.raises(ValueError, match=says) as caught:
        joint_angles(read_clip(file), robot)
    assert "\n" not in str(caught.value) and [*tmp_path.iterdir()] == [file]


def test_our_clips_fit_the_robot(robot):
    """They have its joints within the limits, say their licence, and are small."""
    for name, seconds in (("trot", 8.0), ("hop", 4.0)):
        clip = read_clip(file := ASSETS / f"{name}.npz")
        assert joint_angles(clip, robot).shape == (len(clip.base_pos), 12)
        assert clip.seconds == seconds and clip.licence == "CC0-1.0"
        assert file.stat().st_size < 20_000


def same(a: Clip, b: Clip, within: float) -> None:
    """Whether both have the same joints and numbers; quaternions may have the other sign."""
    assert a.joint_names == b.joint_names and a.fps == b.fps
    for x, y in zip(a[2:5], b[2:5], strict=True):
        np.testing.assert_allclose(x, y, atol=within)


@pytest.mark.parametrize("ending", [".csv", ".npz", ".mjlab.npz", ".holosoma.npz"])
def test_round_trip(ending, robot, tmp_path):
    """A file of others, made of a clip, is the clip again within 1e-6."""
    clip, file = read_clip(TROT), tmp_path / f"trot{ending}"
    clip_formats.write_any(file, clip, robot)
    same(clip_formats.read_any(file, robot, clip.fps), clip, 1e-6)


def test_a_csv_file(robot, tmp_path):
    """It has x, y, z, the quaternion x, y, z, w, and the joints in the model's order."""
    file = tmp_path / "two.csv"
    row = [1.0, 2.0, 0.3, 0.0, 0.0, 0.6, 0.8, *(0.01 * i for i in range(12))]
    file.write_text("\n".join(",".join(map(str, row)) for _ in range(2)))
    clip = clip_formats.read_any(file, robot, 30.0)
    assert clip.base_quat[0].tolist() == [0.8, 0.0, 0.0, 0.6] and clip.fps == 30
    assert clip.joint_names[2] == "FL_knee" and clip.joint_pos[1, 2] == 0.02


@pytest.mark.parametrize(
    "text, says",
    [
        ("1,2,3\n", "line 1 has 3 numbers, expected 19, 7 of the base"),
        (",".join(["x"] * 19), "no numbers: could not convert string to float"),
        ("\n".join([",".join(["nan"] * 19)] * 2), "it is not finite in frame 0"),
        ("", "it has 0 frames, expected 2 or more"),
    ],
)
def test_a_bad_csv_file_is_one_line(text, says, robot, tmp_path):
    """The line names the file and what is wrong."""
    (file := tmp_path / "bad.csv").write_text(text)
    with pytest.raises(ValueError, match=re.escape(str(file)) + ": " + says) as caught:
        clip_formats.read_any(file, robot, 30.0)
    assert "\n" not in str(caught.value)


def test_velocities_for_others(robot, tmp_path):
    """A base that moves at 0.5 m/s and turns at 1 rad/s does so in the files of mjlab."""
    t = np.arange(51)[:, None] / 50
    turn = np.column_stack([np.cos(t / 2), 0 * t, 0 * t, np.sin(t / 2)])
    joints = np.tile(robot.key_qpos[0, 7:], (51, 1))
    place = np.column_stack([0.5 * t, 0 * t, 0.3 + 0 * t])
    clip = Clip(50, clip_formats.joint_names(robot), place, turn, joints)
    have = clip_formats.as_arrays(clip, robot, whole=False)
    assert have["body_lin_vel_w"][:, 0] == pytest.approx(np.tile([0.5, 0, 0], (51, 1)), abs=1e-6)
    assert have["body_ang_vel_w"][:, 5] == pytest.approx(np.tile([0, 0, 1.0], (51, 1)), abs=1e-6)
    assert have["joint_vel"] == pytest.approx(0 * joints, abs=1e-9)


def test_a_clip_is_written_whole(tmp_path):
    """It is read as it was, in float32, with its licence."""
    clip = read_clip(TROT)
    write_clip(file := tmp_path / "again.npz", clip)
    again = read_clip(file)
    same(clip, again, 0.0)
    assert again.licence == clip.licence


BODIES = {"body_pos_w": np.zeros((2, 1, 3)), "body_quat_w": np.zeros((2, 1, 4))}


@pytest.mark.parametrize(
    "content, says",
    [
        (BODIES | {"joint_pos": np.zeros((2, 12))}, "it lacks fps"),
        (BODIES | {"fps": np.array(50)}, "it lacks joint_pos"),
        (
            {"fps": np.array(50), "joint_pos": np.zeros((2, 12)), "body_quat_w": np.zeros(0)}
            | {"body_pos_w": np.zeros((2, 0, 3))},
            r"body_pos_w has shape \(2, 0, 3\), expected \(frames, bodies, numbers\)",
        ),
    ],
)
def test_a_bad_file_of_others(content, says, robot, tmp_path):
    """One line says what the arrays of mjlab or holosoma lack."""
    file = tmp_path / "bad.npz"
    file.write_bytes(packed(content))
    with pytest.raises(ValueError, match=says):
        clip_formats.read_any(file, robot, 30.0)


def test_a_robot_without_a_free_base(robot, tmp_path):
    """It has no place for the base of a clip."""
    cart = mujoco.MjModel.from_xml_path(str(ASSETS / "cartpole.xml"))
    with pytest.raises(ValueError, match="a free base as its first joint"):
        clip_formats.read_any(TROT, cart, 30.0)


def test_a_file_of_the_user_goes_first(tmp_path, monkeypatch):
    """A clip beside the user is meant where it has the name of one of ours."""
    monkeypatch.chdir(tmp_path)
    assert find_data("task.clip_file", "hop.npz") == ASSETS / "hop.npz"
    Path("hop.npz").write_bytes(TROT.read_bytes())
    assert find_data("task.clip_file", "hop.npz") == Path("hop.npz")
