"""Every Warp kernel compiles for GPUs of three generations, without one and without a driver."""

import os
import struct
import sys

import pytest
import warp as wp

from gpusim_rl.algorithms import flat_adam, returns
from gpusim_rl.algorithms.ppo import loss_kernels
from gpusim_rl.assembly.iteration import make_iteration
from gpusim_rl.core import rng
from gpusim_rl.fuse.kernel import Kernel
from gpusim_rl.networks import normalizer_kernels, symmetric_kernels
from tests.command_lines import run_process
from tests.fuse import test_fuse
from tests.worlds import make_config

NV_INFO = 0x70000000  # type of the section with what a function needs
ARCHS = [80, 90, 100]  # of the A100, of H100 and H200, of the B200
OWN = [flat_adam, loss_kernels, normalizer_kernels, returns, rng, symmetric_kernels]


@pytest.mark.parametrize(
    "arch", [pytest.param(arch, marks=[pytest.mark.slow] * (arch != 90)) for arch in ARCHS]
)
@pytest.mark.parametrize("module", OWN, ids=lambda module: module.__name__)
def test_own_kernels_compile(module, arch, tmp_path):
    """Those of optimizer, loss, normalizers, returns, random numbers and symmetric networks."""
    if module is returns:  # of float32
        wp.overload(returns.backward, dict.fromkeys(("delta", "k", "out"), wp.array2d(dtype=float)))
    wp.compile_aot_module(module.__name__, arch=arch, module_dir=tmp_path, use_ptx=False)
    assert [*tmp_path.glob("*.cubin")]


def test_mirrored_terms_are_rounded_alike(tmp_path):
    """No kernel of symmetric networks fuses a product of two columns with their sum."""
    name = symmetric_kernels.__name__
    wp.compile_aot_module(name, arch=ARCHS[0], module_dir=tmp_path, use_ptx=True)
    kernels = next(tmp_path.glob("*.ptx")).read_text().split(".entry ")[1:]
    combine = next(code for code in kernels if code.startswith("combine"))
    assert "mul.rn.f32" in combine and "fma.rn.f32" not in combine


def stack_bytes(cubin: bytes) -> list[int]:
    """The stack that each function of a binary needs in a thread [byte]: its smallest size.

    Of ELF, the sections' headers; of `.nv.info`, attributes 0x12 with a symbol and a size.
    """
    table, size, count = (
        *struct.unpack_from("<Q", cubin, 40),
        *struct.unpack_from("<HH", cubin, 58),
    )
    sizes = []
    for k in range(count):
        kind, offset, length = struct.unpack_from("<4xI16xQQ", cubin, table + k * size)
        if kind == NV_INFO:
            at, end = offset, offset + length
            while at + 4 <= end:
                form, name, extra = struct.unpack_from("<BBH", cubin, at)
                if form == 4 and name == 0x12 and extra == 8:
                    sizes.append(struct.unpack_from("<I", cubin, at + 8)[0])
                at += 4 + (extra if form == 4 else 0)
    return sizes


@pytest.mark.parametrize("function", [test_fuse.elements, test_fuse.shapes])
def test_every_operator_compiles(function, tmp_path):
    """A name that a CPU's compiler understands may mean two functions to CUDA's."""
    rows = test_fuse.rows()
    kernel = Kernel("operators", function, rows, test_fuse.places(function, rows))
    wp.compile_aot_module(kernel.kernel.module.name, arch=90, module_dir=tmp_path, use_ptx=False)
    assert [*tmp_path.glob("*.cubin")]


@pytest.mark.slow
@pytest.mark.parametrize("task", ["cartpole", "quadruped"])
def test_the_kernels_of_a_step_compile(task, tmp_path):
    """They take at most 2 KiB of stack in a thread, on each of these GPUs."""
    words = ("sim=native", "device=cpu", "num_envs=4", "num_steps=4", "fuse=on")
    fused = make_iteration(make_config(f"task={task}", *words)).source.fused
    for name, kernel in fused.kernels.items():
        module = kernel.kernel.module.name
        wp.compile_aot_module(module, arch=ARCHS, module_dir=tmp_path / name, use_ptx=False)
        binaries = [file.read_bytes() for file in (tmp_path / name).glob("*.cubin")]
        assert len(binaries) == len(ARCHS)
        stacks = [size for binary in binaries for size in stack_bytes(binary)]
        assert stacks and max(stacks) <= 2048, (name, stacks)


@pytest.mark.simulated
@pytest.mark.parametrize("arch", ARCHS)
def test_the_kernels_of_the_physics_compile(arch, tmp_path):
    """Those of the quadruped's training: gpusim warm leaves each where Warp looks for it."""
    line = [sys.executable, "-m", "gpusim_rl", "warm", "task=quadruped", f"arch={arch}"]
    done = run_process(*line, env=os.environ | {"WARP_CACHE_PATH": str(tmp_path)}, timeout=1200)
    assert done.returncode == 0, done.stdout + done.stderr
    binaries = [*tmp_path.rglob(f"*.sm{arch}*.cubin")]
    assert len(binaries) == int(done.stdout.split(" modules of ")[0]) > 80
    # no kernel of the physics is made for the CPU
    assert not [*tmp_path.rglob("wp_mujoco_warp*.o")]
