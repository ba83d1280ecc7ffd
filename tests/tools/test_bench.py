"""The benchmark as a user runs it: its table, its JSON, its errors. No absolute time is
asserted."""

import json
import subprocess
from pathlib import Path

import pytest

from gpusim_rl.tools.bench import mjlab
from gpusim_rl.tools.bench.levels import LEVELS, PARTS
from gpusim_rl.tools.bench.main import RATIOS, main
from gpusim_rl.tools.bench.reference_ppo import Plain
from tests.command_lines import command
from tests.worlds import make_env, make_ppo

SMALL = {
    "native": ("num_envs=16", "num_steps=4"),
    "warp": (
        "sim=warp",
        "num_envs=4",
        "num_steps=2",
        "algo.num_minibatches=1",
        "algo.update_epochs=1",
    ),
}


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """`python -m gpusim_rl.bench` with the shortest measurement: one rollout a repetition."""
    words = ("device=cpu", "warmup=1", "seconds=1e-3", "repeats=2", *words)
    return command("-m gpusim_rl.bench", *words, cwd=folder)


@pytest.mark.parametrize("sim", SMALL)
def test_it_measures_every_level(tmp_path, sim):
    """Table and JSON hold every level; a ratio is the quotient of the rates of its own
    repetition."""
    out = tmp_path / "bench.json"
    done = run(tmp_path, "task=quadruped", f"out={out}", *SMALL[sim])
    assert done.returncode == 0, done.stderr
    report = json.loads(out.read_text())
    assert (report["task"], report["sim"], report["repeats"], report["substeps"]) == (
        "quadruped",
        sim,
        2,
        2,
    )
    assert report["steps"] == {"native": 64, "warp": 8}[sim]
    assert {
        "command",
        "device",
        "num_envs",
        "num_steps",
        "warmup",
        "versions",
        "load",
    } <= report.keys()
    assert {"cpu", "cores", "gpu", "commit", "torch", "mujoco"} <= report["versions"].keys()
    rates, physics, ratios = report["steps_per_s"], report["physics_steps_per_s"], report["ratios"]
    assert tuple(rates) == tuple(physics) == LEVELS and set(ratios) == {
        f"{a}/{b}" for a, b in RATIOS
    }
    for level, rate in rates.items():
        assert len(rate["all"]) == 2 and 0 < rate["min"] <= rate["median"] <= rate["max"]
        assert physics[level]["median"] == pytest.approx(2 * rate["median"])
    for a, b in RATIOS:
        quotients = [x / y for x, y in zip(rates[a]["all"], rates[b]["all"], strict=True)]
        assert ratios[f"{a}/{b}"]["all"] == pytest.approx(quotients)
    spent, iterations = (
        report["milliseconds"],
        report["steps"] / report["num_envs"] / report["num_steps"],
    )
    assert set(spent) == {*PARTS, "host", "update", "plain"} and all(
        x["min"] > 0 for x in spent.values()
    )
    # the parts are timed one after the other inside the iteration, so they nearly fill it
    whole = [1e3 * report["steps"] / rate / iterations for rate in rates["training"]["all"]]
    for i, ms in enumerate(whole):
        assert 0.7 * ms < sum(spent[part]["all"][i] for part in PARTS) <= ms
    speedups = [a / b for a, b in zip(spent["plain"]["all"], spent["update"]["all"], strict=True)]
    assert report["update_speedup"]["all"] == pytest.approx(speedups)
    assert report["an_iteration"]["operators"] > 1000 and report["memory"]["host"] > 1e8
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 100 + len(str(out)) and "\x1b" not in done.stdout
    assert [line.split()[0] for line in lines if line.split()[0] in LEVELS] == list(LEVELS)


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("task=bicycle", "unknown task 'bicycle'"),
        ("repeat=3", "did you mean repeats"),
        ("repeats=0", "from 1 to"),
        ("seconds=0", "seconds=0"),
        ("out=no/such/directory/bench.json", "no directory no/such/directory"),
        ("num_envs=0", "num_envs=0"),
        ("compare=isaac", "choose one of mjlab"),
        ("compare=mjlab", "compare=mjlab needs"),
    ],
)
def test_a_mistake_is_one_line(capsys, word, says):
    """What a user can get wrong is answered in one line with what would be right."""
    with pytest.raises(SystemExit) as stop:
        main([word])
    out, err = capsys.readouterr()
    assert stop.value.code == 2 and out == ""
    assert err.startswith("error: ") and len(err.splitlines()) == 1 and says in err


def test_the_plain_update_is_the_same_update():
    """What the fused update is measured against does the same: after three epochs weights agree to
    0.5 % of their step."""
    steps = []
    for plain in (True, False):
        ppo = make_ppo(make_env(num_envs=32, episode=0.3), update_epochs=3, ent_coef=0.01)
        ppo.iteration()
        for value in ppo.learner.optimizer.tensors().values():  # both begin with empty moments
            value.zero_()
        ppo.learner.optimizer.actor_rate.fill_(ppo.learner.cfg.learning_rate)
        ppo.collect()
        before = {k: v.clone() for k, v in ppo.policy.state_dict().items()}
        (Plain(ppo) if plain else ppo).update()
        steps.append({k: v - before[k] for k, v in ppo.policy.state_dict().items()})
    for name, step in steps[0].items():
        if name == "floor":
            continue
        scale = step.abs().max()
        assert scale > 0 and (step - steps[1][name]).abs().max() < 5e-3 * scale, name


def test_rates_of_another_trainer():
    """Both ways in which rsl_rl prints its speed are read, colors and commas aside, and nothing
    else is."""
    old = "\x1b[1m Learning iteration 3/40 \x1b[0m\n"
    old += "     Computation: 98304 steps/s (collection: 0.9s, learning 0.1s)\n"
    new = "      Steps per second: 101,250 \n      Total steps: 98304 \n"
    assert mjlab.rates(old + new + "512 steps/s") == [98304, 101250]


def test_a_comparison_that_fails_says_why(monkeypatch, tmp_path):
    """What the other trainer said last is the one line."""
    (tmp_path / "mjlab" / "scripts").mkdir(parents=True)
    (tmp_path / "mjlab" / "scripts" / "train.py").write_text("raise SystemExit('no such robot')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(ValueError, match="its training ended with 1: no such robot"):
        mjlab.mjlab(4)
