"""Memory: what does not fit is refused before it is built, and what is not used is freed."""

import ctypes
import gc
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import torch


class OutOfMemory(ValueError):
    """A configuration that needs more memory than there is."""


def check_free(what: str, size: float, device: torch.device) -> None:
    """Raise OutOfMemory, which names what takes them, unless so many bytes are free on a device."""
    if size < 2**30:  # is taken for granted
        return
    free = free_bytes(device)
    if size > free:
        needed = f"{what} takes more than {size / 2**30:,.0f} GiB"
        raise OutOfMemory(f"{needed}, and {free / 2**30:.1f} GiB are free")


def free_bytes(device: torch.device) -> int:
    """Free bytes of a CUDA device, or of the machine within its control group's limit."""
    free_unused()
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if not Path("/proc/meminfo").exists():
        return sys.maxsize
    info = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    free, group = int(info["MemAvailable"].split()[0]) * 1024, Path("/sys/fs/cgroup")
    limit, used = ((group / name) for name in ("memory.max", "memory.current"))
    # in a container the machine's free memory says too much
    if limit.exists() and limit.read_text().strip() != "max":
        free = min(free, int(limit.read_text()) - int(used.read_text()))
    return free


def free_unused() -> None:
    """Free what nothing refers to any more: an Env refers to itself, and a graph keeps its pool."""
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


@contextmanager
def free_cycles() -> Generator[None]:
    """Free at the end what was made within, also what refers to itself, as an Env does."""
    # older objects are frozen, unless a process has done that itself: a search takes 0.2 s
    outermost = not gc.get_freeze_count()
    if outermost:
        gc.freeze()
    try:
        yield
    finally:
        gc.collect()
        if outermost:
            gc.unfreeze()


def trim_heap() -> None:
    """Give the system back what was freed, of which glibc's allocator keeps pieces otherwise."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim:
        trim(0)


@contextmanager
def out_of_memory_named(worlds: int) -> Generator[None]:
    """Turn the errors of an allocation that failed into OutOfMemory, which names num_envs."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        of_memory = isinstance(error, MemoryError | torch.OutOfMemoryError)
        if not of_memory and "alloc" not in str(error):
            raise
        what = f"out of memory with num_envs={worlds}"
        raise OutOfMemory(f"{what}: plan=true says how many worlds fit") from None
