"""Several processes train one policy, each with a part of the worlds. This is experimental.

    torchrun --standalone --nproc-per-node=2 train.py task=quadruped

The entry point makes one `ProcessGroup` and hands it on. Only `population/start.py`, which does
without torch, reads the environment too. If a process ends, the others raise PeerLost at their next
exchange. With NCCL, they do so only if that exchange is waited for; else NCCL ends them.
"""

# torch has no types for some of its members:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnusedImport=false

import atexit
import os
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from gpusim_rl.core.graphs import release_graphs


class PeerLost(RuntimeError):
    """The connection to the other processes failed, mostly because one of them has ended."""


@contextmanager
def peers_alive(rank: int) -> Generator[None]:
    """Turns the errors of a lost connection into PeerLost, in one line."""
    try:
        yield
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        # What gloo raises has no type of its own, but names its file.
        if not isinstance(error, dist.DistError) and "gloo/" not in reason:
            raise
        failed = f"process {rank}: the connection to the other processes failed"
        raise PeerLost(f"{failed}: {reason}") from None


class ProcessGroup:
    """The processes that train one policy. Of a single process, every method returns its argument.

    `local_rank` is the number of this process on its machine, which is also that of its GPU;
    `restarts` is how often torchrun has started all processes anew.
    """

    joins = 0  # groups that this process has joined, as every other one has

    def __init__(self, rank: int = 0, size: int = 1, local_rank: int = 0, restarts: int = 0):
        self.rank, self.size, self.local_rank, self.restarts = rank, size, local_rank, restarts

    @classmethod
    def from_environment(cls) -> "ProcessGroup":
        """The group that torchrun describes in the environment; a single process without it."""
        first = {"RANK": 0, "WORLD_SIZE": 1, "LOCAL_RANK": 0, "TORCHELASTIC_RESTART_COUNT": 0}
        return cls(*(int(os.environ.get(name, x)) for name, x in first.items()))

    # Why: docs/decisions/processes.md
    def join(self, device: str) -> str:
        """Connect to the other processes, once. Returns the device of this process."""
        if self.size == 1:
            return device
        if device == "cuda":
            device = f"cuda:{self.local_rank}"
            torch.cuda.set_device(device)
        if not dist.is_initialized():
            # The functions of torch.distributed.nn keep the default group of the moment of their
            # import as a default argument. torch._dynamo imports them: after the group exists,
            # destroy_process_group would then leave it alive, with its threads.
            from torch.distributed import nn  # noqa: F401

            backend = "nccl" if device.startswith("cuda") else "gloo"
            ProcessGroup.joins += 1
            # torchrun's store outlives restarts and groups, with addresses of what is gone.
            prefix = f"restart {self.restarts}, group {self.joins}"
            with peers_alive(self.rank):
                store, rank, size = next(iter(rendezvous("env://")))
                store = dist.PrefixStore(prefix, store)  # pyright: ignore
                dist.init_process_group(backend, store=store, rank=rank, world_size=size)
            if dist.get_backend() == "gloo":
                # A thread of gloo that frees a tensor while Python shuts down aborts the process.
                # It must have ended by then, also after an error or a signal.
                atexit.register(self.leave)
        return device

    def leave(self) -> None:
        """Disconnect from the other processes and end the threads that served the connection."""
        if self.size > 1 and dist.is_initialized():
            release_graphs()  # NCCL waits for those that hold its work, which may be for ever
            dist.destroy_process_group()

    def all_reduce(self, x: Tensor) -> Tensor:
        """Sum x over all processes, in place. Give it sums and counts, never means."""
        if self.size > 1:
            with peers_alive(self.rank):
                dist.all_reduce(x)
        return x

    def all_gather(self, x: Tensor) -> Tensor:
        """The rows of all processes, in the order of their ranks: (B, …) → (size B, …)."""
        if self.size == 1:
            return x
        if not x.numel():
            return x.new_empty(self.size * len(x), *x.shape[1:])
        # As bytes, every type can be sent, bool too.
        rows = x.contiguous().view(len(x), -1).view(torch.uint8)
        parts = [torch.empty_like(rows) for _ in range(self.size)]
        with peers_alive(self.rank):
            dist.all_gather(parts, rows)
        return torch.cat(parts).view(x.dtype).view(-1, *x.shape[1:])

    def rows(self, x: Tensor) -> Tensor:
        """The rows of this process in the result of `all_gather`: (size B, …) → (B, …)."""
        return x.chunk(self.size)[self.rank] if self.size > 1 and len(x) else x

    def broadcast(self, value: Any) -> Any:
        """The value of rank 0, on every rank."""
        if self.size == 1:
            return value
        box = [value]
        with peers_alive(self.rank):
            dist.broadcast_object_list(box)
        return box[0]

    def max(self, value: int) -> int:
        """The largest of the values of all ranks."""
        if self.size == 1:
            return value
        values: list[Any] = [None] * self.size
        with peers_alive(self.rank):
            dist.all_gather_object(values, value)
        return max(values)

    def barrier(self) -> None:
        """Wait until every rank is here."""
        self.broadcast(None)


SINGLE = ProcessGroup()
