"""Identification: the numbers of simulated robots are told by their logs, and become ranges."""

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from gpusim_rl.config import compose, resume
from gpusim_rl.config.compose import compose_plain
from gpusim_rl.config.recipe import apply_ranges
from gpusim_rl.deploy.onboard.log import read
from gpusim_rl.deploy.runtime import Policy
from gpusim_rl.gate.robot import make_robot
from gpusim_rl.gate.scenarios import Plan
from gpusim_rl.gate.worlds import Worlds
from gpusim_rl.identify import drift, hang, main, simulated, walk
from gpusim_rl.identify.estimates import Estimate, as_yaml
from tests.worlds import ROOT, check_words

DEMO = ROOT / "gpusim_rl" / "demo" / "quadruped.onnx"
ARM = """
<mujoco>
  <option timestep="0.005" integrator="implicitfast"/>
  <default><joint axis="0 1 0" armature="0.02" damping="0.5" frictionloss="0.1"/>
  <position kp="40" kv="1"/><geom type="capsule" size="0.02 0.1" pos="0 0 -0.1"/></default>
  <worldbody><body><freejoint/><geom/>
    <body><joint name="a"/><geom/><body pos="0 0 -0.2"><joint name="b"/><geom/></body></body>
  </body></worldbody>
  <actuator><position joint="b"/><position joint="a"/></actuator>
</mujoco>
"""
TRUTH = {"kp": 0.85, "kd": 1.25, "armature": 1.6, "joint_friction": 1.8, "delay": 0.024}


ARM_POLICY: Any = SimpleNamespace(mjcf=ARM, dt=0.02, outputs={"safe_pose": [0.3, -0.2]})


def fit_of(truth: dict[str, Any]) -> hang.Fit:
    """What an arm with two joints and swapped actuators tells in 7 s: one fit, for time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hang, "DELAYS", (0.02,))
        return hang.identify(simulated.hanging_motion(ARM_POLICY, truth, 7.0, seed=1))


@pytest.fixture(scope="module")
def fit() -> hang.Fit:
    """Of joints that are alike."""
    return fit_of(TRUTH)


def test_a_hanging_robot_tells_its_joints(fit):
    """Each number within four deviations, few of them wide; what is left is the noise."""
    widest = {"kp": 0.04, "kd": 0.08, "armature": 0.12, "joint_friction": 0.6, "delay": 1e-3}
    assert {*fit.estimates} == {*TRUTH}
    for name, truth in TRUTH.items():
        estimate = fit.estimates[name]
        assert abs(estimate.value - truth) < 2 * estimate.margin < 2 * widest[name], name
    assert fit.nominal > 4 and abs(fit.fitted - 1) < 0.1
    assert fit.noise == pytest.approx(hang.NOISE, rel=0.2)


def test_joints_that_differ_are_fitted_too():
    """The means of their numbers are told, all that is left is noise, and how much they differ."""
    fit = fit_of(TRUTH | {"kp": np.array([0.9, 0.8]), "armature": np.array([1.5, 1.7])})
    for name, truth in TRUTH.items():
        estimate = fit.estimates[name]
        assert abs(estimate.value - truth) < 2 * estimate.margin, name
    assert abs(fit.fitted - 1) < 0.1 and abs(fit.spread - 0.05 / 0.85) < 0.02
    assert fit.lines()[-1].startswith(f"kp of the joints differs by {fit.spread:.1%}")


def test_a_dependent_pair_is_named(fit):
    """The damping of servos and of joints is one number, and only the first of both is fitted."""
    assert fit.dependent == [("kd", "damping")] and "damping" not in fit.estimates
    assert fit.lines()[0].startswith("kd and damping are one number")
    a, b = np.eye(50)[:2]
    assert hang.dependent_pairs(np.stack([a, b, a + 0.01 * b], 1), ["a", "b", "c"]) == [("a", "c")]


class Valleys:
    """Errors whose squares are least at 4 ms, and at 20 ms by `bottom` more; armature's too."""

    def __init__(self, bottom: float):
        self.bottom = bottom

    def __call__(self, values: np.ndarray) -> np.ndarray:
        armature, delay = values
        cost = (delay - 0.004) ** 2 * (delay - 0.02) ** 2 * 1e10 + self.bottom * (delay / 0.02) ** 4
        return np.array([*[np.sqrt(cost / 4)] * 4, armature - 1 - 10 * delay])

    def jacobian(self, values: np.ndarray) -> np.ndarray:
        steps = 1e-7 * np.eye(2)
        return np.stack([(self(values + x) - self(values - x)) / 2e-7 for x in steps], 1)


