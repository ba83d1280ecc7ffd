"""Where work runs: on one CUDA stream for torch and Warp, and on how many threads of the CPU."""

# torch and Warp have no types for some of their members:
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnnecessaryComparison=false, reportUnknownVariableType=false

import functools
from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import warp as wp
from torch import Tensor

from gpusim_rl.core.errors import no_stderr

KEEP_ALL = 2**63  # [byte] more than a device has: Warp's pool gives nothing back to the driver


@functools.cache
def start_warp() -> None:
    """Initialize Warp once per process, and print nothing; ValueError if it cannot keep kernels."""
    wp.config.log_level = wp.LOG_WARNING
    try:
        # without a CUDA driver Warp's C code writes a warning to stderr
        with nullcontext() if torch.cuda.is_available() else no_stderr():
            wp.init()
    except OSError as error:
        where = "set WARP_CACHE_PATH to a folder that can be written"
        raise ValueError(f"Warp cannot keep its kernels: {error}: {where}") from None


# Why: docs/decisions/graphs.md
def one_stream(device: torch.device | str) -> None:
    """Send all further work of torch and of Warp on a CUDA device to one stream.

    It is a non-blocking stream of torch. Warp's streams are blocking, and the default one cannot be
    captured. A stream that the caller has made torch's current one is kept. On the CPU nothing is
    done.
    """
    start_warp()
    device = torch.device(device)
    if device.type != "cuda":
        return
    place = warp_device(device)
    # Warp frees in the order of the default stream, which does not wait for this one. So freed
    # memory has to stay in Warp's pool, where this one stream gets it again in its own order.
    if place.is_mempool_enabled:
        wp.set_mempool_release_threshold(place, KEEP_ALL)
    if torch.cuda.current_stream(device) != torch.cuda.default_stream(device):
        return
    if device.index is not None:
        torch.cuda.set_device(device)
    stream = torch.cuda.Stream(device)
    torch.cuda.synchronize(device)
    torch.cuda.set_stream(stream)
    wp.set_stream(_warp_stream(stream), place)
    # The thread in which torch differentiates gets its CUDA context from a kernel of torch. Warp
    # leaves a thread as it found it, and cuBLAS warns if it is the first there.
    torch.ones(1, device=device, requires_grad=True).mul(2).backward()


def warp_device(device: torch.device) -> wp.Device:
    """A device of torch as Warp knows it. `cuda` without an index is the current one."""
    # by its name: Warp does not take a torch.device without an index
    return wp.device_from_torch(str(device))


def warp_stream(device: torch.device) -> wp.Stream | None:
    """torch's current stream on a CUDA device as Warp knows it; None on the CPU."""
    return _warp_stream(torch.cuda.current_stream(device)) if device.type == "cuda" else None


_warp_stream = functools.cache(wp.stream_from_torch)


def launch(
    kernel: Any,
    dim: int | tuple[int, ...],
    inputs: list[Any],
    outputs: list[Tensor],
    *,
    block: int = 0,
    tiles: bool = False,
    record: bool = False,
) -> Any:
    """Launch a kernel of Warp on tensors of one device, on torch's current stream.

    With `record` nothing runs yet: the result's `launch(warp_stream(device))` does, as often as it
    is called. It holds addresses alone, so that somebody else must keep the tensors. With `tiles`,
    a block of threads shares the tiles of each index.
    """
    start_warp()
    device = outputs[0].device
    options: dict[str, Any] = {
        key: [wp.from_torch(x.detach()) if isinstance(x, Tensor) else x for x in xs]
        for key, xs in (("inputs", inputs), ("outputs", outputs))
    }
    options |= {"device": warp_device(device), "stream": warp_stream(device), "record_cmd": record}
    options |= {"block_dim": block} if block else {}
    if tiles:
        return wp.launch_tiled(kernel, dim=[dim], **options)
    return wp.launch(kernel, dim=dim, **options)


def rebind(recorded: Any, index: int, x: Tensor) -> None:
    """Give a recorded launch another tensor as its argument `index`, for the launches to come."""
    # a third of the time of an array
    argument = wp.from_torch(x.detach(), return_ctype=True)
    recorded.set_param_at_index_from_ctype(index, argument)


def as_array(number: Tensor | float, device: torch.device) -> Tensor:
    """(1,) a number that kernels read, or a view of a tensor (): it may be written at any time."""
    return torch.as_tensor(number, dtype=torch.float32, device=device).view(1)


# Why: docs/decisions/processes.md
@contextmanager
def torch_threads(n: int) -> Generator[None]:
    """Run torch's CPU operations on n threads for a while; 0 leaves their number as it is."""
    before = torch.get_num_threads()
    torch.set_num_threads(n or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
