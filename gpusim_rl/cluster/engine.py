"""Actors as processes of Ray (https://docs.ray.io). Nothing else imports Ray."""

import os
import secrets
import shutil
import tempfile
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from gpusim_rl.cluster.actor import Actor
from gpusim_rl.cluster.packet import Arrays, Packet
from gpusim_rl.config.sections import Config
from gpusim_rl.core.errors import no_stderr

# Why: docs/decisions/0092-ray-on-one-machine.md
SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # Ray's own is 15: actors would starve beside the learner
    "RAY_DEDUP_LOGS": "0",
    "RAY_BACKEND_LOG_LEVEL": "fatal",  # what happens to an actor is said in a line of ours
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}  # everything listens on 127.0.0.1
STORE = 256 << 20  # bytes of Ray's object store on one machine


class ActorLost(RuntimeError):
    """The process of an actor has ended, or what it returned is lost."""


class Process:
    """The process of an actor: a class that Ray makes there. It makes an `Actor` when told."""

    def begin(self, plain: dict[str, Any], policy: Any, columns: Any, where: dict[str, int]) -> Any:
        """Make the worlds. Returns the process id, and what the learner must have in common."""
        self.actor = Actor(Config.of(plain), policy, columns, **where)
        return os.getpid(), self.actor.identity()

    def collect(self, version: int, weights: Arrays, numbers: Arrays) -> Packet:
        """As `Actor` has it."""
        return self.actor.collect(version, weights, numbers)

    def collect_with_state(
        self, version: int, weights: Arrays, numbers: Arrays
    ) -> tuple[Packet, Arrays]:
        """The packet, and the state of the worlds after it."""
        return self.actor.collect(version, weights, numbers), self.actor.state()

    def state(self) -> Arrays:
        """As `Actor` has it."""
        return self.actor.state()

    def load(self, state: Arrays) -> None:
        """As `Actor` has it."""
        self.actor.load(state)


class Engine:
    """Processes on this machine, or on those of a Ray that runs already.

    Args:
        actors: how many processes there will be at once.
        address: `host:port` of a Ray that runs; None starts one, for this program alone. An engine
            of this program that has started one is shared.

    Raises:
        ValueError: Ray is not installed, cannot be reached, or asks for no token.
    """

    def __init__(self, actors: int, address: str | None):
        self.folder: str | None = None
        self.processes: list[Any] = []
        settings = SETTINGS | ({} if address else LOOPBACK)
        os.environ.update({key: os.environ.get(key, value) for key, value in settings.items()})
        if address:
            check_token(address)
        try:
            self.ray: Any = import_module("ray")
        except ImportError as error:
            raise ValueError(f"cluster=ray: Ray cannot be imported: {error}") from None
        self.remote = self.ray.remote(num_cpus=1, max_restarts=0)(Process)
        self.shared = self.ray.is_initialized()
        if not self.shared:
            self.connect(actors, address)

    def connect(self, actors: int, address: str | None) -> None:
        """Start Ray, or join the one at an address; ValueError if that cannot be done."""
        how: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": False}
        if address:
            how |= {"address": address}
        else:
            # a folder of its own: all clusters of a machine share the default one
            self.folder = tempfile.mkdtemp(prefix="gpusim_rl-ray-")
            how |= {"address": "local", "_temp_dir": self.folder, "include_dashboard": False}
            how |= {"num_cpus": actors + 1, "object_store_memory": STORE}
        try:
            with no_stderr():  # which settings of its logs Ray has read
                self.ray.init(**how)
        except (self.ray.exceptions.RayError, ConnectionError, RuntimeError) as error:
            self.close()
            says = str(error).strip().splitlines()[0]
            raise ValueError(f"cluster.address={address}: {says}") from None

    def start(self, *about: Any) -> tuple[Any, Any]:
        """A new process, and the reference to what its `begin` returns."""
        process = self.remote.remote()
        self.processes.append(process)
        return process, process.begin.remote(*about)

    def call(self, process: Any, method: str, *args: Any, count: int = 1) -> Any:
        """The reference to what a method of a process returns; `count` of them for a tuple."""
        return getattr(process, method).options(num_returns=count).remote(*args)

    def put(self, value: Any) -> Any:
        """A reference to a value, which processes get as a copy."""
        return self.ray.put(value)

    def ready(self, references: Sequence[Any], seconds: float | None = None) -> list[Any]:
        """Those references whose values are there. Waits for one, or so long."""
        some = list(references)
        if not some:
            return []
        first, _ = self.ray.wait(some, num_returns=1, timeout=seconds, fetch_local=False)
        more, _ = self.ray.wait(some, num_returns=len(some), timeout=0, fetch_local=False)
        return [x for x in some if x in {*first, *more}]

    def get(self, reference: Any) -> Any:
        """The value of a reference.

        Raises:
            ActorLost: the process has ended, or its machine.
            ValueError, OSError: what it was asked raised so.
        """
        errors = self.ray.exceptions
        try:
            return self.ray.get(reference)
        except errors.RayTaskError as error:
            raise error.cause if isinstance(error.cause, ValueError | OSError) else error from None
        except (errors.RayActorError, errors.ObjectLostError, errors.WorkerCrashedError) as error:
            raise ActorLost(str(error).strip().splitlines()[0]) from None

    def end(self, process: Any) -> None:
        """End a process at once."""
        self.ray.kill(process)

    def close(self) -> None:
        """End the processes, and Ray with them if this engine has started it."""
        for process in self.processes:
            self.end(process)
        self.processes.clear()
        if not self.shared:
            self.ray.shutdown()
        if self.folder:
            shutil.rmtree(self.folder, ignore_errors=True)


def check_token(address: str) -> None:
    """ValueError unless Ray is told to ask for a token: whoever reaches its port runs code."""
    if os.environ.get("RAY_AUTH_MODE") != "token":
        raise ValueError(
            f"cluster.address={address}: other machines are used with a token alone: "
            f"set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN, such as {secrets.token_hex(16)}"
        )
