"""A run directory: configuration, versions, metrics and checkpoints.

Files are written completely or not at all. What is read from them is checked.
"""

import fcntl
import json
import os
import weakref
from contextlib import suppress
from fnmatch import fnmatch
from itertools import chain
from pathlib import Path

import yaml

from gpusim_rl.core.files import MAX_MODEL, Plain, read_text, read_whole, write_whole
from gpusim_rl.core.provenance import record
from gpusim_rl.runs.checkpoints import Checkpoints
from gpusim_rl.runs.config_file import read_config
from gpusim_rl.runs.rows import Rows

ROWS = ("hashes.jsonl", "metrics.jsonl", "search.jsonl")  # files of rows, one row per iteration
FILES = {  # all that a run directory may contain
    *ROWS,
    *".lock config.yaml versions.json checkpoints model rollbacks.json eval.json".split(),
    *("drives.json", "calibration.json", "demos.safetensors", "style.safetensors"),
    *"readings.json policy.onnx report.json repro.safetensors wandb tensorboard play.mp4".split(),
    *("report.html", "films", "labels", "metrics.json", "metrics.prom", "start.safetensors"),
}
# the scores of a run before it went on, with the iteration that they are of
FORMER_SCORES = "eval-*.json"
SEARCH, BEST = "search.yaml", "best.txt"  # of a folder of runs: how they were searched; the best
OUTPUTS = {"policy.onnx", "report.html", "play.mp4", "films"}  # that other programs write anew


def newest(root: Path = Path("runs")) -> Path:
    """The run directory under root that has the newest checkpoint, else FileNotFoundError."""
    checkpoints = [
        file
        for folder in root.glob("**/checkpoints")
        if (folder.parent / "config.yaml").is_file()
        for file in Checkpoints(folder).saved()
    ]
    if not checkpoints:
        raise FileNotFoundError(
            f"no run with a checkpoint under {root}/: train one, or say run=<directory>"
        )
    return max(checkpoints, key=lambda p: p.stat().st_mtime).parent.parent


def run_that_needs(file: Path) -> Path | None:
    """The run directory that has this file, unless any program may write it; None if none has."""
    path = file.parent.resolve() / file.name  # a link is replaced, not what it names
    for folder in path.parents:
        name = path.relative_to(folder).parts[0]
        needed = name in FILES - OUTPUTS or fnmatch(name, FORMER_SCORES)
        if needed and (folder / "checkpoints").is_dir():
            return folder if (folder / "config.yaml").is_file() else None
    return None


def release(lock: int) -> None:
    """Release a lock, and remove this process's number from its file."""
    with suppress(OSError):  # the disk may have become read-only
        os.ftruncate(lock, 0)
    os.close(lock)


def check_links(path: Path) -> None:
    """Raise ValueError if a file of the run in this directory is a link, a pipe or a device."""
    files = [path / name for name in (*FILES, "checkpoints/manifest.json")]
    files += path.glob(FORMER_SCORES)
    for file in chain(files, (path / "model").rglob("*")):  # model/ itself comes first
        if file.is_symlink() or (file.exists() and not file.is_file() and not file.is_dir()):
            raise ValueError(f"{file} is a link or a pipe: a run must not contain one")


class LockError(ValueError):
    """Another process writes to the run."""


