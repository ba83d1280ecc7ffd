"""Captured iterations against eager ones on the simulated GPU, physics included."""

import sys
import time

import emulate
import simgpu

emulate.start()

from tests import graphs  # noqa: E402 the simulation is set up first

if __name__ == "__main__":
    start = time.time()
    graphs.captured_is_eager("cuda", *sys.argv[1:])
    spent = round(time.time() - start)
    print("captured is eager:", sys.argv[1:], spent, "s", emulate.Emulate.operators, "operators")
    simgpu.finish()
