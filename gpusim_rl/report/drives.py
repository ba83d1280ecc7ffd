"""Asked against got: the constant commands of a robot that walks, as a table and as pictures."""

from typing import Any, NamedTuple

import numpy as np

from gpusim_rl.core.errors import printable
from gpusim_rl.report import curves
from gpusim_rl.runs.summary import Summary, number, word

LARGEST_VELOCITY = 1e6  # of a velocity that is drawn
MAX_ROWS = 200


class Row(NamedTuple):
    """A constant command, what was done, and why it is no success."""

    asked: list[float]
    got: list[float]
    failed: list[str]

    def is_off(self, axis: str) -> bool:
        """Whether it failed along an axis, or everywhere by a fall."""
        return axis in self.failed or "fell" in self.failed


def axes(run: Summary) -> dict[str, str]:
    """Axis of the command → its unit."""
    parts = (run.drives.get("names"), run.drives.get("units"))
    names, units = (x if isinstance(x, list) else [] for x in parts)
    return dict(zip(map(word, names), map(word, units), strict=False))


def bounds(run: Summary) -> dict[str, float]:
    """Name → the bound of a drive; empty if the file has none."""
    values = run.drives.get("bounds")
    pairs = values.items() if isinstance(values, dict) else ()
    return {word(key): x for key, value in pairs if (x := number(value)) is not None}


def rows(run: Summary) -> list[Row]:
    """The constant commands of a run; what is no number, or does not fit the axes, is left out."""
    made, drives = list[Row](), run.drives.get("drives")
    for x in drives[:MAX_ROWS] if isinstance(drives, list) else []:
        parts = (x.get("asked"), x.get("got")) if isinstance(x, dict) else ((), ())
        asked, got = ([number(y) for y in part] if isinstance(part, list) else [] for part in parts)
        asked, got = ([y for y in part if y is not None] for part in (asked, got))
        if not len(asked) == len(got) == len(axes(run)):
            continue
        if max(map(abs, asked + got), default=0.0) < LARGEST_VELOCITY:
            failed = x.get("failed")
            made.append(Row(asked, got, [*map(word, failed)] if isinstance(failed, list) else []))
    return made


def charts(run: Summary) -> list[tuple[str, list[str]]]:
    """(axis with its unit, pictures) of each axis: what was got, and its error."""
    made, limits = [], bounds(run)
    least, relative = limits.get("least", 0.0), limits.get("relative", 0.0)
    drives = rows(run)
    for i, (name, unit) in enumerate(axes(run).items() if drives else ()):
        asked, got = (np.array([getattr(x, part)[i] for x in drives]) for part in ("asked", "got"))
        off = np.array([x.is_off(name) for x in drives])
        with curves.style():
            pictures = [
                curves.asked_chart(asked, value, off, least, relative, is_got)
                for value, is_got in ((got, True), (got - asked, False))
            ]
        made.append((printable(f"{name} [{unit}]"), pictures))
    return made


def table(run: Summary) -> dict[str, list[dict[str, Any]]]:
    """Title → its rows: asked → got along each axis, and why it failed. The failures come first."""
    names, made = list(axes(run)), rows(run)
    parts: dict[bool, list[dict[str, Any]]] = {True: [], False: []}
    for row in made:
        axes_of_row = zip(names, row.asked, row.got, strict=True)
        cells = [(f"{x:+.2f} → {y:+.2f}", row.is_off(name)) for name, x, y in axes_of_row]
        parts[bool(row.failed)].append({"cells": cells, "failed": ", ".join(row.failed)})
    failed, followed = (f"{len(x)} of {len(made)} commands" for x in parts.values())
    return {f"{failed} failed": parts[True], f"{followed} were followed": parts[False]}
