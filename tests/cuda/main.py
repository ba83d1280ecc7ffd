"""Runs a script of the project on the simulated GPU: `train.py task=…` or `-m module …`.

`STRICT` makes warnings errors, `WATCH` also notes uses of the default stream. `SLOW` is the time
that hashing a checkpoint takes [s], as that of many worlds does: the writer's thread then frees
pinned memory while the main thread captures.

With torchrun's variables (RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT) and
FAKE_DEVICES it is one of several processes, with gloo in place of NCCL. gloo exchanges the memory
of the simulated devices as the CPU's, also within a captured graph. What NCCL itself does in a
graph is not seen.
"""

import os
import runpy
import sys
import time
import traceback

import emulate
import simgpu
import torch.distributed as dist


def init_gloo(backend: str, init=dist.init_process_group, **options) -> None:
    """init_process_group, which must have been asked for NCCL."""
    assert backend == "nccl", backend
    init("gloo", **options)


def hash_late(seconds: float) -> None:
    """Let the hashes of a state take longer."""
    from gpusim_rl.runs import writer

    digests = writer.digests
    writer.digests = lambda state: (time.sleep(seconds), digests(state))[1]


def program() -> None:
    """What the command line names."""
    if sys.argv[0] == "-m":
        sys.argv = sys.argv[1:]
        runpy.run_module(sys.argv[0], run_name="__main__")
    else:
        runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    if os.environ.get("STRICT"):
        simgpu.warnings_are_errors()
    emulate.start()
    simgpu.WATCH = bool(os.environ.get("WATCH"))
    if "WORLD_SIZE" in os.environ:
        dist.init_process_group = init_gloo
    if "SLOW" in os.environ:
        hash_late(float(os.environ["SLOW"]))
    sys.argv, status = sys.argv[1:], 0
    try:
        program()
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        status = 1
    simgpu.finish(status or int(bool(simgpu.broken())))
