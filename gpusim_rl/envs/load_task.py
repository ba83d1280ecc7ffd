"""Finds the class of a task by the name of the task."""

import importlib
import inspect
import sys
import traceback
from pathlib import Path
from types import ModuleType

from gpusim_rl.core.paths import PACKAGE, TASKS, find_task, user_task
from gpusim_rl.envs.task import Task


def load_task(name: str, code: str | None = None) -> type:
    """The class of a task; ValueError if it has no file, or its file cannot be used.

    Args:
        name: of the task; its file is <name>.py at any depth of `tasks/`.
        code: "here" prefers the folder `tasks` of the working directory, None takes only ours.
    """
    file = (user_task(name) if code == "here" else None) or find_task(name, TASKS)
    if file is None:
        raise ValueError(f"task={name}: there is no file {name}.py in {TASKS}")
    module = import_file(file)
    classes = [
        value
        for value in vars(module).values()
        if inspect.isclass(value)
        and issubclass(value, Task)
        and value.__module__ == module.__name__
    ]
    if len(classes) != 1:
        raise ValueError(f"{file} defines {len(classes)} subclasses of Task: expected one")
    return classes[0]


def import_file(file: Path) -> ModuleType:
    """The module of a task's file.

    Ours is named `gpusim_rl.tasks.…`, the user's `tasks.…`: each file has one name, and one class.
    """
    if file.is_relative_to(TASKS):
        name = ".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts)
        return importlib.import_module(name)
    root = Path.cwd() / "tasks"
    parts = ("tasks", *file.relative_to(root).with_suffix("").parts)
    name = ".".join(parts)
    if not all(part.isidentifier() for part in parts):
        raise ValueError(f"{file} cannot be imported: a folder's name is no identifier")
    add_package("tasks", root)
    if name not in sys.modules:
        print(f"importing {file}", file=sys.stderr, flush=True)
    try:
        return importlib.import_module(name)
    except Exception as error:  # whatever the user's code raises
        lines = [
            f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(file)
        ]
        where = f"{file}, line {lines[-1]}" if lines else str(file)
        raise ValueError(f"{where}: {type(error).__name__}: {error}") from error


def add_package(name: str, folder: Path) -> None:
    """Make a folder importable as a package without adding its parent to `sys.path`."""
    known = sys.modules.get(name)
    if known is None:
        known = sys.modules[name] = ModuleType(name)
        known.__path__ = [str(folder)]
    elif str(folder) not in map(str, getattr(known, "__path__", ())):
        raise ValueError(f"{folder} cannot be imported: another module is named {name!r}")
