"""How much memory a training takes, and how many worlds fit: printed or chosen.

Two small trainings are measured and extrapolated.
"""

import math
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
import warp as wp
from rich.console import Console
from rich.table import Table
from torch import Tensor

from gpusim_rl.algorithms.iteration import Iteration
from gpusim_rl.assembly.iteration import make_iteration
from gpusim_rl.assembly.learners import world_multiple
from gpusim_rl.config.device_overrides import choose_device_overrides
from gpusim_rl.config.nested_dict import flatten
from gpusim_rl.config.recipe import describe_recipe
from gpusim_rl.config.sections import Config
from gpusim_rl.core import errors
from gpusim_rl.core.distributed import ProcessGroup
from gpusim_rl.core.graphs import WARM_UP
from gpusim_rl.core.memory import OutOfMemory, free_bytes, free_unused, out_of_memory_named

# Worlds that are measured, at least. A GPU's allocator takes megabytes at a time: what fewer worlds
# need would lie below that.
FEW = {"cpu": 32, "cuda": 1024}
MORE = 4  # times as many are measured as well
SPARE = 0.1  # share of the free memory that is not used
Maker = Callable[..., Iteration]  # (configuration, num_envs=…)
PARTS = ("physics", "environment", "rollout", "networks", "optimizer", "update")


class Plan(NamedTuple):
    """Bytes of each part: constant[part] + slope[part] · worlds."""

    constant: dict[str, float]
    slope: dict[str, float]
    free: int  # bytes of the device (of the machine, on the CPU) before anything is built

    def bytes(self, worlds: int) -> dict[str, float]:
        """Bytes of each part, with so many worlds."""
        return {part: self.constant[part] + self.slope[part] * worlds for part in PARTS}

    @property
    def largest(self) -> int:
        """Worlds that fit."""
        room = (1 - SPARE) * self.free - sum(self.constant.values())
        return max(0, int(room / sum(self.slope.values())))


def show_plan(cfg: Config) -> None:
    """Print the memory that a configuration of `configure` needs, and how many worlds fit.

    ValueError if its own do not.
    """
    cfg, _ = choose_device_overrides(cfg)
    show(measure(cfg, ProcessGroup.from_environment()), cfg.num_envs)


def measure(cfg: Config, group: ProcessGroup) -> Plan:
    """The memory that a configuration needs, measured with two small numbers of worlds."""
    return measure_plan(partial(make_iteration, cfg, group=group), group.size * world_multiple(cfg))


def make_on_device(
    cfg: Config, group: ProcessGroup, make: Maker | None = None
) -> tuple[Iteration, Config, str]:
    """An iteration, its configuration as config.yaml keeps it, and a line of overrides.

    The line says what the recipe gave, and what the section `gpu` did. A number of worlds of that
    section that does not fit in memory becomes the most that do. Of several processes none takes
    fewer: they would have to agree first.

    ValueError if it cannot be built, OutOfMemory if the number of worlds is a user's or none fits.
    """
    recipe, make = cfg.recipe, make or make_iteration
    cfg, chosen = choose_device_overrides(cfg)
    try:
        iteration, failure = make(cfg, group=group), ""
    except OutOfMemory as error:
        if "num_envs" not in chosen or group.size > 1:
            raise
        iteration, failure = None, str(error)
    if not iteration:
        step = group.size * world_multiple(cfg)
        worlds = measure(cfg, group).largest // step * step
        if not 0 < worlds < cfg.num_envs:
            raise OutOfMemory(failure)
        free_unused()  # what was measured
        errors.warn(f"warning: {failure}; so num_envs={worlds}, the most that fit")
        cfg = cfg.replace({"num_envs": worlds})
        iteration = make(cfg, group=group)
    values = flatten(cfg.plain)
    line = " ".join(f"{key}={values[key]}" for key in chosen)
    lines = [describe_recipe(recipe, cfg.plain), line and f"on a GPU: {line}"]
    return iteration, cfg, "; ".join(filter(None, lines))


def measure_plan(build: Callable[[int], Iteration], world_multiple: int = 1) -> Plan:
    """Measure what build(worlds) holds after an iteration at two sizes. It is linear in worlds,
    whose number must be a multiple of another. OutOfMemory if not even the smallest sizes fit."""
    # The first one also loads modules, libraries and kernels, which are not to be measured.
    env = build(world_multiple * math.ceil(FEW["cpu"] / world_multiple)).env
    device, alone = env.device, env.group.size == 1
    del env
    few = world_multiple * math.ceil(FEW[device.type] / world_multiple)
    while True:
        try:
            measure_parts(build, few, device)
            free, many = free_bytes(device), MORE * few
            a, b = (measure_parts(build, worlds, device) for worlds in (few, many))
            break
        except OutOfMemory:
            if few == world_multiple or not alone:  # other processes would measure something else
                raise
            few = world_multiple * math.ceil(few / MORE / world_multiple)
    slope = {part: max(0.0, (b[part] - a[part]) / (many - few)) for part in PARTS}
    return Plan({part: max(0.0, a[part] - few * slope[part]) for part in PARTS}, slope, free)


