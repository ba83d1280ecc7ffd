"""Compiles the kernels of MuJoCo Warp that training launches on CUDA, without a GPU or a driver.

    WARP_CACHE_PATH=.warp_sm90 python tests/cuda/compile_sm90.py [task …]

MuJoCo Warp makes kernels while it runs. So its functions run here, told that the device is CUDA,
with launches that are noted and not done. Each noted (module, block size) is then compiled as on
an H100, into the files that Warp looks for there. `ARCH` is another GPU's architecture.
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

from gpusim_rl.sim.base import DERIVED, OPTIONS
from gpusim_rl.sim.warp_model import accepted
from tests.worlds import make_task

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


def run(task_name: str) -> None:
    """Notes the kernels of a task's model, for few worlds and for many."""
    task = make_task(task_name)
    mjm = accepted(task.mjm)
    fields = [field for field in task.fields if field not in OPTIONS]
    with wp.ScopedDevice("cpu"):
        for num in (16, 4096):
            sizes = dict.fromkeys([*fields, *DERIVED] if task.fields else [], num)
            m = mjw.put_model(mjm, batch_sizes=sizes)
            d = mjw.make_data(mjm, num, naconmax=8 * num, njmax=64)
            m.opt.graph_conditional, m.opt.warn_overflow = False, 0
            for function in (mjw.kinematics, mjw.collision, mjw.set_const, mjw.step):
                function(m, d)
            mjw.fwd_kinematics(m, d)
            mjw.com_vel(m, d)
            mjw.fwd_position(m, d, factorize=False)
            mjw.fwd_velocity(m, d)
            mjw.sensor_pos(m, d)
            mjw.sensor_vel(m, d)


def build(item: tuple) -> str:
    """Compiles a module as Module.load would; what went wrong."""
    module, block = item
    try:
        module.get_module_hash(block)
        module._compile(None, None, output_arch=ARCH, options=module.resolved_options[block])
    except BaseException as problem:
        return f"FAILED {module.name} {block} {type(problem).__name__}: {str(problem)[:300]}"
    return ""


def main(tasks: list[str]) -> int:
    """Notes and compiles. Returns how many modules failed, which are printed."""
    start = time.time()
    wp.launch = wp.launch_tiled = context.launch = note
    wp.get_device = lambda ident=None: Cuda if ident is None else real_get_device(ident)
    for task in tasks or ["quadruped"]:
        run(task)
    kernels = sum(map(len, NOTED.values()))
    print(f"{len(NOTED)} modules with {kernels} kernels for sm_{ARCH}", flush=True)
    with ThreadPoolExecutor(2) as pool:
        failed = [*filter(None, pool.map(build, NOTED))]
    print(*failed, f"compiled in {time.time() - start:.0f} s; {len(failed)} failed", sep="\n")
    return len(failed)


if __name__ == "__main__":
    raise SystemExit(min(main(sys.argv[1:]), 1))
