"""A training whose checkpoints take long to hash, as those of many worlds do.

The writer's thread then frees pinned memory while the main thread captures. `SLOW` is the time
that hashing a state takes [s].
"""

import os
import runpy
import sys
import time

import emulate
import main
import simgpu

emulate.start()

from gpusim_rl.runs import writer  # noqa: E402 the simulation is set up first

fast_digests = writer.digests


def digests(state):
    """The hashes, late."""
    time.sleep(float(os.environ.get("SLOW", 0.4)))
    return fast_digests(state)


if __name__ == "__main__":
    writer.digests = digests
    sys.argv = ["train.py", *sys.argv[1:]]
    simgpu.finish(main.status_of(lambda: runpy.run_path("train.py", run_name="__main__")))
