"""TorchScript of others as ONNX. Such a file is a program: it runs once, in a process of its own.

There it can open no connection, start no program and write no file, and has limits of time and
memory. `convert` is called by whoever trusts the file; the rest of this module runs in the process.
"""

import ctypes
import os
import platform
import struct
import subprocess
import sys
import threading
import zipfile
from pathlib import Path
from typing import Any

from gpusim_rl.core.paths import search_path
from gpusim_rl.deploy.runtime import MAX_BYTES

SECONDS, BYTES = 120, 16 << 30  # of processor time, and of address space
BATCH = 1009  # a prime: the only number in a traced graph that can be the batch
TOLERANCE, STEPS = 1e-4, 50  # largest relative difference of an action, and steps compared
# Numbers of system calls that are refused, by machine: network, programs, and changes of files.
ARCHES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
SECCOMP = {"x86_64": 317, "aarch64": 277}
DENIED = {  # socket, io_uring_setup, execve, execveat, openat2, unlinkat, renameat(2), truncate …
    "x86_64": (41, 53, 425, 59, 322, 437, 263, 87, 264, 82, 316, 76, 85, 84, 90, 91, 92, 62, 101),
    "aarch64": (198, 199, 425, 221, 281, 437, 35, 38, 276, 45, 52, 53, 54, 129, 117),
}
OPENS = {"x86_64": {2: 1, 257: 2}, "aarch64": {56: 2}}  # open and openat → place of their flags
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
LOAD, EQUAL, LEAST, ANY, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06  # instructions of BPF
X32 = 0x40000000  # numbers from here are the same calls again, for programs of 32 bits
ALLOW, REFUSE, KILL = 0x7FFF0000, 0x00050001, 0x80000000  # REFUSE: with EPERM


def is_script(path: Path) -> bool:
    """Whether a file is a TorchScript archive; its content is not read."""
    try:
        with zipfile.ZipFile(path) as archive:
            return any("/code/" in name for name in archive.namelist())
    except (zipfile.BadZipFile, OSError, ValueError):
        return False


def convert(path: Path, width: int) -> bytes:
    """The ONNX model of a TorchScript file whose observation has this width.

    ValueError in one line if the file's program fails, or this machine cannot shut it in.
    """
    if sys.platform != "linux" or platform.machine() not in ARCHES:
        raise ValueError(f"{path}: TorchScript is converted on Linux (x86_64, aarch64) alone")
    words = [sys.executable, "-m", "gpusim_rl.deploy.torchscript", str(path.resolve()), f"{width}"]
    environment = {"PYTHONPATH": search_path(), "PATH": os.defpath, "HOME": "/", "LANG": "C.UTF-8"}
    pipes: dict[str, Any] = dict(stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, cwd="/")
    pipes |= dict(stderr=subprocess.STDOUT, env=environment)
    with subprocess.Popen(words, **pipes) as process:
        timer = threading.Timer(5 * SECONDS, process.kill)
        timer.start()
        try:
            assert process.stdout  # a pipe
            data = process.stdout.read(MAX_BYTES + 1)
            if len(data) > MAX_BYTES:
                process.kill()
            code = process.wait()
        finally:
            timer.cancel()
    if code:
        lines = data[-1000:].decode(errors="replace").strip().splitlines()
        why = lines[-1] if lines and code > 0 else "it was stopped by a limit"
        raise ValueError(f"{path}: TorchScript that cannot be converted: {why[:300]}")
    return data


# -- in the process --------------------------------------------------------------------------------


def main() -> None:
    """Shut this process in, and write what argv[1] is for an observation of width argv[2]."""
    import tempfile
    import warnings

    import onnxruntime  # noqa: F401
    import torch  # noqa: F401

    from gpusim_rl.deploy import to_onnx  # noqa: F401

    # torch.jit.load is deprecated, and nothing reads such files else
    warnings.simplefilter("ignore")
    tempfile.tempdir = "/"  # torch asks for one, and none can be written
    out, nothing = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    for place in (1, 2):  # what the script prints
        os.dup2(nothing, place)
    code = 0
    try:
        shut_in()
        data = script_to_onnx(sys.argv[1], int(sys.argv[2]))
    except Exception as error:
        lines = [x for x in str(error).splitlines() if x.strip()] or [type(error).__name__]
        line, code = " ".join((lines[-1] if len(lines) > 3 else lines[0]).split()), 1
        data = line.encode()
    while data:
        data = data[os.write(out, data) :]
    raise SystemExit(code)


