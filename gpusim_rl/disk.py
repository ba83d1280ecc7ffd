"""Files written whole or not at all, and read with suspicion: a stranger may have made them."""

import os
from pathlib import Path

LARGEST = 1 << 20  # bytes of a text file that is read whole


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that a reader, or a crash, finds all of it or the one before."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(part, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
        folder = os.open(path.parent, os.O_RDONLY)  # the new name, too, is to outlive a power cut
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    finally:
        part.unlink(missing_ok=True)


def read_text(path: Path) -> str:
    """A small text file; ValueError if it is none, OSError if it cannot be read."""
    with open(path, "rb") as file:
        data = file.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise ValueError(f"{path} is larger than {LARGEST} bytes: not a file of a run")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not text: {error}") from None
