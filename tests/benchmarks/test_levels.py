"""The levels as a user measures them: table and JSON. No absolute time is asserted."""

import json
import subprocess
from pathlib import Path

import pytest

from benchmarks.levels import LEVELS, RATIOS
from tests.command_lines import command

PARTS = {"act", "control", "physics", "settle", "returns", "minibatches", "normalizers"}
SMALL = {
    "native": ("num_envs=16", "num_steps=4", "algo.memory=gru"),
    "warp": (
        "sim=warp",
        "num_envs=4",
        "num_steps=2",
        "algo.num_minibatches=1",
        "algo.update_epochs=1",
    ),
}


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """`python -m benchmarks.levels` with the shortest measurement: one rollout a repetition."""
    words = ("device=cpu", "warmup=1", "seconds=1e-3", "repeats=2", *words)
    return command("-m benchmarks.levels", *words, cwd=folder)


@pytest.mark.slow
@pytest.mark.parametrize("sim", SMALL)
def test_it_measures_every_level(tmp_path, sim):
    """In table and JSON; a ratio is of the rates of one repetition."""
    out = tmp_path / "bench.json"
    done = run(tmp_path, "task=quadruped", f"out={out}", *SMALL[sim])
    assert done.returncode == 0, done.stderr
    report = json.loads(out.read_text())
    numbers = {"task": "quadruped", "sim": sim, "repeats": 2, "substeps": 2, "warmup": 1}
    numbers["steps"] = {"native": 64, "warp": 8}[sim]
    assert {key: report[key] for key in numbers} == numbers
    assert {"command", "device", "num_envs", "num_steps", "versions", "load"} <= report.keys()
    assert {"cpu", "cores", "gpu", "commit", "torch", "mujoco"} <= report["versions"].keys()
    rates, physics, ratios = report["steps_per_s"], report["physics_steps_per_s"], report["ratios"]
    assert tuple(rates) == tuple(physics) == LEVELS
    assert set(ratios) == {f"{a}/{b}" for a, b in RATIOS}
    for level, rate in rates.items():
        assert len(rate["all"]) == 2 and 0 < rate["min"] <= rate["median"] <= rate["max"]
        assert physics[level]["median"] == pytest.approx(2 * rate["median"])
    for a, b in RATIOS:
        quotients = [x / y for x, y in zip(rates[a]["all"], rates[b]["all"], strict=True)]
        assert ratios[f"{a}/{b}"]["all"] == pytest.approx(quotients)
    parts = report["milliseconds"]
    iterations = report["steps"] / report["num_envs"] / report["num_steps"]
    assert set(parts) == {*PARTS, "host", "update"} and all(x["min"] > 0 for x in parts.values())
    # the parts are timed one after the other inside the iteration, so they nearly fill it
    whole = [1e3 * report["steps"] / rate / iterations for rate in rates["training"]["all"]]
    for i, ms in enumerate(whole):
        assert 0.7 * ms < sum(parts[part]["all"][i] for part in PARTS) <= ms
        learning = sum(parts[part]["all"][i] for part in ("returns", "minibatches", "normalizers"))
        assert learning <= parts["update"]["all"][i] <= ms
    assert report["an_iteration"]["operators"] > 100 and report["memory"]["host"] > 1e8
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 100 + len(str(out)) and "\x1b" not in done.stdout
    assert [line.split()[0] for line in lines if line.split()[0] in LEVELS] == list(LEVELS)
