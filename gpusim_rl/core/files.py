"""Files written whole or not at all, and read with suspicion: a stranger may have made them."""

import hashlib
import json
import os
import secrets
import stat
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

Plain = dict[str, Any]  # a map of YAML or JSON: texts, numbers, truth values, null, lists, maps
LARGEST_TEXT_BYTES = 1 << 20  # bytes of a text file that is read whole, if nothing else is said
MAX_MODEL = 1 << 30  # bytes of all files of a model together
DEEPEST = 50  # lists and maps of JSON in one another
ABANDONED = 3600.0  # age of a part [s]: nobody writes one for so long


# Why: docs/decisions/untrusted-files.md
def part_of(path: Path) -> Path:
    """A name beside a file for what is not whole yet. Nobody can have put a link there before."""
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")


def remove_parts(folder: Path) -> None:
    """Remove what killed processes left of `part_of`; a folder that may not be written keeps it."""
    for part in folder.glob(f".*.{'[0-9a-f]' * 16}.part"):
        with suppress(OSError):  # another process has removed it
            if time.time() - part.lstat().st_mtime > ABANDONED:
                part.unlink()


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that a reader, or a crash, finds all of it or the one before; or OSError."""
    part = part_of(path)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    try:
        with os.fdopen(os.open(part, flags, 0o666), "wb") as file:
            file.write(data)
            file.flush()
            # else a power cut may leave the new name without its bytes
            os.fsync(file.fileno())
        os.replace(part, path)
        folder = os.open(path.parent, os.O_RDONLY)  # the new name, too, is to outlive a power cut
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:  # it names no file, or the part
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        part.unlink(missing_ok=True)


def new_directory(path: Path) -> Path:
    """Make a directory of this name, or with -2, -3, … at its end if that exists.

    No other process gets the same one, also if both begin in the same second. OSError in one line.
    """
    free, number = path, 1
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            try:
                free.mkdir()  # of two that try, one succeeds
                return free
            except FileExistsError:
                number += 1
                free = path.with_name(f"{path.name}-{number}")
    except OSError as error:
        raise OSError(f"{free} cannot be written: {error.strerror}") from None


def read_whole(path: Path, largest: int, more: int = 0) -> bytes:
    """The bytes of a regular file; ValueError if it is none, or has more than `largest` bytes.

    more: flags of os.open.
    """

    def opener(name: str, flags: int) -> int:
        return os.open(name, flags | more | os.O_NONBLOCK)  # else a pipe would wait for its writer

    with open(path, "rb", opener=opener) as file:  # so that its errors name the file
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise ValueError(f"{path} is no file")
        data = file.read(largest + 1) if status.st_size <= largest else b""
    if max(len(data), status.st_size) > largest:
        raise ValueError(f"{path} is larger than {largest} bytes")
    return data


def read_text(path: Path, largest: int = LARGEST_TEXT_BYTES) -> str:
    """A text file of at most so many bytes; errors as `read_whole`."""
    try:
        return read_whole(path, largest).decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not text: {error}") from None


def read_map(text: str | bytes) -> Plain:
    """The map of a JSON text; ValueError in one line if it is none, or is nested too deeply."""
    # deep ones are read by `json.loads`, and overflow the stack of whoever writes them again
    try:
        value: object = json.loads(text)
        deep = depth(value) > DEEPEST
    except RecursionError:
        value, deep = None, True
    if deep:
        raise ValueError(f"JSON with more than {DEEPEST} lists or maps in one another")
    if not isinstance(value, dict):
        raise ValueError(f"JSON of type {type(value).__name__}: expected a map")
    return cast(Plain, value)


def depth(value: object) -> int:
    """How many lists and maps of JSON lie in one another."""
    if not isinstance(value, dict | list):
        return 0
    inner = cast(Plain, value).values() if isinstance(value, dict) else cast(list[object], value)
    return 1 + max(map(depth, inner), default=0)


def digest(file: Path) -> Plain:
    """Size and hash of a file, by which it can be told again."""
    data = file.read_bytes()
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
