"""Actors and the evaluator as processes of Ray (https://docs.ray.io). Nothing else imports Ray."""

import os
import secrets
import signal
import subprocess
import sys
import tempfile
from importlib import import_module
from typing import Any

from gpusim_rl.core.errors import no_stderr, warn
from gpusim_rl.core.paths import search_path

# Why: docs/decisions/cluster.md
SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # Ray's own is 15: actors would starve beside the learner
    "RAY_BACKEND_LOG_LEVEL": "fatal",  # what happens to an actor is said in a line of ours
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",  # and its reports of a death are left out
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # else Ray warns of a change to come
}
LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}  # everything listens on 127.0.0.1
CONSTANTS = "ray._private.ray_constants"  # has what Ray read of that when it was imported
TOO_LATE = (
    "cluster=ray: this program has imported ray, which then listens on all interfaces: set "
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0 before `import ray`, or import it later"
)
STORE = 256 << 20  # bytes of Ray's object store on one machine
Handle = Any  # of Ray: to a process, or to a value


class ProcessLost(RuntimeError):
    """A process has ended, or what it returned is lost."""


class Process:
    """What Ray makes in each process: an `Actor` or an `Evaluator`, once it is told which.

    SIGTERM ends it. If it works at a packet it ends at the next call, when the learner has that.
    """

    busy = leaves = False

    def begin(
        self, kind: type, where: dict[str, int], *arguments: object
    ) -> tuple[int, dict[str, str]]:
        """Make one. Returns the process id, and what the learner must have in common with it."""
        self.worker = kind(*arguments, **where)
        signal.signal(signal.SIGTERM, self.leave)
        return os.getpid(), self.worker.identity()

    def leave(self, *_: object) -> None:
        """End now, or at the next call if one is answered; a rented machine gives such notice."""
        self.leaves = True
        if not self.busy:
            os._exit(0)

    def call(self, method: str, *args: Any) -> Any:
        """What a method of the worker returns."""
        self.busy = True
        if self.leaves:
            os._exit(0)
        try:
            return getattr(self.worker, method)(*args)
        finally:
            self.busy = False


class Engine:
    """Processes on this machine, or on those of a Ray that runs already.

    ValueError if Ray cannot be started or reached, asks for no token, or would listen on all
    interfaces.

    Args:
        actors: how many processes there will be at once.
        address: `host:port` of a Ray that runs; None starts one, for this program alone. If the
            program has one already, it is shared.
        labels: of the machines that may have actors.
    """

    def __init__(self, actors: int, address: str | None, labels: dict[str, str] | None = None):
        self.processes: list[Handle] = []
        self.watchdog: subprocess.Popen[bytes] | None = None
        settings = SETTINGS | ({} if address else LOOPBACK)
        if not address and "ray" not in sys.modules:  # Ray reads the mode when it is imported
            # a token of its own: Ray would else write one for all programs into the home
            settings |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(16)}
        os.environ.update({key: os.environ.get(key, value) for key, value in settings.items()})
        if address:
            check_token(address)
        self.ray: Any = import_module("ray")
        self.remote = self.ray.remote(max_restarts=0)(Process)
        self.labels, self.shared = labels or {}, self.ray.is_initialized()
        if not self.shared:
            if not address and import_module(CONSTANTS).ENABLE_RAY_CLUSTER:
                raise ValueError(TOO_LATE)
            self.connect(actors, address)

    def connect(self, actors: int, address: str | None, tries: int = 2) -> None:
        """Start Ray, or join the one at an address; ValueError if that cannot be done.

        tries: of a start that times out, as it does on a busy machine.
        """
        options: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": False}
        options["address"] = address or "local"
        if not address:
            # a folder of its own: all clusters of a machine share the default one
            folder = tempfile.mkdtemp(prefix="gpusim_rl-ray-")
            line = [sys.executable, "-m", "gpusim_rl.cluster.guard", folder]
            environment = os.environ | {"PYTHONPATH": search_path()}
            # a session of its own, so that Ctrl-C does not end it
            self.watchdog = subprocess.Popen(
                line, stdin=subprocess.PIPE, env=environment, start_new_session=True
            )
            options |= {"_temp_dir": folder, "include_dashboard": False}
            options |= {"num_cpus": actors + 1, "object_store_memory": STORE}
        try:
            with no_stderr():  # Ray tells there which settings of its logs it has read
                self.ray.init(**options)
        except Exception as error:  # Ray raises this very kind where a machine is too busy
            self.close()
            says = (str(error).strip() or type(error).__name__).splitlines()[0]
            if not address and "timed out" in says and tries > 1:
                return self.connect(actors, address, tries - 1)
            raise ValueError(f"cluster.address={address or 'null'}: {says}") from None
        machines = [x for x in self.ray.nodes() if self.labels.items() <= x["Labels"].items()]
        cores = sum(x["Resources"].get("CPU", 0) for x in machines if x["Alive"])
        if cores < actors:
            where = f"cluster.address={address}" + f" with {self.labels}" * bool(self.labels)
            warn(f"{where} has {cores:.0f} cores: {actors} actors wait for more")

    def start(
        self, kind: type[Any], where: dict[str, int], *args: object, **resources: float
    ) -> tuple[Handle, Handle]:
        """A new process with a worker, and the reference to what its `begin` returns.

        resources: other ones than the worker's cores, as `num_gpus`.
        """
        options = {"num_cpus": kind.cores, "label_selector": self.labels if kind.cores else {}}
        options |= resources
        self.processes.append(process := self.remote.options(**options).remote())
        return process, process.begin.remote(kind, where, *args)

    def call(self, process: Handle, method: str, *args: object) -> Handle:
        """The reference to what a method of a worker returns."""
        return process.call.remote(method, *args)

    def put(self, value: object) -> Handle:
        """A reference to a value, which processes get as a copy."""
        return self.ray.put(value)

    def ready(self, references: list[Handle], wait: bool = True) -> list[Handle]:
        """Those references whose values are there, or whose processes have ended; with `wait` at
        least one."""
        if wait:
            self.ray.wait(references, fetch_local=False)
        count = len(references)
        return self.ray.wait(references, num_returns=count, timeout=0, fetch_local=False)[0]

    def get(self, reference: Handle) -> Any:
        """The value of a reference, or the ValueError or OSError that was raised there.

        ProcessLost if the process has ended, or its machine.
        """
        errors = self.ray.exceptions
        try:
            return self.ray.get(reference)
        except errors.RayTaskError as error:
            raise error.cause if isinstance(error.cause, ValueError | OSError) else error from None
        except (errors.RayActorError, errors.ObjectLostError) as error:
            raise ProcessLost(str(error).strip().splitlines()[0]) from None

    def end(self, process: Handle) -> None:
        self.ray.kill(process)

    def close(self) -> None:
        """End the processes, and Ray with them if this engine has started it."""
        for process in self.processes if self.ray.is_initialized() else ():
            self.end(process)
        self.processes.clear()
        if not self.shared:
            self.ray.shutdown()
        if self.watchdog:
            self.watchdog.communicate()


def check_token(address: str) -> None:
    """ValueError unless Ray is told to ask for a token: whoever reaches its port runs code."""
    if os.environ.get("RAY_AUTH_MODE") != "token":
        raise ValueError(
            f"cluster.address={address}: other machines are used with a token alone: "
            f"set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN, such as {secrets.token_hex(16)}"
        )
