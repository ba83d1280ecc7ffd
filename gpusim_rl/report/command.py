"""A page about a training, or about several side by side.

    gpusim report RUN…  [out=FILE.html]

RUN is a run directory, or one that has run directories below it, such as that of a multirun. The
page of one run is its report.html. That of several lies in the directory that holds them all.
It needs neither a network nor another file. Nothing of a run is executed.
"""

import logging
import os
from collections.abc import Iterator
from pathlib import Path

from gpusim_rl.config import validate
from gpusim_rl.core import errors
from gpusim_rl.core.arguments import parse, show_usage
from gpusim_rl.core.files import write_whole

MAX_RUNS = 200  # on a page; a multirun has no more
BELOW = ("*", "*/*", "*/*/*")  # where runs are looked for


def runs_of(arguments: list[str]) -> Iterator[Path]:
    """The run directories that paths name, in their order; ValueError if one names none."""
    for path in map(Path, arguments):
        if (path / "config.yaml").is_file():
            yield path
            continue
        if not path.is_dir():
            raise ValueError(f"{path} is not a directory: expected that of a run, or of several")
        below = [sorted(path.glob(f"{depth}/config.yaml")) for depth in BELOW]
        files = [file for some in below for file in some]
        if not files:
            raise ValueError(f"{path} is not a run directory, and has none below it")
        yield from (file.parent for file in files)


def common_folder(runs: list[Path]) -> Path:
    """The directory that holds all runs, relative to the working directory if it lies below."""
    path = Path(os.path.commonpath([run.resolve().parent for run in runs]))
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def parse_words(arguments: list[str]) -> tuple[list[Path], Path]:
    """The runs, and the file to write; ValueError or OSError in one line if the words are wrong."""
    paths, values = parse(arguments, ("out",), "RUN directories, and perhaps out=FILE.html")
    out = values.get("out")
    runs = list({run.resolve(): run for run in runs_of(paths)}.values())
    if out is None:
        folder = runs[0] if len(runs) == 1 else common_folder(runs)
        out = str(folder / "report.html")
    validate.writable("out", out, (".html",))
    return runs, Path(out)


def write(runs: list[Path], out: Path) -> None:
    """Write the page of runs; ValueError or OSError in one line if that cannot be."""
    if len(runs) > MAX_RUNS:
        raise ValueError(f"{len(runs)} runs: a page has at most {MAX_RUNS}")
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it would tell of its cache
    try:
        import jinja2  # noqa: F401
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise ValueError("a report needs matplotlib: pip install matplotlib jinja2") from None
    from gpusim_rl.report.tables import render

    write_whole(out, render(runs, out).encode("utf-8", "replace"))


def write_or_warn(runs: list[Path], out: Path) -> bool:
    """Write the page of runs that end. Returns whether it could be; if not, one line says why."""
    # a training must not fail for its report, whatever is wrong with that
    try:
        write(runs, out)
        return True
    except Exception as error:
        errors.warn(f"no {out}: {errors.reason(error)}")
        return False


def main(arguments: list[str]) -> None:
    """Check the words, write the page, and say where it is."""
    show_usage(arguments, __doc__)
    with errors.one_line_errors():
        runs, out = parse_words(arguments)
        write(runs, out)
    print(f"wrote {errors.printable(str(out))}")