def test_fits_begin_with_several_delays():
    """The best of several minima is found, and so is another that is as good."""
    names = ["armature", "delay"]
    for bottom, ends in ((30.0, [0.004]), (1.0, [0.004, 0.02])):
        fits = hang.best_fits(Valleys(bottom), names, hang.guesses(names))
        assert fits[0].x == pytest.approx([1.04, 0.004], abs=2e-3)
        assert {round(fit.x[1], 3) for fit in fits} == {*ends}


@pytest.mark.parametrize("noise", [0.0, 0.005])
def test_a_robot_that_is_not_excited(noise, monkeypatch):
    """Readings of joints that hang straight down tell nothing, with noise or without."""
    monkeypatch.setattr(hang, "DELAYS", (0.0,))
    angles = noise * np.random.default_rng(0).normal(size=(100, 2))
    motion = hang.Motion(ARM, 0.02 * np.arange(100), angles, 20 * angles, 0 * angles)
    with pytest.raises(ValueError, match=r"^x\.mcap does not move its joints enough to tell kp$"):
        hang.identify(motion, "x.mcap")


def test_controls_are_means_of_late_targets():
    """The target of each timestep is the mean of what is due in it, at any delay."""
    targets = np.array([[0.0], [1.0], [3.0], [3.0]])
    still = np.zeros((4, 2))
    motion = hang.Motion(ARM, 0.02 * np.arange(4), still, still, targets.repeat(2, 1))
    hung = hang.HangingModel(motion)
    fine = np.repeat(targets[:, 0], 16)  # sixteenths of a control step, quarters of a timestep
    for quarters in (0, 1, 4, 11):
        late = np.r_[np.zeros(quarters), fine][: 3 * 16].reshape(-1, 4).mean(1)
        controls = hung.controls(quarters * 0.005 / 4)[: len(late)]
        np.testing.assert_allclose(controls, late[:, None].repeat(2, 1), atol=1e-9)


def test_excitation(tmp_path, monkeypatch, capsys):
    """It rests, keeps to its amplitude, and begins at the pose; the command writes it."""
    pose = np.array([0.5, -1.0])
    targets = hang.excitation(pose, 0.02, 20.0, seed=0)
    assert targets.shape == (1000, 2) and (targets[:101] == pose).all()
    assert 0.2 < np.abs(targets - pose).max() <= 0.25
    monkeypatch.chdir(tmp_path)
    main.main(["excite", str(DEMO), "targets.npy", "seconds=7"])
    assert np.load("targets.npy").shape == (350, 12)
    assert re.search("350 rows of 12 targets", capsys.readouterr().out)


def test_ridge_leaves_one_out():
    """The estimate is the ridge's, and the margin that of the errors of rows left out."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(40, 30))
    truth = rows[:, 0] + 0.5 * rows[:, 1] + 0.1 * rng.normal(size=40)
    x = (rows - rows.mean(0)) / (rows.std(0) + 1e-6)
    y, left_out = truth - truth.mean(), {}
    for strength in walk.STRENGTHS:
        errors = []
        for i in range(40):
            others = np.arange(40) != i
            gram = x[others].T @ x[others] + strength * np.eye(30)
            errors.append(x[i] @ np.linalg.solve(gram, x[others].T @ y[others]) - y[i])
        left_out[strength] = np.sqrt(np.mean(np.square(errors)))
    best = min(left_out, key=left_out.__getitem__)
    weights = np.linalg.solve(x.T @ x + best * np.eye(30), x.T @ y)
    estimate = walk.ridge(rows, truth, rows[:1])
    assert estimate.value == pytest.approx(x[0] @ weights + truth.mean())
    assert estimate.margin == pytest.approx(1.96 * left_out[best])


def test_late_targets_in_the_gate():
    """Targets act late by each robot's own delay, and nothing differs without one."""
    robot, gate = make_robot(Policy(DEMO)), compose_plain("play", ["mode=gate"])["gate"]
    plan = Plan(robot, "normal", 3, 1, gate, 0)
    prompt = Worlds([plan])
    assert (plan.late == 0).all() and prompt.sim is prompt.native
    late = Plan(robot, "normal", 3, 1, gate | {"late": [0.01, 0.03]}, 0)
    assert ((late.late >= 0.01) & (late.late <= 0.03)).all() and len({*late.late}) == 3
    plan.late = np.array([0.0, 0.02, 0.02])
    worlds, every = Worlds([plan]), np.ones(3, bool)
    start = worlds.qpos.copy()
    worlds.ctrl[:] = robot.policy.outputs["safe_pose"]
    worlds.ctrl[:2] += 0.3
    assert not worlds.step(every).any()
    moved = np.abs(worlds.qpos - start)[:, 7:].max(1)
    assert moved[0] > 0.05 > moved[1]
    worlds.step(every)
    assert np.abs(worlds.qpos - start)[1, 7:].max() > 0.05


