"""How well a policy walks on each kind of rough ground, level by level."""

import io
import math
from pathlib import Path
from typing import Any

import torch

from gpusim_rl.core.files import write_whole
from gpusim_rl.core.maths import wilson
from gpusim_rl.envs.task import Task
from gpusim_rl.evaluation.evaluate import EpisodeRecord, play
from gpusim_rl.networks.policy import Policy

Cell = dict[str, Any]
SHARES = ("success", "fell")


def terrain_grid(policy: Policy, task: Task, *, episodes: int, **options: Any) -> dict[str, Any]:
    """Success and falls on each kind and level, of episodes whose kinds and levels are drawn.

    The task has `patches`; the other arguments are those of `evaluation.play`.

    Returns `kinds` and `levels`, and three lists: `cells`, one for each kind and level, `by_kind`
    and `by_level`. What they have is a cell of `cell`, with its `kind`, `level` or both.
    """
    played = play(policy, task, episodes=episodes, **options)
    assert task.patches
    kinds, levels = list(task.patches.kinds), task.patches.levels
    kind, level = played.begun.kind, played.begun.level
    by_kind = [dict(kind=name) | cell(played, kind == i) for i, name in enumerate(kinds)]
    by_level = [dict(level=i) | cell(played, level == i) for i in range(levels)]
    cells = [
        dict(kind=name, level=j) | cell(played, (kind == i) & (level == j))
        for i, name in enumerate(kinds)
        for j in range(levels)
    ]
    every = dict(kinds=kinds, levels=levels, all=cell(played, kind >= 0))
    return every | dict(by_kind=by_kind, by_level=by_level, cells=cells)


def cell(played: EpisodeRecord, worlds: torch.Tensor) -> Cell:
    """`episodes` of the worlds (B,) bool, and the shares of them with success, and with a fall.

    `success_interval` and `fell_interval` hold 95 % of what the shares may be. Without an episode
    the shares are None.
    """
    n = int(worlds.sum())
    if not n:
        return dict(episodes=0) | dict.fromkeys(SHARES)
    record = {name: values[:, worlds] for name, values in played.record.items()}
    shares = dict(
        success=played.task.score(record)["success"] or 0.0,
        fell=record["terminated"].bool().any(0).float().mean().item(),
    )
    intervals = {f"{name}_interval": wilson(round(x * n), n) for name, x in shares.items()}
    return dict(episodes=n) | shares | intervals


def as_text(grid: dict[str, Any]) -> str:
    """The grid as a table: success in %, a row for each kind, a column for each level."""
    lines = ["success %   " + "".join(f"{i:5}" for i in range(grid["levels"])) + "   all    95 %"]
    rows = [(x, [y for y in grid["cells"] if y["kind"] == x["kind"]]) for x in grid["by_kind"]]
    for row, cells in [*rows, (grid["all"] | {"kind": "all"}, grid["by_level"])]:
        lines.append(f"{row['kind']:12}" + "".join(map(percent, cells)) + f" {overall(row)}")
    return "\n".join(lines)


def percent(one: Cell) -> str:
    """Success of a cell in five columns."""
    return f"{'-':>5}" if one["success"] is None else f"{100 * one['success']:5.0f}"


def overall(row: Cell) -> str:
    if row["success"] is None:
        return percent(row)
    low, high = (100 * x for x in row["success_interval"])
    return f"{percent(row)}   {low:3.0f} to {high:3.0f}"


def draw(grid: dict[str, Any], path: Path) -> None:
    """Write the grid as a picture: a heat map of success, and one of falls."""
    from matplotlib.figure import Figure

    kinds, levels = grid["kinds"], grid["levels"]
    figure = Figure(figsize=(0.55 * levels * 2 + 3, 0.42 * len(kinds) + 1.6), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    titles = "success %", "episodes with a fall %"
    for axis, share, title in zip(axes, SHARES, titles, strict=True):
        values = [100 * x[share] if x["episodes"] else math.nan for x in grid["cells"]]
        rows = [values[i : i + levels] for i in range(0, len(values), levels)]
        axis.imshow(rows, vmin=0, vmax=100, cmap="Blues" if share == "success" else "Reds")
        for k, value in enumerate(values):
            place, color = (k % levels, k // levels), "white" if value > 50 else "black"
            if not math.isnan(value):
                axis.text(*place, f"{value:.0f}", ha="center", va="center", fontsize=7, color=color)
        axis.set_xticks(range(levels))
        axis.set_yticks(range(len(kinds)), kinds)
        axis.set_xlabel("level")
        axis.set_title(title, fontsize="medium")
    figure.savefig(out := io.BytesIO(), format="png", dpi=120)
    write_whole(path, out.getvalue())
