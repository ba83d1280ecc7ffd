"""Stops a build that would lack conf/ and tasks/: both are links in gpusim_rl/."""

from pathlib import Path

from setuptools import setup

PACKAGE = Path(__file__).resolve().parent / "gpusim_rl"

for file in ("conf/config.yaml", "tasks/__init__.py"):
    if not (PACKAGE / file).is_file():
        raise SystemExit(
            f"error: gpusim_rl/{file} is missing: gpusim_rl/conf and gpusim_rl/tasks must be "
            "symbolic links to conf/ and tasks/; clone the repository with git"
        )
setup()
