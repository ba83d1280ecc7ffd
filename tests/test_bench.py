"""The benchmark as a user runs it: its table, its JSON, its errors. No absolute time is asserted."""

import json
import subprocess
import sys

import pytest

from gpusim_rl.bench import LEVELS, RATIOS, main
from tests.worlds import ROOT

SMALL = {
    "native": ("num_envs=16", "num_steps=4"),
    "warp": ("sim=warp", "num_envs=4", "num_steps=2", "algo.num_minibatches=1", "algo.update_epochs=1"),
}


def run(*words: str) -> subprocess.CompletedProcess[str]:
    """`python -m gpusim_rl.bench` with the shortest measurement: one rollout a repetition."""
    words = ("device=cpu", "warmup=1", "seconds=1e-3", "repeats=2", *words)
    return subprocess.run(
        [sys.executable, "-m", "gpusim_rl.bench", *words], cwd=ROOT, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("sim", SMALL)
def test_it_measures_every_level(tmp_path, sim):
    """Table and JSON hold every level; a ratio is the quotient of the rates of its own repetition."""
    out = tmp_path / "bench.json"
    done = run("task=quadruped", f"out={out}", *SMALL[sim])
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    assert (found["task"], found["sim"], found["repeats"], found["substeps"]) == ("quadruped", sim, 2, 4)
    assert found["steps"] == {"native": 64, "warp": 8}[sim]
    assert {"command", "device", "num_envs", "num_steps", "warmup", "versions", "load"} <= found.keys()
    assert {"cpu", "cores", "gpu", "commit", "torch", "mujoco"} <= found["versions"].keys()
    rates, physics, ratios = found["steps_per_s"], found["physics_steps_per_s"], found["ratios"]
    assert tuple(rates) == tuple(physics) == LEVELS and set(ratios) == {f"{a}/{b}" for a, b in RATIOS}
    for level, rate in rates.items():
        assert len(rate["all"]) == 2 and 0 < rate["min"] <= rate["median"] <= rate["max"]
        assert physics[level]["median"] == pytest.approx(4 * rate["median"])
    for a, b in RATIOS:
        quotients = [x / y for x, y in zip(rates[a]["all"], rates[b]["all"], strict=True)]
        assert ratios[f"{a}/{b}"]["all"] == pytest.approx(quotients)
    assert set(found["shares"]) == {"physics", "policy", "update"}
    assert sum(found["shares"].values()) == pytest.approx(1)
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 100 + len(str(out)) and "\x1b" not in done.stdout
    assert [line.split()[0] for line in lines if line.split()[0] in LEVELS] == list(LEVELS)


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("task=bicycle", "unknown task 'bicycle'"),
        ("repeat=3", "did you mean repeats"),
        ("repeats=0", "at least 1"),
        ("seconds=0", "seconds=0"),
        ("out=no/such/directory/bench.json", "a directory that exists"),
        ("num_envs=0", "num_envs=0"),
    ],
)
def test_a_mistake_is_one_line(capsys, word, says):
    """What a user can get wrong is answered in one line with what would be right."""
    with pytest.raises(SystemExit) as stop:
        main([word])
    out, err = capsys.readouterr()
    assert stop.value.code == 2 and out == ""
    assert err.startswith("error: ") and len(err.splitlines()) == 1 and says in err
