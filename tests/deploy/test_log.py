"""The log of a robot: what is written, read back, and left after `kill -9`."""

import hashlib
import io
import json
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gpusim_rl.commands.modes import DEMO
from gpusim_rl.deploy import runtime
from gpusim_rl.deploy.onboard.guard import Guard
from gpusim_rl.deploy.onboard.log import CHUNK, Log, encode, read
from gpusim_rl.deploy.onboard.verdict import digest
from tests.simulated_robot import NOISE, Simulated

FORWARD = [0.5, 0.0, 0.0]
LOST = (50, 51)  # steps without readings
HUGE = 10**400  # JSON has such numbers, and no float does
DTS = (HUGE, -1, 0, 1e-12, float("nan"), float("inf"))  # [s]
# A program that is killed in its 500th step; a step is 0.02 s, and has few bytes.
KILLED = """
import os, signal, sys
import numpy as np
from gpusim_rl.deploy.onboard.log import Log
from gpusim_rl.deploy.runtime import Policy
log, x = Log(sys.argv[2], Policy(sys.argv[1])), np.zeros(1)
for i in range(500):
    step = {"time": 0.02 * i, "age": 0.0, "readings": {}, "command": None, "targets": np.zeros(12)}
    log(step | {"gain": 1.0, "phase": "rise", "restart": False, "faults": []})
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(scope="module")
def walk(tmp_path_factory) -> SimpleNamespace:
    """A robot of the demo that stood up and walked for 1.4 s, and what its guard recorded."""
    sim = Simulated(runtime.Policy(DEMO), NOISE)
    path, steps = tmp_path_factory.mktemp("log") / "walk.mcap", []
    log = Log(path, sim.policy)

    def record(step: dict[str, Any]) -> None:
        steps.append(step)
        log(step)

    guard = Guard(sim.policy, clock=sim.clock, say=str, record=record)
    for t in range(100):
        sim.send(guard.act(None if t in LOST else sim.read(), FORWARD, 0.003), guard.gain)
    log.close()
    log.close()
    return SimpleNamespace(path=path, steps=steps, policy=sim.policy)


def test_what_is_read_is_what_was_written(walk):
    """Each field of each step, with the controller's description, model and digest."""
    log, steps = read(walk.path), walk.steps
    assert (log.description, log.mjcf) == (walk.policy.description, walk.policy.mjcf)
    assert (log.digest, log.whole) == (digest(walk.policy.data), True)
    assert (log.dt, log.joints) == (walk.policy.dt, walk.policy.joints)
    assert len(steps) == len(log.time) == 100
    for name in ("time", "age", "gain", "phase", "restart"):
        np.testing.assert_array_equal(getattr(log, name), [step[name] for step in steps])
    assert log.faults == [step["faults"] for step in steps] and log.faults[50]
    assert {*log.phase} == {"rise", "run"} and log.restart.sum() == 1
    for t, step in enumerate(steps):
        assert (np.isnan(log.command[t]).all()) == (step["command"] is None)
        np.testing.assert_allclose(log.targets[t], step["targets"], 1e-8)
        for name, width in walk.policy.needs.items():
            expected = step["readings"].get(name, np.full(width, np.nan))
            np.testing.assert_array_equal(log.readings[name][t].astype("f4"), np.float32(expected))


def test_the_policy_makes_the_same_targets_of_the_log(walk):
    """A log holds all that the policy saw: its file gives the same targets once more."""
    log, policy = read(walk.path), walk.policy
    for t in np.flatnonzero(log.phase == "run"):
        if log.restart[t]:
            policy.reset()
        if log.faults[t]:
            continue
        targets = policy.act({name: x[t] for name, x in log.readings.items()}, log.command[t])
        np.testing.assert_allclose(log.targets[t], targets, atol=1e-7)


def test_mcaps_own_reader_reads_it(walk):
    """By its index; each message is strict JSON with the fields and widths of its schema."""
    from mcap.reader import make_reader

    with open(walk.path, "rb") as file:
        reader = make_reader(file, validate_crcs=True)
        summary, messages = reader.get_summary(), [*reader.iter_messages(topics="/control")]
        assert summary and summary.statistics and summary.statistics.chunk_count > 3
        assert [x.name for x in reader.iter_metadata()] == ["gpusim_rl"]
    assert len(messages) == 100
    times = [message.log_time for _, _, message in messages]
    np.testing.assert_allclose(np.diff(times), 0.02e9, atol=2)
    for shape, channel, message in messages:
        assert shape and (shape.encoding, channel.message_encoding) == ("jsonschema", "json")
        step = json.loads(message.data, parse_constant=pytest.fail)
        about = json.loads(shape.data)["properties"]
        assert {*step} == {*about}
        assert {*step["readings"]} <= {*about["readings"]["properties"]}
    assert about["targets"]["description"].startswith("FL_abduction, FL_thigh")