class Run:
    """One run's directory, which `create` makes and `open` checks."""

    def __init__(self, path: Path):
        self.path = path
        self.checkpoints = Checkpoints(path / "checkpoints")
        self._lock: int | None = None
        self._config_text: str | None = None
        self._model_files: dict[str, bytes] = {}  # of model/; `repair` writes them again
        self._rows = {name: Rows(path / name) for name in ROWS}

    @classmethod
    def create(cls, path: Path, config: Plain, *, again: bool = False) -> "Run":
        """Make a directory, which must be new or empty, with its config.yaml and versions.json, and
        lock it.

        again: also accept the directory of a run that ended before its first checkpoint.

        Raises:
            ValueError: the directory is not empty, has a link, or another process writes to it.
            OSError: the directory cannot be written.
        """
        run = cls(path)
        try:
            allowed = FILES if again and not run.checkpoints.saved() else {".lock"}
            names = {entry.name for entry in path.iterdir()} if path.exists() else set()
            if any(name[0] != "." or ".part" not in name for name in names - allowed):
                raise ValueError(
                    f"run_dir={path} is not empty: name another, or continue it with resume={path}"
                )
            check_links(path)
            path.mkdir(parents=True, exist_ok=True)
            run.lock()
            run.checkpoints.path.mkdir(exist_ok=True)
            run.configure(config)
            run.json("versions.json", record())
        except OSError as error:
            raise OSError(f"run_dir={path} cannot be written: {error.strerror}") from None
        return run

    def lock(self) -> None:
        """Keep other processes from writing here until this one ends; ValueError if one does."""
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
        file = os.open(self.path / ".lock", flags, 0o644)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            other = os.read(file, 20).decode(errors="replace") or "another"
            os.close(file)
            raise LockError(
                f"{self.path} is being written by process {other}: wait, or end it"
            ) from None
        except OSError:
            pass  # a file system without locks
        weakref.finalize(self, release, file)
        self._lock = file
        with suppress(OSError):  # the disk may be full
            os.ftruncate(file, 0)
            # for the message of the process that finds the lock taken
            os.pwrite(file, str(os.getpid()).encode(), 0)
        for part in self.path.glob("**/.*.part*"):  # of a process that was killed
            part.unlink(missing_ok=True)

    def check_lock(self) -> None:
        """Raise OSError if the directory was removed and now belongs to another run."""
        lock, own = self.path / ".lock", self._lock
        if own is not None and lock.exists() and not os.path.samestat(os.fstat(own), lock.stat()):
            raise OSError(17, "another run is there now", str(self.path))

    def repair(self) -> None:
        """Make the directory again if somebody removed it during the run."""
        self.check_lock()
        if self._config_text and not (self.path / "config.yaml").exists():
            self.checkpoints.path.mkdir(parents=True, exist_ok=True)
            self.lock()
            for name, data in self._model_files.items():
                (self.path / name).parent.mkdir(parents=True, exist_ok=True)
                write_whole(self.path / name, data)
            write_whole(self.path / "config.yaml", self._config_text.encode())
            self.json("versions.json", record())

    def portable(self, config: Plain) -> Plain:
        """The configuration with the paths of files in the run relative to its directory."""
        home = self.path.resolve()

        def relative(value: object) -> object:
            if isinstance(value, dict):
                return {key: relative(x) for key, x in value.items()}
            if not isinstance(value, str) or Path(value).name == value:
                return value
            path = Path(value).resolve()
            return str(path.relative_to(home)) if home in path.parents else value

        return {key: relative(x) for key, x in config.items()}

    def configure(self, config: Plain) -> None:
        """Write config.yaml, unless it is the same: a run also goes on where nothing can be
        written."""
        config = self.portable(config)
        files = [file for file in (self.path / "model").rglob("*") if file.is_file()]
        if sum(file.stat().st_size for file in files) > MAX_MODEL:
            raise ValueError(f"{self.path}/model is larger than {MAX_MODEL} bytes")
        self._model_files = {
            str(file.relative_to(self.path)): read_whole(file, MAX_MODEL) for file in files
        }
        self._config_text = yaml.safe_dump(config, sort_keys=False, allow_unicode=True)
        file, data = self.path / "config.yaml", self._config_text.encode()
        if not file.exists() or file.read_bytes() != data:
            write_whole(file, data)

    @classmethod
    def open(cls, path: Path | str) -> "Run":
        """An existing run.

        FileNotFoundError if it has no config.yaml, ValueError if one of its files is a link or a
        pipe.
        """
        path = Path(path)
        if not (path / "config.yaml").is_file():
            raise FileNotFoundError(f"{path} is not a run directory: it has no config.yaml")
        check_links(path)
        return cls(path)

    @property
    def config(self) -> Plain:
        """The composed configuration as plain data; ValueError if config.yaml is not valid."""
        return read_config(self.path / "config.yaml")

    def rollbacks(self) -> int:
        try:
            return max(0, min(int(read_text(self.path / "rollbacks.json")), 1000))
        except (OSError, ValueError):
            return 0

    def json(self, name: str, value: object) -> None:
        write_whole(self.path / name, (json.dumps(value, indent=2) + "\n").encode())

    def keep_scores(self, iterations: int) -> None:
        """Rename eval.json to eval-<iterations>.json, if it is there: the run goes on."""
        with suppress(FileNotFoundError):
            (self.path / "eval.json").replace(self.path / f"eval-{iterations}.json")

    def films(self, since: float = 0.0) -> list[Path]:
        """The films (.mp4) of the run, written after a time [s since 1970], newest last."""
        files = [*self.path.glob("*.mp4"), *self.path.glob("films/*.mp4")]
        # pathlib's * matches hidden files, too: those are not whole
        files = [x for x in files if x.is_file() and not x.is_symlink() and x.name[0] != "."]
        times = {file: file.stat().st_mtime for file in files}
        return sorted((x for x in files if times[x] >= since), key=lambda x: times[x])

    def log(self, row: Plain, name: str = "metrics.jsonl") -> None:
        """Append a row to a file of `ROWS`, after those that could not be written before.

        On an OSError the rows wait for the next call.
        """
        self._rows[name].add(row)
        self.check_lock()
        self._rows[name].flush()

    def rows(self, name: str = "metrics.jsonl") -> list[Plain]:
        """The rows of a file, without damaged ones."""
        return self._rows[name].read()

    def rewind(self, iteration: int) -> list[Plain]:
        """Remove all rows after an iteration. Returns the rows of `metrics.jsonl` that remain."""
        return {name: rows.rewind(iteration) for name, rows in self._rows.items()}["metrics.jsonl"]

    def damaged(self) -> dict[str, int]:
        """File of rows → how many damaged ones the last reading left out, if any."""
        return {name: rows.damaged for name, rows in self._rows.items() if rows.damaged}


def find_run(cfg: Plain) -> Run:
    """The run that `run=` of a command line names, or the best of a search, else the newest."""
    path = Path(cfg["run"]) if cfg["run"] else newest()
    if (path / SEARCH).is_file():  # its best member
        if not (path / BEST).is_file():
            raise FileNotFoundError(
                f"{path} has no best run: name one of its runs, or continue a search"
            )
        path /= Path(read_text(path / BEST).strip()).name
    return Run.open(path)
