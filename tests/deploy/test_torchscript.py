"""TorchScript of others: the process that runs it is shut in, and prints nothing into ours."""

import platform
import sys
import tracemalloc
import warnings
from pathlib import Path

import pytest
import torch

from gpusim_rl.deploy import torchscript
from tests.command_lines import run_python

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in torchscript.ARCHES, reason="Linux alone"
)
SHUT = """
import ctypes, errno, socket, threading
from gpusim_rl.deploy import torchscript
socket.socket().close()
errors, ready = [], threading.Event()
def connect():
    ready.wait()
    try:
        socket.socket()
    except PermissionError:
        errors.append(errno.EPERM)
thread = threading.Thread(target=connect)
thread.start()
torchscript.shut_in()
ready.set()
thread.join()
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall(ctypes.c_ulong(torchscript.X32 + 41), 2, 1, 0)
print(errors, ctypes.get_errno())
"""


class Printer(torch.nn.Module):
    """A network that prints 1 MB."""

    def __init__(self):
        super().__init__()
        self.text = "x" * 10_000

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(1, 2)."""
        for _ in range(100):
            print(self.text)
        return x[:, :2]


def test_all_threads_are_shut_in():
    """Also one that began before, and calls for programs of 32 bits."""
    done = run_python(SHUT)
    assert done.stdout == "[1] 1\n", done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("largest, says", [(1 << 20, ""), (100, "stopped by a limit")])
def test_what_a_script_gives_is_bounded(tmp_path, monkeypatch, largest, says):
    """What it prints is lost, and a network above the limit is refused."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit is deprecated, and strangers use it
        torch.jit.script(Printer()).save(str(file := Path(tmp_path / "net.pt")))
    monkeypatch.setattr(torchscript, "MAX_BYTES", largest)
    tracemalloc.start()
    try:
        if says:
            with pytest.raises(ValueError, match=says):
                torchscript.convert(file, 3)
        else:
            assert len(torchscript.convert(file, 3)) < 1000
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
