"""The packages that the page needs. They are optional, so nothing here imports them."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from importlib.util import find_spec

from gpusim_rl.core.paths import install

# As in pyproject.toml. The page uses private names of viser, which a 1.2 may change.
VERSIONS = {"viser": ">=1.1,<1.2", "mjviser": ">=0.0.14,<0.1"}


def check_installed() -> None:
    """ValueError unless the packages are installed, in whatever version."""
    if not all(map(find_spec, VERSIONS)):
        raise ValueError(f"mode=web needs viser and mjviser: {install('web')}")


@contextmanager
def check_versions() -> Iterator[None]:
    """Turn the ImportError of a package that lacks what the page uses into a ValueError."""
    try:
        yield
    except ImportError as error:
        needed = " and ".join(f"{name}{versions}" for name, versions in VERSIONS.items())
        have = " and ".join(f"{name} {version(name)}" for name in VERSIONS)
        raise ValueError(f"mode=web cannot use {have}, it needs {needed}: {error}") from None
