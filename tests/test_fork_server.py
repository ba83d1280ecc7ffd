"""A process of `fork_server` ends as one of its own does."""

import os
import subprocess
import sys

import pytest

from tests import fork_server
from tests.command_lines import environment

ENDS = {
    "": "print('done')",
    "None": "raise SystemExit",
    "number": "raise SystemExit(3)",
    "truth": "raise SystemExit(True)",
    "text": "raise SystemExit('error: no')",
    "list": "raise SystemExit(['no'])",
    "error": "1 / 0",
    "interrupt": "raise KeyboardInterrupt",
    "at the end": "import atexit; atexit.register(print, 'last'); print('first')",
    "thread": "import threading as t; t.Timer(0.2, print, ['late']).start()",
    "child": "import multiprocessing as m; m.get_context('spawn').Process(target=print).start()",
    "text of C": "import ctypes; ctypes.CDLL(None).puts(b'of C')",
}


@pytest.mark.parametrize("name", ENDS)
def test_a_process_ends_as_python_does(name, tmp_path):
    """The exit code and what was printed."""
    (tmp_path / "end.py").write_text(f"if __name__ == '__main__':\n    {ENDS[name]}\n")
    env = environment(tmp_path / "home") | {"PATH": os.environ["PATH"]}
    forked = fork_server.run([str(tmp_path / "end.py")], cwd=tmp_path, env=env, timeout=60)
    line = [sys.executable, str(tmp_path / "end.py")]
    plain = subprocess.run(
        line, cwd=tmp_path, env=env, timeout=60, capture_output=True, text=True, check=False
    )
    assert (forked.returncode, forked.stdout) == (plain.returncode, plain.stdout)
    last = (x.stderr.splitlines()[-1:] for x in (forked, plain))  # tracebacks begin with ours
    assert next(last) == next(last)
