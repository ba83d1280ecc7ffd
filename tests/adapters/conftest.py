"""Worlds of the adapters' tests: in MuJoCo C on one thread, in a directory of their own."""

import pytest

KEYS = {"sim": "native", "sim.threads": 1, "device": "cpu"}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """MuJoCo writes MUJOCO_LOG.TXT to the working directory when a world goes wrong."""
    monkeypatch.chdir(tmp_path)
