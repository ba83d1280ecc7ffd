"""Two libraries' slow parts, quicker with the same results, which takes a tenth off the suite.

OmegaConf reads YAML in Python, although there is a parser in C. torch lists ONNX's operators anew
for each export.
"""

from functools import cache
from typing import Any
from unittest import mock

import yaml
from omegaconf import _utils


def read_yaml_in_c() -> None:
    """OmegaConf's own loader, above the parser in C."""
    with mock.patch.object(yaml, "SafeLoader", yaml.CSafeLoader):
        loader: Any = _utils.get_yaml_loader()
    _utils.get_yaml_loader = lambda: loader


def list_operators_once() -> None:
    """ONNX's operators for torch are listed at the first export of a process."""
    from torch.onnx._internal.exporter import _registration

    listed = cache(_registration.ONNXRegistry.from_torchlib)
    setattr(_registration.ONNXRegistry, "from_torchlib", staticmethod(listed))  # noqa: B010