def shut_in() -> None:
    """Limit this process for good; OSError if the kernel cannot."""
    import resource

    for what, limit in ((resource.RLIMIT_CPU, SECONDS), (resource.RLIMIT_AS, BYTES)):
        resource.setrlimit(what, (limit, limit))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    program = filter_program(platform.machine())
    code = ctypes.create_string_buffer(program)
    place = struct.pack("HxxxxxxQ", len(program) // 8, ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    none, no_new_privileges, filters, every_thread = 0, 38, 1, 1
    for call, words in (
        (libc.prctl, (no_new_privileges, 1, none, none, none)),
        (libc.syscall, (SECCOMP[platform.machine()], filters, every_thread, place)),
    ):
        if call(*(ctypes.c_ulong(x) if isinstance(x, int) else x for x in words)):
            raise OSError(ctypes.get_errno(), "this kernel cannot shut a process in")


def filter_program(machine: str) -> bytes:
    """A seccomp filter that refuses system calls, and opening files to write: BPF instructions."""
    number, arch, arguments = 0, 4, 16  # places in struct seccomp_data
    code = [(LOAD, 0, 0, arch), (EQUAL, 1, 0, ARCHES[machine]), (RETURN, 0, 0, KILL)]
    code += [(LOAD, 0, 0, number), (LEAST, 0, 1, X32), (RETURN, 0, 0, REFUSE)]
    for call in DENIED[machine]:
        code += [(EQUAL, 0, 1, call), (RETURN, 0, 0, REFUSE)]
    for call, place in OPENS[machine].items():
        code += [(EQUAL, 0, 4, call), (LOAD, 0, 0, arguments + 8 * place), (ANY, 0, 1, WRITES)]
        code += [(RETURN, 0, 0, REFUSE), (RETURN, 0, 0, ALLOW)]
    code += [(RETURN, 0, 0, ALLOW)]
    return b"".join(struct.pack("HBBI", *x) for x in code)


def script_to_onnx(path: str, width: int) -> bytes:
    """The bytes of the ONNX model: observation, perhaps memory (B, …) → action, next memory.

    What is remembered are the buffers (layers, 1, n) that a step changes.
    """
    import onnx
    import torch
    from torch.fx.experimental.proxy_tensor import make_fx

    from gpusim_rl.deploy.to_onnx import to_onnx

    script = torch.jit.load(path, map_location="cpu").eval()
    before = {name: x.clone() for name, x in script.named_buffers()}
    with torch.no_grad():
        script(torch.ones(1, width))
    names = [k for k, x in script.named_buffers() if not torch.equal(x, before[k])]
    if wrong := [x for x in names if before[x].ndim != 3 or before[x].shape[1] != 1 or "." in x]:
        raise ValueError(f"it remembers {wrong[0]!r}, which is not (layers, 1, n) of the whole")

    def step(obs: torch.Tensor, *memory: torch.Tensor) -> tuple[torch.Tensor, ...]:
        for name, x in zip(names, memory, strict=True):
            setattr(script, name, x.transpose(0, 1).clone())
        action = script(obs)
        return (action, *(getattr(script, x).transpose(0, 1) for x in names))

    start = {x: before[x].transpose(0, 1).expand(BATCH, -1, -1).clone() for x in names}
    with torch.no_grad(), torch.backends.mkldnn.flags(enabled=False):  # its LSTM is no ONNX
        graph = make_fx(step, tracing_mode="real")(torch.ones(BATCH, width), *start.values())
    open_batch(graph)
    sample = {"obs": torch.zeros(2, width)} | {name: x[:2] for name, x in start.items()}
    model = to_onnx(graph, sample, ["action", *(f"next.{x}" for x in names)])
    fresh = torch.jit.load(path, map_location="cpu").eval()
    compare(fresh, model.SerializeToString(), width, {x: before[x] for x in names})
    onnx.helper.set_model_props(model, {"memory": " ".join(names)})
    return model.SerializeToString()


def open_batch(graph: Any) -> None:
    """Make a traced graph one of any batch, in place: BATCH becomes the size of the observation."""
    import torch
    from torch.utils._pytree import tree_map

    first = [node for node in graph.graph.nodes if node.op == "placeholder"]
    with graph.graph.inserting_after(first[-1]):
        size = graph.graph.call_function(torch.ops.aten.sym_size.int, (first[0], 0))
    for node in graph.graph.nodes:
        if node is not size:
            node.args = tree_map(lambda x: size if type(x) is int and x == BATCH else x, node.args)
    graph.recompile()


def compare(script: Any, data: bytes, width: int, memory: dict[str, Any]) -> None:
    """ValueError if ONNX and the script differ in some steps of one robot by more than rounding."""
    import numpy as np
    import onnxruntime
    import torch

    run = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"]).run
    rng = np.random.default_rng(0)
    state = {name: x.transpose(0, 1).numpy() for name, x in memory.items()}
    for _ in range(STEPS):
        obs = rng.normal(size=(1, width)).astype(np.float32)
        action, *after = map(np.asarray, run(None, {"obs": obs} | state))
        state = dict(zip(state, after, strict=True))
        with torch.no_grad():
            expected = script(torch.from_numpy(obs)).numpy()
        error = (np.abs(action - expected) / np.maximum(1, np.abs(expected))).max()
        if not error <= TOLERANCE:
            raise ValueError(f"ONNX and the script differ by {error:.1e}")


if __name__ == "__main__":
    main()
