"""Drive a robot by an exported policy, over UDP: stand up, walk forward, lie down at Ctrl-C.

python robot_loop.py policy.onnx 127.0.0.1 5005 [preflight] [log=walk.mcap]
"""

import json
import socket
import sys
import time
from contextlib import closing, nullcontext, suppress

from onboard.guard import Guard  # onboard and runtime.py are copied from gpusim_rl/deploy
from onboard.log import Log
from onboard.preflight import preflight
from onboard.rate import Rate
from runtime import Policy


class Robot:
    """A robot that sends packets of readings, and takes packets of targets."""

    def __init__(self, host: str, port: int):
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.connect((host, port))
        self.socket.setblocking(False)
        self.socket.send(b"{}")  # it answers to whom it heard from
        self.packet = {"time": 0.0, "readings": None}
        time.sleep(1)

    def read(self) -> dict | None:
        """The newest readings. Packets that come late, or are damaged, count as lost."""
        with suppress(OSError):  # none waits
            while True:
                text = self.socket.recv(65536)
                with suppress(Exception):
                    packet = json.loads(text)
                    if float(packet["time"]) > float(self.packet["time"]) and packet["readings"]:
                        self.packet = packet
        return self.packet["readings"]

    def age(self) -> float:
        """Of these readings [s]: the robot's clock is time.monotonic of the same machine."""
        return time.monotonic() - float(self.packet["time"])

    def send(self, targets, gain=1.0) -> None:
        with suppress(OSError):  # a robot that is gone sends no readings, and the guard stops
            self.socket.send(json.dumps({"targets": targets.tolist(), "gain": gain}).encode())


words = sys.argv[4:]
logs = [word.removeprefix("log=") for word in words if word.startswith("log=")]
if not "".join(sys.argv[3:4]).isdigit() or len(words) > len(logs) + words.count("preflight"):
    sys.exit(__doc__)
try:
    guard = Guard(Policy(sys.argv[1]), task="quadruped", robot="quadruped", gate=True)
    robot, rate = Robot(sys.argv[2], int(sys.argv[3])), Rate(guard.policy.dt, guard.stop)
    with closing(Log(logs[0], guard.policy)) if logs else nullcontext() as guard.record:
        if "preflight" in words:
            preflight(guard, robot.read, robot.send, rate.sleep)
        while guard.phase != "off":
            robot.send(guard.act(robot.read(), [0.5, 0.0, 0.0], robot.age()), guard.gain)
            rate.sleep()
except (KeyboardInterrupt, OSError, OverflowError, ValueError) as error:
    sys.exit(f"{' '.join(sys.argv)}: {str(error) or 'ended'}")
