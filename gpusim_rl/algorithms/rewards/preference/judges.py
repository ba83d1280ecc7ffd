"""Programs that answer instead of people, from `judges/` of the working directory."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from gpusim_rl.core.user_code import import_user_file
from gpusim_rl.runs.labels import LONGEST_NAME, Pair

FOLDER = "judges"
Judge = Callable[[dict[str, Any], dict[str, Any]], Any]
Clip = dict[str, Any]  # name of a term → (T, width) numbers; `pose` (T, nq) and `dt` [s]


def load_judge(name: str) -> Judge:
    """The function of FILE:FUNCTION; ValueError if there is none."""
    if len(name) > LONGEST_NAME:
        raise ValueError(f"reward.judge={name}: expected at most {LONGEST_NAME} characters")
    file, _, function = name.partition(":")
    path = Path.cwd() / FOLDER / f"{file}.py"
    if not path.is_file():
        raise ValueError(f"reward.judge={name}: no file {file}.py in {FOLDER}/ of this directory")
    found: Any = getattr(import_user_file(path, FOLDER), function, None)
    if not callable(found):
        raise ValueError(f"reward.judge={name}: {path} has no function {function}")
    return found


def named_terms(pair: Pair) -> list[Clip]:
    """The two clips of a pair as a judge sees them."""
    widths: dict[str, int] = json.loads(pair.about["terms"])
    ends = np.cumsum([*widths.values()])[:-1]
    clips: list[Clip] = []
    for view, pose in zip(pair.view.numpy(), pair.pose.numpy(), strict=True):
        terms = dict(zip(widths, np.split(view, ends, axis=1), strict=True))
        clips.append(terms | {"pose": pose, "dt": float(pair.about["dt"])})
    return clips
