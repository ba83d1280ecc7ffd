"""Worlds of the adapters' tests: in MuJoCo C on one thread, in a directory of their own."""

import pytest

KEYS = {"sim": "native", "sim.threads": 1, "device": "cpu"}


def upset(env) -> None:
    """Turn the robot of world 0 over, and make the state of world 2 not a number."""
    env.sim.qpos[0, 3:7] = env.task.tensor([0.0, 1.0, 0.0, 0.0])
    env.sim.qvel[2, 0] = float("nan")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """MuJoCo writes MUJOCO_LOG.TXT to the working directory when a world goes wrong."""
    monkeypatch.chdir(tmp_path)
