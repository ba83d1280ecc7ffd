"""Where the adapters are tested."""

import pytest


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """MuJoCo writes MUJOCO_LOG.TXT to the working directory when a world goes wrong."""
    monkeypatch.chdir(tmp_path)