def test_a_killed_program_loses_less_than_a_second(tmp_path):
    """Also where a second's steps do not fill a chunk."""
    path = tmp_path / "cut.mcap"
    words = [sys.executable, "-c", KILLED, str(DEMO), str(path)]
    assert subprocess.run(words, timeout=120).returncode == -signal.SIGKILL
    log = read(path)
    assert not log.whole and 8.98 < log.time[-1] < 9.98
    np.testing.assert_allclose(np.diff(log.time), 0.02, atol=1e-9)
    assert 400 * len(log.joints) < CHUNK * 20  # few bytes


def test_numbers_that_are_not_finite(walk, tmp_path):
    """They are null in the file, and NaN once more; a time that is none is that of before."""
    log = Log(tmp_path / "x.mcap", walk.policy)
    values = {"joint_pos": np.array([np.nan, np.inf, -np.inf, *np.zeros(9)])}
    wrong = {"readings": values, "command": np.array([0.1, np.nan, 0.0])}
    wrong["restart"] = np.True_  # of a program of its own
    log(walk.steps[0])
    log(walk.steps[1] | wrong | {"time": np.nan, "age": np.nan, "faults": ["x is nan"]})
    log.close()
    back = read(tmp_path / "x.mcap")
    assert np.isnan(back.readings["joint_pos"][1, :3]).all() and np.isnan(back.age[1])
    assert np.isnan(back.readings["gyro"][1]).all() and back.faults[1] == ["x is nan"]
    assert back.time[1] == back.time[0] and [*back.restart] == [False, True]


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.9, 0.999])
def test_a_file_that_is_cut(walk, tmp_path, share):
    """It is read up to its last whole chunk, or refused in one line if it has none."""
    data, path = walk.path.read_bytes(), tmp_path / "cut.mcap"
    path.write_bytes(data[: int(share * len(data))])
    if share < 0.5:
        with pytest.raises(ValueError, match=r"cut\.mcap is no log of a robot: it has no metadata"):
            read(path)
        return
    log, whole = read(path), read(walk.path)
    assert not log.whole and len(log.time) <= 100
    np.testing.assert_array_equal(log.targets, whole.targets[: len(log.time)])


def flipped(data: bytes) -> bytes:
    """A log with another byte in a chunk's steps."""
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 255]) + data[middle + 1 :]


def other_model(data: bytes) -> bytes:
    """A log with another digit in its model."""
    return data.replace(b'timestep="0.005"', b'timestep="0.006"')


def foreign(about: str = "", version: str = "1") -> bytes:
    """An MCAP file of another program; with our metadata, if `about` is given."""
    from mcap.writer import Writer

    writer = Writer(file := io.BytesIO())
    writer.start()
    if about:
        values = {"format": version, "about": about, "mjcf": "", "digest": ""}
        values |= {"sha256": hashlib.sha256(about.encode()).hexdigest()}
        writer.add_metadata("gpusim_rl", values)
    channel = writer.register_channel("/tf", "json", 0)
    writer.add_message(channel, 0, b"{}", 0)
    writer.finish()
    return file.getvalue()


