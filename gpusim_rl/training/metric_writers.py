"""Loggers of metrics, films and policies besides the run directory: W&B and TensorBoard."""

import os
import struct
import subprocess
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from netrc import NetrcParseError, netrc
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from gpusim_rl.core.errors import printable, reason, warn
from gpusim_rl.core.files import digest
from gpusim_rl.core.metrics import Metric, public_name
from gpusim_rl.core.paths import install
from gpusim_rl.core.waiting import waiting
from gpusim_rl.training.dashboard import Row

HOSTS = ("api.wandb.ai", "api.forge.coreweave.com")  # of W&B, the old and the new
# Why: docs/decisions/0067-loggers-may-fail.md
PATIENCE = 20.0  # s, for the first answer from W&B
LAST = "300"  # s, for the last: without a network W&B would try for hours
SINKS = ("auto", "wandb", "tensorboard", "none")
PICTURES = 120  # of a film in TensorBoard at most
HALF = "fps=10,scale=iw/2:-2"  # for ffmpeg: ten pictures per second, of half the size


class Sink(Protocol):
    """A place for rows and files of one training. Rows have the public names of metrics."""

    where: str  # one line for people: the address, or how to look at it; perhaps empty

    def write(self, row: Row) -> None:
        """Take a row of metrics, at its `iteration`."""

    def add(self, file: Path) -> None:
        """Take a film (.mp4) or a policy (.onnx) of the last row's iteration."""

    def close(self, failed: bool = False) -> None:
        """Finish. No other method may be called afterwards, but this one again."""


class NullSink:
    """A sink that discards everything."""

    where = ""

    def write(self, row: Row) -> None: ...
    def add(self, file: Path) -> None: ...
    def close(self, failed: bool = False) -> None: ...


class OptionalSink:
    """A sink that must not fail a training: its first error is one line, and it is off afterwards.

    Args:
        name: what the line calls it.
        to: the sink.
        metrics: the public names of what a row holds.
    """

    def __init__(self, name: str, to: Sink, metrics: Iterable[Metric] = ()):
        self.name, self.to, self.where, self.metrics = name, to, to.where, tuple(metrics)

    def write(self, row: Row) -> None:
        with self.off_at_error():
            self.to.write({public_name(key, self.metrics): value for key, value in row.items()})

    def add(self, file: Path) -> None:
        try:
            self.to.add(file)
        except Exception as error:  # perhaps of the file alone
            warn(f"not logged: {file}: {reason(error)}")

    def close(self, failed: bool = False) -> None:
        with self.off_at_error():
            self.to.close(failed)

    @contextmanager
    def off_at_error(self) -> Iterator[None]:
        """Say what goes wrong inside, and take nothing from then on."""
        try:
            yield
        except Exception as error:
            warn(f"{self.name} is off from now on: {reason(error)}")
            to, self.to = self.to, NullSink()
            with suppress(Exception):
                to.close(failed=True)


class WandB:
    """A run at Weights & Biases.

    Args:
        auto: the user named no logger, so the line says how to keep all here.
        log: the section of the configuration: project, and perhaps run, group and tags.
        path: of the run.
        config: the whole configuration.
    """

    def __init__(self, auto: bool, log: dict[str, Any], path: Path, config: dict[str, Any]):
        import wandb

        if not logged_in():  # else it would prompt, or wait for the network
            os.environ.setdefault("WANDB_MODE", "offline")
        os.environ.setdefault("WANDB_FINISH_TIMEOUT", LAST)
        os.environ.setdefault("WANDB_FINISH_TIMEOUT_RAISES", "true")
        about: dict[str, Any] = {"project": log["project"], "name": log["run"] or path.name}
        about |= {"group": log["group"], "tags": log["tags"], "dir": path, "config": config}
        about["settings"] = wandb.Settings(silent=True, init_timeout=PATIENCE)
        failed = "W&B is offline; "
        try:
            with waiting("waiting for W&B"):
                self.run = wandb.init(**about)
        except wandb.Error as error:  # no network, or a key that it does not know
            why, _, _ = str(error).partition("\n")
            failed = f"W&B cannot be used: {printable(why[:200])}; "
            self.run = wandb.init(**about, mode="offline")
        self.run.define_metric("*", step_metric="iteration")  # W&B's own step cannot go back
        self.task, self.step, self.finished = config["task"]["name"], 0, False
        if self.run.offline:  # then its `url` prints a warning
            folder = Path(self.run.dir).parent
            self.where = f"{failed}`wandb sync {folder}` sends the run later"
        elif auto:
            self.where = (
                "log=auto: logged in to W&B, so metrics, film and policy are uploaded to "
                f"{self.run.url}; log=none keeps them here"
            )
        else:
            self.where = f"W&B: {self.run.url}"
        if self.run.disabled:
            self.where = "W&B is off: WANDB_MODE=disabled"

    def write(self, row: Row) -> None:
        self.step = int(row["iteration"])
        self.run.log(row | {"iteration": self.step})

    def add(self, file: Path) -> None:
        import wandb

        if file.suffix == ".mp4":
            film = wandb.Video(str(file), format="mp4")
            return self.run.log({"iteration": self.step, "eval/film": film})
        policy = wandb.Artifact(f"{self.task}-policy", "model", metadata=digest(file))
        policy.add_file(str(file.resolve()), policy="immutable")  # `wandb sync` reads it there
        self.run.log_artifact(policy)

    def close(self, failed: bool = False) -> None:
        import wandb

        if self.finished:
            return
        self.finished = True
        try:
            with waiting("finishing the run of W&B"):
                self.run.finish(exit_code=int(failed))
        except Exception:
            with suppress(Exception):  # else the end of Python, or the next run, would fail again
                wandb.teardown(1)
            raise


