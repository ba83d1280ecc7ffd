"""A run directory: config, versions, metrics, checkpoints. Files are written whole or not at all, and read with suspicion."""

import fcntl
import json
import os
import platform
import subprocess
import time
import weakref
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml

from gpusim_rl.checkpoint import Checkpoints
from gpusim_rl.disk import read_text, write_whole

FILES = {  # that a run may hold
    *(".lock", "config.yaml", "versions.json", "metrics.jsonl", "hashes.jsonl", "checkpoints", "model", "rollbacks.json"),
    *("eval.json", "policy.onnx", "report.json", "repro.safetensors", "wandb", "tensorboard", "play.mp4"),
}
PACKAGES = ("torch", "mujoco", "mujoco-warp", "warp-lang", "numpy", "onnx", "onnxruntime", "hydra-core", "safetensors")


def versions() -> dict[str, str]:
    """What this program runs on: packages, Python, machine, and the commit of the source if it is a checkout."""
    import torch

    found = {"python": platform.python_version(), "machine": f"{platform.system()} {platform.machine()}"}
    found |= {name: metadata.version(name) for name in PACKAGES}
    found["gpu"] = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    here = Path(__file__).parent.parent
    git = subprocess.run(["git", "-C", str(here), "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    found["commit"] = git.stdout.strip() if git.returncode == 0 else "unknown"
    return found


def newest(root: Path = Path("runs")) -> Path:
    """The run directory under root whose checkpoints are the newest; FileNotFoundError if there is none."""
    found = [p for p in root.glob("**/checkpoints/*.safetensors") if (p.parent.parent / "config.yaml").is_file()]
    if not found:
        raise FileNotFoundError(f"no run with a checkpoint under {root}/: train one, or say run=<directory>")
    return max(found, key=lambda p: p.stat().st_mtime).parent.parent


class NoAliases(yaml.SafeLoader):
    """YAML of plain values, none of which is said to be another: aliases of aliases would be billions."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases are not read")
        return super().compose_node(parent, index)


def plain(value: Any) -> bool:
    """Whether it is made of words, numbers, lists and keys alone: YAML also knows dates and sets."""
    if isinstance(value, dict):
        return all(isinstance(key, str) and plain(entry) for key, entry in value.items())
    return all(map(plain, value)) if isinstance(value, list) else value is None or isinstance(value, str | int | float)


def release(lock: int) -> None:
    """Give a lock back, and no longer be named in its file."""
    with suppress(OSError):  # the disk may have become read-only
        os.ftruncate(lock, 0)
    os.close(lock)


class Run:
    """One run's directory.

    Args:
        path: the directory; made by `create`, or an existing one.
    """

    def __init__(self, path: Path):
        self.path = path
        self.checkpoints = Checkpoints(path / "checkpoints")
        self._lock: int | None = None
        self._text: str | None = None  # of config.yaml
        self._model: dict[str, bytes] = {}  # and the files of model/, to make them anew
        self._unwritten: dict[str, list[str]] = {}

    @classmethod
    def create(cls, path: Path, config: dict[str, Any], *, again: bool = False) -> "Run":
        """A new directory with its config.yaml and versions.json, locked; OSError or ValueError if that cannot be.

        `again` also takes that of a run which ended before its first checkpoint.
        """
        run = cls(path)
        try:
            known = FILES if again and not run.checkpoints.saved() else {".lock"}
            found = {entry.name for entry in path.iterdir() if not entry.name.endswith(".part")} if path.exists() else set()
            if found - known:
                raise ValueError(f"run_dir={path} is not empty: name another, or continue it with resume={path}")
            path.mkdir(parents=True, exist_ok=True)
            run.lock()
            run.checkpoints.path.mkdir(exist_ok=True)
            run.configure(config)
            run.json("versions.json", versions())
        except OSError as error:
            raise OSError(f"run_dir={path} cannot be written: {error.strerror}") from None
        return run

    def lock(self) -> None:
        """Keep other processes from writing here until this one ends; ValueError if one does already."""
        file = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            other = os.read(file, 20).decode(errors="replace") or "another"
            os.close(file)
            raise ValueError(f"{self.path} is being written by process {other}: wait, or end it") from None
        except OSError:
            pass  # a file system without locks
        weakref.finalize(self, release, file)
        self._lock = file
        os.ftruncate(file, 0)
        os.pwrite(file, str(os.getpid()).encode(), 0)
        for part in self.path.glob("**/.*.part"):  # of a process that was killed in the midst
            part.unlink(missing_ok=True)

    def claim(self) -> None:
        """OSError if the directory was removed, and is another run's now."""
        lock = self.path / ".lock"
        if self._lock is not None and lock.exists() and not os.path.samestat(os.fstat(self._lock), lock.stat()):
            raise OSError(17, "another run is there now", str(self.path))

    def mend(self) -> None:
        """Make the directory anew if somebody removed it while the run goes on."""
        self.claim()
        if self._text and not (self.path / "config.yaml").exists():
            self.checkpoints.path.mkdir(parents=True, exist_ok=True)
            self.lock()
            for name, data in self._model.items():
                (self.path / name).parent.mkdir(parents=True, exist_ok=True)
                write_whole(self.path / name, data)
            write_whole(self.path / "config.yaml", self._text.encode())
            self.json("versions.json", versions())

    def portable(self, config: dict[str, Any]) -> dict[str, Any]:
        """The configuration with models in the run named as seen from there."""
        home = self.path.resolve()
        for section in ("task", "robot"):
            mjcf = config.get(section, {}).get("mjcf") or ""
            if Path(mjcf).name != mjcf and Path(mjcf).resolve().is_relative_to(home):
                config = config | {section: config[section] | {"mjcf": str(Path(mjcf).resolve().relative_to(home))}}
        actuator = config.get("robot", {}).get("actuator") or {}
        file = Path(actuator.get("file") or "").resolve()
        if actuator.get("file") and file.is_relative_to(home):
            config = config | {"robot": config["robot"] | {"actuator": actuator | {"file": str(file.relative_to(home))}}}
        return config

    def configure(self, config: dict[str, Any]) -> None:
        """Write config.yaml."""
        config = self.portable(config)
        files = [file for file in (self.path / "model").rglob("*") if file.is_file()]
        self._model = {str(file.relative_to(self.path)): file.read_bytes() for file in files}
        self._text = yaml.safe_dump(config, sort_keys=False, allow_unicode=True)
        write_whole(self.path / "config.yaml", self._text.encode())

    @classmethod
    def open(cls, path: Path) -> "Run":
        """An existing run; FileNotFoundError if it is none."""
        if not (path / "config.yaml").is_file():
            raise FileNotFoundError(f"{path} is not a run directory: it has no config.yaml")
        for name in (*FILES, "checkpoints/manifest.json"):
            file = path / name
            if file.is_symlink() or (file.exists() and not file.is_file() and not file.is_dir()):
                raise ValueError(f"{file} is no file of a run, but a link or a pipe")
        return cls(path)

    @property
    def config(self) -> dict[str, Any]:
        """The composed configuration, as plain data: whatever it says, no object is made of it."""
        file = self.path / "config.yaml"
        try:
            config = yaml.load(read_text(file), NoAliases)  # a SafeLoader
        except (yaml.YAMLError, RecursionError) as error:
            raise ValueError(f"{file} is not YAML: {error}") from None
        except ValueError as error:
            raise ValueError(f"{file}: {error}") from None
        if not isinstance(config, dict) or not isinstance(config.get("task"), dict) or not plain(config):
            raise ValueError(f"{file} is not the configuration of a run")
        return config

    def rollbacks(self) -> int:
        """How often the training was rolled back."""
        try:
            return max(0, min(int(read_text(self.path / "rollbacks.json")), 1000))
        except (OSError, ValueError):
            return 0

    def json(self, name: str, value: Any) -> None:
        """Write a JSON file of the run."""
        write_whole(self.path / name, (json.dumps(value, indent=2) + "\n").encode())

    def log(self, row: dict[str, Any], name: str = "metrics.jsonl") -> None:
        """Append a row to a file of rows, with those that could not be written before; OSError if again it cannot be."""
        rows = self._unwritten.setdefault(name, [])
        rows.append(json.dumps(row) + "\n")
        data = "".join(rows).encode()
        self.claim()
        with open(self.path / name, "ab", buffering=0) as file:
            before = file.tell()
            try:
                written = file.write(data)
                if written < len(data):
                    raise OSError(28, "No space left on device")
            except OSError:
                file.truncate(before)  # half a row would join the next one
                raise
        rows.clear()

    def rows(self, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
        """The rows of a file, up to the first that is damaged or cut short."""
        file, found = self.path / name, []
        for line in file.read_text(encoding="utf-8", errors="replace").split("\n")[:-1] if file.is_file() else []:
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                break
            if not isinstance(row, dict) or not isinstance(row.get("iteration"), int):
                break
            found.append(row)
        return found

    def rewind(self, iteration: int) -> list[dict[str, float]]:
        """Forget the rows after an iteration, which a continuation writes again; the metrics that remain."""
        kept: list[dict[str, Any]] = []
        for name in ("hashes.jsonl", "metrics.jsonl"):
            kept = [row for row in self.rows(name) if row["iteration"] <= iteration]
            if kept or (self.path / name).exists():
                write_whole(self.path / name, "".join(json.dumps(row) + "\n" for row in kept).encode())
        return kept


class Stopwatch:
    """Seconds since it was made, on from `before`."""

    def __init__(self, before: float = 0.0):
        self.start = time.perf_counter() - before

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.start
