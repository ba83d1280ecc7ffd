"""Curves of trainings as small pictures, by matplotlib: a line per setting, a band over its seeds.

A stranger may have chosen the words: none is read as mathematics, and control characters, which no
SVG may hold, are escaped.
"""

import base64
import io
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from gpusim_rl.core.errors import printable
from gpusim_rl.runs.summary import Summary

# Why: docs/decisions/0057-curves-as-svg.md
POINTS = 300  # of a line
ACROSS = 4  # panels in a row
MAX_PANELS = 24  # of a section
WIDTH, HEIGHT = 11.0, 1.9  # inches: of the page, and of a row of panels
STYLE: dict[Any, Any] = {"font.size": 7.5, "axes.spines.top": False, "axes.spines.right": False}
STYLE |= {"axes.grid": True, "grid.alpha": 0.25, "axes.titlesize": 8, "svg.hashsalt": "gpusim_rl"}
SHARES = ("physics", "environment", "policy", "update")

Settings = Mapping[str, list[Summary]]  # label → its runs, which differ in their seeds


class Line(NamedTuple):
    """A metric of one setting over the env steps: mean, least and greatest over its seeds."""

    x: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


def line(runs: list[Summary], name: str) -> Line | None:
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
    if len(grid) > POINTS:
        grid = np.linspace(*ends, POINTS)
    values = np.stack([np.interp(grid, x, y, np.nan, np.nan) for x, y in pairs])
    with warnings.catch_warnings():  # a column in which every run has ended, or not begun
        warnings.simplefilter("ignore", RuntimeWarning)
        return Line(grid, np.nanmean(values, 0), np.nanmin(values, 0), np.nanmax(values, 0))


def chart(settings: Settings, panels: Mapping[str, str]) -> str:
    """A picture of metrics, one panel each, as a `data:` address; "" if no run has any of them.

    Args:
        settings: the trainings.
        panels: name of the metric → title of its panel.
    """
    lines = {name: {label: line(runs, name) for label, runs in settings.items()} for name in panels}
    names = [name for name, by_label in lines.items() if any(by_label.values())][:MAX_PANELS]
    if not names:
        return ""
    figure, axes = grid_of(len(names))
    for axis, name in zip(axes, names, strict=True):
        axis.set_title(printable(panels[name])[:40], loc="left", parse_math=False)
        axis.locator_params(nbins=4)
        for i, one in enumerate(lines[name].values()):
            if one:
                marker = "." if len(one.x) < 12 else None
                axis.plot(one.x, one.mean, f"C{i % 10}", lw=1, marker=marker, ms=3)
                if len(settings[list(settings)[i]]) > 1:
                    axis.fill_between(one.x, one.low, one.high, color=f"C{i % 10}", alpha=0.2, lw=0)
        label_steps(axis)
    return address(figure)


def label_steps(axis: Any) -> None:
    """Label the lower edge of a panel with env steps, such as 1.5M."""
    from matplotlib.ticker import EngFormatter

    axis.xaxis.set_major_formatter(EngFormatter(sep=""))
    axis.set_xlabel("env steps")


def shares(runs: list[Summary], names: list[str], rest: str, title: str) -> str:
    """A stack of the shares `names` of the whole, and of the rest; "" if no run has them."""
    from matplotlib.figure import Figure

    lines = {name: part for name in names if (part := line(runs, name))}
    if not lines:
        return ""
    x = max((part.x for part in lines.values()), key=len)
    parts = [np.interp(x, part.x, part.mean).clip(0, 1) for part in lines.values()]
    labels = [*(name.partition("/")[2] or name for name in lines), rest]
    figure: Any = Figure(figsize=(WIDTH / 2, HEIGHT))
    axis = figure.add_axes((0.08, 0.24, 0.66, 0.63))
    axis.set_title(title, loc="left")
    axis.stackplot(x, *parts, np.clip(1 - sum(parts), 0, 1), labels=labels, lw=0, alpha=0.8)
    axis.set_ylim(0, 1)
    axis.margins(x=0)
    label_steps(axis)
    for text in axis.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False).get_texts():
        text.set_parse_math(False)
    return address(figure)


def grid_of(count: int) -> tuple[Any, list[Any]]:
    """A figure, and so many of its panels."""
    from matplotlib.figure import Figure

    rows = -(-count // ACROSS)
    figure: Any = Figure(figsize=(WIDTH, HEIGHT * rows))
    edge = 0.45 / (HEIGHT * rows)
    figure.subplots_adjust(
        left=0.045, right=0.995, bottom=edge, top=1 - edge / 2, wspace=0.28, hspace=0.75
    )
    return figure, [figure.add_subplot(rows, ACROSS, i + 1) for i in range(count)]


def address(figure: Any) -> str:
    """A figure as the address of an SVG picture, in which a browser runs nothing."""
    out = io.BytesIO()
    with warnings.catch_warnings():  # of a letter that the font lacks, which is drawn as a box
        warnings.filterwarnings("ignore", "Glyph ", UserWarning)
        figure.savefig(out, format="svg", metadata={"Date": None})
    return f"data:image/svg+xml;base64,{base64.b64encode(out.getvalue()).decode()}"


def style() -> Any:
    """The context in which all pictures are drawn."""
    from matplotlib import rc_context

    return rc_context(STYLE)