def exit_code(words: list[str]) -> int:
    """Of the command with these words."""
    try:
        main.main(words)
    except SystemExit as stop:
        return int(str(stop.code))
    return 0


@pytest.fixture(scope="module")
def logs(tmp_path_factory) -> Path:
    """A folder with the logs of a simulated robot, and what they tell."""
    here = tmp_path_factory.mktemp("logs")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(here)
        patch.setattr(hang, "DELAYS", (0.05,))
        patch.setattr(walk, "ROUNDS", 1)
        main.main(["simulate", str(DEMO), "long.mcap", "walk.mcap", "seconds=9", "seed=4"])
        main.main(["simulate", str(DEMO), "hang.mcap", "seconds=7", "seed=4"])
        main.main(["hang.mcap", "walk.mcap", f"policy={DEMO}", "robots=16"])
    return here


def test_ranges_hold_the_robot(logs):
    """A log of each kind ends in a file of ranges, which says where they come from."""
    text = (logs / "conf" / "ranges" / "hang.yaml").read_text()
    assert "hang.mcap" in text and read(logs / "walk.mcap").digest in text
    values, truth = yaml.safe_load(text), simulated.draw(4)
    assert values["name"] == "hang" and "are one number" in text
    low, high = values["robot"]["actuator"]["delay"]
    assert low < truth["delay"] < high < 1.2 * low
    drawn = values["task"]["randomise"]
    assert {*drawn} == {"kp", "kd", "armature", "joint_friction", "friction", "payload"}
    for name in ("kp", "armature", "joint_friction"):
        assert drawn[name]["low"] < truth[name] < drawn[name]["high"], name
        assert drawn[name]["high"] >= 1.09 * drawn[name]["low"]
    assert drawn["friction"]["how"] == "set"


def test_a_training_takes_the_ranges(logs, monkeypatch):
    """ranges=NAME wins over task and recipe, the command line over it, and a run keeps its name."""
    monkeypatch.chdir(logs)
    drawn = yaml.safe_load(Path("conf/ranges/hang.yaml").read_text())["task"]["randomise"]
    words = ("task=quadruped", "recipe=robot", "ranges=hang")
    cfg = check_words(*words, "task.randomise.kp.high=2.5")
    now = cfg.plain["task"]["randomise"]
    assert now["payload"]["low"] == drawn["payload"]["low"] != -2.0
    assert now["kp"]["low"] == drawn["kp"]["low"] and now["kp"]["high"] == 2.5
    assert cfg.robot.actuator.delays[0] > 0
    plain = compose.compose_plain("config", [*words, "robot.actuator.delay=0.01"])
    assert plain["robot"]["actuator"]["delay"] == 0.01  # a number where the ranges have a list
    with pytest.raises(ValueError, match="unknown ranges 'no': choose one of hang, none"):
        check_words("task=quadruped", "ranges=no")
    plain = compose.compose_plain("config", [])
    with pytest.raises(ValueError, match=r"ranges\.task\.dt: this section cannot change this key"):
        apply_ranges(plain | {"ranges": {"name": "x", "task": {"dt": 0.1}}}, [])
    assert "ranges" in resume.FIXED


@pytest.mark.parametrize(
    "words, says",
    [
        (["none.mcap"], "No such file"),
        (["hang.mcap", "speed=1"], "speed=1: expected files, and perhaps KEY=VALUE of policy,"),
        (["hang.mcap", "robots=2"], "robots=2: expected a whole number of at least 16"),
        (["hang.mcap", "out=ranges.txt"], "expected a name that ends in .yaml"),
        (["hang.mcap", "out=my-robot.yaml"], "expected letters, digits and _"),
        (["hang.mcap", "hang.mcap"], "are both of a robot that hangs: name one"),
        (["walk.mcap"], "name its controller with policy=FILE"),
        (["excite", str(DEMO)], "expected POLICY.onnx and targets.npy"),
        (["simulate", str(DEMO)], "expected POLICY.onnx, hang.mcap"),
        (["excite", str(DEMO), "x.npy", "seconds=1"], "seconds=1: expected a whole number of at"),
    ],
)
def test_mistakes(logs, capsys, monkeypatch, words, says):
    """Each is answered by one line."""
    monkeypatch.chdir(logs)
    assert exit_code(words) == 2
    said = capsys.readouterr().err
    assert says in said and said.count("\n") == 1


