"""The simulated CUDA runtime in Python: import this before gpusim_rl (see README.md).

Warp stays on its CPU device, over the memory of torch's simulated one.
"""

import contextlib
import ctypes
import os
import sys
import traceback
import warnings
from collections import Counter

import numpy as np
import torch
import warp as wp

HERE = os.path.dirname(os.path.abspath(__file__))
RUNTIME = ctypes.CDLL(os.environ["SIMULATED"] + "/libcudart_simulated.so")
RUNTIME.fake_count.restype = ctypes.c_long
EACH = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_long)
RUNTIME.fake_register.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
PHYSICS = os.environ.get("PHYSICS") == "1"  # else no kernel of MuJoCo Warp runs
WATCH = False  # also note uses of the default stream and synchronizations
SEEN: Counter = Counter()  # broken rules: (what, where) → times
OURS = ("/gpusim_rl/", "/tasks/", "/tests/", "train.py")


def frames() -> str:
    """The last five lines of the project on the stack, the innermost first."""
    lines = [
        f"{os.path.relpath(frame.filename)}:{frame.lineno}"
        for frame in reversed(traceback.extract_stack())
        if any(part in frame.filename for part in OURS) and HERE not in frame.filename
    ]
    return " < ".join(lines[:5]) or "(no frame of the project: another thread)"


@ctypes.CFUNCTYPE(None, ctypes.c_char_p)
def note(what: bytes) -> None:
    """Called by the runtime when a rule is broken."""
    text = what.decode()
    if WATCH or not text.startswith(("default stream", "sync:")):
        SEEN[(text, frames())] += 1


RUNTIME.fake_hook(note)


def warnings_are_errors() -> None:
    """Turns warnings into errors, but for one of torch's own."""
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", message="`torch.distributed.reduce_op` is deprecated")


def counts() -> dict[str, int]:
    """What was asked of the runtime since `fake_reset`: operation → times."""
    seen = {}
    RUNTIME.fake_each(EACH(lambda what, times: seen.update({what.decode(): times})))
    return seen


def broken() -> list[str]:
    """The broken rules, each with its count and place.

    Reads whose shape depends on data are left out, waiting for an event, and notes of which
    device gave memory.
    """
    allowed = ("shape depends", "sync: cudaEventSynchronize", "malloc on device")
    seen = [(what, where, n) for (what, where), n in SEEN.items() if not what.startswith(allowed)]
    return [f"{n} {what} | {where}" for what, where, n in seen]


def finish(status: int = 0) -> None:
    """Prints the broken rules and ends the process at once: the runtime cannot be unloaded."""
    for line in broken():
        print("    ", line, flush=True)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def private_pools() -> list[tuple[int, int, tuple[int, int]]]:
    """The address ranges of memory that belongs to graphs: (begin, end, pool)."""
    segments = torch.cuda.memory_snapshot()
    return sorted(
        (s["address"], s["address"] + s["total_size"], tuple(s["segment_pool_id"]))
        for s in segments
        if tuple(s.get("segment_pool_id", (0, 0))) != (0, 0)
    )


# -- Warp on the CPU, which says that it is CUDA

CPU = wp.get_device("cpu")
real_get_device, real_launch, real_from_torch = wp.get_device, wp.launch, wp.from_torch
real_begin, real_end = wp.capture_begin, wp.capture_end
real_command_launch = wp._src.context.Launch.launch
POOL = {"threshold": 0}  # of Warp's memory pool [byte]
KEPT = []  # arrays whose memory torch knows: never freed
real_load = wp.Module.load
LOADED = set()  # names of the modules that were loaded on the simulated device


class Device:
    """What Warp's users see as a device."""

    name, arch, sm_count = "simulated", 90, 132
    is_cpu, is_cuda, is_mempool_enabled = False, True, True

    def __init__(self, alias: str):
        self.alias = alias

    def __str__(self) -> str:
        return self.alias

    __repr__ = __str__


DEVICES: dict[str, Device] = {}


def simulated(name: str) -> Device:
    """The simulated device "cuda:1", or of the name "cuda" the current one."""
    full = name if ":" in name else f"cuda:{torch.cuda.current_device()}"
    return DEVICES.setdefault(full, Device(full))


def device_of(device):
    """The CPU for all that stands for the simulated device, else the device itself."""
    stands = device is None or isinstance(device, Device) or str(device).startswith("cuda")
    return CPU if stands else device


def get_device(ident=None):
    """wp.get_device, with the simulated device under the name cuda."""
    return simulated(str(ident)) if str(ident).startswith("cuda") else real_get_device(ident)


def device_from_torch(device):
    """wp.device_from_torch: "cuda" may be a name, but a torch.device needs an index."""
    if isinstance(device, torch.device) and device.type == "cuda" and device.index is None:
        raise TypeError("list indices must be integers or slices, not NoneType")  # as Warp's own
    return CPU if torch.device(device).type == "cpu" else simulated(str(device))


NUMPY = {"int32": "<i4", "int64": "<i8", "uint8": "|u1", "uint32": "<u4", "bool": "|b1"}
NUMPY |= {"float32": "<f4", "float64": "<f8"}


