"""Compiles every kernel that training launches on CUDA for sm_90, without a GPU or a driver.

    WARP_CACHE_PATH=.warp_sm90 python tests/cuda/compile_sm90.py [task …] [mode=deterministic]

MuJoCo Warp makes kernels while it runs. So its functions run here, told that the device is CUDA,
with launches that are noted and not done. Each noted (module, block size) is then compiled as on
an H100, into the files that Warp looks for there. `ARCH`, `JOBS` and `SECONDS_AT_MOST` are
variables.
"""

import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

os.environ.setdefault("WARP_CACHE_PATH", os.path.abspath(".warp_sm90"))
sys.path.insert(0, str(Path(__file__).parents[2]))

import mujoco_warp as mjw
import warp as wp

from gpusim_rl.algorithms import flat_adam, returns
from gpusim_rl.algorithms.ppo import loss_kernels
from gpusim_rl.core import rng
from gpusim_rl.networks import symmetric_kernels

context = wp._src.context
ARCH = int(os.environ.get("ARCH", 90))
NOTED: dict[tuple, set[str]] = {}  # (module, block size) → keys of its kernels
real_get_device = wp.get_device


class Cuda:
    """What MuJoCo Warp asks of a device."""

    is_cuda, is_cpu, sm_count, arch, alias, context = True, False, 132, ARCH, "cuda:0", 1


class NotRun:
    """A recorded launch that does nothing."""

    def launch(self, stream=None):
        pass


def note(kernel, dim=None, inputs=(), outputs=(), *args, block_dim=None, **options):
    """wp.launch: the kernel is noted."""
    if kernel.is_generic:
        types = kernel.infer_argument_types([*inputs, *outputs])
        kernel = kernel._add_normalized_overload(types)
    block = block_dim or kernel.module.options["block_dim"]
    NOTED.setdefault((kernel.module, block), set()).add(kernel.key)
    return NotRun() if options.get("record_cmd") else None


def note_tiled(kernel, *args, **options):
    """wp.launch_tiled: the kernel is noted."""
    return note(kernel, *args, **options)


def get_device(ident=None):
    """wp.get_device: the default device is CUDA."""
    return Cuda if ident is None else real_get_device(ident)


def run(task_name: str, *, deterministic: bool = False, conditional: bool = False) -> None:
    """Notes the kernels of a task's model, for few worlds and for many."""
    from gpusim_rl.sim.base import DERIVED, OPTIONS
    from gpusim_rl.sim.warp_model import accepted
    from tests.worlds import make_task

    task = make_task(task_name)
    mjm = accepted(task.mjm)
    fields = [field for field in task.fields if field not in OPTIONS]
    with wp.ScopedDevice("cpu"):
        for num in (16, 4096):
            sizes = dict.fromkeys([*fields, *DERIVED] if task.fields else [], num)
            m = mjw.put_model(mjm, batch_sizes=sizes)
            d = mjw.make_data(mjm, num, naconmax=8 * num, njmax=64)
            m.opt.graph_conditional, m.opt.warn_overflow = conditional, 0
            if deterministic:
                m.opt.deterministic = mjw.DeterminismType.ALL
            for function in (mjw.kinematics, mjw.collision, mjw.set_const, mjw.step):
                function(m, d)
            mjw.fwd_kinematics(m, d)
            mjw.com_vel(m, d)
            mjw.fwd_position(m, d, factorize=False)
            mjw.fwd_velocity(m, d)
            mjw.sensor_pos(m, d)
            mjw.sensor_vel(m, d)


def note_own_kernels() -> None:
    """Notes the kernels of the project."""
    wp.overload(returns.backward, {name: wp.array2d(dtype=float) for name in ("delta", "k", "out")})
    for module in (flat_adam, loss_kernels, returns, rng, symmetric_kernels):
        module = context.get_module(module.__name__)
        NOTED[(module, module.options["block_dim"])] = {*module.kernels}


def build(item: tuple, stop: float) -> tuple[float, str, int, list[str], str]:
    """Compiles a module as Module.load would: (seconds, name, block size, kernels, error)."""
    (module, block), kernels = item
    start, error = time.time(), ""
    if start < stop:
        try:
            module.get_module_hash(block)
            options = module.resolved_options[block]
            module._compile(None, None, output_arch=ARCH, options=options)
        except BaseException as problem:
            error = f"{type(problem).__name__}: {str(problem)[:300]}"
    return time.time() - start, module.name, block, sorted(kernels)[:3], error


def main(words: list[str]) -> int:
    """Notes, compiles, and prints what took longest. Returns how many failed."""
    start = time.time()
    wp.launch = context.launch = note
    wp.launch_tiled = note_tiled
    wp.get_device = get_device
    note_own_kernels()
    for task in [word for word in words if "=" not in word] or ["quadruped"]:
        run(task, deterministic="mode=deterministic" in words)
    kernels = sum(map(len, NOTED.values()))
    noted = f"{len(NOTED)} modules with {kernels} kernels, noted in {time.time() - start:.1f} s"
    print(f"{noted}; arch sm_{ARCH}", flush=True)
    stop = start + float(os.environ.get("SECONDS_AT_MOST", 1e9))
    with ThreadPoolExecutor(int(os.environ.get("JOBS", 2))) as pool:
        rows = list(pool.map(lambda item: build(item, stop), NOTED.items()))
    failed = [row for row in rows if row[-1]]
    for _, name, block, _, error in failed:
        print("FAILED", name, block, error)
    cache = Path(os.environ["WARP_CACHE_PATH"])
    size = sum(file.stat().st_size for file in cache.rglob("*") if file.is_file())
    print(
        f"compiled in {time.time() - start:.0f} s, {sum(row[0] for row in rows):.0f} s of "
        f"compiler; {len(failed)} failed; cache {size >> 20} MiB"
    )
    for seconds, name, block, some, _ in sorted(rows, reverse=True)[:12]:
        print(f"  {seconds:6.1f} s {name} block {block} {some}")
    return len(failed)


if __name__ == "__main__":
    raise SystemExit(min(main(sys.argv[1:]), 1))
