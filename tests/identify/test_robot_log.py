"""`play.py mode=log`: the events of a robot's log, and how far it is from its twins."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest

from gpusim_rl.commands import play
from gpusim_rl.commands.modes import DEMO
from gpusim_rl.config.compose import compose_plain
from gpusim_rl.core.errors import silence_mujoco
from gpusim_rl.deploy import runtime
from gpusim_rl.deploy.onboard.guard import Guard
from gpusim_rl.deploy.onboard.log import Log, Recording, read
from gpusim_rl.identify import robot_log, twin
from tests.films import decoded
from tests.simulated_robot import NOISE, Simulated

STEPS = 430  # of the guard's loop: 28 to stand up, and four windows of the policy
LOST = range(200, 203)  # steps without readings


def write_log(path: Path, payload: float) -> Path:
    """The log of a robot of the demo with noisy sensors, and a load of a share of its mass."""
    sim = Simulated(runtime.Policy(DEMO), NOISE)
    m = sim.model
    m.body_mass[1] += payload * m.body_subtreemass[0]
    mujoco.mj_setConst(m, sim.data)
    mujoco.mj_resetDataKeyframe(m, sim.data, 0)
    mujoco.mj_forward(m, sim.data)
    log = Log(path, sim.policy)
    guard = Guard(sim.policy, clock=sim.clock, say=str, record=log)
    for t in range(STEPS):
        targets = guard.act(None if t in LOST else sim.read(), [0.5, 0.0, 0.0])
        sim.send(targets, guard.gain)
    log.close()
    return path


@pytest.fixture(scope="module")
def logs(tmp_path_factory) -> dict[float, Path]:
    """Load as a share of the robot's mass → log."""
    folder = tmp_path_factory.mktemp("logs")
    return {x: write_log(folder / f"{x}.mcap", x) for x in (0.0, 0.2)}


def show(words: list[str]) -> int | None:
    """The exit code of mode=log with these words."""
    try:
        play.play(compose_plain("play", ["mode=log", *words]))
    except SystemExit as end:
        return end.code  # pyright: ignore
    return 0


def test_an_honest_robot(logs, tmp_path, capsys):
    """It is as far from its twins as they are from one another; out= and report= are written."""
    out, report = tmp_path / "log.json", tmp_path / "log.png"
    assert show([f"mcap={logs[0.0]}", f"onnx={DEMO}", f"out={out}", f"report={report}"]) == 0
    said, about = capsys.readouterr().out, json.loads(out.read_text())
    assert "stands up" in said and "the policy runs" in said
    assert "4.00 s  fault: there are no readings (3 steps)" in said
    distance, windows = about["twin"]["distance"], about["twin"]["windows"]
    assert 0.5 < distance < 2 and f"{distance:.2f}" in said
    assert len(windows["time"]) == 2  # one has the fault, and none is of the first 2 s
    assert report.read_bytes().startswith(b"\x89PNG") and report.stat().st_size > 20_000