def run_file(folder: Path, **entries: Any) -> str:
    """A run whose configuration draws these fields, the ends of friction in the curriculum."""
    folder.mkdir()
    plan = {"task.randomise.friction.low": {"from": 0.9, "to": 0.5, "by": "iteration"}}
    drawn = {"friction": {"kind": "uniform", "low": 0.9, "high": 1.25, "how": "set", "only": None}}
    task = {"randomise": drawn | entries, "dt": 0.02, "observation_delay": [0, 3]}
    cfg = {"task": task, "robot": {"actuator": {"delay": None}}}
    (folder / "config.yaml").write_text(json.dumps(cfg | {"curriculum": plan}))
    return str(folder)


def test_what_a_run_was_trained_with(tmp_path):
    """Ranges are in the units of estimates, and what is off is the model's own number."""
    robot = make_robot(Policy(DEMO))
    kilograms = float(robot.model.body_subtreemass[robot.base])
    names = ["friction", "payload", "delay", "kp", "armature", "damping"]
    payload = {"kind": "normal", "low": -2.0, "high": 1.0, "only": ["trunk"]}
    off, some = {"kind": "off", "low": 0.9, "high": 1.1}, {"kind": "uniform", "low": 2, "high": 3}
    run = run_file(tmp_path / "a", payload=payload, kp=off, armature=some | {"how": "set"})
    ends = drift.trained_ranges(drift.source(run), names, robot)
    expected = {"friction": (0.5, 1.25), "delay": (0, 0.06), "kp": (1, 1)}
    assert ends.pop("payload") == pytest.approx((-2 / kilograms, 1 / kilograms))
    assert ends == expected  # of armature and damping it tells nothing that could be compared
    scaled = some | {"how": "scale"}
    run = run_file(tmp_path / "b", friction=scaled, armature=scaled, kp=some | {"only": ["a"]})
    file = tmp_path / "b" / "config.yaml"
    file.write_text(file.read_text().replace("null}}", "[0.01, 0.02]}}"))
    model = float(robot.model.geom_friction[:, 0].max())
    expected = {"friction": (0.5 * model, 3 * model), "delay": (0.01, 0.08), "armature": (2, 3)}
    assert drift.trained_ranges(drift.source(run), names, robot) == expected


@pytest.mark.parametrize(
    "value, margin, trained, line",
    [
        (0.42, 0.04, (0.6, 1.1), "drift: friction 0.42 (0.38 to 0.46), trained with 0.6 to 1.1"),
        (0.42, 0.19, (0.6, 1.1), ""),
        (1.3, 0.1, (0.6, 1.1), "drift: friction 1.3 (1.2 to 1.4), trained with 0.6 to 1.1"),
        (1.04, 0.001, (1.0, 1.0), ""),  # the model errs by more
        (1.06, 0.001, (1.0, 1.0), "drift: friction 1.06 (1.01 to 1.11), trained with 1 to 1"),
    ],
)
def test_a_quantity_has_left_its_range(value, margin, trained, line):
    """Where no number of its own range, which has a least width, is in the trained one."""
    one = drift.Comparison("friction", Estimate(value, margin), trained)
    assert (one.line() if one.drifted else "") == line


