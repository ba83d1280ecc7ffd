"""A policy for the tests of deployment that stands without training."""

from pathlib import Path

import pytest
import torch

from gpusim_rl.deploy.controller import Controller
from gpusim_rl.deploy.export_policy import rest
from tests.exported import export_task
from tests.worlds import make_task


class Rest(torch.nn.Module):
    """An actor that asks for nothing: the clock of the gait alone moves the legs."""

    def __init__(self):
        super().__init__()
        self.normalizer = torch.nn.Linear(12, 12)
        torch.nn.init.zeros_(self.normalizer.weight)
        torch.nn.init.zeros_(self.normalizer.bias)

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return self.normalizer(obs[:, :12])


@pytest.fixture(scope="session")
def trot(tmp_path_factory) -> Path:
    """The file of a quadruped that trots on the spot."""
    task, path = make_task("quadruped"), tmp_path_factory.mktemp("trot") / "policy.onnx"
    about = rest(task, Controller(task, Rest()))
    return export_task("quadruped", path, task=task, actor=Rest(), rest=about).path
