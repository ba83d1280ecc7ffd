"""Every Warp kernel compiles for GPUs of three generations, without one and without a driver."""

import os
import sys

import pytest
import warp as wp

from gpusim_rl.algorithms import flat_adam, returns
from gpusim_rl.algorithms.ppo import loss_kernels
from gpusim_rl.core import rng
from gpusim_rl.networks import symmetric_kernels
from tests.command_lines import run_process

ARCHS = [80, 90, 100]  # of the A100, of H100 and H200, of the B200
SCAN = {name: wp.array2d(dtype=float) for name in ("delta", "k", "out")}  # of float32


OWN = [flat_adam, loss_kernels, returns, rng, symmetric_kernels]


@pytest.mark.parametrize("module", OWN, ids=lambda module: module.__name__)
def test_own_kernels_compile(module, tmp_path):
    """Those of the optimizer, the loss, returns, random numbers and symmetric networks."""
    if module is returns:
        wp.overload(returns.backward, SCAN)
    wp.compile_aot_module(module.__name__, arch=ARCHS, module_dir=tmp_path, use_ptx=False)
    assert len([*tmp_path.glob("*.cubin")]) == len(ARCHS)


def test_mirrored_terms_are_rounded_alike(tmp_path):
    """No kernel of symmetric networks fuses a product of two columns with their sum."""
    name = symmetric_kernels.__name__
    wp.compile_aot_module(name, arch=ARCHS[0], module_dir=tmp_path, use_ptx=True)
    kernels = next(tmp_path.glob("*.ptx")).read_text().split(".entry ")[1:]
    combine = next(code for code in kernels if code.startswith("combine"))
    assert "mul.rn.f32" in combine and "fma.rn.f32" not in combine


@pytest.mark.simulated
@pytest.mark.parametrize("arch", ARCHS)
def test_all_kernels_compile(arch, tmp_path):
    """Those of MuJoCo Warp too, for the quadruped."""
    line = [sys.executable, "tests/cuda/compile_sm90.py", "quadruped"]
    env = os.environ | {"ARCH": str(arch), "WARP_CACHE_PATH": str(tmp_path)}
    done = run_process(*line, env=env, timeout=1200)
    assert done.returncode == 0 and "; 0 failed;" in done.stdout, done.stdout + done.stderr
    assert int(done.stdout.split(" modules with ")[0].split()[-1]) > 20
