"""Checkpoints of a run, and the manifest that each is checked against.

A checkpoint is a safetensors file: nothing in it is executed.
"""

import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from safetensors import SafetensorError, safe_open

from gpusim_rl.core.files import read_text, write_whole

if TYPE_CHECKING:  # torch loads slowly: a wrong path is reported without it
    from torch import Tensor

TRIES = 5  # to read a checkpoint while a training writes others
# what a manifest raises that is none
DAMAGED = (ValueError, RecursionError, AttributeError, KeyError, TypeError, IsADirectoryError)
KEEP = 3  # newest checkpoints that are kept, besides the best


class Entry(TypedDict):
    """What a manifest has of a checkpoint: `bytes` is its size, `success` of its evaluation."""

    sha256: str
    bytes: int
    success: float | None


Manifest = dict[str, Entry]  # name of a checkpoint → its entry


def valid_entry(name: str, *, sha256: object, bytes: object, success: Any) -> bool:
    """Whether a manifest's entry is valid. Its name is a path that is read and may be removed."""
    if not re.fullmatch(r"\d+\.safetensors", name):
        return False
    if not (isinstance(sha256, str) and type(bytes) is int):
        return False
    return success is None or (type(success) in (int, float) and 0 <= success <= 1)


class Checkpoints:
    """The checkpoints in one directory, <iteration>.safetensors, with their manifest.json."""

    def __init__(self, path: Path):
        self.path = path

    def save(
        self,
        iteration: int,
        state: "dict[str, Tensor]",
        metadata: dict[str, str],
        success: float | None = None,
    ) -> Path:
        """Write a checkpoint, and remove all but the last three and the most successful.

        On a full disk these make room for it, the oldest first; the newest always stays.
        `success` is from 0 to 1, if the state was evaluated.
        """
        from safetensors.torch import save as to_bytes

        self.path.mkdir(parents=True, exist_ok=True)
        # in training this is the writer's thread, and the state is a snapshot
        state = {name: value.detach().cpu().contiguous() for name, value in state.items()}
        data = to_bytes(state, metadata={"iteration": str(iteration), **metadata})
        path = self.path / f"{iteration:06d}.safetensors"
        digest = hashlib.sha256(data).hexdigest()
        entry = Entry(sha256=digest, bytes=len(data), success=success)
        manifest: Manifest = {}
        with suppress(ValueError, OSError):  # a damaged manifest is replaced
            entries = self.manifest()
            manifest = {name: entries[name] for name in entries if (self.path / name).exists()}
        manifest[path.name] = entry
        keep = {path.name, *names_to_keep(manifest)}
        superfluous = manifest.keys() - keep
        # by length first: seven digits come after six
        order = partial(sorted, key=lambda name: (len(name), name))
        self.write(path, data, manifest, [*order(superfluous), *order(keep - {path.name})])
        for name in superfluous:
            (self.path / name).unlink(missing_ok=True)
        return path

    def write(self, path: Path, data: bytes, manifest: Manifest, older: list[str]) -> None:
        """Write a checkpoint and the manifest. On a full disk, `older` ones make room, in order,
        all but the last."""
        while True:
            try:
                # Why: docs/decisions/checkpoints.md
                # the manifest comes first: a file that it does not list would be refused
                text = json.dumps(manifest, indent=1) + "\n"
                write_whole(self.path / "manifest.json", text.encode())
                return write_whole(path, data)
            except OSError as error:
                full = error.errno in (errno.ENOSPC, errno.EDQUOT)
                if not full or len(older) < 2:
                    raise
                (self.path / older.pop(0)).unlink(missing_ok=True)

    def manifest(self) -> Manifest:
        """Name of each checkpoint → its entry, {} without a manifest; ValueError if damaged."""
        file = self.path / "manifest.json"
        if not file.exists():
            return {}
        try:
            entries = json.loads(read_text(file))
            if all(valid_entry(name, **entry) for name, entry in entries.items()):
                return entries
        except DAMAGED:
            pass
        raise ValueError(f"{file} is damaged: remove it to use the checkpoints unchecked")

    def saved(self) -> list[Path]:
        """Paths of the checkpoints, in the order of their iterations; none through a link."""
        files = [] if self.path.is_symlink() else self.path.glob("*.safetensors")
        return sorted(files, key=lambda path: (len(path.name), path.name))

    def latest(self) -> Path:
        """Path of the last checkpoint; FileNotFoundError if there is none."""
        if not self.saved():
            raise FileNotFoundError(f"{self.path.parent} holds no checkpoint")
        return self.saved()[-1]

    def restore(
        self, say: Callable[[str], None]
    ) -> "tuple[dict[str, Tensor], dict[str, str], Path]":
        """Tensors, metadata and path of the last checkpoint that is whole.

        A line tells of a later one that is damaged. FileNotFoundError if there is none, ValueError
        if all are damaged, or the manifest is.
        """
        for _ in range(TRIES):
            self.latest()  # raises if there is none
            paths, manifest, wrong = self.saved(), self.manifest(), ""
            for path in reversed(paths):
                try:
                    self.check(path, manifest)
                    tensors, metadata = load(path)
                except (ValueError, OSError) as error:
                    wrong = str(error)
                    continue
                if wrong:
                    say(f"{wrong}; going on from {path}")
                return tensors, metadata, path
            if self.saved() == paths:
                break  # otherwise a training has written others meanwhile, and removed these
        raise ValueError(f"{wrong}; none in {self.path} is whole")

    def forget(self, path: Path) -> None:
        """Remove the checkpoints after this one: a run that continues from it writes them again."""
        for later in self.saved()[self.saved().index(path) + 1 :]:
            if later.is_dir() and not later.is_symlink():
                shutil.rmtree(later)
            else:
                later.unlink()

    def check(self, path: Path, manifest: Manifest) -> None:
        """Raise ValueError unless a checkpoint is a file of this run and matches the manifest.

        Its size and SHA-256 are compared; with an empty manifest they are not.
        """
        if path.is_symlink() or not path.is_file():
            raise ValueError(f"{path} is not a whole checkpoint: it is not a file of this run")
        check_size(path)
        if not manifest:
            return
        entry = manifest.get(path.name)
        if entry is None or path.stat().st_size != entry["bytes"]:
            reason = "not in the manifest" if entry is None else "cut short"
            raise ValueError(f"{path} is not a whole checkpoint: {reason}")
        with open(path, "rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != entry["sha256"]:
                reason = "its sha256 differs from the manifest's"
                raise ValueError(f"{path} is not a whole checkpoint: {reason}")


def check_size(path: Path) -> None:
    """Raise ValueError if a checkpoint is larger than the memory of this machine."""
    if path.stat().st_size > os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"):
        raise ValueError(f"{path} is not a whole checkpoint: it is larger than the memory")


def names_to_keep(manifest: Manifest) -> list[str]:
    """Names of the checkpoints that stay: the last three, and the most successful if one is."""
    last = sorted(manifest, key=lambda name: (len(name), name))[-KEEP:]
    scores = {name: x["success"] for name, x in manifest.items() if x["success"] is not None}
    best = sorted(scores, key=lambda name: -scores[name])[:1]
    return last + best


def read_tensors(path: Path, damaged: str) -> "tuple[dict[str, Tensor], dict[str, str]]":
    """Tensors and metadata of a safetensors file; ValueError that it is `damaged`.

    The format is plain numbers: nothing in it is executed or larger than the file.
    """
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}
    except (SafetensorError, OSError, RuntimeError, ValueError, MemoryError) as error:
        raise ValueError(f"{path} is {damaged}: {error}") from None


def load(path: Path) -> "tuple[dict[str, Tensor], dict[str, str]]":
    """Tensors and metadata of a checkpoint.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is damaged, or not a checkpoint of gpusim_rl.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no checkpoint {path}")
    check_size(path)
    tensors, metadata = read_tensors(path, "not a whole checkpoint")
    if not metadata.get("iteration", "").isdecimal():
        raise ValueError(f"{path} is a safetensors file, but not a checkpoint of gpusim_rl")
    return tensors, metadata
