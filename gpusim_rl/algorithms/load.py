"""Finds an algorithm of the user's own by its name."""

from types import ModuleType

from gpusim_rl.core.paths import user_code
from gpusim_rl.core.user_code import find_class, import_user_file

METHODS = ("update", "measures")  # by which the class of a learner is known


def load_algorithm(name: str) -> tuple[type, ModuleType]:
    """The learner's class and the module of `algorithms/**/<name>.py` in the working directory.

    The module may define more than the class, such as a source of records.
    ValueError in one line if there is no such file, or it cannot be used.
    """
    file = user_code("algo", name)
    if file is None:
        raise ValueError(f"algo={name}: algorithms/ of the working directory has no {name}.py")
    module = import_user_file(file, "algorithms")
    what = "classes with the methods update and measures"
    return find_class(module, what, lambda kind: all(hasattr(kind, x) for x in METHODS)), module
