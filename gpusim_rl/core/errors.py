"""Errors as a user sees them: one line on stderr and an exit code."""

import sys
from contextlib import contextmanager
from typing import NoReturn


def exit_with_error(message: str, code: int = 2) -> NoReturn:
    """Say what is wrong in one line on stderr and exit: with 2 for a mistake of the user's."""
    line = " ".join(message.split())
    print(
        f"error: {line if len(line) < 1000 else f'{line[:500]} … {line[-400:]}'}", file=sys.stderr
    )
    raise SystemExit(code)


@contextmanager
def one_line_errors(code: int = 2):
    """Turn what a user can get wrong (ValueError, OSError) into one line.

    It is meant for code that builds, not for code that runs.
    """
    try:
        yield
    except (ValueError, OSError) as error:
        exit_with_error(str(error), code)
