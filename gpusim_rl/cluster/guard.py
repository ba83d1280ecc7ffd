"""Ends what is left of a Ray after its program, in a process of its own that waits for that.

    python -m gpusim_rl.cluster.guard FOLDER

FOLDER is Ray's own, in which all its processes write their logs. After a program that is killed,
Ray's agents would go on for a minute.
"""

import os
import shutil
import signal
import sys
from contextlib import suppress
from pathlib import Path


def processes_of(folder: str) -> list[int]:
    """The ids of all processes that have a file of a folder open, without the program itself."""
    ids: list[int] = []
    for entry in {*Path("/proc").glob("[0-9]*")} - {Path(f"/proc/{os.getppid()}")}:
        try:
            files = map(os.readlink, (entry / "fd").iterdir())
            if any(file.startswith(f"{folder}/") for file in files):
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
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
