"""Time to success, on trainings of a few iterations: actors, judgments, clocks and comparisons."""

import json
import math
import os
import time
from types import SimpleNamespace

import pytest

from benchmarks import program, time_to_success
from benchmarks.time_to_success import Actor, Case, Clock, judge, meets, ratios, summarize
from tests.worlds import make_env, make_ppo

SMALL = (
    *("task=cartpole", "device=cpu", "num_envs=8", "num_steps=4", "iterations=5", "every=2"),
    *("episodes=4", "task.episode=0.5", "algo.hidden=[8]", "sim.threads=1", "fuse=off"),
)


def row(time_s: float, success: float, counts: bool) -> dict:
    """A judged actor."""
    scores = {"success": success}
    return {"time_s": time_s, "env_steps": int(1e3 * time_s), "counts": counts, "scores": scores}


def result(*rows: dict, speed: float = 1000.0) -> dict:
    """The result of a training."""
    rest = {"seed": 1, "steps_per_s": speed, "cores": 1.5, "train_s": 9.0, "failed": "", "load": 0}
    return rest | {"actors": [{"iteration": 5 * i} | row for i, row in enumerate(rows, 1)]}


@pytest.mark.slow
def test_two_settings(tmp_path, monkeypatch, capsys):
    """Each is trained; every second actor and the last are judged; the picture is one."""
    monkeypatch.setattr(program, "apart", lambda function, *words: function(*words))
    out, picture = tmp_path / "time.json", tmp_path / "time.svg"
    settings = 'settings=["algo.gamma=0.9", "algo.gamma=0.99 num_envs=16"]'
    words = (*SMALL, settings, "seeds=[3]", f"out={out}", f"picture={picture}")
    time_to_success.main([*words])
    said, error = capsys.readouterr()
    assert error == ""
    report = json.loads(out.read_text())
    assert report["task"] == "cartpole" and report["episodes"] == 4
    one, two = report["cases"]
    assert (one["name"], two["name"]) == ("algo.gamma=0.9", "algo.gamma=0.99 num_envs=16")
    for case, worlds in ((one, 8), (two, 16)):
        assert case["seeds"] == [3]
        for made in case["training_runs"]:
            actors = made["actors"]
            assert [actor["iteration"] for actor in actors] == [2, 4, 5]
            assert [actor["env_steps"] for actor in actors] == [4 * worlds * n for n in (2, 4, 5)]
            times = [actor["time_s"] for actor in actors]
            assert times == sorted(times) and 0 < times[0] and times[-1] == made["train_s"]
            assert all({"success", "upright_s"} <= actor["scores"].keys() for actor in actors)
            assert made["steps_per_s"] == pytest.approx(20 * worlds / made["train_s"])
            assert made["cores"] > 0.2 and made["start_s"] > 0 and made["versions"]["torch"]
    assert set(report["ratios"]) == {two["name"]}
    turns = [line.split(":")[0] for line in said.splitlines() if line.startswith("seed ")]
    assert turns == [f"seed 3, {case['name']}" for case in (one, two)]
    assert f"{two['name']} is better than {one['name']} by: time to success" in said
    assert picture.read_text().startswith("<?xml") and "svg" in picture.read_text()


def test_settings_take_turns(tmp_path, monkeypatch, capsys):
    """Each case is trained with each seed, in the other order for each next seed."""
    trained = []

    def train(_, words, own):
        trained.append((words[0], next(x for x in words if x.startswith("seed="))))
        return result(row(1.0, 1.0, True))

    monkeypatch.setattr(program, "apart", train)
    two, own = [Case(name, [name]) for name in ("a", "b")], SimpleNamespace()
    own.seeds = [3, 4, 5]
    reports = list(time_to_success.measure(two, own, "folder"))
    assert trained == [
        *[("a", "seed=3"), ("b", "seed=3"), ("b", "seed=4"), ("a", "seed=4")],
        *[("a", "seed=5"), ("b", "seed=5")],
    ]
    assert [len(report) for report in reports] == [1, 2, 2, 2, 2, 2]
    assert capsys.readouterr().out.count("success after 1.0 s") == 6


def test_a_warm_up_changes_nothing():
    """Iterations after it are bit by bit those without it."""
    states = []
    for warm in (False, True):
        ppo = make_ppo(make_env("cartpole", 8), num_steps=4)
        if warm:
            time_to_success.warm_up(ppo)
        assert ppo.iterations == 0
        for _ in range(3):
            ppo.iteration()
        states.append(ppo.state())
    assert states[0].keys() == states[1].keys()
    assert all(states[0][name].equal(states[1][name]) for name in states[0])


