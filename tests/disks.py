"""Disks without room, for the tests."""

from pathlib import Path

BLOCK = 4096  # bytes that a file takes at least


def fill(file: Path, room: int = 0) -> None:
    """Fill the disk of a file, but for so many blocks."""
    with open(file, "wb", buffering=0) as filler:
        try:
            while True:
                filler.write(bytes(BLOCK))
        except OSError:
            filler.truncate(filler.tell() - room * BLOCK)