def test_a_load_is_noticed(logs, capsys):
    """A fifth of its mass more sets off the alarm, in one line, and exits with 1."""
    assert show([f"mcap={logs[0.2]}", f"onnx={DEMO}"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "targets - joint_pos is" in line and "from the twins, more than alarm=3" in line
    assert show([f"mcap={logs[0.2]}"]) == 0  # without a twin


def test_twins_of_a_normal_distribution():
    """The distance of one that is drawn as they are is 1, and grows with what is added to it."""
    rng = np.random.default_rng(0)
    scale = np.array([0.1, 3.0])
    x = scale * rng.normal(size=(2000, twin.TWINS + 1, 2)) + 5
    honest = twin.away(x[:, 0], x[:, 1:], np.zeros(2))
    assert np.sqrt((honest**2).mean()) == pytest.approx(1, abs=0.03)
    other = twin.away(x[:, 0] + 3 * scale, x[:, 1:], np.zeros(2))
    expected = np.sqrt(1 + 9 / (1 + 1 / twin.TWINS))
    assert np.sqrt((other**2).mean()) == pytest.approx(expected, abs=0.05)
    x[:1000, 1:] = np.nan  # twins that fell
    assert np.isnan(twin.away(x[:, 0], x[:, 1:], scale)[:1000]).all()
    x[1000:, 1:8] = np.nan
    few = twin.away(x[:, 0], x[:, 1:], np.zeros(2))[1000:]
    assert np.sqrt((few**2).mean()) == pytest.approx(1, abs=0.1)


def test_the_noise_is_that_of_a_robot_that_stands(logs):
    """Standard deviations, of uniform noise with the half-widths of the simulated sensors."""
    noise = twin.noise_of(read(logs[0.0]))
    for name, half in NOISE.items():
        assert noise[name] == pytest.approx(half / np.sqrt(3), rel=0.2), name


def test_a_twin_that_falls_is_left_out(logs):
    """Its readings are NaN from then on, and the others go on."""
    silence_mujoco()
    policy = runtime.Policy(DEMO)
    model = mujoco.MjModel.from_xml_string(policy.mjcf)
    twins = twin.Twins(policy, model, dict.fromkeys(policy.needs, 0.0))
    twins.begin(np.array(policy.outputs["safe_pose"]))
    twins.sim.qpos[2, 3:7] = twins.sim.qpos.new_tensor([0.0, 1.0, 0.0, 0.0])  # on its back
    values = twins.step(np.zeros(3), acts=True)
    for x in values.values():
        assert np.isnan(x[2]).all() and np.isfinite(np.delete(x, 2, 0)).all()
    before = values["targets"]
    np.testing.assert_array_equal(twins.step(np.zeros(3), acts=False)["targets"], before)


def made(log: Recording, **fields: Any) -> list[str]:
    """The events of a log of which some fields are others."""
    return [f"{x.time:.2f} {x.text}" for x in robot_log.events(replace(log, **fields))]


def test_events(logs):
    """Phases, faults, late readings, late steps, a fall, and the end of a log that was cut."""
    log = read(logs[0.0])
    fault = "4.00 fault: there are no readings (3 steps)"
    assert made(log) == ["0.00 stands up", "0.56 the policy runs", fault]
    age, time = log.age.copy(), log.time.copy()
    age[100:102], time[200:] = [0.05, 0.07], log.time[200:] + 0.3
    up = log.readings["up"].copy()
    up[300:305] = 1, 0, 0
    phase = log.phase.copy()
    phase[310:], phase[340:] = "stop", "off"
    readings = {**log.readings, "up": up}
    lines = made(log, age=age, time=time, readings=readings, phase=phase, whole=False)
    assert {*lines} >= {
        *("2.00 readings are up to 0.07 s old (2 steps)", "4.30 no step for 0.32 s"),
        *("6.30 up: tilted by more than 60° (5 steps)", "6.50 stops", "7.10 off"),
        "8.88 the log has no end: its program was killed, or it was cut",
    }
    blank = replace(log, **{x: getattr(log, x)[:0] for x in ("time", "age", "phase", "restart")})
    walks = made(log, phase=np.where(log.phase == "run", "walk", log.phase))  # of another program
    assert walks[1] == "0.56 walk"
    assert made(blank, faults=[], readings={x: y[:0] for x, y in log.readings.items()}) == []


@pytest.mark.parametrize(
    "words, says",
    [
        ([], "mode=log needs mcap=FILE, the log of a robot"),
        (["mcap=none.mcap"], "no log none.mcap"),
        (["mcap={log}", "run=runs/x"], "mode=log reads the log of a robot: not with run="),
        (["mcap={log}", "video=x.mp4"], "video= of mode=log is of the twin, which needs onnx=FILE"),
        (["mcap={log}", "alarm=2"], "alarm= of mode=log is of the twin, which needs onnx=FILE"),
        (["mcap={log}", "alarm=0"], "alarm=0: expected"),
        (["mcap={log}", "out=x.txt"], "out=x.txt"),
        (["mcap={log}", "onnx=none.onnx"], "no ONNX file none.onnx"),
        (["mcap={other}", "onnx={demo}"], "name the file that the robot ran"),
        (["mcap={demo}"], "is a damaged MCAP file"),
    ],
)
def test_a_mistake_is_one_line(logs, tmp_path, monkeypatch, capsys, words, says):
    """It names the key, and exits with 2."""
    monkeypatch.chdir(tmp_path)
    text = logs[0.0].read_bytes()
    own = read(logs[0.0]).digest.encode()
    # cut, since the checksum of all of it stands at the end
    (tmp_path / "other.mcap").write_bytes(text.replace(own, own[::-1])[: len(text) * 9 // 10])
    places = {"log": logs[0.0], "other": "other.mcap", "demo": DEMO}
    assert show([word.format(**places) for word in words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line


def test_a_log_that_is_too_short_for_a_twin(logs, tmp_path, capsys):
    """It has its events, and a warning; a film of it is refused."""
    log = read(logs[0.0])
    short = replace(log, phase=np.where(np.arange(STEPS) < 200, log.phase, "stop"))
    policy = runtime.Policy(DEMO)
    model = mujoco.MjModel.from_xml_string(policy.mjcf)
    assert twin.compare(short, policy, model) is None
    with pytest.raises(ValueError, match="there is no film: the policy ran for less than 4 s"):
        robot_log.film(short, None, model, tmp_path / "x.mp4", 1, None, None)


@pytest.mark.parametrize(
    "case, says",
    [
        ("never begins", "the policy ran for less than 4 s in a row, too short for a twin"),
        ("hangs", "the log lacks gyro, up, without which there is no twin"),
        ("no gyro", "the log lacks gyro, without which there is no twin"),
    ],
)
def test_a_log_without_twins(logs, tmp_path, capsys, case, says):
    """It has its events, and a line that says why; so where the policy never began."""
    path, whole = tmp_path / "x.mcap", read(logs[0.0])
    log = Log(path, policy := runtime.Policy(DEMO))
    for t in range(20):
        readings = {name: x[40] for name, x in whole.readings.items()}
        for name in {"never begins": (), "hangs": ("up", "gyro"), "no gyro": ("gyro",)}[case]:
            del readings[name]
        step = {"time": policy.dt * t, "age": 0.0, "readings": readings, "gain": 1.0, "faults": []}
        step |= {"command": np.zeros(3), "targets": whole.targets[40], "restart": False}
        runs = case != "never begins" and t >= 5
        step |= {"phase": "run" if runs else "rise", "restart": case == "no gyro" and t == 5}
        log(step)
    log.close()
    assert show([f"mcap={path}", f"onnx={DEMO}"]) == 0
    out, error = capsys.readouterr()
    assert "stands up" in out and error == f"warning: {says}\n"


def test_a_film_beside_the_twin(logs, tmp_path):
    """Left the joints of the log, right the twin, from where the policy begins."""
    log, policy, out = read(logs[0.0]), runtime.Policy(DEMO), tmp_path / "log.mp4"
    model = mujoco.MjModel.from_xml_string(policy.mjcf)
    steps = np.flatnonzero(log.phase == "run")
    qpos = np.tile(model.key_qpos[0], (len(steps), 1))  # a twin that stands still
    result = twin.TwinResult(log.time[:1], {"up": np.ones(1)}, 0, steps, qpos)
    robot_log.film(log, result, model, out, 0.4, [320, 120], None)
    pictures = decoded(out, 120, 320)[:, :90].astype(int)  # without the caption
    assert len(pictures) == 10
    changes = np.abs(pictures[-1] - pictures[0]).mean((0, 2))
    assert changes[:160].mean() > 10 * changes[160:].mean()
