"""The files that a run's configuration names; they must lie in the run."""

from pathlib import Path
from typing import Any

from gpusim_rl.core.files import read_text
from gpusim_rl.core.paths import ASSETS
from gpusim_rl.robots.model_files import check_confined

MAX_MODEL = 1 << 26  # bytes of an MJCF file


def find_files(
    folder: Path, section: str, values: dict[str, Any], ours: bool = True
) -> dict[str, Any]:
    """The section `task` or `robot` of a run, with the paths of its files in the run.

    `ours` tells that the task is one of ours: then a model is in the run or one of ours.
    ValueError for a file that lies elsewhere.
    """
    values = values | {"mjcf": find_model(folder, f"{section}.mjcf", values["mjcf"], ours)}
    network = values.get("actuator", {}).get("file")
    if network is None:
        return values
    if not (folder / network).resolve().is_relative_to(folder.resolve()):
        raise ValueError(f"{section}.actuator.file={network!r} lies outside of the run")
    return values | {"actuator": values["actuator"] | {"file": str(folder / network)}}


def find_model(folder: Path, key: str, name: str | None, ours: bool) -> str | None:
    """The model of a run: the name of one of ours, or a file in the run.

    ValueError for a path out of the run, or a model that names files outside of it.
    """
    if name is None:
        return name
    bare = Path(name).name == name and ":" not in name
    if bare and not (folder / name).exists():
        if ours and not (ASSETS / name).is_file():
            raise ValueError(f"{key}={name!r} lies outside of the run")
        return name
    if not (folder / name).resolve().is_relative_to(folder.resolve()) or ":" in name:
        raise ValueError(f"{key}={name!r} lies outside of the run")
    model = folder / name
    check_confined(read_text(model, MAX_MODEL), model.parent, str(model))
    return str(model)
