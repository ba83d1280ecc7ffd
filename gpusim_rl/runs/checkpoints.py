"""Checkpoints of a run: kept with a manifest of what each is, and checked against it. Nothing in one is executed."""

import hashlib
import json
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from gpusim_rl.disk import read_text, write_whole

if TYPE_CHECKING:  # torch is loaded where tensors are, so that a mistake in a path is answered at once
    from torch import Tensor

KEEP = 3  # checkpoints, besides the best


def sane(name: str, *, sha256: Any, bytes: Any, success: Any) -> bool:
    """Whether an entry of a manifest is one of ours: a name here is a path that is read, and may be removed."""
    fits = re.fullmatch(r"\d+\.safetensors", name) and isinstance(sha256, str) and type(bytes) is int
    return bool(fits) and (success is None or (type(success) in (int, float) and 0 <= success <= 1))


class Checkpoints:
    """The checkpoints in one directory, by iteration: <iteration>.safetensors, and manifest.json."""

    def __init__(self, path: Path):
        self.path = path

    def save(self, iteration: int, state: "dict[str, Tensor]", note: dict[str, str], success: float | None = None) -> Path:
        """Write a checkpoint, and drop all but the last few and the most successful."""
        from safetensors.torch import save as to_bytes

        self.path.mkdir(parents=True, exist_ok=True)
        # outside the iteration: the saver's thread, on its snapshot
        state = {name: value.detach().cpu().contiguous() for name, value in state.items()}
        data = to_bytes(state, metadata={"iteration": str(iteration), **note})
        path = self.path / f"{iteration:06d}.safetensors"
        manifest: dict[str, dict[str, Any]] = {}
        entry = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data), "success": success}
        with suppress(ValueError, OSError):  # a damaged one is written anew
            manifest = {name: known for name, known in self.manifest().items() if (self.path / name).exists()}
        manifest[path.name] = entry
        last = sorted(manifest, key=lambda name: (len(name), name))[-KEEP:]
        judged = [name for name in manifest if manifest[name].get("success") is not None]
        best = max(judged, key=lambda name: manifest[name]["success"], default=None)
        gone = [name for name in manifest if name not in (*last, best, path.name)]
        # first of all what the file will be: a file that nothing vouches for would be refused
        self.vouch(manifest)
        write_whole(path, data)
        for name in gone:
            (self.path / name).unlink(missing_ok=True)
        return path

    def vouch(self, manifest: dict[str, dict[str, Any]]) -> None:
        """Write the manifest."""
        write_whole(self.path / "manifest.json", (json.dumps(manifest, indent=1) + "\n").encode())

    def manifest(self) -> dict[str, dict[str, Any]]:
        """What each checkpoint is: sha256, bytes, success. Empty if there is none; ValueError if it is damaged."""
        file = self.path / "manifest.json"
        if not file.exists():
            return {}
        try:
            found = json.loads(read_text(file))
            if all(sane(name, **entry) for name, entry in found.items()):
                return found
        except (ValueError, RecursionError, AttributeError, KeyError, TypeError):
            pass
        raise ValueError(f"{file} is damaged: remove it to use the checkpoints unchecked")

    def saved(self) -> list[Path]:
        """The checkpoints, by iteration."""
        return sorted(self.path.glob("*.safetensors"), key=lambda path: (len(path.name), path.name))

    def latest(self) -> Path:
        """The last checkpoint; FileNotFoundError if there is none."""
        if not self.saved():
            raise FileNotFoundError(f"{self.path.parent} holds no checkpoint")
        return self.saved()[-1]

    def restore(self, say: Callable[[str], None]) -> "tuple[dict[str, Tensor], dict[str, str], Path]":
        """Tensors, notes and path of the last checkpoint that is whole; `say` hears of each that is not.

        FileNotFoundError if there is none at all, ValueError if all are damaged.
        """
        self.latest()
        manifest, wrong = self.manifest(), ""
        for path in reversed(self.saved()):
            try:
                self.check(path, manifest)
                found = (*load(path), path)
            except (ValueError, OSError) as error:
                wrong = str(error)
                continue
            if wrong:
                say(f"{wrong}; going on from {path}")
            return found
        raise ValueError(f"{wrong}; none in {self.path} is whole")

    def forget(self, path: Path) -> None:
        """Remove the checkpoints after this one, which a continuation from it writes again."""
        for later in self.saved()[self.saved().index(path) + 1 :]:
            if later.is_dir() and not later.is_symlink():
                shutil.rmtree(later)
            else:
                later.unlink()

    def check(self, path: Path, manifest: dict[str, dict[str, Any]]) -> None:
        """ValueError unless a checkpoint lies in this run and is, byte for byte, what the manifest, if there is one, says."""
        if path.is_symlink() or not path.is_file():
            raise ValueError(f"{path} is not a whole checkpoint: it is no file of this run")
        if not manifest:
            return
        entry = manifest.get(path.name)
        if entry is None or path.stat().st_size != entry["bytes"]:
            raise ValueError(f"{path} is not a whole checkpoint: {'unknown to the manifest' if entry is None else 'cut short'}")
        with open(path, "rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != entry["sha256"]:
                raise ValueError(f"{path} is not a whole checkpoint: its sha256 is not that of the manifest")


def load(path: Path) -> "tuple[dict[str, Tensor], dict[str, str]]":
    """Tensors and notes of a checkpoint. FileNotFoundError, or ValueError if it is cut short or not one of ours.

    The format is plain numbers: nothing in it is executed, and nothing in it is larger than the file.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no checkpoint {path}")
    try:
        with safe_open(path, framework="pt") as file:
            tensors, note = {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}
    except (SafetensorError, OSError, RuntimeError, ValueError) as error:
        raise ValueError(f"{path} is not a whole checkpoint: {error}") from None
    if not note.get("iteration", "").isdecimal():
        raise ValueError(f"{path} is a safetensors file, but not a checkpoint of gpusim_rl")
    return tensors, note
