"""Errors as a user sees them: one line on stderr and an exit code."""

# MuJoCo has no types:
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportAttributeAccessIssue=false, reportUnknownLambdaType=false

import functools
import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import NoReturn


def printable(text: str) -> str:
    """A text with its control characters escaped: a stranger's may command the terminal."""
    return "".join(x if x.isprintable() else repr(x)[1:-1] for x in text)


def reason(error: Exception) -> str:
    """An error as one line, with its kind where its text may say little without."""
    kind = "" if isinstance(error, ValueError | OSError) else f"{type(error).__name__}: "
    return f"{kind}{' '.join(str(error).split())}"[:1000]


def warn(line: str) -> None:
    """Print a line to stderr, as it is but for control characters."""
    print(printable(line), file=sys.stderr, flush=True)


@functools.cache
def warn_once(line: str) -> None:
    """`warn`, the first time."""
    warn(line)


def exit_with_error(message: str, code: int = 2) -> NoReturn:
    """Say what is wrong in one line on stderr and exit: with 2 for a mistake of the user's."""
    line = printable(" ".join(message.split()))
    line = line if len(line) < 1000 else f"{line[:500]} … {line[-400:]}"
    print(f"error: {line}", file=sys.stderr)
    raise SystemExit(code)


@contextmanager
def no_stderr() -> Generator[None]:
    """Drop what is written to the descriptor of stderr meanwhile, by C code too."""
    stderr = os.dup(2)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)


@functools.cache
def silence_mujoco() -> None:
    """Drop MuJoCo's printed warnings, once per process: whoever steps looks for faults."""
    # they would tear the live table, or fill MUJOCO_LOG.TXT in the working directory
    import mujoco

    mujoco.set_mju_user_warning(lambda _: None)


@contextmanager
def one_line_errors(code: int = 2) -> Generator[None]:
    """Turn what a user can get wrong (ValueError, OSError) into one line, in code that builds."""
    try:
        yield
    except (ValueError, OSError) as error:
        exit_with_error(str(error), code)
