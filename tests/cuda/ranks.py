"""One of several processes of a training, with gloo in place of NCCL.

    bash tests/cuda/run ranks.py train.py …

torchrun's variables say which: RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. All are
started so, with FAKE_DEVICES. gloo exchanges the memory of the simulated devices as the CPU's,
also within a captured graph. What NCCL itself does in a graph is not seen.
"""

import sys

import emulate
import main
import simgpu
import torch.distributed as dist

init = dist.init_process_group


def init_gloo(backend: str, **options) -> None:
    """init_process_group, which must have been asked for NCCL."""
    assert backend == "nccl", backend
    init("gloo", **options)


if __name__ == "__main__":
    emulate.start()
    dist.init_process_group = init_gloo
    sys.argv = sys.argv[1:]
    simgpu.finish(main.status_of(main.program))
