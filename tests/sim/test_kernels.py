"""Which kernels a simulation launches on CUDA, without one."""

import pytest
import warp as wp

from gpusim_rl.assembly.environment import make_sim, make_task
from gpusim_rl.core.streams import start_warp
from gpusim_rl.sim import kernels
from tests.command_lines import refused
from tests.worlds import make_config


@wp.kernel
def count(out: wp.array[int]):
    """Adds one."""
    out[wp.tid()] += 1


def test_what_has_no_threads_is_not_noted():
    """Nor is a launch done, until the end of the note: then Warp's functions are its own again."""
    start_warp()
    out = wp.zeros(1, dtype=int, device="cpu")
    for own in (False, True):
        with kernels.noted(kernels.StandIn, own) as launches:
            assert wp.get_device().is_cuda
            wp.launch(count, 0, [out], device="cpu")
            assert not launches
            wp.launch(count, 1, [out], device="cpu", block_dim=32)
        assert [*launches] == [(count.module, 32)] and out.numpy() == [own]
    wp.launch(count, 1, [out], device="cpu")
    assert wp.get_device().is_cpu and out.numpy() == [2]


def test_each_kernel_of_the_physics_is_compiled_alone():
    """So nothing is compiled that is not launched; of the quadruped these are 72 modules."""
    cfg = make_config("task=quadruped", "sim=warp", "device=cpu", "graph=off")
    task = make_task(cfg, "cpu")
    launches = kernels.launches_of(lambda: make_sim(cfg, task, "warp", 2, "cpu"))
    physics = [x for x, _ in launches if not x.name.startswith("gpusim_rl.")]
    assert len(physics) > 60 and all(len(x.kernels) == 1 for x in physics)
    assert not any(
        kind in x.name for kind in ("flex", "tendon_bias", "weld", "set_const") for x in physics
    )
    # on CUDA alone a block has several threads
    assert {block for _, block in launches} >= {32, 64, 256}
    own = {x.name for x, _ in launches} - {x.name for x in physics}
    assert {"gpusim_rl.sim.warp", "gpusim_rl.core.rng"} <= own


@pytest.mark.parametrize("wrong", ["arch=9", "arch=", "task=nothing"])
def test_mistakes_of_warm(wrong, tmp_path):
    """An architecture that Warp does not know, and a wrong word, are one line each."""
    words = {"task": "task=cartpole", "arch": "arch=90"} | {wrong.partition("=")[0]: wrong}
    assert wrong.partition("=")[2] in refused("-m gpusim_rl warm", *words.values(), cwd=tmp_path)
