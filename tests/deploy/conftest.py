"""Exported policies for the tests of deployment, which take seconds each."""

from pathlib import Path
from typing import Any

import pytest
import torch

from gpusim_rl.deploy.controller import Controller
from gpusim_rl.deploy.export_policy import rest
from tests.exported import Exported, export_task
from tests.shared import shared
from tests.worlds import TASKS, make_env, make_task

QUICK = ("cartpole", "drone", "quadruped")  # an export takes 6 s: all others are slow
EACH = [pytest.param(task, marks=[pytest.mark.slow] * (task not in QUICK)) for task in TASKS]


def kept(factory: pytest.TempPathFactory, task: str, **settings: Any) -> Exported:
    """An exported policy of a task, which the first worker that needs it makes for all."""

    def make(folder: Path) -> None:
        (folder / "file").mkdir()
        torch.save(export_task(task, folder / "file" / "policy.onnx", **settings), folder / "made")

    return torch.load(shared(factory, f"exported {task}", make) / "made", weights_only=False)


@pytest.fixture(scope="session", params=EACH)
def exported(request, tmp_path_factory) -> Exported:
    """An exported policy of each task, with a history where it is not the walker."""
    if request.param == "quadruped":
        return request.getfixturevalue("walker")
    term = next(iter(make_env(request.param, 1).term_widths))  # the first that it observes
    return kept(tmp_path_factory, request.param, history={term: 3})


@pytest.fixture(scope="session")
def walker(tmp_path_factory) -> Exported:
    """An exported policy of the quadruped."""
    return kept(tmp_path_factory, "quadruped")


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

    def make(folder: Path) -> None:
        task, path = make_task("quadruped"), folder / "policy.onnx"
        about = rest(task, Controller(task, Rest()))
        export_task("quadruped", path, task=task, actor=Rest(), rest=about)

    return shared(tmp_path_factory, "trot", make) / "policy.onnx"
