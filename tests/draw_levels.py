"""Draws docs/levels.svg from docs/benchmarks: `python -m tests.draw_levels`.

The picture is the mean level of rough ground over a training, for each seed, blind and seeing.
"""

import json
from pathlib import Path

from matplotlib.figure import Figure

ROOT = Path(__file__).parent.parent
DATA = ROOT / "docs" / "benchmarks" / "2026-11-24-rough-ground.json"
PICTURE = ROOT / "docs" / "levels.svg"
KINDS = ("waves", "rubble", "slope", "valley", "steps", "stairs_down", "stairs_up", "pallets")


def draw() -> None:
    """Write the picture."""
    runs = json.loads(DATA.read_text())["runs"]
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    all_worlds, by_kind = figure.subplots(1, 2)
    for name, run in runs.items():
        rows, blind = run["rows"], name.startswith("blind")
        color, label = ("C0", "blind") if blind else ("C1", "seeing")
        label = label if name.endswith("1") else None
        all_worlds.plot(millions(rows), rows["level"], color, lw=1, label=label)
    rows = runs["blind 1"]["rows"]
    for i, kind in enumerate(KINDS):
        by_kind.plot(millions(rows), rows["kinds"][kind], f"C{i}", lw=1, label=kind)
    all_worlds.set_title("mean level of all worlds, ten kinds, three seeds", fontsize="medium")
    by_kind.set_title("blind, seed 1: mean level of worlds not relevelled", fontsize="medium")
    for axis in (all_worlds, by_kind):
        axis.set_xlabel("control steps [M]")
        axis.set_ylim(0, 9)
        axis.legend(fontsize="small", loc="upper left")
    figure.savefig(PICTURE, metadata={"Date": None})


def millions(rows: dict) -> list[float]:
    """Control steps in millions."""
    return [steps / 1e6 for steps in rows["env_steps"]]


if __name__ == "__main__":
    draw()
