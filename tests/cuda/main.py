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
    try:
        if sys.argv[0] == "-m":
            sys.argv = sys.argv[1:]
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        print("exit", end.code)
    except BaseException:
        traceback.print_exc()
    simgpu.finish()
