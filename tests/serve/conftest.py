"""Exported files for the tests of the server, which may be coroutines."""

import asyncio
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpusim_rl import registry
from gpusim_rl.commands.modes import DEMO
from gpusim_rl.serve.registry import Registry
from tests.serving import PASS, demo_with, other_version


def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine on a loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


@pytest.fixture
def silent(capfd) -> Iterator[None]:
    """Nothing is printed, also when the loop of the test is closed."""
    yield
    assert capfd.readouterr() == ("", "")


@pytest.fixture(scope="session")
def other(tmp_path_factory) -> Path:
    """A version of the demo's policy with other weights."""
    return other_version(DEMO, tmp_path_factory.mktemp("other") / "policy.onnx")


@pytest.fixture(scope="session")
def files(tmp_path_factory) -> list[Path]:
    """Three policies, and one for another robot."""
    folder = tmp_path_factory.mktemp("files")
    return [demo_with(folder, n) for n in range(3)] + [demo_with(folder, 3, robot="another")]


@pytest.fixture
def store(tmp_path, files) -> Registry:
    """A registry of the three, all of which passed a gate."""
    for file in files[:3]:
        registry.add(tmp_path / "store", file, note=file.name)
    result = Registry(tmp_path / "store", by="ada")
    for row in result.list():
        result.record_judgement(row["digest"], PASS, "")
    return result
