"""Does on the CPU what torch's kernels would have done on the simulated device, on its memory.

The work is done at once, or at each replay of the graph that recorded it.
"""

import atexit
import copy
import ctypes
from collections.abc import Callable
from typing import ClassVar

import numpy as np
import simgpu
import torch
import warp as wp
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

simgpu.RUNTIME.fake_node.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_long]
simgpu.RUNTIME.fake_node.restype = ctypes.c_int
NODES: list[Callable | None] = []  # what graphs recorded; None if they are destroyed

aten = torch.ops.aten
DYNAMIC = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
INDEX = {aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_, aten._unsafe_index}


@ctypes.CFUNCTYPE(None, ctypes.c_long)
def replayed(i: int) -> None:
    """Called by the runtime for each node of a graph that is launched; ~i if it is destroyed."""
    with _disable_current_modes(), torch.no_grad():
        if i < 0:
            NODES[~i] = None
        elif node := NODES[i]:
            node()


def queue(function: Callable) -> None:
    """Runs function now, or records it if torch's current stream is captured."""
    stream = torch.cuda.current_stream().cuda_stream
    NODES.append(function)
    callback = ctypes.cast(replayed, ctypes.c_void_p)
    if not simgpu.RUNTIME.fake_node(stream, callback, len(NODES) - 1):
        NODES.pop()
        function()


def on_cpu(x):
    """A CPU tensor over the memory of one on the simulated device; anything else as it is."""
    if not isinstance(x, torch.Tensor):
        return x
    x = x.detach()
    if x.device.type != "cuda":
        return x
    storage = x.untyped_storage()
    size = storage.nbytes()
    if not size or not storage.data_ptr():
        return torch.empty_strided(x.size(), x.stride(), dtype=x.dtype)
    memory = (ctypes.c_char * size).from_address(storage.data_ptr())
    raw = torch.frombuffer(memory, dtype=torch.uint8).untyped_storage()
    return torch.empty(0, dtype=x.dtype).set_(raw, x.storage_offset(), x.size(), x.stride())


def on_device(x):
    """A copy of a CPU tensor on the simulated device; anything else as it is."""
    if not isinstance(x, torch.Tensor):
        return x
    y = torch.empty(x.shape, dtype=x.dtype, device="cuda")
    on_cpu(y).copy_(x)
    return y


def is_cuda(device) -> bool:
    """Whether a `device` argument is the simulated one."""
    return device is not None and torch.device(device).type == "cuda"


class Emulate(TorchDispatchMode):
    """Sees every operator that reaches the simulated device."""

    operators = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        """Lets torch launch its kernel, which does nothing, and queues the same for the CPU."""
        kwargs = kwargs or {}
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        if not any(map(_on_device, tensors)) and not is_cuda(kwargs.get("device")):
            return func(*args, **kwargs)
        Emulate.operators += 1
        if func._schema.name.startswith("c10d::"):
            return exchange(func, args, kwargs)
        if shape_depends_on_data(func, args):
            simgpu.SEEN[(f"shape depends on data: {func}", simgpu.frames())] += 1
            if torch.cuda.is_current_stream_capturing():
                raise RuntimeError(f"{func} in a capture")
            if func.overloadpacket is not aten._local_scalar_dense:
                return at_once(func, args, kwargs)
        # NVRTC compiles these when they are called
        if func in (aten.special_ndtri.default, aten.prod.dim_int):
            shape = func(args[0].to("meta"), *args[1:], **kwargs)
            out = torch.empty_like(shape, device=args[0].device)
        else:
            out = func(*args, **kwargs)
        if is_view(func) or "empty" in func._schema.name or func._schema.name == "aten::set_":
            return out
        return later(func, args, kwargs, out)


def _on_device(x: torch.Tensor) -> bool:
    return x.device.type == "cuda"


def shape_depends_on_data(func, args) -> bool:
    """Whether the host must read a tensor before it knows the operator's result."""
    if func.overloadpacket in INDEX:
        return any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in args[1])
    return bool(DYNAMIC & set(func.tags))


def is_view(func) -> bool:
    """Whether the operator's results share the memory of its arguments."""
    returns = func._schema.returns
    shared = bool(returns) and all(r.alias_info is not None for r in returns)
    return shared and not func._schema.is_mutable


def at_once(func, args, kwargs):
    """The operator on the CPU, its results copied to the device."""
    with torch.no_grad():
        args_cpu, kwargs_cpu = tree_map(on_cpu, (args, kwargs))
        result = func(*args_cpu, **kwargs_cpu)
        return args[0] if func._schema.is_mutable else tree_map(on_device, result)


def exchange(func, args, kwargs):
    """What processes exchange, over gloo, on the memory of the device.

    In a capture it is recorded. A copy is exchanged at once, since the caller wants to wait.
    """
    args_cpu, kwargs_cpu = tree_map(on_cpu, (args, kwargs))
    if not torch.cuda.is_current_stream_capturing():
        return func(*args_cpu, **kwargs_cpu)
    queue(lambda: func(*args_cpu, **kwargs_cpu)[1].wait())
    copied = tree_map(lambda x: x.clone() if isinstance(x, torch.Tensor) else x, args_cpu)
    return func(*copied, **kwargs_cpu)


