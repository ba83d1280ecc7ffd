"""Curves of trainings as small pictures, by matplotlib: a line per setting, a band over its seeds.

Each picture is one panel, so that a page can place them by its width. They have no background, and
grays and colors that can be read on a light and on a dark page.
"""

import base64
import io
import re
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from gpusim_rl.runs.summary import Summary

# Why: docs/decisions/pictures.md
POINTS, FEW_POINTS = 240, 100  # of a line in a large and in a small picture
LARGE, SMALL, SQUARE = (4.5, 2.3), (2.5, 1.35), (2.5, 1.9)  # inches
GRAY, BAD = "#7d848e", "#d9534f"
LONG_NUMBERS = re.compile(r"(\b[ML] -?\d+\.\d\d)\d* (-?\d+\.\d\d)\d*")  # of a path
COLORS = ("#3f87d9", "#e58a2b", "#2fa37c", "#a970d6", "#d9607f")
COLORS += ("#8d8f2e", "#2ea3b0", "#b5793f", "#7f88e0", "#8a949e")
STYLE: dict[Any, Any] = {"font.size": 8, "axes.spines.top": False, "axes.spines.right": False}
STYLE |= {"axes.grid": True, "grid.alpha": 0.25, "grid.linewidth": 0.6, "svg.fonttype": "none"}
STYLE |= {"axes.edgecolor": GRAY, "grid.color": GRAY, "text.color": GRAY, "axes.labelcolor": GRAY}
STYLE |= {"xtick.color": GRAY, "ytick.color": GRAY, "svg.hashsalt": "gpusim_rl"}
STYLE |= {"axes.linewidth": 0.6, "xtick.major.width": 0.6, "ytick.major.width": 0.6}
STYLE |= {"xtick.major.size": 2.5, "ytick.major.size": 2.5, "axes.facecolor": "none"}
STYLE |= {"figure.facecolor": "none", "savefig.facecolor": "none", "font.family": "DejaVu Sans"}

Settings = Mapping[str, list[Summary]]  # label → its runs, which differ in their seeds


class Line(NamedTuple):
    """A metric of one setting over the env steps: mean, least and greatest over its seeds."""

    x: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


class Mark(NamedTuple):
    """A share at the end of a training, and its interval."""

    value: float
    low: float
    high: float


def line(runs: list[Summary], name: str, points: int = POINTS) -> Line | None:
    """The line of a metric; None if no run has it. Where a run has ended the others go on."""
    pairs = []
    for run in runs:
        x, y = run.columns["env_steps"], run.columns.get(name)
        if y is None:
            continue
        finite = np.isfinite(x) & np.isfinite(y) & (abs(y) < 1e30)
        x, first = np.unique(x[finite], return_index=True)
        if len(x):
            pairs.append((x, y[finite][first]))
    if not pairs:
        return None
    ends = min(x[0] for x, _ in pairs), max(x[-1] for x, _ in pairs)
    grid = np.unique(np.concatenate([x for x, _ in pairs]))
    if len(grid) > points:
        grid = np.linspace(*ends, points)
    values = np.stack([np.interp(grid, x, y, np.nan, np.nan) for x, y in pairs])
    # a column in which every run has ended, or not begun
    with warnings.catch_warnings(action="ignore", category=RuntimeWarning):
        return Line(grid, np.nanmean(values, 0), np.nanmin(values, 0), np.nanmax(values, 0))


def chart(
    settings: Settings, name: str, *, large: bool = False, color: str = "", mark: Mark | None = None
) -> str:
    """A picture of a metric as a `data:` address; "" if no run has it.

    large: whether it is one of those to look at first. color: of the line of a single setting.
    mark: a value at the end of the training, such as of the final evaluation.
    """
    from matplotlib.ticker import EngFormatter

    points = POINTS if large else FEW_POINTS
    lines = {label: line(runs, name, points) for label, runs in settings.items()}
    if not any(lines.values()):
        return ""
    figure, axis = panel(LARGE if large else SMALL, large)
    axis.locator_params(nbins=5 if large else 3)
    for i, (label, one) in enumerate(lines.items()):
        if one:
            c = color or COLORS[i % len(COLORS)]
            marker = "o" if len(one.x) < 12 else None
            axis.plot(one.x, one.mean, color=c, lw=1.8 if large else 1.2, marker=marker, ms=3)
            if len(settings[label]) > 1:
                axis.fill_between(one.x, one.low, one.high, color=c, alpha=0.2, lw=0)
    if mark and (last := next(iter(lines.values()))):
        ends = [[max(0.0, mark.value - mark.low)], [max(0.0, mark.high - mark.value)]]
        style = {"fmt": "D", "ms": 5, "color": COLORS[1], "capsize": 3, "clip_on": False}
        axis.errorbar(last.x[-1:], [mark.value], ends, **style)
    axis.xaxis.set_major_formatter(EngFormatter(sep=""))
    axis.set_xlabel("env steps" if large else "")
    return address(figure)


