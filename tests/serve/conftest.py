"""Exported files for the tests of the server."""

from pathlib import Path

import pytest

from gpusim_rl.commands.play_mode import DEMO
from tests.serving import other_version


@pytest.fixture(scope="session")
def other(tmp_path_factory) -> Path:
    """A version of the demo's policy with other weights."""
    return other_version(DEMO, tmp_path_factory.mktemp("other") / "policy.onnx")
