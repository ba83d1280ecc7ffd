"""Real processes that start at once: a server has imported what commands import, and forks.

Loading torch, MuJoCo and Warp takes seconds, which the tests would spend some 150 times. A process
is like one of its own, but for two things. It shares Python's hash seed with all others of the
server. And it ends without taking its objects apart: a library that crashes then is seen by
commands with `fresh` alone. Another server has loaded none of the three, for commands that must
answer without.
"""

import atexit
import ctypes
import gc
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from itertools import product
from pathlib import Path

HEAVY = ("torch", "mujoco", "warp")


@cache
def connection(light: bool) -> socket.socket:
    """To a server, which is started at the first call and ends with this process.

    `light`: the one that has not loaded HEAVY.
    """
    from tests.command_lines import environment

    ours, theirs = socket.socketpair()
    home = tempfile.TemporaryDirectory()
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.fork_server", str(theirs.fileno()), str(int(light))],
        env=environment(Path(home.name)),
        pass_fds=[theirs.fileno()],
        stdin=subprocess.DEVNULL,
    )
    theirs.close()

    def end() -> None:
        ours.close()
        server.wait()
        home.cleanup()

    atexit.register(end)
    return ours


def run(
    line: list[str], *, cwd: Path, env: dict[str, str], timeout: float, light: bool = False
) -> subprocess.CompletedProcess[str]:
    """`python *line` as subprocess.run has it: no terminal, and both outputs captured."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        server, job = connection(light), json.dumps([line, str(cwd), env]).encode()
        server.settimeout(None)
        socket.send_fds(server, [len(job).to_bytes(4, "big")], [out.fileno(), err.fileno()])
        server.sendall(job)
        pid = number(server)
        server.settimeout(timeout)
        try:
            code = number(server)
        except TimeoutError:
            os.kill(pid, signal.SIGKILL)
            server.settimeout(None)
            number(server)
            raise subprocess.TimeoutExpired(line, timeout) from None
        said = []
        for file in (out, err):
            file.seek(0)
            said.append(file.read().decode())
    return subprocess.CompletedProcess(line, code, *said)


def number(server: socket.socket) -> int:
    """The next number that the server sends."""
    sent = server.recv(4)
    if len(sent) < 4:
        raise RuntimeError("the server that forks the tests' processes has ended")
    return int.from_bytes(sent, "big", signed=True)


def serve(client: socket.socket) -> list[str]:
    """Fork for each job. Returns in the child, with its command line; exits as the client does."""
    while True:
        size, fds, *_ = socket.recv_fds(client, 4, 2)
        if not size:
            raise SystemExit
        job = b""
        while len(job) < int.from_bytes(size, "big"):
            job += client.recv(1 << 16)
        pid = os.fork()
        if not pid:
            for standard, fd in enumerate(fds, 1):
                os.dup2(fd, standard)
                os.close(fd)
            client.close()
            line, cwd, env = json.loads(job)
            os.environ.clear()
            os.environ.update(env)
            os.chdir(cwd)
            return line
        for fd in fds:
            os.close(fd)
        client.sendall(pid.to_bytes(4, "big", signed=True))
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        client.sendall(code.to_bytes(4, "big", signed=True))


def load(light: bool) -> None:
    """Import what commands import, and compose what most of them begin with."""
    import gpusim_rl.commands.play
    import gpusim_rl.commands.train
    import gpusim_rl.config.resume
    from gpusim_rl.config.compose import build, build_base
    from gpusim_rl.config.resume import groups_of

    build_base("config", ())
    build_base("play", ())
    for task in ((), ("task=quadruped",), ("task=cartpole",)):
        for more in product(("", "log=none"), ("", "sim=native")):
            run = build_base("config", (*task, *filter(None, more)))
            if not light:  # as play.py and resume= read it from a run
                build("config", groups_of(run, builtin=True), builtin=True)
    if light:
        assert not sys.modules.keys() & {*HEAVY}
        return
    import torch

    import gpusim_rl.play.player
    import gpusim_rl.training.trainer  # noqa: F401
    from gpusim_rl.deploy.to_onnx import to_onnx
    from tests import onnx_operators

    onnx_operators.list_once()
    to_onnx(torch.nn.Linear(2, 2), {"x": torch.zeros(2, 2)}, ["y"])  # loads 1,800 modules


def main() -> None:
    """Import, serve, and in a child run the script or the module of its command line."""
    load(light=sys.argv[2] == "1")
    gc.freeze()  # a child's gc.collect would look at half a million objects, and at its end again
    client = socket.socket(fileno=int(sys.argv[1]))
    line = serve(client)
    with end_process():
        run_line(line)


def run_line(line: list[str]) -> None:
    """What `python *line` runs."""
    first, *words = line
    if first == "-m":
        module, *words = words
        sys.argv = [module, *words]
        sys.path[0] = os.getcwd()
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    else:
        sys.argv = [first, *words]
        sys.path[0] = str(Path(first).parent)
        runpy.run_path(first, run_name="__main__")


@contextmanager
def end_process() -> Iterator[None]:
    """End the process, after its threads and its atexit functions, without taking objects apart."""
    code: object = None
    try:
        yield
    except SystemExit as end:
        code = end.code
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        code = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    if not isinstance(code, int | None):
        print(code, file=sys.stderr)
        code = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    ctypes.CDLL(None).fflush(None)  # what C has written
    if code == -signal.SIGINT:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    # Python would touch half of the server's pages, which are then copied: 0.3 s of a processor
    os._exit(code or 0)


if __name__ == "__main__":
    main()
