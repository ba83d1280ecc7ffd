"""A run directory: config, versions, metrics, checkpoints. Files are written whole or not at all."""

import json
import os
import platform
import subprocess
import time
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from safetensors import SafetensorError, safe_open

if TYPE_CHECKING:  # torch is loaded where tensors are, so that a mistake in a path is answered at once
    from torch import Tensor

KEEP = 3  # checkpoints
PACKAGES = ("torch", "mujoco", "mujoco-warp", "warp-lang", "numpy", "onnx", "onnxruntime", "hydra-core", "safetensors")


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that a reader, or a crash, finds all of it or the one before."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(part, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


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


class Run:
    """One run's directory.

    Args:
        path: the directory; made by `create`, or an existing one.
    """

    def __init__(self, path: Path):
        self.path = path
        self.checkpoints = path / "checkpoints"

    @classmethod
    def create(cls, path: Path, config: dict[str, Any]) -> "Run":
        """A new directory with its config.yaml and versions.json; OSError or ValueError if that cannot be."""
        run = cls(path)
        try:
            if path.exists() and any(path.iterdir()):
                raise ValueError(f"run_dir={path} is not empty: name another, or continue it with resume={path}")
            run.checkpoints.mkdir(parents=True, exist_ok=True)
            run.configure(config)
            run.json("versions.json", versions())
        except OSError as error:
            raise OSError(f"run_dir={path} cannot be written: {error.strerror}") from None
        return run

    def configure(self, config: dict[str, Any]) -> None:
        """Write config.yaml."""
        write_whole(self.path / "config.yaml", yaml.safe_dump(config, sort_keys=False, allow_unicode=True).encode())

    @classmethod
    def open(cls, path: Path) -> "Run":
        """An existing run; FileNotFoundError if it is none."""
        if not (path / "config.yaml").is_file():
            raise FileNotFoundError(f"{path} is not a run directory: it has no config.yaml")
        return cls(path)

    @property
    def config(self) -> dict[str, Any]:
        """The composed configuration, as plain data."""
        try:
            config = yaml.safe_load((self.path / "config.yaml").read_text(encoding="utf-8"))
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            raise ValueError(f"{self.path / 'config.yaml'} is not YAML: {error}") from None
        if not isinstance(config, dict) or not isinstance(config.get("task"), dict):
            raise ValueError(f"{self.path / 'config.yaml'} is not the configuration of a run")
        return config

    def json(self, name: str, value: Any) -> None:
        """Write a JSON file of the run."""
        write_whole(self.path / name, (json.dumps(value, indent=2) + "\n").encode())

    def log(self, row: dict[str, float]) -> None:
        """Append a row to metrics.jsonl."""
        with open(self.path / "metrics.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def rows(self) -> list[dict[str, float]]:
        """The rows of metrics.jsonl; a last line cut short is left out. ValueError at a line that is no row."""
        file = self.path / "metrics.jsonl"
        lines = file.read_text(encoding="utf-8").split("\n")[:-1] if file.exists() else []
        try:
            rows = [json.loads(line) for line in lines]
        except ValueError as error:
            raise ValueError(f"{file} is not what a run writes: {error}") from None
        if not all(isinstance(row, dict) and isinstance(row.get("iteration"), int) for row in rows):
            raise ValueError(f"{file} is not what a run writes: a row without iteration")
        return rows

    def rewind(self, iteration: int) -> list[dict[str, float]]:
        """Forget the rows after an iteration, which a continuation from its checkpoint writes again; those that remain."""
        rows = [row for row in self.rows() if row["iteration"] <= iteration]
        write_whole(self.path / "metrics.jsonl", "".join(json.dumps(row) + "\n" for row in rows).encode())
        return rows

    def save(self, iteration: int, state: "dict[str, Tensor]", note: dict[str, str]) -> Path:
        """Write a checkpoint and drop all but the last few."""
        from safetensors.torch import save as to_bytes

        tensors = {name: value.detach().cpu().contiguous() for name, value in state.items()}
        path = self.checkpoints / f"{iteration:06d}.safetensors"
        write_whole(path, to_bytes(tensors, metadata={"iteration": str(iteration), **note}))
        for old in self.saved()[:-KEEP]:
            old.unlink()
        return path

    def saved(self) -> list[Path]:
        """The checkpoints, by iteration."""
        return sorted(self.checkpoints.glob("*.safetensors"), key=lambda path: (len(path.name), path.name))

    def latest(self) -> Path:
        """The last checkpoint; FileNotFoundError if there is none."""
        if not self.saved():
            raise FileNotFoundError(f"{self.path} holds no checkpoint")
        return self.saved()[-1]


def load(path: Path) -> "tuple[dict[str, Tensor], dict[str, str]]":
    """Tensors and notes of a checkpoint. FileNotFoundError, or ValueError if it is cut short or not one of ours."""
    if not path.is_file():
        raise FileNotFoundError(f"no checkpoint {path}")
    try:
        with safe_open(path, framework="pt") as file:
            tensors, note = {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} is not a whole checkpoint: {error}") from None
    if "iteration" not in note:
        raise ValueError(f"{path} is a safetensors file, but not a checkpoint of gpusim_rl")
    return tensors, note


class Stopwatch:
    """Seconds since it was made, on from `before`."""

    def __init__(self, before: float = 0.0):
        self.start = time.perf_counter() - before

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.start
