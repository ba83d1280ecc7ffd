"""Chromium opens the page of play.py mode=web for runs or files of any task.

    python -m tests.acceptance.web_tasks out runs/reach/A runs/drone/B/policy.onnx

It moves each slider of the command to both ends, looks whether the plots are drawn anew, and fails
at an error in the browser's console or a line of the server's. A screenshot of each run is written
to the folder out/: look at them. Each takes about half a minute, and ten seconds a slider.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from tests.acceptance.web_page import shot
from tests.browser import WebPage, WebServer, chromium


def labels(page: WebPage) -> list[str]:
    """Labels of the sliders of the command, which stand between `tour` and `state`."""
    names = page.page.evaluate("[...document.querySelectorAll('label')].map(x => x.textContent)")
    return names[names.index("tour") + 1 : names.index("state")] if "tour" in names else []


def check_slider(page: WebPage, label: str) -> str:
    """A slider at each of its ends for two seconds moves the robot otherwise: by how much."""
    moved = []
    for end in ("Home", "End"):
        page.control(label).query_selector("[role=slider]").press(end)
        page.wait_until(page.time() + 0.2)
        before = np.array(page.base())
        page.wait_until(page.time() + 2)
        moved.append(np.array(page.base()) - before)
    return f"{label} {np.linalg.norm(moved[1] - moved[0]):.2f}"


def check(browser: Any, run: Path, cwd: Path, out: Path) -> str:
    """The page of a run: its sliders, its plots, and a screenshot."""
    name = "-".join(run.parts[-2:])
    with WebServer(f"{'run' if run.is_dir() else 'onnx'}={run}", cwd=cwd) as server:
        page = WebPage(browser, server.address)
        page.wait_until(4.0)
        rate, before = page.rate(), page.plots()
        said = [check_slider(page, label) for label in labels(page)]
        page.wait_until(page.time() + 1)
        after = page.plots()
        assert before and all(a != b for a, b in zip(before, after, strict=True)), "plots"
        page.click("pause")
        page.wait_for("state", "paused")
        page.page.close()
        shot(browser, server.address, out / f"{name}.png")
        assert page.errors == []
        code, ended = server.end()
        assert (code, ended.count("\n")) == (0, 1), ended
    sliders = f"sliders move it by {', '.join(said)}" if said else "no command"
    return f"{name}: {rate:.2f} × real time beside the browser, {len(before)} plots, {sliders}"


def main(out: Path, runs: list[Path]) -> None:
    """Check all runs, and print a line of each."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        cwd = Path(folder) / "here"
        cwd.mkdir()
        for run in runs:
            print(check(browser, run, cwd, out), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("runs", nargs="+", type=lambda word: Path(word).resolve())
    main(**vars(parser.parse_args()))
