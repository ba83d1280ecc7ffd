"""Several processes that train one policy, each with a part of the worlds. Experimental.

    torchrun --standalone --nproc-per-node=2 train.py task=quadruped

Sums over worlds pass `maths.total`; what is here is the rest. With one process all of it does nothing.
"""

import os
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def rank() -> int:
    """Of this process, from 0."""
    return int(os.environ.get("RANK", "0"))


def ranks() -> int:
    """How many there are."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def join(device: str) -> str:
    """Meet the other processes; the device that is ours."""
    if ranks() == 1:
        return device
    if device == "cuda":
        device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
        torch.cuda.set_device(device)
    if not dist.is_initialized():
        dist.init_process_group("nccl" if device.startswith("cuda") else "gloo")
    return device


def leave() -> None:
    """Part from the others."""
    if dist.is_initialized():
        dist.destroy_process_group()


def gather(x: Tensor) -> Tensor:
    """The rows of all ranks, in their order: (B, …) → (ranks B, …)."""
    if ranks() == 1:
        return x
    if not x.numel():
        return x.new_empty(ranks() * len(x), *x.shape[1:])
    # bytes: every type passes, and a mask too
    rows = x.contiguous().view(len(x), -1).view(torch.uint8)
    parts = [torch.empty_like(rows) for _ in range(ranks())]
    dist.all_gather(parts, rows)
    return torch.cat(parts).view(x.dtype).view(-1, *x.shape[1:])


def share(x: Tensor, count: int) -> Tensor:
    """Our `count` rows of what `gather` returned."""
    return x if ranks() == 1 else x[rank() * count : (rank() + 1) * count]


def agreed(value: Any) -> Any:
    """What rank 0 says, on every rank."""
    if ranks() == 1:
        return value
    box = [value]
    dist.broadcast_object_list(box)
    return box[0]


def largest(value: int) -> int:
    """The largest of all ranks' numbers."""
    if ranks() == 1:
        return value
    found: list[Any] = [None] * ranks()
    dist.all_gather_object(found, value)
    return max(found)
