"""Output of the modes of `bench`: a table, lines below it and a JSON file."""

import json
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from gpusim_rl.core.files import write_whole


def command_line() -> str:
    """The command of this process, as it can be typed again."""
    return shlex.join(["python", "-m", "gpusim_rl.bench", *sys.argv[1:]])


def make_console(width: int = 100) -> Console:
    """The terminal. A pipe or a file gets tables of at most `width` columns."""
    return Console() if sys.stdout.isatty() else Console(width=width)


def say(console: Console, lines: Iterable[str]) -> None:
    """Print lines as they are, whatever their length."""
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def table_of_numbers(*heads: str) -> Table:
    """A table with no rows yet; all columns but the first are aligned to the right."""
    table = Table(*heads, box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    return table


def write_json(file: str, results: Any) -> None:
    """Write results to a file, whole or not at all."""
    write_whole(Path(file), (json.dumps(results, indent=1) + "\n").encode())


def finish(console: Console, results: Any, lines: Iterable[str], out: str | None) -> None:
    """Print lines below a table, and write the results if `out` names a file."""
    say(console, lines)
    if out:
        write_json(out, results)
        say(console, [f"wrote {out}"])
