"""The files that a run's configuration names; they must lie in the run."""

from pathlib import Path

from gpusim_rl.config.nested_dict import flatten
from gpusim_rl.core.files import Plain, read_text
from gpusim_rl.core.paths import ASSETS
from gpusim_rl.robots.model_files import check_confined, is_copy

MAX_MODEL = 1 << 26  # bytes of an MJCF file


def find_files(folder: Path, section: str, values: Plain, builtin: bool = True) -> Plain:
    """The section `task` or `robot` of a run, with the paths of its files in the run.

    `builtin` tells that the task is one of ours: then a model is in the run or one of ours.
    ValueError for a file that lies elsewhere.
    """
    values = values | {"mjcf": find_model(folder, f"{section}.mjcf", values["mjcf"], builtin)}
    if (network := values.get("actuator", {}).get("file")) is None:
        return values
    network = find_in_run(folder, f"{section}.actuator.file", network)
    return values | {"actuator": values["actuator"] | {"file": network}}


def find_in_run(folder: Path, key: str, name: str | None) -> str | None:
    """The path of a file in the run, or None; ValueError for one that lies elsewhere."""
    if name is None:
        return name
    if not isinstance(name, str):
        raise ValueError(f"{key}={name!r}: expected a path")
    if not (folder / name).resolve().is_relative_to(folder.resolve()):
        raise ValueError(f"{key}={name!r} lies outside of the run")
    return str(folder / name)


def find_model(folder: Path, key: str, name: str | None, builtin: bool) -> str | None:
    """The model of a run: the name of one of ours, or a file in the run.

    ValueError for a path out of the run, or a model that names files outside of it.
    """
    bare = name if isinstance(name, str) and Path(name).name == name and ":" not in name else None
    if bare is not None and not (folder / bare).exists():
        if builtin and not (ASSETS / bare).is_file():
            raise ValueError(f"{key}={name!r} lies outside of the run")
        return name
    if (model := find_in_run(folder, key, name)) is None:
        return None
    if ":" in f"{name}":
        raise ValueError(f"{key}={name!r} lies outside of the run")
    check_confined(read_text(Path(model), MAX_MODEL), Path(model).parent, model)
    return model


def is_kept_file(group: str, rest: str, cfg: Plain, before: Plain) -> bool:
    """Whether a key names the file of which the run has kept a copy."""
    if rest not in ("mjcf", "actuator.file"):
        return False
    file, copy = (Path(str(flatten(x[group])[rest])) for x in (cfg, before))
    if not (file.is_file() and copy.is_file()):
        return False
    return is_copy(file, copy) if rest == "mjcf" else file.read_bytes() == copy.read_bytes()