def drift_of(logs: Path, capsys: Any, *words: str) -> tuple[int, str, str]:
    """(exit code, last line, errors) of the command for the walk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(logs)
        drawn = dict.fromkeys(ESTIMATES, (0.0, 2.0))
        patch.setattr(main, "of_walk", lambda *_, **__: (ESTIMATES, drawn))
        code = exit_code(["walk.mcap", f"policy={DEMO}", *words])
    out, error = capsys.readouterr()
    return code, out.strip().rpartition("\n")[2], error


ESTIMATES = {"friction": Estimate(0.3, 0.1), "kp": Estimate(1.0, 0.02), "kd": Estimate(1.0, 0.2)}


def test_drift_is_a_line_a_code_and_a_metric(logs, tmp_path, capsys):
    """A released robot that left its ranges is told apart, and one that did not, in a file too."""
    off = {"kind": "off", "low": 0.9, "high": 1.1}
    run, metrics = run_file(tmp_path / "run", kp=off), tmp_path / "drift.prom"
    before = [*(logs / "conf" / "ranges").iterdir()]
    words = (f"against={run}", f"metrics={metrics}")
    line = "drift: friction 0.3 (0.2 to 0.4), trained with 0.5 to 1.25"
    warning = "warning: no range of kd to compare with\n"
    assert drift_of(logs, capsys, *words) == (3, line, warning)
    families = {x.name: x for x in text_string_to_metric_families(metrics.read_text())}
    values = {x.labels["name"]: x.value for x in families["gpusim_drift"].samples}
    assert values == {"friction": 1, "kp": 0}
    about = {"robot": "walk", "policy": read(logs / "walk.mcap").digest[:12], "name": "friction"}
    for end, value in {"estimate": 0.3, "low": 0.2, "high": 0.4, "trained_low": 0.5}.items():
        sample = families[f"gpusim_drift_{end}"].samples[0]
        assert sample.labels == about and sample.value == pytest.approx(value)
    assert families["gpusim_drift_written_timestamp_seconds"].samples[0].value > 1e9
    wide = "task: {randomise: {friction: {kind: uniform, low: 0.2, high: 9}}}"
    (logs / "wide.yaml").write_text(wide)
    none = "no drift of friction"
    assert drift_of(logs, capsys, "against=wide.yaml")[:2] == (0, none)
    assert [*(logs / "conf" / "ranges").iterdir()] == before
    (logs / "conf" / "ranges" / "wide.yaml").write_text(wide)
    assert drift_of(logs, capsys, "against=wide", "out=again.yaml")[:2] == (0, none)
    assert "friction" in (logs / "again.yaml").read_text()


@pytest.mark.parametrize(
    "name, trained, drawn",
    [
        ("delay", (0.0, 0.06), (0.0, 0.12)),
        ("friction", (0.5, 1.25), (0.1, 2.0)),
        ("payload", (-0.132, 0.132), (-0.396, 0.396)),
        ("kp", (1.0, 1.0), walk.DRAWS["kp"]),
    ],
)
def test_what_is_drawn_goes_beyond_what_was_trained(name, trained, drawn):
    """By the width of that range, so that a robot that drifted so far is told."""
    assert walk.around(name, *trained) == pytest.approx(drawn)


@pytest.mark.parametrize(
    "value, margin, drawn",
    [
        (1.0, 0.1, (0.85, 1.15)),
        (0.2, 0.1, (0.7, 1.3)),  # it is beyond what was drawn
        (0.7, 1.0, (0.7, 1.3)),  # it tells nothing
    ],
)
def test_each_round_draws_about_the_estimate(value, margin, drawn):
    """By 1.5 times its interval, and never more than in the round before."""
    ends = walk.narrowed("kp", walk.DRAWS["kp"], Estimate(value, margin))
    assert ends == pytest.approx(drawn)
    assert walk.narrowed("payload", (0.01, 0.3), Estimate(0.02, 0.05))[0] == pytest.approx(-0.055)
    assert walk.narrowed("delay", (0.0, 0.06), Estimate(0.0, 0.01)) == (0.0, 0.015)


@pytest.mark.slow
def test_a_late_robot_is_told(tmp_path, monkeypatch, capsys):
    """A delay beyond the training's is drift; one of it is none."""
    monkeypatch.chdir(tmp_path)
    policy = Policy(DEMO)
    numbers = {"friction": 0.8, "payload": 0.0, "kp": 1.0, "kd": 1.0}
    numbers |= {"armature": 1.0, "joint_friction": 1.0}
    text = "robot: {actuator: {delay: [0.0, 0.06]}}\ntask: {randomise: {}}"
    (tmp_path / "trained.yaml").write_text(text)
    for late, code in ((0.095, 3), (0.03, 0)):
        log = tmp_path / f"late_{code}.mcap"
        simulated.write_walking(log, policy, numbers | {"delay": late}, 12.0, 5)
        words = [str(log), f"policy={DEMO}", "against=trained.yaml", "robots=48"]
        assert exit_code(words) == code, capsys.readouterr()


