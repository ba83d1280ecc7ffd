"""Loggers of metrics and files besides the run directory: W&B, TensorBoard and MLflow."""

import logging
import os
import re
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from netrc import NetrcParseError, netrc
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gpusim_rl.config.nested_dict import leaves
from gpusim_rl.core.errors import printable, reason, warn
from gpusim_rl.core.files import Plain, digest
from gpusim_rl.core.metrics import Metric, public_name
from gpusim_rl.core.waiting import waiting
from gpusim_rl.training.dashboard import Row

HOSTS = ("api.wandb.ai", "api.forge.coreweave.com")  # of W&B, the old and the new
# Why: docs/decisions/metrics.md
PATIENCE = 20.0  # s, for the first answer from W&B
LAST = "300"  # s, for the last: without a network W&B would try for hours
EVERY = 1.0  # s between two messages to MLflow
# Of a message to MLflow, and letters of a parameter.
MOST_METRICS, MOST_PARAMETERS, LONGEST_PARAMETER = 1000, 100, 6000
NOT_IN_NAMES = re.compile(r"[^\w\-. /:]")  # of MLflow's metrics and parameters
PICTURES = 120  # of a film in TensorBoard at most
HALF = "fps=10,scale=iw/2:-2"  # for ffmpeg: ten pictures per second, of half the size


class Sink:
    """A place for rows and files of one training; this one discards everything.

    Rows have the public names of metrics.
    """

    where = ""  # one line for people: the address, or how to look at it; perhaps empty

    def write(self, row: Row) -> None:
        """Take a row of metrics, at its `iteration`."""

    def add(self, file: Path) -> None:
        """Take a film (.mp4), a policy (.onnx) or a report (.html) of the last row's iteration."""

    def close(self, failed: bool = False) -> None:
        """Finish. No other method may be called afterwards, but this one again."""


