"""Ends what is left of a Ray after its program, in a process of its own that waits for that.

    python -m gpusim_rl.cluster.guard FOLDER

FOLDER is Ray's own, in which all its processes write their logs. Agents of Ray outlive a program
that is killed by a minute.
"""

import os
import shutil
import signal
import sys
from pathlib import Path


def processes_of(folder: str) -> list[int]:
    """The ids of all processes whose output goes to a file in a folder."""
    ids = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(entry / "fd" / "2").startswith(f"{folder}/"):
                ids.append(int(entry.name))
        except OSError:  # it has ended, or is another user's
            continue
    return ids


def main() -> None:
    """Wait until the program closes our input, which it does by ending, too."""
    folder = sys.argv[1]
    sys.stdin.read()
    while ids := processes_of(folder):
        for pid in ids:
            os.kill(pid, signal.SIGKILL)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