def test_a_run_of_another_robot_is_refused(logs, tmp_path, capsys):
    """Both robots are named by their models: one in the run, or one of ours."""
    run = Path(run_file(tmp_path / "run"))
    (run / "hund.xml").write_text('<mujoco model="Mein Hund"/>')
    for mjcf, code, says in (
        ("hund.xml", 2, "is a run of the robot Mein_Hund, and walk.mcap of quadruped"),
        ("humanoid.xml", 2, "is a run of the robot humanoid, and walk.mcap of quadruped"),
        ("quadruped.xml", 3, "warning: no range of kp, kd"),
    ):
        cfg = json.loads((run / "config.yaml").read_text())
        cfg["task"]["mjcf"] = mjcf
        (run / "config.yaml").write_text(json.dumps(cfg))
        done, _, said = drift_of(logs, capsys, f"against={run}")
        assert done == code and says in said and said.count("\n") == 1


@pytest.mark.parametrize(
    "content, words, says",
    [
        ("", ["against=none_such"], "no run, no .yaml file, and no conf/ranges/none_such.yaml"),
        ("", ["metrics=a.prom"], "metrics=a.prom needs against="),
        ("task: {}", ["against=x.yaml", "metrics=a.txt"], "a name that ends in .prom"),
        ("task: {}", ["against=x.yaml"], "x.yaml has no range of friction, kp, kd"),
        ("[1]", ["against=x.yaml"], "x.yaml is neither the configuration of a run nor ranges"),
        ("a: *b", ["against=x.yaml"], "x.yaml is not YAML"),
        ("task: {randomise: {kp: {low: a, high: 1}}}", ["against=x.yaml"], "is neither the"),
        ("task: {randomise: {kp: {low: 2, high: 1}}}", ["against=x.yaml"], "is neither the"),
        ("robot: {actuator: {delay: [1]}}\ntask: 3", ["against=x.yaml"], "is neither the"),
    ],
)
def test_mistakes_of_what_was_trained(logs, capsys, content, words, says):
    """Each is answered by one line, and exits with 2."""
    (logs / "x.yaml").write_text(content)
    code, _, said = drift_of(logs, capsys, *words)
    assert code == 2 and says in said and said.count("\n") == 1


def test_a_delay_counts_once(tmp_path, monkeypatch):
    """A log tells age and delay as one number; the recipe adds none, the command line may."""
    monkeypatch.chdir(tmp_path)
    Path("conf/ranges").mkdir(parents=True)
    text = as_yaml("late", {"delay": Estimate(0.04, 0.001), "kp": Estimate(1.0, 0.1)}, [], 1.0)
    Path("conf/ranges/late.yaml").write_text(text)
    words = ("task=quadruped", "recipe=robot", "ranges=late")
    cfg = check_words(*words).plain
    assert cfg["robot"]["actuator"]["delay"] == [0.038, 0.042]
    assert cfg["task"]["observation_delay"] == [0, 0]
    assert cfg["task"]["randomise"]["kp"]["low"] == 0.9
    late = check_words(*words, "task.observation_delay=[0,2]").plain
    assert late["task"]["observation_delay"] == [0, 2]
    ends = drift.trained_ranges(drift.source("late"), ["delay"], None)
    assert ends == {"delay": (0.038, 0.042)}


def test_estimates_stay_in_what_there_is():
    """None is narrower than ±5 %, no delay below zero, nothing beyond what was drawn."""
    assert Estimate(2.0, 0.01).range == pytest.approx((1.9, 2.1))
    assert Estimate(2.0, 0.5).range == (1.5, 2.5)
    assert "delay: [0.0000, 0.0000]" in as_yaml("x", {"delay": Estimate(-0.02, 0.01)}, [], 0.0)
    assert walk.within(Estimate(-0.02, 0.01), (0.0, 0.06)) == (0.0, 0.02)
    assert walk.within(Estimate(0.05, 0.02), (0.0, 0.06)) == (0.05, 0.02)
    says = "delay 0.082 is beyond what was simulated, 0 to 0.06"
    estimates = {"delay": Estimate(0.082, 0.004), "kp": Estimate(0.02, 0.004)}
    assert main.outside(estimates, dict.fromkeys(estimates, (0.0, 0.06))) == [says]
    robot = make_robot(Policy(DEMO))
    assert walk.quantities(robot) == walk.QUANTITIES
    assert walk.quantities(replace(robot, base=0)) == ("delay", "kp", "kd")
