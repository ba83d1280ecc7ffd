"""Finds an algorithm of the user's own by its name."""

from types import ModuleType

from gpusim_rl.core.paths import user_code
from gpusim_rl.core.user_code import find_class, import_user_file

# By its methods the class of a learner is known; a reward model has `add_reward` as well.
METHODS = ("update", "measures")


def load_algorithm(name: str) -> tuple[type, ModuleType]:
    """The learner's class and the module of `algorithms/**/<name>.py` in the working directory.

    The module may define more, such as a source of records. ValueError if it cannot be used.
    """
    file = user_code("algo", name)
    if file is None:
        raise ValueError(f"algo={name}: algorithms/ of the working directory has no {name}.py")
    module = import_user_file(file, "algorithms")
    what = "classes with the methods update and measures"
    return find_class(module, what, is_learner), module


def is_learner(kind: type) -> bool:
    """Whether a class is that of a learner."""
    return all(hasattr(kind, x) for x in METHODS) and not hasattr(kind, "add_reward")
