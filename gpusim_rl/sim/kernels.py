"""Kernels of MuJoCo Warp: which ones a simulation launches on CUDA, compiled side by side.

Warp compiles a module whole, at its first launch. MuJoCo Warp's files have up to 38 kernels, of
which a model launches few, so each kernel becomes a module of its own here. It also makes kernels
while it runs. So its functions run once on the CPU, told that the device is CUDA, with launches
that are noted and not done.
"""

# Warp has no types for some of its members:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportPrivateUsage=false, reportPrivateImportUsage=false
# pyright: reportUnknownParameterType=false, reportAttributeAccessIssue=false

import functools
import math
import sys
import warnings
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any

import warp as wp

from gpusim_rl.core.errors import warn
from gpusim_rl.core.provenance import cores_available
from gpusim_rl.sim.base import Sim

PATIENCE = 3  # s, after which a line says what takes so long
BLOCK = 256  # threads of a launch that names no number

Launches = dict[tuple[wp.Module, int], None]  # modules and their sizes of a block


def kernels_of(package: str) -> list[wp.Kernel]:
    """The kernels that stand in the imported modules of a package."""
    modules = [(k, x) for k, x in [*sys.modules.items()] if k.partition(".")[0] == package]
    found = [(k, kernel) for k, x in modules for kernel in vars(x).values()]
    return [x for k, x in found if isinstance(x, wp.Kernel) and x.func.__module__ == k]


@functools.cache
def separate_modules(package: str) -> None:
    """Give each kernel of a package's files a Warp module of its own, once."""
    for kernel in kernels_of(package):
        module = wp.Module(f"{kernel.module.name}.{kernel.key}", None)
        module.options = kernel.module.options
        kernel.module = module
        module.register_kernel(kernel)


class StandIn:
    """What MuJoCo Warp asks of a CUDA device, where there is none."""

    is_cuda, is_cpu, sm_count = True, False, 132


class NotRun:
    """A recorded launch that does nothing."""

    def launch(self, stream: Any = None) -> None:
        pass


@contextmanager
def noted(device: Any, own: bool = False) -> Generator[Launches]:
    """Launches inside are noted and not done, as on a CUDA device. Arrays are on the CPU.

    own: those of this project's kernels are done, too.
    """
    launches: Launches = {}
    launch, get_device = wp.launch, wp.get_device

    def note(
        kernel: Any, dim: Any, inputs: Any = (), outputs: Any = (), *_: Any, **options: Any
    ) -> Any:
        # Warp neither compiles nor runs what has no threads
        if math.prod([dim] if isinstance(dim, int) else dim):
            if kernel.is_generic:
                kernel = wp.overload(kernel, kernel.infer_argument_types([*inputs, *outputs]))
            launches[kernel.module, options.get("block_dim") or BLOCK] = None
        if own and not kernel.func.__module__.startswith("mujoco_warp."):
            return launch(kernel, dim, inputs, outputs, **options)
        return NotRun() if options.get("record_cmd") else None

    def suggest(kernel: Any, *_: Any) -> tuple[int, int]:
        """Warp compiles the kernel, and asks the driver."""
        launches[kernel.module, kernel.module.options["block_dim"]] = None
        return BLOCK, StandIn.sm_count

    changed = {
        "launch": note,
        "launch_tiled": note,
        "get_device": lambda ident=None: device if ident is None else get_device(ident),
        "get_suggested_block_size": suggest,
    }
    before = {name: getattr(wp, name) for name in changed}
    try:
        vars(wp).update(changed)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=r"\s*CUDA version")  # of MuJoCo Warp
            yield launches
    finally:
        vars(wp).update(before)


def launches_of(make: Callable[[], Sim], device: Any = StandIn, own: bool = False) -> Launches:
    """What a simulation that `make` makes on the CPU launches on CUDA, and the project's kernels.

    own: see `noted`.
    """
    with noted(device, own) as launches:
        sim = make()
        sim.step(1)
        sim.reset(sim.overflow, sim.qpos, sim.qvel)
    named = (x.module for x in kernels_of("gpusim_rl") if not x.is_generic)
    return launches | dict.fromkeys((module, BLOCK) for module in named)


def load(launches: Launches, device: Any) -> None:
    """Compile and load what a device is to launch."""
    side_by_side(lambda module, block: module.load(device, block), launches)


def compile_for(arch: int, launches: Launches) -> None:
    """Compile into Warp's cache what a device of an architecture, such as 90, is to launch."""

    def build(module: Any, block: int) -> None:
        module.get_module_hash(block)
        module._compile(output_arch=arch, options=module.resolved_options[block])

    side_by_side(build, launches)


def side_by_side(build: Callable[[wp.Module, int], Any], launches: Launches) -> None:
    """Build modules on all cores, and raise what one raised; a line if it takes long."""
    with ThreadPoolExecutor(cores_available()) as pool:
        # first those of tiles, which have small blocks and take longest
        items = sorted(launches, key=lambda item: item[1])
        jobs = [pool.submit(build, *item) for item in items]
        if waiting := len(wait(jobs, PATIENCE).not_done):
            warn(
                f"compiling {waiting} of {len(jobs)} modules of kernels, "
                f"which are kept in {wp.config.kernel_cache_dir}"
            )
        for job in jobs:
            job.result()