def to_torch(array, requires_grad=None):
    """A tensor on the simulated device over a Warp array's memory."""
    size = getattr(array.dtype, "_shape_", ())
    scalar = wp.types.type_size_in_bytes(array.dtype) // max(1, int(np.prod(size)))
    inner = [scalar * int(np.prod(size[i + 1 :])) for i in range(len(size))]
    shape, strides = (*array.shape, *size), (*array.strides, *inner)
    kind = NUMPY[(array.dtype._wp_scalar_type_ if size else array.dtype).__name__]
    if not array.ptr or 0 in shape:
        dtype = torch.from_numpy(np.empty(0, kind)).dtype
        return torch.empty(shape, dtype=dtype, device="cuda")
    RUNTIME.fake_register(array.ptr, array.capacity)
    KEPT.append(array)

    interface = dict(shape=shape, strides=strides, typestr=kind, data=(array.ptr, False), version=3)
    view = type("View", (), {"__cuda_array_interface__": interface})
    tensor = torch.as_tensor(view(), device="cuda")
    assert tensor.data_ptr() == array.ptr
    return tensor


WARP = {torch.float32: wp.float32, torch.float64: wp.float64, torch.bool: wp.bool}
WARP |= {torch.int64: wp.int64, torch.int32: wp.int32, torch.uint8: wp.uint8}


def from_torch(tensor, dtype=None, **options):
    """A Warp array on the CPU over a tensor's memory."""
    if tensor.device.type != "cuda":
        return real_from_torch(tensor, dtype=dtype, **options)
    inner = len(getattr(dtype, "_shape_", ()))  # dimensions of a vector or a matrix
    strides = [stride * tensor.element_size() for stride in tensor.stride()]
    array = wp.array(
        ptr=tensor.data_ptr() or None,
        dtype=dtype or WARP[tensor.dtype],
        shape=tuple(tensor.shape[: tensor.ndim - inner]),
        strides=tuple(strides[: tensor.ndim - inner]),
        device="cpu",
    )
    array._tensor = tensor
    return array.__ctype__() if options.get("return_ctype") else array


class NotRun:
    """A recorded launch that does nothing."""

    def launch(self, stream=None):
        pass


def launch(kernel, dim, inputs=(), outputs=(), *args, device=None, stream=None, **options):
    """wp.launch on the CPU at once; emulate.py replaces it by one that captures."""
    if not PHYSICS:
        return NotRun() if options.get("record_cmd") else None
    return real_launch(kernel, dim, inputs, outputs, *args, device=device_of(device), **options)


def load(self, device, block_dim=None, **options):
    """Module.load; on the simulated device it is noted, for `launch` in emulate.py."""
    if isinstance(device, Device):
        return LOADED.add(self.name)
    return real_load(self, device, block_dim, **options)


class Stream:
    """Torch's stream, for Warp."""

    def __init__(self, stream):
        self.s, self.device = stream, simulated(str(stream.device))


@contextlib.contextmanager
def scoped_stream(stream, sync_enter=True, sync_exit=False):
    """wp.ScopedStream: work goes to the CPU."""
    assert not sync_enter or not isinstance(stream, Stream)
    with wp.ScopedDevice(CPU):
        yield stream


class ScopedDevice(wp.ScopedDevice):
    """wp.ScopedDevice: the simulated device is the CPU."""

    def __init__(self, device):
        super().__init__(device_of(device))


def capture_begin(device=None, stream=None, external=False, **options):
    """wp.capture_begin: torch's capture is known here already."""
    if stream is None:
        return real_begin(device=device, **options)
    assert external and torch.cuda.is_current_stream_capturing()


def capture_end(device=None, stream=None):
    """wp.capture_end."""
    return real_end(device=device) if stream is None else object()


def on_the_cpu(function):
    """A function of Warp that makes an array: on the CPU."""

    def wrapped(*args, device=None, **options):
        device = None if device is None else device_of(device)
        return function(*args, device=device, **options)

    return wrapped


def install() -> None:
    """Puts the functions above in the place of Warp's."""
    wp._src.context.launch = launch  # launch_tiled calls that
    wp.get_device, wp.launch, wp.from_torch, wp.to_torch = get_device, launch, from_torch, to_torch
    wp.device_from_torch, wp.Module.load = device_from_torch, load
    wp.device_to_torch = lambda d: str(d) if isinstance(d, Device) else "cpu"
    wp.stream_from_torch = Stream
    wp.set_stream = lambda *args, **options: None
    wp.ScopedStream, wp.ScopedDevice = scoped_stream, ScopedDevice
    wp.capture_begin, wp.capture_end = capture_begin, capture_end
    for name in ("zeros", "ones", "full", "empty"):
        setattr(wp, name, on_the_cpu(getattr(wp, name)))
    wp.get_mempool_used_mem_high = lambda device: 0
    wp.set_mempool_release_threshold = lambda device, size: POOL.update(threshold=size)
    wp.get_mempool_release_threshold = lambda device: POOL["threshold"]


install()
