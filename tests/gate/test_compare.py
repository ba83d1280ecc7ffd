"""A/B: pairs are pairs, the evidence holds whenever one looks, and mode=ab says what is proved."""

import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from gpusim_rl.commands.modes import DEMO
from gpusim_rl.commands.play_mode import choose_mode
from gpusim_rl.config.compose import compose_plain
from gpusim_rl.deploy.runtime import Policy
from gpusim_rl.deploy.to_onnx import sealed
from gpusim_rl.gate import command, compare, variants
from gpusim_rl.gate.compare import BETS, Evidence
from gpusim_rl.gate.robot import Robot, make_robot
from gpusim_rl.gate.scenarios import SCENARIOS
from gpusim_rl.gate.settings import check_compared

SHORT = ("mode=ab", "gate.seconds=2", "ab.robots=2", "ab.pairs=1")
CFG: dict[str, Any] = compose_plain("play", [*SHORT])
FEW = {name: SCENARIOS[name] for name in ("normal", "pushes")}
NO_PAIRS = np.zeros(0, int)
ROUND = 192  # pairs between two looks


@pytest.fixture(scope="module")
def demo() -> Robot:
    """The robot of the demo."""
    return make_robot(Policy(DEMO))


@pytest.fixture(scope="module")
def shaken(tmp_path_factory) -> Path:
    """The demo with so much noise of its weights that its robots fall."""
    model, rng = onnx.load(DEMO), np.random.default_rng(0)
    for tensor in variants.network(model, DEMO):
        (weights,) = [x for x in model.graph.initializer if x.name == tensor.input[1]]
        values = numpy_helper.to_array(weights)
        values = values + 3.0 * values.std() * rng.standard_normal(values.shape)
        weights.CopyFrom(numpy_helper.from_array(values.astype(np.float32), weights.name))
    path = tmp_path_factory.mktemp("shaken") / "noisy.onnx"
    path.write_bytes(sealed(variants.without_checksums(model)))
    return path


# -- the evidence ----------------------------------------------------------------------------------


def evidence_of(cells: np.ndarray, margin: float = 0.02) -> Evidence:
    """The evidence of pairs."""
    evidence = Evidence(margin)
    evidence.add(cells)
    return evidence


def test_the_evidence_that_two_differ():
    """The mixture of a coin's chances by Jeffreys' prior is its integral; none without pairs."""
    theta = (np.arange(200_000) + 0.5) / 200_000
    angle = np.sin(theta * np.pi / 2) ** 2  # uniform angles are Jeffreys' prior
    for x, y in ((0, 0), (3, 0), (2, 5), (20, 40)):
        cells = np.repeat([1, 2, 0, 3], [x, y, 50, 7])
        expected = np.log((angle**x * (1 - angle) ** y).mean()) + (x + y) * math.log(2)
        assert evidence_of(cells).differs() == pytest.approx(expected, abs=1e-4)
    assert evidence_of(NO_PAIRS).differs() == pytest.approx(0.0)


def test_the_evidence_that_b_is_not_worse():
    """The mean over bets of the product of their gains; none without pairs, order is nothing."""
    cells = np.array([0, 0, 1, 2, 3, 0, 2])
    d, margin = np.array([0, 0, -1, 1, 0, 0, 1]), 0.1
    gains = [np.prod(1 + bet * (d + margin) / (1 + margin)) for bet in BETS]
    assert evidence_of(cells, margin).not_worse() == pytest.approx(math.log(np.mean(gains)))
    assert evidence_of(cells[::-1], margin).not_worse() == pytest.approx(math.log(np.mean(gains)))
    assert evidence_of(NO_PAIRS).not_worse() == pytest.approx(0.0)


def test_each_bet_is_fair_at_the_margin():
    """At a difference of minus the margin the expected gain of a pair is 1."""
    margin, lose = 0.02, 0.06
    d = np.array([0, -1, 1, 0])
    gains = 1 + BETS[:, None] * (d + margin) / (1 + margin)
    chances = np.array([0.5, lose, lose - margin, 0.5 - 2 * lose + margin])
    assert gains @ chances == pytest.approx(np.ones(len(BETS)))


def test_the_interval_of_the_difference(monkeypatch):
    """It holds after each of forty rounds in 95 % of the comparisons, and becomes narrow."""
    rng, missed, widths = np.random.default_rng(3), 0, []
    near = compare.GRID[(compare.GRID > -0.3) & (compare.GRID < 0.2)]  # the ends, in less time
    monkeypatch.setattr(compare, "GRID", near)
    for _ in range(100):
        evidence, ends = Evidence(0.02), [(-1.0, 1.0)]
        for _ in range(40):
            evidence.add(rng.choice(4, 48, p=[0.85, 0.08, 0.02, 0.05]))
            ends.append(evidence.interval(0.05))
        missed += not all(low <= -0.06 <= high for low, high in ends)
        widths.append(ends[-1][1] - ends[-1][0])
    assert missed <= 5 and np.mean(widths) < 0.08
    assert evidence_of(NO_PAIRS).interval(0.05) == (-1, 1)


