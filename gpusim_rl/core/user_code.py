"""Imports the Python files of the working directory: tasks and algorithms of the user's own."""

import importlib
import inspect
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType


def import_user_file(file: Path, folder: str) -> ModuleType:
    """The module of a file in a folder of the working directory, such as `tasks.family.hop`.

    A line on stderr tells the first import. ValueError in one line if the file cannot be imported.
    """
    root = Path.cwd() / folder
    parts = (folder, *file.relative_to(root).with_suffix("").parts)
    name = ".".join(parts)
    if not all(part.isidentifier() for part in parts):
        raise ValueError(f"{file} cannot be imported: a folder's name is no identifier")
    add_package(folder, root)
    # said once: whoever reads the log sees which code of a folder ran
    if name not in sys.modules:
        print(f"importing {file}", file=sys.stderr, flush=True)
    try:
        return importlib.import_module(name)
    except Exception as error:  # whatever the user's code raises
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == str(file)]
        where = f"{file}, line {lines[-1]}" if lines else str(file)
        raise ValueError(f"{where}: {type(error).__name__}: {error}") from error


def add_package(name: str, folder: Path) -> None:
    """Make a folder importable as a package without adding its parent to `sys.path`."""
    package = sys.modules.get(name)
    if package is None:
        package = sys.modules[name] = ModuleType(name)
        package.__path__ = [str(folder)]
    elif str(folder) not in map(str, getattr(package, "__path__", ())):
        raise ValueError(f"{folder} cannot be imported: another module is named {name!r}")


def find_class(module: ModuleType, what: str, fits: Callable[[type], bool]) -> type:
    """The class that a module defines and that fits; ValueError unless one of `what` does."""
    classes = [
        value
        for value in vars(module).values()
        if inspect.isclass(value) and value.__module__ == module.__name__ and fits(value)
    ]
    if len(classes) != 1:
        raise ValueError(f"{module.__file__} defines {len(classes)} {what}: expected one")
    return classes[0]
