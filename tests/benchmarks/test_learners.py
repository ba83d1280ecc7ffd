"""Curves of learners: what is trained, what is judged, the table, the picture."""

import json
import math

import pytest

from benchmarks import learners, program


def curve(seed: int, *successes: float) -> dict:
    """A training whose actors had these successes after 100, 200, … samples."""
    rows = [
        {"iteration": n, "env_steps": 100 * n, "cpu_s": 2.0 * n, "success": x}
        for n, x in enumerate(successes, 1)
    ]
    return {"seed": seed, "curve": rows, "scores": {}, "failed": ""}


def test_the_table_says_who_never_came():
    """Medians and ranges of samples, seconds and the last success; a seed without it is never."""
    one = {"ppo": [curve(1, 0.2, 0.97, 0.9), curve(2, 0.1, 0.5, 0.96), curve(3, 1.0, 1.0, 1.0)]}
    one["sac"] = [curve(1, 0.0, 0.1, 0.2), curve(2, 0.0, 0.0, 0.95), curve(3, 0.0, 0.0, 0.0)]
    assert learners.reached(one["ppo"][0], "env_steps", 0.95) == 200
    assert math.isinf(learners.reached(one["sac"][0], "env_steps", 0.95))
    ppo, sac = learners.table({"drone": {"learners": one}}, 0.95).splitlines()[2:]
    assert ppo == "| `drone` | PPO | 3 | 200 (100 to 300) | 4 (2 to 6) | 0.96 (0.90 to 1.00) |"
    expected = "never (300 to never), 1 of 3 | never (6 to never), 1 of 3 | 0.20 (0.00 to 0.95) |"
    assert sac == f"| `drone` | SAC | 3 | {expected}"
    assert learners.spread([math.inf, math.inf], ",.0f") == "never"


@pytest.mark.slow
def test_two_learners(tmp_path, monkeypatch, capsys):
    """Each seed is trained once, and judged at each point; a second call trains what is missing."""
    monkeypatch.setattr(program, "apart", lambda function, *words: function(*words))
    small = ("num_envs=8", "num_steps=4", "iterations=4", "task.episode=0.5", "algo.hidden=[8]")
    monkeypatch.setattr(learners, "WORDS", (*learners.WORDS, *small, "fuse=off"))
    words = ["cartpole", f"folder={tmp_path}", "points=2", "episodes=4"]
    learners.main([*words, "seeds=[1]"])
    first = json.loads((tmp_path / "cartpole.json").read_text())
    for name in learners.LEARNERS:
        (made,) = first["learners"][name]
        assert [row["iteration"] for row in made["curve"]] == [2, 4]
        assert [row["env_steps"] for row in made["curve"]] == [64, 128]
        assert 0 < made["curve"][0]["cpu_s"] < made["curve"][1]["cpu_s"]
    learners.main([*words, "seeds=[1,2]"])
    both = json.loads((tmp_path / "cartpole.json").read_text())["learners"]
    assert [made["seed"] for made in both["sac"]] == [1, 2]
    assert both["sac"][0] == first["learners"]["sac"][0]
    with pytest.raises(SystemExit):
        learners.main([*words[:2], "points=4", "episodes=4"])
    assert b"cartpole" in (tmp_path / "curves.svg").read_bytes()
    assert capsys.readouterr().out.count("| `cartpole` |") == 4  # a table after each call
