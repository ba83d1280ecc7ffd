"""Checks of the section `serve` of a configuration, and of the packages that the server needs.

These are optional, so nothing here imports them.
"""

import ipaddress
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlsplit

from gpusim_rl.core import ranges
from gpusim_rl.core.paths import install

PACKAGES = ("websockets", "msgpack", "prometheus_client")
SWAPS = ("reset", "drain")
UNUSED = ("run", "checkpoint", "repro", "video", "compare")  # other sources, and what shows them


def check_settings(cfg: dict[str, Any]) -> None:
    """ValueError for the first value of the section `serve` that is not allowed."""
    ranges.check(cfg, table=ranges.SERVE)
    settings = cfg["serve"]
    if settings["swap"] not in SWAPS:
        raise ValueError(f"serve.swap={settings['swap']}: choose one of {', '.join(SWAPS)}")
    for key in ("host", "token_file"):
        if not isinstance(settings[key], str | None) or settings[key] == "":
            raise ValueError(f"serve.{key}={settings[key]!r}: expected a word")


def check_source(cfg: dict[str, Any]) -> None:
    """ValueError unless a server can run, and one policy is named."""
    if missing := [name for name in PACKAGES if not find_spec(name)]:
        raise ValueError(f"mode=serve needs {' and '.join(missing)}: {install('serve')}")
    for key in UNUSED:
        if cfg[key]:
            raise ValueError(f"mode=serve serves an exported file: not with {key}=")
    if bool(cfg["onnx"]) == bool(cfg["registry"] or cfg["alias"]):
        raise ValueError("mode=serve needs onnx=FILE, or registry=DIR for what it releases")


def is_loopback(host: str) -> bool:
    """Whether a host, perhaps with a port, is this machine, which no other can reach by it."""
    try:
        name = host if host.count(":") > 1 and host[0] != "[" else urlsplit(f"//{host}").hostname
        return name == "localhost" or ipaddress.ip_address(name or "").is_loopback
    except ValueError:
        return False
