"""Memory on the simulated device: what is planned, and what a growth of capacities holds.

    bash tests/cuda/run memory.py plan [task] [num_envs …]
    bash tests/cuda/run memory.py growth

Ends with 1 if the plan is off by more than a tenth, or if a growth holds at some time more than 1.1
times what a training with the larger capacity holds. Bytes are those that torch's allocator has
reserved and those that Warp's allocator has given away.
"""

import gc
import sys
import tempfile
from pathlib import Path

import emulate
import simgpu
import torch
import warp as wp

emulate.start()

from gpusim_rl.algorithms.iteration import Iteration  # noqa: E402
from gpusim_rl.assembly.iteration import make_iteration  # noqa: E402
from gpusim_rl.commands import train as commands  # noqa: E402
from gpusim_rl.core.distributed import SINGLE  # noqa: E402
from gpusim_rl.core.graphs import WARM_UP  # noqa: E402
from gpusim_rl.runs.run import Run  # noqa: E402
from gpusim_rl.training import memory  # noqa: E402

OFF = 0.1
TRAIN = ("task=quadruped", "device=cuda", "log=none")
SMALL = (
    "num_envs=1024",
    "num_steps=4",
    "iterations=12",
    "episodes=4",
    "export=none",
    "report=false",
)
FEW, LATE = 64, WARM_UP + 4  # constraints of a world, and the iteration at which they grow


class WarpMemory:
    """Bytes that Warp's allocator has given away. On the simulation it is that of the CPU."""

    def __init__(self):
        self.held = self.peak = 0
        allocator = type(wp.get_device("cpu").get_allocator())
        allocate, deallocate = allocator.allocate, allocator.deallocate

        def counted(this, size):
            self.held += size
            self.peak = max(self.peak, self.held)
            return allocate(this, size)

        def given_back(this, ptr, size):
            self.held -= size
            return deallocate(this, ptr, size)

        allocator.allocate, allocator.deallocate = counted, given_back


WARP = WarpMemory()


def clear() -> None:
    """Forget what was held."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    WARP.peak = WARP.held


def plan(task: str = "quadruped", *worlds: str) -> bool:
    """Whether the plan says what a training with so many worlds holds."""
    cfg, _ = memory.choose_device_overrides(commands.configure(f"task={task}", *TRAIN[1:]))
    planned, good = memory.measure(cfg, SINGLE), True
    for num in map(int, worlds or ("4096",)):
        clear()
        before = torch.cuda.memory_reserved() + WARP.held
        ppo = make_iteration(cfg, num)
        for _ in range(WARM_UP + 2):
            ppo.iteration()
        gc.collect()
        held = torch.cuda.memory_reserved() + WARP.held - before
        del ppo
        ratio = sum(planned.bytes(num).values()) / held
        print(f"{num} worlds hold {held / 2**20:.1f} MiB; planned {ratio:.3f} of it", flush=True)
        good &= abs(ratio - 1) <= OFF
    return good


def peak(run: Path, *words: str) -> int:
    """The most bytes that a training holds."""
    clear()
    before = torch.cuda.memory_reserved() + WARP.held
    commands.train(*TRAIN, *SMALL, *words, f"run_dir={run}")
    return torch.cuda.max_memory_reserved() + WARP.peak - before


def growth() -> bool:
    """Whether a growth never holds much more than the larger one.

    Physics need not run: once all is captured, a step is said to have gone over the capacity.
    """
    report = Iteration.report

    def over(ppo):
        read = report(ppo)
        if ppo.iterations != LATE or ppo.env.sim.d.njmax != FEW:
            return read
        ppo.env.sim._exceeded[1] = True
        return lambda: read() | {"overflow": 1}

    Iteration.report = over
    with tempfile.TemporaryDirectory() as name:
        runs = Path(name)
        peak(runs / "first", "num_envs=16")  # libraries take memory for good
        grown = peak(runs / "grown", f"sim.njmax={FEW}")
        njmax = Run(runs / "grown").config["sim"]["njmax"]
        large = peak(runs / "large", f"sim.njmax={njmax}")
    print(f"njmax {FEW} to {njmax}: {grown / 2**20:.1f} MiB, {grown / large:.3f} of {njmax} alone")
    return njmax == 2 * FEW and grown <= (1 + OFF) * large


if __name__ == "__main__":
    name, *words = sys.argv[1:]
    simgpu.finish(0 if {"plan": plan, "growth": growth}[name](*words) else 1)
