"""Drive a robot by an exported policy, over UDP: stand up, walk forward, lie down at Ctrl-C.

python robot_loop.py policy.onnx 127.0.0.1:5005 [preflight]
"""

import json
import signal
import socket
import sys
import time
from contextlib import suppress

from onboard.guard import Guard  # onboard and runtime.py are copied from gpusim_rl/deploy
from onboard.preflight import Pace, preflight
from runtime import Policy

EXPECTED = {"task": "quadruped", "robot": "quadruped"}
FORWARD = [0.5, 0.0, 0.0]  # m/s, m/s to the left, rad/s


class Robot:
    """A robot that sends packets of readings, and takes packets of targets."""

    def __init__(self, host: str, port: int):
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.connect((host, port))
        self.socket.settimeout(10)
        self.socket.send(b"{}")  # it answers to whom it heard from
        self.packet = json.loads(self.socket.recv(65536))
        self.socket.setblocking(False)

    def read(self) -> dict:
        """The newest readings: all packets that wait are taken, and those that come late left."""
        while True:
            try:
                packet = json.loads(self.socket.recv(65536))
            except OSError:  # none waits
                return self.packet["readings"]
            self.packet = max(self.packet, packet, key=lambda x: x["time"])

    def age(self) -> float:
        """Of these readings [s]: the robot's clock is time.monotonic of the same machine."""
        return time.monotonic() - self.packet["time"]

    def send(self, targets, gain=1.0) -> None:
        self.socket.send(json.dumps({"targets": targets.tolist(), "gain": gain}).encode())


def drive(policy: Policy, robot: Robot, asked: list) -> None:
    """Preflight and the loop. `asked` fills when the robot is to lie down."""
    pace = Pace(policy.dt)

    def wait() -> None:
        pace()
        if asked:
            raise InterruptedError  # ends preflight, after which the robot lies down

    if "preflight" in sys.argv:
        with suppress(InterruptedError):
            preflight(policy, robot.read, robot.send, wait=wait, **EXPECTED)
    guard = Guard(policy, **EXPECTED)
    while guard.phase != "off":
        guard.stop() if asked else None
        robot.send(guard.act(robot.read(), FORWARD, robot.age()), guard.gain)
        pace()


if len(sys.argv) < 3:
    sys.exit(__doc__)
asked = []
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda *_: asked.append(True))
try:
    host, port = sys.argv[2].split(":")
    drive(Policy(sys.argv[1]), Robot(host, int(port)), asked)
except (OSError, ValueError) as error:
    sys.exit(str(error))
