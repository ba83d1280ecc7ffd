"""The files that a run's configuration names; they must lie in the run."""

import filecmp
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from gpusim_rl.config.nested_dict import flatten, set_key
from gpusim_rl.config.sections import file_keys
from gpusim_rl.core.file_keys import FileKey
from gpusim_rl.core.files import Plain, digest, read_text
from gpusim_rl.core.paths import ASSETS, data_path
from gpusim_rl.robots.model_files import check_confined, is_copy

MAX_MODEL = 1 << 26  # bytes of an MJCF file


def find_files(folder: Path, cfg: Plain, builtin: bool = True) -> None:
    """Write the paths of the files that a run has into its configuration, in place.

    `builtin` tells that the task is one of ours: then a model is in the run or one of ours.
    ValueError for a file that lies elsewhere.
    """
    names = flatten(cfg)
    for file in file_keys(cfg):
        if (name := names.get(file.key)) is not None and file.how != "hash":
            find = partial(find_model, builtin=builtin) if file.is_model else find_in_run
            set_key(cfg, file.key, find(folder, file.key, name))


def find_in_run(folder: Path, key: str, name: str) -> str:
    """The path of a file in the run; ValueError for one that lies elsewhere."""
    if not isinstance(name, str):
        raise ValueError(f"{key}={name!r}: expected a path")
    if not (folder / name).resolve().is_relative_to(folder.resolve()):
        raise ValueError(f"{key}={name!r} lies outside of the run")
    return str(folder / name)


def find_model(folder: Path, key: str, name: str, builtin: bool) -> str:
    """The model of a run: the name of one of ours, or a file in the run.

    ValueError for a path out of the run, or a model that names files outside of it.
    """
    bare = name if isinstance(name, str) and Path(name).name == name and ":" not in name else None
    if bare is not None and not (folder / bare).exists():
        if builtin and not (ASSETS / bare).is_file():
            raise ValueError(f"{key}={name!r} lies outside of the run")
        return name
    model = find_in_run(folder, key, name)
    if ":" in f"{name}":
        raise ValueError(f"{key}={name!r} lies outside of the run")
    check_confined(read_text(Path(model), MAX_MODEL), Path(model).parent, model)
    return model


def is_kept_file(key: FileKey, cfg: Plain, before: Plain) -> bool:
    """Whether a key names the file of which the run has kept a copy."""
    names = [str(flatten(x)[key.key]) for x in (cfg, before)]
    file, copy = map(Path if key.is_model else data_path, names)
    if key.how != "copy" or not (file.is_file() and copy.is_file()):
        return False
    return is_copy(file, copy) if key.is_model else filecmp.cmp(file, copy, shallow=False)


def describe_files(files: Iterable[FileKey], cfg: Plain) -> dict[str, str]:
    """Key → how a run keeps its file, or of `hash` the SHA-256 of the file.

    A key that is null is left out. FileNotFoundError if there is no such file.
    """
    named = {file: flatten(cfg).get(file.key) for file in files}
    return {
        file.key: digest(check_file(file.key, name))["sha256"] if file.how == "hash" else file.how
        for file, name in named.items()
        if name is not None
    }


def check_file(key: str, name: object) -> Path:
    """The file that a key names; ValueError or FileNotFoundError if it names none."""
    if not isinstance(name, str):
        raise ValueError(f"{key}={name!r}: expected a path")
    if not Path(name).is_file():
        raise FileNotFoundError(f"{key}={name}: no such file")
    return Path(name)
