"""torch lists ONNX's operators anew for each export, which takes a quarter of its time."""

from contextlib import suppress
from functools import cache


def list_once() -> None:
    """Let the exports of this process share the list of the first. Changes torch, in place."""
    with suppress(ImportError):  # a private module: without it exports only take longer
        from torch.onnx._internal.exporter._registration import ONNXRegistry as Registry

        setattr(Registry, "from_torchlib", staticmethod(cache(Registry.from_torchlib)))  # noqa: B010
