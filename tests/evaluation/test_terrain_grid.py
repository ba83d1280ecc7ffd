"""Success and falls by kind and level of rough ground, and films of it."""

import json

import imageio.v3
import numpy as np
import pytest

from gpusim_rl.core.maths import wilson
from tests.command_lines import refused, succeed
from tests.films import decoded

GROUND = ("terrain.kinds=[slope,steps]", "terrain.levels=2", "terrain.variants=1")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A directory with a run on two kinds and two levels, of one iteration."""
    here = tmp_path_factory.mktemp("rough")
    short = "num_envs=8 iterations=1 episodes=2 task.episode=0.5 export=none report=false"
    words = ("task=quadruped_rough", *GROUND, *short.split(), "log=none", "threads=1")
    succeed("train.py", *words, "run_dir=run", cwd=here)
    return here


def test_wilson():
    """The interval of 8 in 10 as in Newcombe (1998); 0 and all of n reach 0 and 1."""
    assert wilson(81, 263) == pytest.approx((0.2553, 0.3662), abs=1e-4)
    assert wilson(0, 20) == pytest.approx((0.0, 0.1611), abs=1e-4)
    assert wilson(20, 20) == pytest.approx((0.8389, 1.0), abs=1e-4)
    assert wilson(0, 0) == (0.0, 1.0)


@pytest.mark.slow
def test_grid(run):
    """Its parts add up to the whole, which is what mode=evaluate says; the picture is one."""
    words = ("run=run", "episodes=24")
    said = succeed("play.py", *words, "mode=grid", "out=grid.json", "report=g.png", cwd=run)
    succeed("play.py", *words, "mode=evaluate", "out=eval.json", cwd=run)
    grid, scores = (json.loads((run / f"{name}.json").read_text()) for name in ("grid", "eval"))
    assert grid["kinds"] == ["slope", "steps"] and grid["levels"] == 2
    assert grid["all"]["success"] == scores["episodes_passed"]
    places = [(x["kind"], x["level"]) for x in grid["cells"]]
    assert places == [("slope", 0), ("slope", 1), ("steps", 0), ("steps", 1)]
    for parts in (grid["cells"], grid["by_kind"], grid["by_level"]):
        assert sum(x["episodes"] for x in parts) == grid["all"]["episodes"] == 24
        for share in ("success", "fell"):
            whole = sum(x["episodes"] * (x[share] or 0.0) for x in parts) / 24
            assert whole == pytest.approx(grid["all"][share], abs=1e-6)
    for x in grid["cells"]:
        low, high = x["fell_interval"]
        assert low <= x["fell"] <= high
    lines = said.splitlines()
    assert lines[0].split() == ["success", "%", "0", "1", "all", "95", "%"]
    assert [line.split()[0] for line in lines[1:]] == ["slope", "steps", "all"]
    picture = imageio.v3.imread(run / "g.png")
    assert picture.shape[0] > 200 and picture.std() > 10


@pytest.mark.slow
def test_several_worlds_in_a_film(run):
    """Five of nine pictures have a robot on its own ground; the others are black."""
    words = ("run=run", "video=wall.mp4", "worlds=5", "seconds=1", "kind=steps", "level=1")
    assert succeed("play.py", *words, cwd=run).splitlines()[-1] == "wrote wall.mp4"
    frames = decoded(run / "wall.mp4", 1278, 1278)
    assert len(frames) == 25
    last = frames[-1].reshape(3, 426, 3, 426, 3).swapaxes(1, 2).reshape(9, 426, 426, 3)
    empty = last[5:, :-48]  # without the caption's bar at the bottom of the film
    assert empty.mean() < 0.5 and last[:5].reshape(5, -1).std(1).min() > 15
    assert np.abs(last[0].astype(int) - last[1]).mean() > 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "word, said",
    [
        ("kind=hills", "terrain.kinds: 'hills': choose among slope, valley"),
        ("level=2", "level=2: expected a level below 2"),
    ],
)
def test_mistakes(run, word, said):
    """Each is refused in one line."""
    assert said in refused("play.py", "run=run", "video=a.mp4", word, cwd=run)


def test_flat_ground_has_no_kinds(trained, tmp_path):
    """A run on flat ground has no grid, and no kind or level to show."""
    for words in (["mode=grid"], ["video=a.mp4", "kind=slope"], ["video=a.mp4", "level=0"]):
        line = refused("play.py", f"run={trained}", *words, cwd=tmp_path)
        assert f"{words[-1]}: the task of {trained} is on flat ground" in line
