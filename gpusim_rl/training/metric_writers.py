"""Where rows of metrics go besides metrics.jsonl: W&B or TensorBoard."""

import os
from collections.abc import Callable
from netrc import NetrcParseError, netrc
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gpusim_rl.training.dashboard import Row

HOSTS = ("api.wandb.ai", "api.forge.coreweave.com")  # of W&B, the old and the new
PATIENCE = 20.0  # s, for the first answer from W&B
SINKS = ("auto", "wandb", "tensorboard", "none")


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
    name: str, project: str, path: Path, config: dict[str, Any]
) -> tuple[Callable[[Row], None], Callable[[], None]]:
    """(write a row, close) for log=name. `auto` is W&B where a login exists, else nothing."""
    if name not in SINKS:
        raise ValueError(f"unknown log {name!r}: choose one of {', '.join(SINKS)}")
    if name == "wandb" or (name == "auto" and logged_in()):
        import wandb

        if not logged_in():  # else it would prompt, or wait for the network
            os.environ.setdefault("WANDB_MODE", "offline")
        settings = wandb.Settings(silent=True, init_timeout=PATIENCE)
        try:
            run = wandb.init(project=project, dir=path, config=config, settings=settings)
        except wandb.Error:
            print(
                "W&B cannot be reached;"
                f" `wandb sync {path}/wandb/offline-run-*` sends the run later",
                flush=True,
            )
            run = wandb.init(
                project=project, dir=path, config=config, settings=settings, mode="offline"
            )
        return lambda row: run.log(row, step=int(row["iteration"])), run.finish
    if name == "tensorboard":
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ValueError(
                "log=tensorboard needs tensorboard: pip install 'gpusim_rl[tensorboard]'"
            ) from None
        writer = SummaryWriter(str(path / "tensorboard"))

        def write(row: Row) -> None:
            for key, value in row.items():
                writer.add_scalar(key, value, int(row["iteration"]))

        return write, writer.close
    return lambda row: None, lambda: None