@pytest.mark.parametrize(
    "damage, says",
    [
        (lambda _: b"time,joint\n0,1\n", "is a damaged MCAP file: not a valid MCAP file"),
        (flipped, "is a damaged MCAP file: "),
        (other_model, "is a damaged MCAP file: crc validation failed in DataEnd"),
        (
            lambda data: other_model(data)[: len(data) * 9 // 10],
            "is a damaged log: its description or model is not what was written",
        ),
        (lambda _: foreign("{}", "9"), "has format '9': this program reads 1"),
        (lambda _: foreign(), "is no log of a robot: it has no metadata 'gpusim_rl'"),
        (lambda _: foreign("{}"), "is a damaged log: KeyError"),
        (lambda _: foreign('{"inputs": 3}'), "is a damaged log: TypeError"),
        (lambda _: foreign("[" * 100_000), "is a damaged log: RecursionError"),
    ],
)
def test_a_damaged_or_foreign_file_is_one_line(walk, tmp_path, damage, says):
    """With the file's name."""
    path = tmp_path / "x.mcap"
    path.write_bytes(damage(walk.path.read_bytes()))
    with pytest.raises(ValueError) as error:
        read(path)
    assert str(error.value).startswith(f"{path} {says}") and "\n" not in str(error.value)


@pytest.mark.parametrize(
    "change, says",
    [
        ({"age": HUGE}, "OverflowError int too large"),
        ({"time": HUGE}, "OverflowError int too large"),
        ({"targets": [HUGE] * 12}, "OverflowError int too large"),
        *((dt, "OverflowError" if dt == HUGE else "ValueError dt ") for dt in DTS),
        ("0.02 s", "ValueError could not convert string"),
    ],
    ids=lambda x: str(x)[:20],
)
def test_a_strangers_description_is_one_line(walk, tmp_path, change, says):
    """Its SHA-256 fits, but numbers beyond float and such periods are refused."""
    path, is_step = tmp_path / "x.mcap", isinstance(change, dict)
    about = walk.policy.description | ({} if is_step else {"dt": change})
    log = Log(path, SimpleNamespace(**{**vars(walk.policy), "description": about}))  # pyright: ignore
    message = json.loads(encode(walk.steps[0])) | (change if is_step else {})
    log.writer.add_message(log.channel, 0, json.dumps(message).encode(), 0)
    log.close()
    with pytest.raises(ValueError, match=f"is a damaged log: {says}") as error:
        read(path)
    assert str(path) in str(error.value) and "\n" not in str(error.value)


def test_a_recording_with_other_topics(walk, tmp_path):
    """Only messages of `/control` are steps, such as where recordings were merged."""
    from mcap.writer import Writer

    class Merged(Writer):
        def add_message(self, channel_id: int, log_time: int, *more: Any, **fields: Any) -> None:
            other = self.register_channel("/battery", "json", 0)
            super().add_message(other, log_time, b'{"volts": 24.1}', log_time)
            super().add_message(channel_id, log_time, *more, **fields)

    log = Log(tmp_path / "x.mcap", walk.policy)
    log.writer.__class__ = Merged
    for step in walk.steps[:3]:
        log(step)
    log.close()
    np.testing.assert_array_equal(read(tmp_path / "x.mcap").time, read(walk.path).time[:3])


def test_readings_are_recorded_before_they_are_cut():
    """With checks=clamp the policy gets a reading within its range, and the log what was read."""
    sim, steps = Simulated(runtime.Policy(DEMO)), []
    guard = Guard(sim.policy, clock=sim.clock, say=str, checks="clamp", record=steps.append)
    for t in range(40):
        readings = sim.read()
        if t == 39:
            readings["gyro"] = np.array([0.0, 0.0, 99.0])
        sim.send(guard.act(readings, FORWARD), guard.gain)
    assert steps[-1]["phase"] == "run" and not steps[-1]["faults"]
    assert steps[-1]["readings"]["gyro"][2] == 99


def test_a_log_that_is_there_is_not_replaced(walk, monkeypatch):
    """Nor is anything begun without mcap; both in one line."""
    with pytest.raises(FileExistsError, match=r"walk\.mcap exists already: name another log"):
        Log(walk.path, walk.policy)
    monkeypatch.setitem(sys.modules, "mcap.writer", None)
    monkeypatch.setitem(sys.modules, "mcap.stream_reader", None)
    for call in (lambda: Log(walk.path, walk.policy), lambda: read(walk.path)):
        with pytest.raises(ValueError, match="a robot's log needs mcap: pip install mcap"):
            call()


def test_a_full_disk_stops_no_robot():
    """The guard says once that the log ends, and goes on with the same targets."""
    said: list[str] = []

    def fail(step: dict[str, Any]) -> None:
        raise OSError("No space left on device")

    for record in (None, fail):
        sim = Simulated(runtime.Policy(DEMO))
        guard = Guard(sim.policy, clock=sim.clock, say=said.append, record=record)
        targets = [guard.act(sim.read()) for _ in range(3)]
        if record is None:
            expected = targets
    np.testing.assert_array_equal(targets, expected)
    assert said.count("the log ends: No space left on device") == 1
    with pytest.raises(ValueError, match="record is of type int: expected a function"):
        Guard(sim.policy, record=3)  # pyright: ignore


def test_the_robot_loop_has_a_log():
    """The program of docs/examples writes one with log=FILE, and its page says so."""
    root = Path(__file__).parents[2] / "docs"
    assert "Log(logs[0], guard.policy)" in (root / "examples" / "robot_loop.py").read_text()
    assert "preflight log=walk.mcap" in (root / "deploy.md").read_text()
