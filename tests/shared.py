"""What several pytest workers share: the first that needs it makes it."""

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest


def shared(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """A directory of all workers, which `make` has filled.

    Args:
        factory: of a worker.
        name: of the directory.
        make: writes into the new directory, which it is given.
    """
    root = factory.getbasetemp()
    root = root.parent if "PYTEST_XDIST_WORKER" in os.environ else root  # that of all workers
    with open(root / f"{name}.made", "a+") as note:
        fcntl.flock(note, fcntl.LOCK_EX)
        if not os.fstat(note.fileno()).st_size:
            shutil.rmtree(root / name, ignore_errors=True)  # of a worker that failed
            (root / name).mkdir()
            make(root / name)
            note.write("made\n")
    return root / name
