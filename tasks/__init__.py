"""One file per task."""

import importlib
import inspect


def load(name: str) -> type:
    """The Task subclass of tasks/<name>.py."""
    module = importlib.import_module(f"tasks.{name}")
    (found,) = (c for _, c in inspect.getmembers(module, inspect.isclass) if c.__module__ == module.__name__)
    return found
