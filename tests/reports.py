"""Runs for the tests of reports, written without a training; and pages as a browser shows them."""

import copy
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from gpusim_rl.algorithms import iteration
from gpusim_rl.algorithms.ppo.ppo import PPO
from gpusim_rl.config.compose import compose_plain
from gpusim_rl.config.nested_dict import set_key
from gpusim_rl.core.metrics import described
from gpusim_rl.envs import statistics
from gpusim_rl.training import loop

METRICS = (*loop.METRICS, *statistics.METRICS, *iteration.METRICS, *PPO.metrics)  # of a training
EVIL = "<script>alert('x')</script>\"><img src=x onerror=alert(1)>$\\frac{"


@cache
def cartpole() -> dict[str, Any]:
    """The configuration of task=cartpole with 100 iterations, to be copied."""
    return compose_plain("config", ["task=cartpole", "iterations=100"])


def make_run(path: Path, *words: str, rows: int = 12, **files: Any) -> Path:
    """A run directory of task=cartpole with these words.

    Args:
        rows: of metrics, the last one with success.
        files: content of eval, report, versions and metrics as JSON; `evil` puts hostile words
            everywhere.
    """
    config = copy.deepcopy(cartpole())
    for key, value in (word.split("=") for word in words):
        set_key(config, key, yaml.safe_load(value))
    evil = files.pop("evil", "")
    files = {"metrics": described(METRICS)} | files
    path.mkdir(parents=True)
    names = ("return", "length", "reward/up", "measure/x", "policy_loss", "steps_per_s")
    lines = []
    for i in range(1, rows + 1):
        row = {"iteration": i, "env_steps": 100 * i, "terminated": 0.5, "share/physics": 0.4}
        row |= {f"{name}{evil}": i * (config["seed"] + 1) for name in names}
        lines.append(json.dumps(row | ({"success": 0.75} if i == rows else {})))
    (path / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
    if evil:
        config["task"] |= {"name": evil, evil: evil}
        files["versions"] = {evil: evil, "diff": evil}
        files["report"] = {"why": [evil], "term": evil, "terms": {evil: evil}, "iteration": 99}
    (path / "config.yaml").write_text(yaml.safe_dump(config))
    for name, value in files.items():
        (path / f"{name}.json").write_text(json.dumps(value))
    return path


def opened(browser: Any, path: Path) -> tuple[list[bool], list[str]]:
    """(whether each picture is drawn, what a page must not do) of a file, in a browser.

    The latter are its addresses that are neither file: nor data:, and its dialogs.
    """
    page, wrong = browser.new_page(), list[str]()

    def look(request: Any) -> None:
        if not request.url.startswith(("file:", "data:")):
            wrong.append(request.url)

    def close(dialog: Any) -> None:
        wrong.append(f"{dialog.type}: {dialog.message}")
        dialog.dismiss()

    page.on("request", look)
    page.on("dialog", close)
    page.goto(path.resolve().as_uri())
    return page.evaluate("[...document.images].map(x => x.naturalWidth > 0)"), wrong


def words_of(page: str) -> str:
    """The text of a page, without pictures."""
    return re.sub(r"data:[^\"']*", "", page)