@pytest.mark.parametrize("counts", [[7000, 0, 0, 0], [59970, 0, 30, 0], [0, 0, 20000, 0]])
def test_the_interval_of_many_pairs(counts):
    """It holds the difference that was seen, and is never empty."""
    evidence = Evidence(0.02)
    evidence.counts += counts
    low, high = evidence.interval(0.05)
    assert low < (counts[2] - counts[1]) / sum(counts) <= high and low < high


@pytest.mark.parametrize(
    "chances, verdict, least, most",
    [
        ([0.9, 0.03, 0.03, 0.04], "better or worse", 0.0, 0.05),  # they are equal
        ([0.9, 0.05, 0.0, 0.05], "worse", 0.9, 1.0),  # nested failures, as is usual
        ([0.87, 0.065, 0.015, 0.05], "worse", 0.9, 1.0),
        ([0.87, 0.015, 0.065, 0.05], "better", 0.9, 1.0),
    ],
)
def test_how_often_a_comparison_is_wrong(chances, verdict, least, most):
    """Looked at after each round, equal policies differ in 5 % at most; 0.05 is seen in 90 %."""
    cells = np.random.default_rng(1).choice(4, 100_000, p=chances)
    rng, right = np.random.default_rng(0), 0
    for _ in range(200):
        evidence, says = Evidence(0.02), "undecided"
        for _ in range(4000 // ROUND):
            evidence.add(rng.choice(cells, ROUND))
            says = evidence.verdict(0.05)
            if compare.finished(says, "better"):
                break
        right += says in verdict
    assert least <= right / 200 <= most


def test_a_policy_as_good_is_not_worse():
    """Bets prove it for equal policies, and hardly ever for one that is worse by the margin."""
    rng, shares = np.random.default_rng(2), []
    for only_b in (0.02, 0.0):
        proofs = 0
        for _ in range(100):
            evidence = Evidence(0.02)
            for _ in range(12):
                evidence.add(rng.choice(4, 192, p=[0.9, 0.02, only_b, 0.08 - only_b]))
                if evidence.verdict(0.05) == "not_worse":
                    proofs += 1
                    break
        shares.append(proofs / 100)
    assert shares[0] > 0.7 and shares[1] <= 0.05


# -- pairs -----------------------------------------------------------------------------------------


def compared(b: Path, *words: str) -> dict[str, Any]:
    """The report of the demo and another file."""
    cfg = compose_plain("play", [*SHORT, *words])
    return command.compare_files([DEMO, b], cfg, ["a", "b"], lambda _: None)


@pytest.fixture(scope="module")
def every(shaken) -> dict[str, Any]:
    """The report of the demo and the shaken policy in all scenarios."""
    return compared(shaken)


def test_a_further_scenario_changes_no_pair(shaken, every, monkeypatch):
    """The same files give the same pairs of a scenario, whatever else is compared."""
    monkeypatch.setattr(compare, "SCENARIOS", FEW)
    few = compared(shaken)
    assert [*few["scenarios"]] == ["normal", "pushes"] and len(every["scenarios"]) == 12
    assert few["scenarios"].items() <= every["scenarios"].items()
    of_few = [x for x in every["alone"] if x["scenario"] in few["scenarios"]]
    assert few["alone"] == of_few and every["alone"]
    assert every["pairs"] == 24 and every["robot_seconds"] == 96


def test_both_meet_the_same_robots(demo, monkeypatch):
    """Commands, disturbances and errors are equal, also where b was trained on other commands."""
    policy = Policy(DEMO)
    policy.command = {**policy.command, "trained": {"low": [-9] * 3, "high": [9] * 3}}
    policy.needs = dict(reversed(policy.needs.items()))
    plans: list[Any] = []

    def drive(some: Any) -> Any:
        plans.append(some[0])
        return [None]

    monkeypatch.setattr(compare, "drive", drive)
    monkeypatch.setattr(compare, "succeeded", lambda *_: np.array([True, False]))
    cells = compare.pairs([demo, make_robot(policy)], "sensors", 2, CFG["gate"], 5)
    assert cells.tolist() == [0, 3] and plans[0].robot is demo and plans[1].robot is not demo
    for key, value in vars(plans[0]).items():
        if key != "robot":
            np.testing.assert_array_equal(value, getattr(plans[1], key), key)


def test_who_failed_alone(every):
    """Each robot on which one alone failed is named, with scenario and round, and counted."""
    failed = [x for x in every["alone"] if x["failed"] == "b"]
    assert len(failed) == every["only_a"] > 0
    assert every["only_b"] + len(failed) == len(every["alone"])
    says = f"b alone failed in {failed[0]['scenario']}, round 1, robot {failed[0]['robot']}"
    assert says in every["text"] and "b is worse than a" in every["line"]
    assert (every["verdict"], every["proved"]) == ("worse", False)


def test_a_comparison_ends_when_it_is_clear(monkeypatch):
    """It stops at the first proof of what is asked; its rounds have other seeds than the gate."""
    seeds: list[int] = []

    def pairs(robots: Any, name: str, count: int, settings: Any, seed: int) -> np.ndarray:
        seeds.append(seed)
        return np.zeros(count, int)

    monkeypatch.setattr(compare, "pairs", pairs)
    how = ("ab.robots=16", "ab.pairs=1000", "seed=3")
    report = compared(DEMO, *how)
    assert (report["pairs"], report["proved"], report["verdict"]) == (960, False, "not_worse")
    assert sorted({*seeds}) == [3 + (n << 32) for n in range(1, 6)]
    report = compared(DEMO, *how, "ab.prove=not_worse")
    assert (report["pairs"], report["proved"]) == (384, True)
    assert "b is not worse than a by 0.02" in report["line"]


def test_other_robots_are_not_compared(demo):
    """Robots of other joints, commands or names are refused in one line."""
    changes = {"robot": ("description", {"robot": "x"}), "joints": ("joints", ["x"])}
    changes |= {"command": ("command", None)}
    for says, (key, value) in changes.items():
        policy = Policy(DEMO)
        setattr(policy, key, value)
        with pytest.raises(ValueError, match=f"cannot be compared, as their {says} differs"):
            compare.check_same(demo, make_robot(policy), ["a", "b"])


def test_what_a_verdict_leaves_out_is_compared(demo):
    """Else a release that fails in a scenario would be no worse once that is left out."""
    weak = CFG["gate"] | {"reported": [*SCENARIOS]}
    assert compare.scenarios(demo, weak) == compare.scenarios(demo, CFG["gate"]) != []


# -- mode=ab ---------------------------------------------------------------------------------------


def test_mode_ab(shaken, tmp_path, capsys, monkeypatch):
    """It prints a table and the verdict, writes JSON, and exits with 1 unless it is proved."""
    monkeypatch.setattr(compare, "SCENARIOS", FEW)
    copy = Path(shutil.copy(DEMO, tmp_path / "a.onnx"))
    for second, proof, code in ((shaken, "better", 1), (copy, "not_worse", 0)):
        words = [f"onnx=[{copy},{second}]", f"out={tmp_path / 'ab.json'}", f"ab.prove={proof}"]
        cfg = compose_plain("play", [*SHORT, *words, "ab.margin=0.9", "ab.robots=8"])
        assert choose_mode(cfg) == "ab"
        with pytest.raises(SystemExit) as end:
            command.compare_policies(cfg)
        said, report = capsys.readouterr().out, json.loads((tmp_path / "ab.json").read_text())
        assert end.value.code == code and report["line"] in said
        assert re.search(r"normal +\d+ +\d+ +\d+ +\d+\n", said)


TWO = ["onnx=[a.onnx,b.onnx]"]


@pytest.mark.parametrize(
    "words, says",
    [
        ([], "mode=ab compares two files, onnx=[a.onnx,b.onnx], not onnx=None"),
        (["onnx=a.onnx"], "mode=ab compares two files"),
        (TWO, "no ONNX file a.onnx"),
        (["onnx=[a.onnx,3]"], "expected a path"),
        ([*TWO, "mode=video"], "expected a path"),
        ([*TWO, "ab.prove=equal"], "ab.prove=equal: choose one of better, not_worse"),
        ([*TWO, "ab.margin=0"], "ab.margin=0: expected a number above 0, up to below 1"),
        ([*TWO, "run=runs/x"], "onnx= is a policy by itself"),
    ],
)
def test_mistakes_of_mode_ab(words, says):
    """What does not fit is refused in one line that says what is expected."""
    cfg = compose_plain("play", ["mode=ab", *words])
    with pytest.raises((ValueError, FileNotFoundError)) as error:
        choose_mode(cfg)
    assert says in str(error.value)


@pytest.mark.parametrize("word", ["episodes=5", "gate.reported=[corners]"])
def test_mode_ab_uses_no_other_keys(capsys, word):
    """A key that mode=ab does not use is refused."""
    cfg = compose_plain("play", [*SHORT, f"onnx=[{DEMO},{DEMO}]", word])
    with pytest.raises(SystemExit):
        command.compare_policies(cfg)
    said = capsys.readouterr().err
    assert "does not use" in said and word.partition("=")[0] in said
    check_compared(compose_plain("play", [*SHORT, "gate.reported=[]"]))  # more are judged, not less
