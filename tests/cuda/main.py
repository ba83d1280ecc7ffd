"""Runs a script of the project on the simulated GPU: `train.py task=…` or `-m module …`."""

import os
import runpy
import sys
import traceback

import emulate
import simgpu

if __name__ == "__main__":
    if os.environ.get("STRICT"):
        simgpu.warnings_are_errors()
    emulate.start()
    emulate.run_warp()
    simgpu.WATCH = bool(os.environ.get("WATCH"))
    sys.argv = sys.argv[1:]
    status = 0
    try:
        if sys.argv[0] == "-m":
            sys.argv = sys.argv[1:]
            runpy.run_module(sys.argv[0], run_name="__main__")
        else:
            runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        status = 1
    simgpu.finish(status)
