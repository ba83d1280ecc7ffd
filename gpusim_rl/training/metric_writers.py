"""Where metrics, film and policy go besides the run directory: W&B or TensorBoard."""

import hashlib
import os
import struct
import subprocess
from netrc import NetrcParseError, netrc
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from gpusim_rl.core.errors import printable, warn
from gpusim_rl.core.waiting import waiting
from gpusim_rl.training.dashboard import Row

HOSTS = ("api.wandb.ai", "api.forge.coreweave.com")  # of W&B, the old and the new
PATIENCE = 20.0  # s, for the first answer from W&B
SINKS = ("auto", "wandb", "tensorboard", "none")
FILMS = (".mp4", ".gif")
PICTURES = 120  # of a film in TensorBoard at most
HALF = "fps=10,scale=iw/2:-2"  # for ffmpeg: ten pictures per second, of half the size

# Name in metrics.jsonl → name in W&B and TensorBoard. `…/*` renames all that begin so.
NAMES = {
    "return": "train/return",
    "length": "train/episode_length",
    "success": "train/success",
    "terminated": "train/terminated",
    "fault": "train/faults",
    "overflow": "train/overflows",
    "env_steps": "train/env_steps",
    "bad": "train/bad_iterations",
    "rollbacks": "train/rollbacks",
    "reward/*": "reward/*",
    "measure/*": "measure/*",
    "schedule/*": "schedule/*",
    "policy_loss": "loss/policy",
    "value_loss": "loss/value",
    "entropy": "loss/entropy",
    "approx_kl": "loss/approx_kl",
    "clipped": "loss/clip_fraction",
    "actor_norm": "loss/actor_grad_norm",
    "critic_norm": "loss/critic_grad_norm",
    "learning_rate": "loss/learning_rate",
    "std": "loss/action_std",
    "skipped": "loss/skipped_minibatches",
    "steps_per_s": "perf/steps_per_s",
    "time_s": "perf/time_s",
    "share/*": "perf/share/*",
    "cores": "perf/cores",
    "eval/*": "eval/*",
}


def public_name(name: str) -> str:
    """The name of a metric in W&B and TensorBoard; its own if `NAMES` lacks it."""
    group, slash, rest = name.partition("/")
    return NAMES.get(f"{group}/*", f"{group}/*")[:-1] + rest if slash else NAMES.get(name, name)


def public_row(row: Row) -> Row:
    """A row of metrics under the names of `NAMES`, without `iteration`, which is its step."""
    return {public_name(name): value for name, value in row.items() if name != "iteration"}


class Sink(Protocol):
    """Where rows and files of one training go."""

    where: str  # one line for people: the address, or how to look at it; perhaps empty

    def write(self, row: Row) -> None:
        """Take a row of metrics, at its `iteration`."""

    def add(self, file: Path) -> None:
        """Take a film (one of `FILMS`) or a policy (.onnx) of the last row's iteration."""

    def close(self, failed: bool = False) -> None:
        """Finish. No other method may be called afterwards, but this one again."""


class Nowhere:
    """Takes nothing."""

    where = ""

    def write(self, row: Row) -> None: ...
    def add(self, file: Path) -> None: ...
    def close(self, failed: bool = False) -> None: ...


