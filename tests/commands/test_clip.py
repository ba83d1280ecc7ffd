"""play.py mode=clip: what it says of a motion, what it writes, and what it refuses."""

import pickle
from pathlib import Path

import numpy as np
import pytest

from gpusim_rl.commands import play
from gpusim_rl.config import compose
from gpusim_rl.core.paths import ASSETS
from gpusim_rl.robots.clips import read_clip, write_clip
from tests.command_lines import refused_here
from tests.films import decoded


@pytest.fixture
def here(tmp_path, monkeypatch, no_own_tasks) -> Path:
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def say(capsys, *words: str) -> list[str]:
    """The lines that mode=clip prints."""
    play.play(compose.compose_plain("play", ["mode=clip", *words]))
    return capsys.readouterr().out.splitlines()


def test_what_a_clip_is(here, capsys):
    """Its length, its speeds and its lowest point; our trot has nothing to warn of."""
    assert say(capsys, "clip=trot.npz") == [
        "401 frames at 50 Hz, 8.00 s, 12 joints; CC0-1.0",
        "fastest joint: FR_thigh, 7.0 rad/s at 1.40 s",
        "base: up to 0.60 m/s and 1.12 rad/s, 0.230 to 0.280 m high",
        "lowest point: -0 mm at 6.50 s, of RR",
    ]


def test_what_is_wrong_with_a_clip(here, capsys):
    """A joint beyond its limits, feet in the ground, and an end that still moves."""
    clip = read_clip(ASSETS / "trot.npz")
    joints, place = clip.joint_pos[:100].copy(), clip.base_pos[:100] - [0, 0, 0.05]
    joints[7, 2] = 0.3
    write_clip(
        Path("bad.npz"),
        clip._replace(joint_pos=joints, base_pos=place, base_quat=clip.base_quat[:100], licence=""),
    )
    *said, limit, ground, end = say(capsys, "clip=bad.npz")
    assert said[0] == "100 frames at 50 Hz, 1.98 s, 12 joints; no licence is said"
    limits = "its limits are -2.720 to -0.840"
    assert limit.startswith("warning: FL_knee is at ") and limit.endswith(f"to 0.300 rad, {limits}")
    assert ground.startswith("warning: lowest point: -50 mm at ")
    assert end.startswith("warning: it ends at ")


def test_it_converts_and_films(here, capsys):
    """A clip goes to CSV and back, and its film is as long as it is."""
    lost = "; its format has no place for the clip's"
    wrote = f"wrote hop.csv{lost} rate of 50 Hz and licence CC0-1.0"
    assert say(capsys, "clip=hop.npz", "out=hop.csv")[-1] == wrote
    wrote = f"wrote hop.mjlab.npz{lost} licence CC0-1.0"
    assert say(capsys, "clip=hop.npz", "out=hop.mjlab.npz")[-1] == wrote
    words = ("clip=hop.csv", "fps=50", "out=back.npz", "video=hop.mp4", "size=[96,64]")
    assert say(capsys, *words)[-2:] == ["wrote back.npz", "wrote hop.mp4"]
    a, b = read_clip(Path("back.npz")), read_clip(ASSETS / "hop.npz")
    np.testing.assert_allclose(a.joint_pos, b.joint_pos, atol=1e-6)
    assert len(decoded(here / "hop.mp4", 64, 96)) == 100


@pytest.mark.parametrize(
    "words, says",
    [
        ((), "mode=clip needs clip=FILE, a motion"),
        (("clip=none.npz",), "clip=none.npz: no such file, here or among hop.npz, trot.npz"),
        (("clip=walk.pkl",), "walk.pkl: expected a file .csv or .npz; one of Python's pickle is"),
        (("clip=trot.npz", "run=x"), "mode=clip plays a motion, no policy: not with run="),
        (("clip=trot.npz", "out=trot.pkl"), "out=trot.pkl: expected a name that ends in"),
        (("clip=trot.npz", "fps=0"), "fps=0: expected a number above 0, up to 1000"),
        (("clip=trot.npz", "robot.mjcf=none.xml"), "robot.mjcf: no file 'none.xml'"),
    ],
)
def test_a_mistake_is_one_line(words, says, here, capsys):
    """The line names the key or the file, and the choices."""
    (here / "walk.pkl").write_bytes(pickle.dumps({}))
    assert says in refused_here("play.py", "mode=clip", *words, capsys=capsys)
