"""Film a checkpoint while its training goes on: `python -m gpusim_rl.commands.film`.

A training starts it, in another process. Its words are the arguments of `attend`, then those of
play.py.
"""

import ctypes
import os
import signal
import sys


def attend(parent: int, lowest: bool) -> None:
    """End with the process `parent`; with `lowest`, take only time that nothing else wants."""
    if sys.platform == "linux":
        if lowest:
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:  # it has ended already
            raise SystemExit(1)
    elif lowest and hasattr(os, "nice"):
        os.nice(19)


def main(arguments: list[str]) -> None:
    """Film as play.py does, on one core."""
    attend(int(arguments[0]), arguments[1] == "True")
    import torch

    from gpusim_rl.commands import play

    torch.set_num_threads(1)
    sys.argv = ["play.py", *arguments[2:]]
    play.main(arguments[2:])


if __name__ == "__main__":
    main(sys.argv[1:])
