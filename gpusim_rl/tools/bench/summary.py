"""What the trainings of `bench time` show: medians over seeds, their ratios, a table, a picture."""

import math
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from rich.table import Table
from rich.text import Text

from gpusim_rl.tools.bench.trees import Variant

Trial = dict[str, Any]  # what trial.py wrote, and the seed
Summary = dict[str, Any]  # of a variant

COMPARED = {  # key of a summary → its name, and whether less of it is better
    "time_s": ("time to success", True),
    "env_steps": ("samples to success", True),
    "steps_per_s": ("steps/s", False),
}


def first_success(trial: Trial) -> dict[str, Any]:
    """When the first actor that counts was kept; null times if none counts."""
    row = next((row for row in trial["actors"] if row["counts"]), {})
    return {key: row.get(key) for key in ("time_s", "env_steps", "iteration")}


def middle(values: list[float | None]) -> float | None:
    """The median, where None is longer than any time; None if it is that."""
    value = median(math.inf if x is None else x for x in values)
    return value if math.isfinite(value) else None


def summarize(variant: Variant, trials: list[Trial]) -> Summary:
    """Medians over seeds, with the values of each seed in the order of the trials."""
    reached = [first_success(trial) for trial in trials]
    columns = {key: [row[key] for row in reached] for key in ("time_s", "env_steps")}
    columns |= {key: [t[key] for t in trials] for key in ("steps_per_s", "cores", "train_s")}
    columns["final_success"] = [t["actors"][-1]["scores"]["success"] for t in trials]
    spreads = {key: {"median": middle(x), "all": x} for key, x in columns.items()}
    own = {key: getattr(variant, key) for key in ("name", "commit", "words")}
    return own | {"seeds": [t["seed"] for t in trials]} | spreads | {"trials": trials}


def ratios(first: Summary, other: Summary) -> dict[str, float | None]:
    """How much better the other variant is, as ratios of medians: 2 is twice as fast or twice as
    few samples. None where one never succeeded."""
    result = {}
    for key, (_, less_is_better) in COMPARED.items():
        pair = first[key]["median"], other[key]["median"]
        a, b = pair if less_is_better else reversed(pair)
        result[key] = None if a is None or b is None else a / b
    return result


def table(summaries: list[Summary]) -> Table:
    """A row for each variant."""
    heads = ("time to success", "of seeds", "samples", "final success", "steps/s", "cores busy")
    shown = Table("", *heads, box=None, pad_edge=False)
    for column in shown.columns[1:]:
        column.justify = "right"
    for s in summaries:
        final, times = s["final_success"], s["time_s"]
        shown.add_row(
            Text(s["name"]),
            seconds(times["median"]),
            " ".join(seconds(x) for x in times["all"]),
            millions(s["env_steps"]["median"]),
            f"{final['median']:.3f} (lowest {min(final['all']):.3f})",
            f"{s['steps_per_s']['median']:,.0f}",
            f"{s['cores']['median']:.2f}",
        )
    return shown


def seconds(value: float | None) -> str:
    """12.3 s, or never."""
    return "never" if value is None else f"{value:.1f} s"


def millions(value: float | None) -> str:
    """1.23 M, or none."""
    return "none" if value is None else f"{value / 1e6:.2f} M"


def comparisons(summaries: list[Summary]) -> Iterator[str]:
    """A line for each variant but the first, with its ratios to the first."""
    first, *others = summaries
    for other in others:
        parts = [
            f"{COMPARED[key][0]} {'?' if value is None else f'× {value:.2f}'}"
            for key, value in ratios(first, other).items()
        ]
        yield f"{other['name']} is better than {first['name']} by: {', '.join(parts)}"


def draw(summaries: list[Summary], target: float, path: Path) -> None:
    """Success of each seed over training time and over samples, as a picture."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    for axis, (key, unit, scale) in zip(
        axes, (("time_s", "training [s]", 1.0), ("env_steps", "samples [M]", 1e-6)), strict=True
    ):
        for n, s in enumerate(summaries):
            for i, trial in enumerate(s["trials"]):
                rows = trial["actors"]
                x = [scale * row[key] for row in rows]
                y = [row["scores"]["success"] for row in rows]
                axis.plot(x, y, f"C{n}", lw=1, label=s["name"] if i == 0 else None)
                reached = first_success(trial)[key]
                if reached is not None:
                    axis.plot([scale * reached], [target], f"C{n}o", ms=5)
        axis.axhline(target, color="gray", lw=0.5, ls="--")
        axis.set_xlabel(unit)
    axes[0].set_ylabel("success")
    axes[0].legend(loc="lower right", fontsize="small")
    figure.savefig(path)
