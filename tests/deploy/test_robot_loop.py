"""The robot loop of docs/examples drives a robot in another process, over a socket."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from gpusim_rl.deploy.runtime import Policy
from tests.worlds import ROOT

START = 60  # [s] within which a program has to begin


@contextmanager
def started(folder: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    """A program of the folder in a process of its own, which a busy machine does not hold up."""

    def hurry() -> None:
        with suppress(OSError):  # where this is not allowed, the machine has to be fast enough
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))

    environment = {key: x for key, x in os.environ.items() if key != "PYTHONPATH"}
    process = subprocess.Popen(
        [sys.executable, "-u", *words],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=hurry,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_for(process: subprocess.Popen[str], words: str) -> str:
    """The line of a program with these words."""
    assert process.stdout
    lines = []
    for line in process.stdout:
        lines.append(line)
        if words in line:
            return line
    raise AssertionError("".join(lines))


@pytest.fixture(autouse=True)
def programs(tmp_path) -> None:
    """All that docs/deploy.md says to copy to the robot."""
    deploy, examples = ROOT / "gpusim_rl" / "deploy", ROOT / "docs" / "examples"
    for file in (deploy / "runtime.py", *examples.glob("*.py")):
        shutil.copy(file, tmp_path)
    shutil.copytree(deploy / "onboard", tmp_path / "onboard")


@pytest.mark.parametrize(
    "line, says",
    [
        ("robot_loop.py nothing.onnx 127.0.0.1 5005", "{line}: no ONNX file nothing.onnx"),
        ("udp_robot.py", "python udp_robot.py policy.onnx 5005"),
        ("udp_robot.py nothing.onnx 5005", "{line}: NoSuchFile"),
        ("udp_robot.py {trot} five", "invalid literal for int() with base 10: 'five'"),
    ],
)
def test_wrong_words_are_one_line(trot, tmp_path, line, says):
    """The loop and the simulated robot end with what is wrong, with 1 and no traceback."""
    with started(tmp_path, *line.format(trot=trot).split()) as program:
        said, _ = program.communicate(timeout=START)
    assert program.returncode == 1 and says.format(line=line) in said and "Traceback" not in said
    assert line.startswith("udp_robot") or said.count("\n") == 1


def test_damaged_packets_count_as_lost(trot, tmp_path):
    """The loop leaves what is no packet of readings, and says that it got none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link:
        host, port = listen(link)
        with started(tmp_path, "robot_loop.py", str(trot), host, port) as loop:
            peer = link.recvfrom(65536)[1]
            for text in (
                b"no JSON",
                b"\xff",
                b"[]",
                b"3",
                b"{}",
                b'{"time": 1e9}',
                b'{"readings": {"gyro": [0, 0, 0]}}',
                b'{"time": "noon", "readings": {"gyro": [0, 0, 0]}}',
            ):
                link.sendto(text, peer)
            said, _ = loop.communicate(timeout=START)
    assert loop.returncode == 1
    assert said.strip().endswith(f"{port}: there are no readings"), said


@pytest.mark.slow
def test_the_loop_outlives_bad_packets_and_a_robot_that_is_gone(trot, tmp_path):
    """They are faults: the robot lies down, and the loop ends with 0."""
    stand = Policy(trot).description["standing"]["readings"]
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link,
        started(tmp_path, "robot_loop.py", str(trot), *listen(link)) as loop,
    ):
        peer, answers, end = link.recvfrom(65536)[1], 0, time.monotonic() + START
        # the loop waits for a second at first: more packets would fill its buffer with old ones
        link.settimeout(0.02)
        while answers < 40 and time.monotonic() < end:
            gyro = [10**400, 0, 0] if answers == 20 else stand["gyro"]
            packet = {"time": str(time.monotonic()), "readings": stand | {"gyro": gyro}}
            link.sendto(json.dumps(packet).encode(), peer)
            with suppress(TimeoutError):
                answers += bool(link.recv(65536))
        link.close()
        said, _ = loop.communicate(timeout=START)
    assert loop.returncode == 0, said
    assert "stands up" in said and "gyro: int too large" in said, said
    assert [line.split(" ")[0] for line in said.splitlines()][-2:] == ["stops:", "lies:"], said


def listen(link: socket.socket) -> tuple[str, str]:
    """Host and port at which a socket waits from now on."""
    link.bind(("127.0.0.1", 0))
    link.settimeout(START)
    return "127.0.0.1", str(link.getsockname()[1])


@pytest.mark.slow
def test_the_loop_drives_a_robot_over_a_socket(trot, tmp_path):
    """It walks; killed, it starts again by the ramp; asked to stop, it lies down."""
    shutil.copy(trot, tmp_path / "policy.onnx")
    lines = len((tmp_path / "robot_loop.py").read_text().splitlines())
    assert f"a whole program of {lines} lines" in (ROOT / "docs" / "deploy.md").read_text()
    with started(tmp_path, "udp_robot.py", "policy.onnx", "0", "90") as robot:
        port = wait_for(robot, "waits at port").split()[-1]
        loop = ["robot_loop.py", "policy.onnx", "127.0.0.1", port]
        with started(tmp_path, *loop) as first:
            wait_for(first, "the policy begins")
            time.sleep(7)
            assert first.poll() is None
            first.send_signal(signal.SIGKILL)
            assert first.wait() == -signal.SIGKILL
        time.sleep(0.6)
        with started(tmp_path, *loop) as second:
            wait_for(second, "the policy begins")
            time.sleep(4)
            second.send_signal(signal.SIGTERM)
            said, _ = second.communicate(timeout=START)
        end = json.loads(wait_for(robot, "lowest_up"))
    assert said.splitlines() == ["stops: asked to", "lies: the servos only damp"], end
    assert end["lowest_up"] > 0.8 and end["height"] < 0.1 and end["gain"] == 0.0, end
    # each program began within a step of the ramp from where the robot was
    assert end["silences"] == 2 and max(end["jumps"]) < 0.05, end
    assert end["packets"] > 500, end
