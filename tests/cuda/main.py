"""Runs a script of the project on the simulated GPU: `train.py task=…` or `-m module …`."""

import os
import runpy
import sys
import traceback
from collections.abc import Callable

import emulate
import simgpu


def status_of(program: Callable[[], object]) -> int:
    """The exit status of a program: 1 also if it broke a rule of CUDA."""
    try:
        program()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        status = 1
    return status or int(bool(simgpu.broken()))


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
    sys.argv = sys.argv[1:]
    simgpu.finish(status_of(program))
