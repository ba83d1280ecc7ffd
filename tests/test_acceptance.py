"""The acceptance programs start: `--help` imports all that they need."""

import sys

from tests.command_lines import run_process
from tests.worlds import ROOT

NAMES = sorted(
    f"tests.acceptance.{file.stem}"
    for file in (ROOT / "tests" / "acceptance").glob("*.py")
    if file.stem != "__init__"
)
PROGRAM = """
import runpy, sys
for name in sys.argv[1:]:
    sys.argv = [name, "--help"]
    try:
        runpy.run_module(name, run_name="__main__")
    except SystemExit as end:
        assert not end.code, f"{name} ended with {end.code}"
    else:
        raise AssertionError(f"{name} has no --help")
"""


def test_each_acceptance_program_starts():
    """Each of tests/acceptance answers --help: no import in it is of a name that is gone."""
    assert len(NAMES) > 6
    done = run_process(sys.executable, "-c", PROGRAM, *NAMES, timeout=120)
    assert done.returncode == 0, done.stderr
    for name in NAMES:
        assert f"python -m {name}" in done.stdout, name
