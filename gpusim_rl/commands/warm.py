"""Compile what a training launches on a GPU before it begins, on a machine with or without one.

    gpusim warm task=quadruped [arch=90] [KEY=VALUE …]

The words are those of train.py. arch is the GPU's architecture: 80 (A100), 90 (H100, H200), 100
(B200); that of the GPU here unless given. The last line says where the kernels are:
WARP_CACHE_PATH is another place.
"""

import time

import warp as wp

from gpusim_rl.assembly.iteration import make_iteration
from gpusim_rl.config import command_line
from gpusim_rl.core import errors
from gpusim_rl.core.arguments import show_usage
from gpusim_rl.core.streams import start_warp
from gpusim_rl.sim import kernels


def main(words: list[str]) -> None:
    """Make a training on the CPU, and compile its kernels for CUDA."""
    show_usage(words, __doc__)
    start = time.monotonic()
    with errors.one_line_errors():
        start_warp()
        arch = architecture([x[5:] for x in words if x.startswith("arch=")])
        words = [x for x in words if not x.startswith("arch=")]
        cfg = command_line.check("config", [*words, "sim=warp", "device=cpu", "graph=off"])
        # No kernel of the physics runs: to compile them for the CPU, too, would take as long again.
        launches = kernels.launches_of(lambda: make_iteration(cfg).env.sim, own=True)
    kernels.compile_for(arch, launches)
    print(
        f"{len(launches)} modules of kernels for sm_{arch} in {time.monotonic() - start:.0f} s: "
        f"{wp.config.kernel_cache_dir}"
    )


def architecture(given: list[str]) -> int:
    """The architecture for which to compile; ValueError if there is none, or Warp knows it not."""
    known = [str(x) for x in wp.get_cuda_supported_archs()]
    given = given or [str(x.arch) for x in wp.get_cuda_devices()[:1]]
    if not given:
        raise ValueError("there is no CUDA GPU here: add arch=90 (H100, H200) or another")
    if given[-1] not in known:
        raise ValueError(f"arch={given[-1]}: choose one of {', '.join(known)}")
    return int(given[-1])