class TensorBoard:
    """Event files in the directory `tensorboard` of a run.

    A film is animated pictures, which TensorBoard shows. An ONNX file is a tensor that holds its
    bytes, and a text that names it. Iterations that are done again, after a roll-back or after the
    first `done` ones of a run that is continued, replace what was logged of them.
    """

    def __init__(self, path: Path, done: int = 0):
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            needs = f"log=tensorboard needs tensorboard: {install('tensorboard')}"
            raise ValueError(needs) from None
        silence_threads()
        self.writer, self.step = SummaryWriter(str(path / "tensorboard"), purge_step=done + 1), done
        self.where = f"TensorBoard: tensorboard --logdir {path / 'tensorboard'}"

    def write(self, row: Row) -> None:
        before, self.step = self.step, int(row["iteration"])
        if self.step <= before and "train/env_steps" in row:  # it was rolled back, and is not over
            self.writer.close()  # the next file says that it replaces what was logged from here on
            self.writer.purge_step = self.step
        for name in row.keys() - {"iteration"}:
            self.writer.add_scalar(name, row[name], self.step)

    def add(self, file: Path) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.util.tensor_util import make_tensor_proto

        if file.suffix == ".mp4":
            data, height, width = pictures(file)
            image = Summary.Image(
                encoded_image_string=data, height=height, width=width, colorspace=3
            )
            value = Summary.Value(tag="eval/film", image=image)
        else:
            text = ", ".join(f"{key} {x}" for key, x in digest(file).items())
            self.writer.add_text(file.stem, f"{file.name}: {text}", self.step)
            value = Summary.Value(tag=file.name, tensor=make_tensor_proto(file.read_bytes()))
        writer: Any = self.writer.file_writer
        writer.add_summary(Summary(value=[value]), self.step)

    def close(self, failed: bool = False) -> None:
        self.writer.close()


@cache
def silence_threads() -> None:
    """Drop the traceback of a thread of TensorBoard, once per process: the next write raises it."""
    hook, of = threading.excepthook, "tensorboard."
    threading.excepthook = lambda x: type(x.thread).__module__.startswith(of) or hook(x)


def logged_in() -> bool:
    """Whether a W&B login exists on this machine; touches neither the network nor wandb."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    hosts = {*HOSTS, urlsplit(os.environ.get("WANDB_BASE_URL", "")).netloc}
    try:
        return not hosts.isdisjoint(netrc(os.environ.get("NETRC")).hosts)
    except (OSError, NetrcParseError):
        return False


def sink(
    name: str,
    log: dict[str, Any],
    path: Path,
    config: dict[str, Any],
    done: int = 0,
    metrics: Iterable[Metric] = (),
) -> Sink:
    """The sink of log=name. `auto` is W&B where a login exists, else nothing.

    Args:
        log: project, run, group and tags at W&B.
        path, config: of the run: its directory and its whole configuration.
        done: iterations of a run that is continued.
        metrics: the public names of what a row holds.
    """
    if name not in SINKS:
        raise ValueError(f"unknown log {name!r}: choose one of {', '.join(SINKS)}")
    if name == "wandb" or (name == "auto" and logged_in()):
        return OptionalSink("W&B", WandB(name == "auto", log, path, config), metrics)
    if name == "tensorboard":
        return OptionalSink("TensorBoard", TensorBoard(path, done), metrics)
    return NullSink()


def pictures(film: Path) -> tuple[bytes, int, int]:
    """(a film as a GIF of half its size, height, width); OSError if it cannot be read."""
    import imageio_ffmpeg

    line = [imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", "-i", str(film), "-vf", HALF]
    line += ["-frames:v", str(PICTURES), "-f", "gif", "-loop", "0", "-"]
    made = subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if made.returncode:
        raise OSError(f"{film} is not a film: {made.stderr.decode(errors='replace')}")
    width, height = struct.unpack("<HH", made.stdout[6:10])
    return made.stdout, height, width