class WandB:
    """A run at Weights & Biases.

    Args:
        auto: it was not asked for, so the line says how to keep all here.
        log: the section of the configuration: project, and perhaps run, group and tags.
        path: of the run.
        config: the whole configuration.
    """

    def __init__(self, auto: bool, log: dict[str, Any], path: Path, config: dict[str, Any]):
        import wandb

        if not logged_in():  # else it would prompt, or wait for the network
            os.environ.setdefault("WANDB_MODE", "offline")
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
        self.task, self.step, self.finished = config["task"]["name"], 0, False
        asked = "log=auto: logged in to W&B, so metrics, film and policy are uploaded to "
        asked, none = (asked, "; log=none keeps them here") if auto else ("W&B: ", "")
        kept = f"{failed}`wandb sync {Path(self.run.dir).parent}` sends the run later"
        address = "" if self.run.offline else self.run.url
        self.where = f"{asked}{address}{none}" if address else kept
        if self.run.disabled:
            self.where = "W&B is off: WANDB_MODE=disabled"

    def write(self, row: Row) -> None:
        self.step = int(row["iteration"])
        self.run.log(public_row(row), step=self.step)

    def add(self, file: Path) -> None:
        import wandb

        if file.suffix in FILMS:
            kind: Any = file.suffix[1:]
            return self.run.log({"eval/film": wandb.Video(str(file), format=kind)}, step=self.step)
        policy = wandb.Artifact(f"{self.task}-policy", "model", metadata=digest(file))
        policy.add_file(str(file.resolve()), policy="immutable")  # `wandb sync` reads it there
        self.run.log_artifact(policy)

    def close(self, failed: bool = False) -> None:
        if not self.finished:
            with waiting("finishing the run of W&B"):
                self.run.finish(exit_code=int(failed))
        self.finished = True


class TensorBoard:
    """Event files in the directory `tensorboard` of a run.

    A film is animated pictures, which TensorBoard shows. An ONNX file is a tensor that holds its
    bytes, and a text that names it.
    """

    def __init__(self, path: Path):
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ValueError(
                "log=tensorboard needs tensorboard: pip install 'gpusim_rl[tensorboard]'"
            ) from None
        self.writer, self.step = SummaryWriter(str(path / "tensorboard")), 0
        self.where = f"TensorBoard: tensorboard --logdir {path / 'tensorboard'}"

    def write(self, row: Row) -> None:
        self.step = int(row["iteration"])
        for name, value in public_row(row).items():
            self.writer.add_scalar(name, value, self.step)

    def add(self, file: Path) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.util.tensor_util import make_tensor_proto

        if file.suffix in FILMS:
            data, height, width = pictures(file)
            image = Summary.Image(
                encoded_image_string=data, height=height, width=width, colorspace=3
            )
            value = Summary.Value(tag="eval/film", image=image)
        else:
            said = ", ".join(f"{key} {x}" for key, x in digest(file).items())
            self.writer.add_text(file.stem, f"{file.name}: {said}", self.step)
            value = Summary.Value(tag=file.name, tensor=make_tensor_proto(file.read_bytes()))
        writer: Any = self.writer.file_writer
        writer.add_summary(Summary(value=[value]), self.step)

    def close(self, failed: bool = False) -> None:
        self.writer.close()


def logged_in() -> bool:
    """Whether a W&B login exists on this machine; touches neither the network nor wandb."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    hosts = {*HOSTS, urlsplit(os.environ.get("WANDB_BASE_URL", "")).netloc}
    try:
        return not hosts.isdisjoint(netrc(os.environ.get("NETRC")).hosts)
    except (OSError, NetrcParseError):
        return False


def sink(name: str, log: dict[str, Any], path: Path, config: dict[str, Any]) -> Sink:
    """Where log=name sends what a training makes. `auto` is W&B where a login exists, else nothing.

    Args:
        log: project, run, group and tags at W&B.
        path: of the run.
        config: the whole configuration.
    """
    if name not in SINKS:
        raise ValueError(f"unknown log {name!r}: choose one of {', '.join(SINKS)}")
    if name == "wandb" or (name == "auto" and logged_in()):
        return WandB(name == "auto", log, path, config)
    return TensorBoard(path) if name == "tensorboard" else Nowhere()


def add_or_warn(to: Sink, file: Path) -> None:
    """Add a film or a policy. If that fails, one line says why: it must not fail a training."""
    try:
        to.add(file)
    except Exception as error:
        kind = "" if isinstance(error, ValueError | OSError) else f"{type(error).__name__}: "
        warn(f"not logged: {file}: {kind}{' '.join(str(error).split())}"[:1000])


def digest(file: Path) -> dict[str, Any]:
    """Size and hash of a file, by which it can be told again."""
    data = file.read_bytes()
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


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