class OptionalSink(Sink):
    """A sink that must not fail a training: its first error is one line, and it is off afterwards.

    name: what the line calls it; metrics: the public names of what a row holds.
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
            to, self.to = self.to, Sink()
            with suppress(Exception):
                to.close(failed=True)


class WandB(Sink):
    """A run at Weights & Biases."""

    def __init__(self, path: Path, config: Plain, done: int, auto: bool):
        import wandb

        log = config["log"]
        if not logged_in():  # else it would prompt, or wait for the network
            os.environ.setdefault("WANDB_MODE", "offline")
        os.environ.setdefault("WANDB_FINISH_TIMEOUT", LAST)
        os.environ.setdefault("WANDB_FINISH_TIMEOUT_RAISES", "true")
        options: Plain = {"project": log["project"], "name": log["run"] or path.name}
        options |= {"group": log["group"], "tags": log["tags"], "dir": path, "config": config}
        options["settings"] = wandb.Settings(silent=True, init_timeout=PATIENCE)
        failed = "W&B is offline; "
        try:
            with waiting("waiting for W&B"):
                self.run = wandb.init(**options)
        except wandb.Error as error:  # no network, or a key that it does not know
            why, _, _ = str(error).partition("\n")
            failed = f"W&B cannot be used: {printable(why[:200])}; "
            self.run = wandb.init(**options, mode="offline")
        self.run.define_metric("*", step_metric="iteration")  # W&B's own step cannot go back
        self.task, self.step, self.finished = config["task"]["name"], 0, False
        self.registry = None if self.run.offline else log["registry"]
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

        if file.suffix == ".html":  # W&B has its own page
            return
        if file.suffix == ".mp4":
            film = wandb.Video(str(file), format="mp4")
            return self.run.log({"iteration": self.step, "eval/film": film})
        policy = wandb.Artifact(f"{self.task}-policy", "model", metadata=digest(file))
        policy.add_file(str(file.resolve()), policy="immutable")  # `wandb sync` reads it there
        self.run.log_artifact(policy)
        if self.registry:
            self.run.link_artifact(policy, self.registry)

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


class TensorBoard(Sink):
    """Event files in the directory `tensorboard` of a run.

    A film is animated pictures, which TensorBoard shows. An ONNX file is a tensor that holds its
    bytes, and a text that names it. Iterations that are done again, after a roll-back or of a run
    that is continued, replace what was logged of them.
    """

    def __init__(self, path: Path, config: Plain, done: int, auto: bool):
        from torch.utils.tensorboard import SummaryWriter

        silence_threads()
        folder, self.step = path / "tensorboard", done
        self.writer = SummaryWriter(str(folder), purge_step=done + 1)
        self.where = f"TensorBoard: tensorboard --logdir {folder}"

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

        if file.suffix == ".html":
            return
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


class MLflow(Sink):
    """A run at an MLflow server, whose address is in MLFLOW_TRACKING_URI.

    A thread sends the numbers of each second in one message, so that a training waits for none.

    ConnectionError if the server does not answer.
    """

    # Why: docs/decisions/metrics.md
    def __init__(self, path: Path, config: Plain, done: int, auto: bool):
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # it would tell its maker of use
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")  # else it tries for minutes
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", f"{PATIENCE:.0f}")
        from mlflow import MlflowClient

        os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
        # a dead server is one line, and not one of each attempt
        for name in ("urllib3.connectionpool", "mlflow"):
            logging.getLogger(name).setLevel(logging.ERROR)
        self.task, self.step = config["task"]["name"], done
        self.model = config["log"]["registry"] or f"{self.task}-policy"
        self.uri = os.environ["MLFLOW_TRACKING_URI"]
        try:
            with waiting("waiting for MLflow"):
                self.client = MlflowClient()
                self.id = self.begin(path, config)
        except Exception as error:
            raise self.no_answer(error) from None
        self.where = f"MLflow: {self.uri}, run {self.id}"
        self.metrics: list[Any] = []  # that are not sent yet
        self.error: Exception | None = None  # of the thread
        self.ends = threading.Event()
        self.thread = threading.Thread(target=self.send_each_second, name="MLflow", daemon=True)
        self.thread.start()

    def begin(self, path: Path, config: Plain) -> str:
        """Make the run, with all keys of the configuration. Returns its identifier."""
        from mlflow.entities import Param

        log, tags = config["log"], dict.fromkeys(config["log"]["tags"], "true")
        tags |= {"group": log["group"]} if log["group"] else {}
        experiment = self.client.get_experiment_by_name(project := log["project"])
        at = experiment.experiment_id if experiment else self.client.create_experiment(project)
        name = log["run"] or path.name
        run = self.client.create_run(at, tags=tags, run_name=name).info.run_id
        values = [
            Param(NOT_IN_NAMES.sub("_", key), str(x)[:LONGEST_PARAMETER])
            for key, x in leaves(config).items()
        ]
        for i in range(0, len(values), MOST_PARAMETERS):
            self.client.log_batch(run, params=values[i : i + MOST_PARAMETERS])
        return run

    def write(self, row: Row) -> None:
        from mlflow.entities import Metric as Number

        if self.error:
            raise self.error
        self.step, now = int(row["iteration"]), int(time.time() * 1000)
        self.metrics += [
            Number(NOT_IN_NAMES.sub("_", name), float(row[name]), now, self.step)
            for name in row.keys() - {"iteration"}
        ]

    def send_each_second(self) -> None:
        """Send what was written, until `close`. In the thread."""
        try:
            while not self.ends.wait(EVERY):
                self.send()
            self.send()
        except Exception as error:
            self.error = self.no_answer(error)

    def no_answer(self, error: Exception) -> ConnectionError:
        """An error that names the server, with what a request failed with."""
        return ConnectionError(f"{self.uri} does not take the run: {reason(error)[:200]}")

    def send(self) -> None:
        while batch := self.metrics[:MOST_METRICS]:
            self.client.log_batch(self.id, metrics=batch)
            del self.metrics[: len(batch)]

    def add(self, file: Path) -> None:
        self.client.log_artifact(self.id, str(file))
        if file.suffix != ".onnx" or not os.environ.get("MLFLOW_REGISTRY_URI"):
            return
        from mlflow.exceptions import MlflowException

        with suppress(MlflowException):  # it is there
            self.client.create_registered_model(self.model)
        source = f"{self.client.get_run(self.id).info.artifact_uri}/{file.name}"
        tags = {key: str(x) for key, x in digest(file).items()} | {"task": self.task}
        self.client.create_model_version(
            self.model, source, run_id=self.id, tags=tags, await_creation_for=0
        )

    def close(self, failed: bool = False) -> None:
        if self.ends.is_set():
            return
        self.ends.set()
        with waiting("finishing the run of MLflow"):
            self.thread.join()
            if self.error:
                raise self.error
            self.client.set_terminated(self.id, "FAILED" if failed else "FINISHED")


# log= → what people call it, class. `auto`: the user named none, so W&B says how to keep all here.
LOGGERS: dict[str, tuple[str, Callable[[Path, Plain, int, bool], Sink]]] = {
    "wandb": ("W&B", WandB),
    "tensorboard": ("TensorBoard", TensorBoard),
    "mlflow": ("MLflow", MLflow),
}


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
    name: str, path: Path, config: Plain, done: int = 0, metrics: Iterable[Metric] = ()
) -> Sink:
    """The sink of log=name. `auto` is W&B where a login exists, else nothing.

    Args:
        done: iterations of a run that is continued.
        metrics: the public names of what a row holds.
    """
    if name not in (choices := ("auto", *LOGGERS, "none")):
        raise ValueError(f"unknown log {name!r}: choose one of {', '.join(choices)}")
    auto = name == "auto"
    if name == "none" or (auto and not logged_in()):
        return Sink()
    title, logger = LOGGERS["wandb" if auto else name]
    try:
        return OptionalSink(title, logger(path, config, done, auto), metrics)
    except ConnectionError as error:
        warn(f"{title} is off: {error}")
        return Sink()


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
