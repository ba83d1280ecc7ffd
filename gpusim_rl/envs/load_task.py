"""Finds the class of a task by the name of the task."""

import importlib

from gpusim_rl.core.paths import PACKAGE, TASKS, find_code, user_code
from gpusim_rl.core.user_code import find_class, import_user_file
from gpusim_rl.envs.task import Task


def load_task(name: str, code: str | None = None) -> type:
    """The class of a task; ValueError if it has no file, or its file cannot be used.

    Args:
        name: of the task; its file is <name>.py at any depth of `tasks/`.
        code: "here" prefers the folder `tasks` of the working directory, None takes only ours.
    """
    users = user_code("task", name) if code == "here" else None
    file = users or find_code("task", name, TASKS)
    if file is None:
        raise ValueError(f"task={name}: there is no file {name}.py in {TASKS}")
    # ours is `gpusim_rl.tasks.…`, the user's `tasks.…`: each file has one name, and one class
    if file.is_relative_to(TASKS):
        path = file.relative_to(PACKAGE.parent).with_suffix("")
        module = importlib.import_module(".".join(path.parts))
    else:
        module = import_user_file(file, "tasks")
    return find_class(module, "subclasses of Task", lambda kind: issubclass(kind, Task))