def test_the_clock_pauses():
    """Work while it is paused counts neither as time nor as work of processors."""
    clock = Clock()
    end = time.perf_counter() + 0.1
    with clock.paused():
        while time.perf_counter() < end:
            pass
    wall, processor = clock.read()
    assert 0 <= wall < 0.05 and -1e-3 <= processor < 0.05
    time.sleep(0.05)
    assert clock.read()[0] >= 0.05


def test_what_counts():
    """A condition of a score is met, is not, or has no score; a NaN meets none."""
    conditions = [("success", ">=", 0.95), ("drift_still", "<=", 0.05)]
    assert meets({"success": 0.95, "drift_still": 0.05}, conditions)
    assert meets({"success": 1.0}, conditions)
    assert not meets({"success": 1.0, "drift_still": None}, conditions)
    assert not meets({"success": 0.94, "drift_still": 0.01}, conditions)
    assert not meets({"success": 1.0, "drift_still": 0.06}, conditions)
    assert not meets({"success": math.nan}, conditions)
    assert time_to_success.parse("x <= -1.5e-3") == ("x", "<=", -1.5e-3)


def test_drives_count(monkeypatch):
    """The success of an actor is that of the final evaluation: with the drives, once calibrated."""
    calls = []

    def evaluate(section, iteration, seed, episodes):
        calls.append("episodes")
        return {"success": 0.8}

    def tracking(iteration, weights):
        calls.append("drives")
        return 0.5

    monkeypatch.setattr(time_to_success.trainer, "evaluate", evaluate)
    monkeypatch.setattr(time_to_success.trainer, "tracking", tracking)
    scores = time_to_success.scores_of(None, SimpleNamespace(weights={}), 4)
    assert scores == {"success": 0.4, "tracking": 0.5, "episodes_passed": 0.8}
    assert calls == ["drives", "episodes"]


def test_judging_may_end_early():
    """judge=first judges none after the first that counts but the last, bisect few."""
    actors = [Actor(i, i, float(i), float(i), {}) for i in range(1, 6)]

    def score(actor):
        return {"success": 0.3 * actor.iteration}

    def judged(how):
        rows = judge(actors, score, [("success", ">=", 0.5)], how)
        return [(row["iteration"], row["counts"]) for row in rows]

    assert judged("all") == [(1, False), (2, True), (3, True), (4, True), (5, True)]
    assert judged("first") == [(1, False), (2, True), (5, True)]
    assert judged("bisect") == [(1, False), (2, True), (5, True)]
    actors = [Actor(i, i, float(i), float(i), {}) for i in range(1, 41)]
    assert len(judged("bisect")) < 8 and judged("bisect")[:2] == [(1, False), (2, True)]
    actors = actors[:1]
    assert judged("all") == judged("first") == judged("bisect") == [(1, False)]


def test_medians_and_ratios():
    """A seed that never succeeds is later than all others; a ratio above 1 is an improvement."""
    case = Case("a", [])
    never = result(row(1.0, 0.2, False), row(9.0, 0.9, False))
    slow = result(row(1.0, 0.2, False), row(8.0, 0.99, True), row(9.0, 0.97, True))
    fast = result(row(1.0, 0.2, False), row(2.0, 0.96, True), row(4.0, 1.0, True), speed=3000.0)
    one = summarize(case, [slow, slow, never])
    two = summarize(case._replace(name="b"), [fast, fast, slow])
    assert one["time_s"] == {"median": 8.0, "all": [8.0, 8.0, None]}
    assert two["final_success"]["all"] == [1.0, 1.0, 0.97]
    assert ratios(one, two) == {"time_s": 4.0, "env_steps": 4.0, "steps_per_s": 3.0}
    (line,) = time_to_success.comparisons([one, two])
    assert line.startswith(
        "b is better than a by: time to success × 4.00, samples to success × 4.0"
    )
    never_twice = summarize(case, [never, slow, never])
    assert never_twice["time_s"]["median"] is None
    assert ratios(never_twice, two)["time_s"] is None
    json.dumps(never_twice, allow_nan=False)


def test_an_unknown_score_is_named():
    """A condition of the command line on a score that the task lacks is refused by its name."""
    summaries = [{"training_runs": [result(row(1.0, 0.5, False))]}]
    time_to_success.check_scores(summaries, [])
    with pytest.raises(ValueError, match=r"require=foot_lift>=0.1: the scores are success"):
        time_to_success.check_scores(summaries, ["foot_lift>=0.1"])


def test_a_process_of_its_own():
    """A function's result and its mistake come back, and a process that has ended is named."""
    assert program.apart(sum, [1, 2]) == 3
    with pytest.raises(ValueError, match="invalid literal"):
        program.apart(int, "x")
    with pytest.raises(ValueError, match="its process has ended"):
        program.apart(os.abort)