def asked_chart(
    asked: np.ndarray, value: np.ndarray, off: np.ndarray, least: float, relative: float, got: bool
) -> str:
    """A picture of one axis of constant commands, with the band of what is allowed.

    Args:
        asked, value: (n,) the commands, and what was done or, unless `got`, its error.
        off: (n,) bool: what was no success by this axis.
        least, relative: largest error, and the share of the command that it may be beyond that.
    """
    figure, axis = panel(SQUARE, has_labels=True)
    reach = 1.08 * max(float(abs(asked).max()), 1e-3)
    corner = least / relative if relative > 0 else reach
    x = np.clip([-reach, -corner, corner, reach], -reach, reach)
    center, allowed = x * got, np.maximum(least, relative * abs(x))
    axis.fill_between(x, center - allowed, center + allowed, color=COLORS[2], alpha=0.25, lw=0)
    axis.plot(x, center, color=GRAY, lw=0.8)
    axis.scatter(asked[~off], value[~off], s=9, color=COLORS[0], lw=0)
    axis.scatter(asked[off], value[off], s=20, color=BAD, marker="x", lw=1.4)
    axis.set_xlim(-reach, reach)
    axis.locator_params(nbins=4)
    axis.set_xlabel("asked")
    axis.set_ylabel("got" if got else "got − asked")
    return address(figure)


def parallel(names: list[str], rows: list[list[float | None]]) -> str:
    """Parallel coordinates as a `data:` address: an axis for each name, a line for each row.

    rows: (N, names), None where unknown; colors go by the last column.
    """
    from matplotlib import colormaps

    columns = [[row[i] for row in rows] for i in range(len(names))]
    places = np.stack([axis_values(column) for column in columns], 1)
    figure, axis = panel((LARGE[0] + 2.5, LARGE[1]), has_labels=True)
    colors = colormaps["viridis"]
    for row in places[::-1]:  # the best ones last, above the others
        shade = row[-1] if np.isfinite(row[-1]) else 0.0
        axis.plot(
            range(len(names)), row, color=colors(0.92 * float(shade)), lw=1.4, marker="o", ms=3
        )
    for i, column in enumerate(columns):
        known = [x for x in column if x is not None]
        for y, x in ((0.0, min(known, default=0.0)), (1.0, max(known, default=0.0))):
            axis.annotate(f"{x:.3g}", (i, y), (3, -9 * (y < 1) + 3), textcoords="offset points")
    axis.set_xticks(range(len(names)), names)
    axis.set_yticks([])
    axis.set_ylim(-0.15, 1.15)
    axis.set_xlim(-0.25, len(names) - 0.6)
    return address(figure)


def panel(size: tuple[float, float], has_labels: bool) -> tuple[Any, Any]:
    """A figure of this size [inches], and its only panel, with room for labels of its axes."""
    from matplotlib.figure import Figure

    (width, height), figure = size, Figure(figsize=size)
    # fixed edges [inches]: to fit them to the labels would double the time of a page
    left, bottom = 0.5 + 0.15 * has_labels, 0.2 + 0.18 * has_labels
    room = (left / width, bottom / height, 1 - (left + 0.1) / width, 1 - (bottom + 0.08) / height)
    return figure, figure.add_axes(room)


def address(figure: Any) -> str:
    """A figure as the address of an SVG picture, in which a browser runs nothing."""
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None})
    # a browser's own font, which a page on the disk need not bring
    text = out.getvalue().replace("'DejaVu Sans'", "system-ui, sans-serif")
    text = LONG_NUMBERS.sub(r"\1 \2", text)  # hundredths of a point are enough
    return f"data:image/svg+xml;base64,{base64.b64encode(text.encode()).decode()}"


def axis_values(values: list[float | None]) -> np.ndarray:
    """Values on an axis from 0 to 1, by their logarithms where they span decades; NaN: unknown."""
    x = np.array([np.nan if y is None else y for y in values])
    finite = x[np.isfinite(x)]
    if len(finite) and finite.min() > 0 and finite.max() / finite.min() > 8:
        x = np.log(x)
    low, high = (np.nanmin(x), np.nanmax(x)) if len(finite) else (0.0, 1.0)
    return (x - low) / (high - low) if high > low else x * 0 + 0.5


def style() -> Any:
    """The context in which all pictures are drawn."""
    from matplotlib import rc_context

    return rc_context(STYLE)
