"""How much memory a training takes, and how many worlds fit: measured on two small ones, and extrapolated."""

import gc
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import warp as wp
from rich.console import Console
from rich.table import Table
from torch import Tensor

from gpusim_rl.graph import WARM
from gpusim_rl.ppo import PPO

SPARE = 0.1  # of the free memory is left alone
PARTS = ("physics", "environment", "rollout", "networks", "optimiser", "update")


class Plan(NamedTuple):
    """Bytes of each part: constant[part] + slope[part] · worlds."""

    constant: dict[str, float]
    slope: dict[str, float]
    free: int  # bytes of the device (of the machine, on the CPU) before anything is built

    def bytes(self, worlds: int) -> dict[str, float]:
        """Of each part."""
        return {part: self.constant[part] + self.slope[part] * worlds for part in PARTS}

    @property
    def largest(self) -> int:
        """Worlds that fit."""
        room = (1 - SPARE) * self.free - sum(self.constant.values())
        return max(0, int(room / sum(self.slope.values())))


def measure(build: Callable[[int], PPO]) -> Plan:
    """The plan, from what build(worlds) holds after an iteration at two sizes: it is linear in worlds, but for constants."""
    few, many = 32, 64
    device = build(few).env.device  # also loads modules, libraries and kernels, which are not part of what is measured
    weigh(build, few, device)
    free = free_bytes(device)
    a, b = (weigh(build, worlds, device) for worlds in (few, many))
    slope = {part: max(0.0, (b[part] - a[part]) / (many - few)) for part in PARTS}
    return Plan({part: max(0.0, a[part] - few * slope[part]) for part in PARTS}, slope, free)


def weigh(build: Callable[[int], PPO], worlds: int, device: torch.device) -> dict[str, int]:
    """Bytes of each part once every function has run, and on CUDA has been captured."""
    cuda, before = device.type == "cuda", free_bytes(device)
    ppo = build(worlds)
    for _ in range(WARM + 2 if cuda else 1):
        ppo.iteration()
    seen: set[int] = set()
    found = {
        "physics": held(ppo.env.sim, seen),
        "environment": held(ppo.env, seen),
        "rollout": held(ppo.rollout, seen, skip=(ppo.policy,)),
        "networks": held(ppo.policy.state_dict(), seen),
        "optimiser": held(list(ppo.vectors.optimiser.state.values()), seen) + held(ppo.vectors.grads, seen),
        "update": held(ppo, seen),
    }
    if cuda:  # allocators and graphs keep what passes through them: whatever the driver counts beside
        torch.cuda.synchronize(device)
        found["update"] += max(0, before - free_bytes(device) - sum(found.values()))
    else:  # a minibatch's activations, and while the record is packed two more copies of it
        kept: dict[int, int] = {}

        def pack(x: Tensor) -> Tensor:
            kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
            return x

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            ppo.prepare()
            ppo.minibatch()
        found["update"] += sum(n for place, n in kept.items() if place not in seen) + 2 * held(ppo.packed, set())
    return found


def show(plan: Plan, worlds: int) -> None:
    """Print what each part takes with so many worlds, and how many fit; ValueError if these do not."""
    console, found = Console() if sys.stdout.isatty() else Console(width=100), plan.bytes(worlds)
    table = Table("MiB", f"{worlds:,} worlds", "each world", box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for part, size in found.items():
        table.add_row(part, f"{size / 2**20:,.1f}", f"{plan.slope[part] / 2**20:.4f}")
    total = sum(found.values())
    table.add_row("total", f"{total / 2**20:,.1f}", f"{sum(plan.slope.values()) / 2**20:.4f}")
    console.print(table)
    room = f"{plan.free / 2**30:.1f} GiB that are free, {SPARE:.0%} of them left alone"
    if total > (1 - SPARE) * plan.free:
        raise ValueError(f"num_envs={worlds} takes {total / 2**30:.1f} GiB: at most {plan.largest} fit in the {room}")
    console.print(f"largest num_envs that fits in the {room}: {plan.largest:,}", highlight=False, soft_wrap=True)


def held(thing: Any, seen: set[int], *, skip: tuple[Any, ...] = ()) -> int:
    """Bytes of all tensors and arrays that can be reached from a thing, each once over all calls with the same `seen`."""
    stack, visited, size = [thing], {id(x) for x in skip}, 0
    while stack:
        x = stack.pop()
        if id(x) in visited:
            continue
        visited.add(id(x))
        if isinstance(x, Tensor):
            place, n = x.untyped_storage().data_ptr(), x.untyped_storage().nbytes()
        elif isinstance(x, wp.array):
            place, n = x.ptr or 0, x.capacity
        elif isinstance(x, np.ndarray):
            place, n = x.ctypes.data, x.nbytes
        else:
            place, n = 0, 0
            inside = x if isinstance(x, dict) else getattr(x, "__dict__", {})
            stack += [*(inside.values() if isinstance(inside, dict) else ()), *(x if isinstance(x, list | tuple) else ())]
        if n and place not in seen:
            seen.add(place)
            size += n
    return size


def room(what: str, size: float, device: torch.device) -> None:
    """ValueError, naming what takes it, unless so many bytes are free on the device; less than 1 GiB is taken for granted."""
    if size < 2**30:
        return
    free = free_bytes(device)
    if size > free:
        raise ValueError(f"{what} takes more than {size / 2**30:,.0f} GiB, and {free / 2**30:.1f} GiB are free")


def free_bytes(device: torch.device) -> int:
    """What is left on a CUDA device, or on the machine within its control group's limit."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info(device)[0]
    if not Path("/proc/meminfo").exists():
        return sys.maxsize
    info = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    free, group = int(info["MemAvailable"].split()[0]) * 1024, Path("/sys/fs/cgroup")
    limit, used = ((group / name) for name in ("memory.max", "memory.current"))
    if limit.exists() and limit.read_text().strip() != "max":
        free = min(free, int(limit.read_text()) - int(used.read_text()))
    return free
