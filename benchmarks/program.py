"""What the programs of this folder share: their command lines, tables and files."""

import json
import shlex
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rich.console import Console
from rich.table import Table

from gpusim_rl.config import compose, validate
from gpusim_rl.core.errors import exit_with_error, one_line_errors
from gpusim_rl.core.files import write_whole


def split_words(
    doc: str | None, words: list[str], **keys: Any
) -> tuple[SimpleNamespace, list[str]]:
    """The values of a program's own keys, and all other words of its command line.

    Args:
        doc: what --help prints.
        keys: their defaults. A value is of the same type, and above 0 if its default is; of None
            any will do. An `out` of None is a file that ends in .json.
    """
    if {"-h", "--help"} & {*words}:
        print(doc)
        raise SystemExit
    values = SimpleNamespace(**keys)
    own = [word for word in words if "=" in word and word.partition("=")[0] in keys]
    for word in own:
        key = word.partition("=")[0]
        default: Any = keys[key]
        with one_line_errors():
            value: Any = compose.parse([word])[0].value()
        if type(default) is float and type(value) is int:
            value = float(value)
        wrong = default is not None and type(value) is not type(default)
        if wrong or (isinstance(default, float | int) and default > 0 >= value):
            exit_with_error(f"{word}: expected a value such as {default}")
        setattr(values, key, value)
    if keys.get("out", "") is None:
        with one_line_errors():
            validate.writable("out", values.out, (".json",))
    return values, [word for word in words if word not in own]


def read_keys(doc: str | None, words: list[str], **keys: Any) -> SimpleNamespace:
    """The values of a program's keys, as `split_words`, where it takes no other words."""
    values, others = split_words(doc, words, **keys)
    choose(others, [f"{key}=" for key in keys])
    return values


def choose(names: list[str], choices: Iterable[str]) -> list[str]:
    """The words of a command line that name some of the choices; all of these without a word."""
    choices = [*choices]
    if unknown := [name for name in names if name not in choices]:
        exit_with_error(f"unknown word {unknown[0]!r}: choose of {', '.join(choices)}")
    return names or choices


def one_file(words: list[str], what: str) -> Path:
    """The only word of a command line, which names a file or a folder."""
    if len(words) != 1:
        exit_with_error(f"expected one {what}, not {len(words)}")
    return Path(words[0])


def apart(function: Callable[..., Any], *args: Any) -> Any:
    """The result of a function of a module, called in a process of its own.

    ValueError if that ends before.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        try:
            return pool.submit(function, *args).result()
        except BrokenProcessPool:
            raise ValueError("its process has ended") from None


def command_line(name: str) -> str:
    """The command of this process, as it can be typed again; `name` of the program."""
    return shlex.join(["python", "-m", f"benchmarks.{name}", *sys.argv[1:]])


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


def write_json(file: str | Path, results: Any) -> None:
    """Write results to a file, whole or not at all."""
    write_whole(Path(file), (json.dumps(results, indent=1) + "\n").encode())


def finish(console: Console, results: Any, lines: Iterable[str], out: str | None) -> None:
    """Print lines below a table, and write the results if `out` names a file."""
    say(console, lines)
    if out:
        write_json(out, results)
        say(console, [f"wrote {out}"])