def measure_parts(
    build: Callable[[int], Iteration], worlds: int, device: torch.device
) -> dict[str, int]:
    """Bytes of each part once every function has run, and on CUDA has been captured."""
    cuda, before = device.type == "cuda", free_bytes(device)
    with out_of_memory_named(worlds):
        iteration = build(worlds)
        # two more than the warm-up: graphs are recorded, then replayed
        for _ in range(WARM_UP + 2 if cuda else 1):
            iteration.iteration()
    seen: set[int] = set()
    learned = iteration.learner.tensors()
    policy = [x for name, x in learned.items() if name.startswith("policy/")]
    size = {
        "physics": held_bytes(iteration.env.sim, seen),
        "environment": held_bytes(iteration.env, seen),
        "rollout": held_bytes([iteration.source, iteration.ring], seen, skip=(iteration.policy,)),
        "networks": held_bytes([x.tensor for x in policy], seen),
        "optimizer": held_bytes([x.tensor for x in iteration.tensors().values()], seen),
        "update": held_bytes(iteration, seen),
    }
    if cuda:  # Allocators and graphs keep more: whatever the driver counts beside.
        torch.cuda.synchronize(device)
        size["update"] += max(0, before - free_bytes(device) - sum(size.values()))
    else:
        size["update"] += update_bytes(iteration, seen)
    return size


def update_bytes(iteration: Iteration, seen: set[int]) -> int:
    """Bytes that an update needs for a while: activations, and two copies of the samples."""
    saved: dict[int, int] = {}
    largest, used = 0, False

    def pack(x: Tensor) -> Tensor:
        nonlocal used
        if used:  # by the gradient before
            saved.clear()
            used = False
        saved[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    def unpack(x: Tensor) -> Tensor:
        nonlocal largest, used
        size = sum(n for place, n in saved.items() if place not in seen)
        largest, used = max(largest, size), True
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        iteration.update()
    return largest + 2 * held_bytes(iteration.source.record.parts, set())


def show(plan: Plan, worlds: int) -> None:
    """Print what each part takes with so many worlds, and how many fit. ValueError if not these."""
    console, sizes = Console() if sys.stdout.isatty() else Console(width=100), plan.bytes(worlds)
    table = Table("MiB", f"{worlds:,} worlds", "each world", box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for part, size in sizes.items():
        table.add_row(part, f"{size / 2**20:,.1f}", f"{plan.slope[part] / 2**20:.4f}")
    total = sum(sizes.values())
    table.add_row("total", f"{total / 2**20:,.1f}", f"{sum(plan.slope.values()) / 2**20:.4f}")
    console.print(table)
    room = f"{plan.free / 2**30:.1f} GiB that are free, {SPARE:.0%} of them left alone"
    if total > (1 - SPARE) * plan.free:
        raise ValueError(
            f"num_envs={worlds} takes {total / 2**30:.1f} GiB:"
            f" at most {plan.largest} fit in the {room}"
        )
    console.print(
        f"largest num_envs that fits in the {room}: {plan.largest:,}",
        highlight=False,
        soft_wrap=True,
    )


def held_bytes(thing: Any, seen: set[int], *, skip: tuple[Any, ...] = ()) -> int:
    """Bytes of all tensors and arrays that can be reached from a thing.

    Over all calls with the same `seen`, each counts once.
    """
    stack, visited, size = [thing], {id(x) for x in skip}, 0
    while stack:
        x = stack.pop()
        if id(x) in visited:
            continue
        visited.add(id(x))
        x = getattr(x, "_tensor", x) if isinstance(x, wp.array) else x  # a view of torch's memory
        if isinstance(x, Tensor):
            place, n = x.untyped_storage().data_ptr(), x.untyped_storage().nbytes()
        elif isinstance(x, wp.array):
            place, n = x.ptr or 0, x.capacity
        elif isinstance(x, np.ndarray):
            place, n = x.ctypes.data, x.nbytes
        else:
            place, n = 0, 0
            inside = x if isinstance(x, dict) else getattr(x, "__dict__", {})
            stack += inside.values() if isinstance(inside, dict) else ()
            stack += x if isinstance(x, list | tuple) else ()
        if n and place not in seen:
            seen.add(place)
            size += n
    return size