class Held:
    """The tensors of a recorded operator. A graph holds their addresses, and not the tensors."""

    segments: ClassVar[list[tuple]] = []  # of graphs' private memory, as far as they are known

    def __init__(self, func, tensors: list[torch.Tensor]):
        self.name, self.frames = str(func), simgpu.frames()
        cuda = [x for x in tensors if _on_device(x) and x.data_ptr()]
        self.tensors = [(StorageWeakRef(x.untyped_storage()), x.data_ptr()) for x in cuda]

    def check(self) -> None:
        """Notes tensors that are gone, but for temporaries, whose memory belongs to the graph."""
        gone = [address for tensor, address in self.tensors if tensor.expired()]
        if not all(map(self._private, gone)):
            Held.segments = simgpu.private_pools()
            if not all(map(self._private, gone)):
                simgpu.SEEN[(f"freed after capture: a tensor of {self.name}", self.frames)] += 1

    def _private(self, address: int) -> bool:
        return any(begin <= address < end for begin, end, _ in self.segments)


def later(func, args, kwargs, out):
    """Queues the operator on the CPU, whose results are written where the kernel's would be."""
    outs = [x for x in tree_leaves(out) if isinstance(x, torch.Tensor)]
    captured = torch.cuda.is_current_stream_capturing()
    inputs = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
    held = Held(func, inputs + outs) if captured else None
    with torch.no_grad():
        args_cpu, kwargs_cpu = tree_map(on_cpu, (args, kwargs))
        if is_cuda(kwargs.get("device")):
            kwargs_cpu["device"] = torch.device("cpu")
        kwargs_cpu.pop("pin_memory", None)
        places = [on_cpu(x) for x in outs]
    result = []

    def run():
        if held:
            held.check()
        with torch.no_grad():
            values = func(*args_cpu, **kwargs_cpu)
            tensors = [x for x in tree_leaves(values) if isinstance(x, torch.Tensor)]
            for place, value in zip(places, tensors, strict=False):
                if place.data_ptr() != value.data_ptr() and place.numel():
                    place.copy_(value)
            result[:] = [values]

    queue(run)
    return result[0] if result and not outs and func._schema.returns else out


def start() -> None:
    """Begins to see torch's operators and Warp's launches; for the rest of the process."""
    atexit.register(simgpu.RUNTIME.fake_end)
    Emulate().__enter__()
    run_warp()


class Command:
    """A recorded launch of Warp, queued with torch's work."""

    def __init__(self, command, arrays):
        self.command, self.arrays = command, arrays

    def launch(self, stream=None):
        """Queues the launch; the arrays live as long as it may be replayed."""
        command, arrays = self.command, self.arrays
        queue(lambda: (simgpu.real_command_launch(command), arrays))

    def set_param_at_index_from_ctype(self, index, value):
        """Another array for later launches; those that are queued keep theirs."""
        self.command = copy.copy(self.command)
        self.command.params, self.command.fwd_args = [*self.command.params], None
        self.command.set_param_at_index_from_ctype(index, value)


def check_loaded(kernel, dim) -> None:
    """Notes a kernel whose module was not loaded beside others before.

    A kernel that was written, or is written for its arguments, is compiled at its first launch.
    """
    name = kernel.module.name
    written = kernel.is_generic or name.startswith("fused_")
    if simgpu.LOADED and not written and np.prod(dim) and name not in simgpu.LOADED:
        simgpu.SEEN[(f"compiled late: {name}", simgpu.frames())] += 1


def launch(kernel, dim, inputs=(), outputs=(), *args, device=None, stream=None, **options):
    """wp.launch, queued with torch's work; without PHYSICS none of MuJoCo Warp's is run."""
    recorded = options.pop("record_cmd", False)
    check_loaded(kernel, dim)
    if not simgpu.PHYSICS and kernel.func.__module__.startswith("mujoco_warp"):
        return simgpu.NotRun() if recorded else None
    command = simgpu.real_launch(
        kernel,
        dim,
        inputs,
        outputs,
        *args,
        device=simgpu.device_of(device),
        record_cmd=True,
        **options,
    )
    if command is None:  # no threads
        return None
    later = Command(command, (inputs, outputs))
    return later if recorded else later.launch()


def run_warp() -> None:
    """Queues launches, fills and copies of Warp with torch's work, so that graphs record them."""
    context = wp._src.context
    zero, fill, copied = wp.array.zero_, wp.array.fill_, wp.copy
    wp.array.zero_ = lambda self: queue(lambda: zero(self))
    wp.array.fill_ = lambda self, value: queue(lambda: fill(self, value))
    wp.copy = lambda dest, src, *args, **options: queue(lambda: copied(dest, src, *args, **options))
    context.copy = wp.copy
    context.Launch.launch = lambda self, stream=None: simgpu.real_command_launch(self)
    wp.launch = context.launch = launch
