"""Checks of what a task's methods return: an error names the method, the entry and the shape."""

import inspect
import linecache
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gpusim_rl.core.errors import reason
from gpusim_rl.core.record import ENDS
from gpusim_rl.core.rng import Rng
from gpusim_rl.envs import state as state_module
from gpusim_rl.envs.state import MOCAP, State
from gpusim_rl.envs.task import Task

PACKAGE = str(Path(__file__).parents[1])
# Methods of a state; a wrong number of the configuration is an error of none of them.
METHODS = (
    *("start", "next_start", "update", "control", "observe", "privileged", "views"),
    *("reward", "bonus", "terminated", "measure", "score", "followed"),
)
# What a view must not be called: columns of records and samples, and inputs of a network, of an
# exported file and of other trainers.
TAKEN = ("actor", "obs", "critic", "action", "logp", "mean", "std", "target", "end", "reward")
TAKEN += ("end_obs", *ENDS, "advantage", "value", "valid", "begins", "teacher", "policy")
TAKEN += ("command", "restart", "targets")
COLUMN = "a row for each world; x[:, None] makes a column of one number"
NUMBER = "one number for each world"


def check_tensor(where: str, x: object, shape: tuple[int | str, ...], meaning: str) -> None:
    """ValueError unless x is a tensor of a shape; a word in it stands for any number.

    where: method and entry, such as `Pointer.reward: the term 'near'`. meaning: of the shape.
    """
    parts = f"({', '.join(map(str, shape))}{',' * (len(shape) == 1)}): {meaning}"
    if not isinstance(x, Tensor):
        raise ValueError(f"{where} is a {type(x).__name__}, expected a tensor of shape {parts}")
    fits = len(x.shape) == len(shape) and all(
        isinstance(n, str) or n == m for n, m in zip(shape, x.shape, strict=True)
    )
    if not fits:
        raise ValueError(f"{where} has shape {tuple(x.shape)}, expected {parts}")


def check_term(
    where: str, x: object, shape: tuple[int | str, ...], meaning: str, agents: int
) -> None:
    """ValueError unless x is a tensor of a shape (n, …), or (n, A, …) of so many agents."""
    if agents > 1 and isinstance(x, Tensor) and x.ndim > len(shape):
        shape, meaning = (shape[0], agents, *shape[1:]), "of each agent of each world"
    check_tensor(where, x, shape, meaning)


def check_named(where: str, values: object) -> None:
    """ValueError unless a method returned a mapping of names."""
    if not isinstance(values, Mapping):
        raise ValueError(f"{where} returns a {type(values).__name__}, expected a dict by name")


def check_start(task: Task, start: Any, n: int, method: str = "start") -> None:
    """ValueError unless these are first states of n episodes, as `Task.start` describes them."""
    where = f"{type(task).__name__}.{method}"
    check_named(where, start)
    for name, width in (("qpos", task.mjm.nq), ("qvel", task.mjm.nv)):
        if name not in start:
            raise ValueError(f"{where} lacks {name!r}, expected a tensor of shape ({n}, {width})")
        meaning = f"the model's {name} for each episode"
        check_tensor(f"{where}: {name!r}", start[name], (n, width), meaning)
    for name in MOCAP.keys() & start.keys():
        shape = (n, task.mjm.nmocap, MOCAP[name])
        check_tensor(f"{where}: {name!r}", start[name], shape, "of each mocap body of the model")
    for name, x in start.items():
        if not isinstance(x, Tensor) or x.ndim == 0 or len(x) != n:
            shape = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
            raise ValueError(f"{where}: {name!r} has shape {shape}, expected {n} rows: ({n}, …)")


def check_outputs(task: Task, s: State, rng: Rng) -> None:
    """Call each method of a task for a state of B worlds, and check what it returns.

    ValueError if a shape or a name is wrong. The line names method, entry and shape.
    """
    kind, n = type(task).__name__, len(s.time)
    controls = task.control(s)
    meaning = f"a number for each actuator; an action has {task.action_width} (action_width)"
    check_tensor(f"{kind}.control", controls, (n, task.mjm.nu), meaning)
    observed = dict[str, Any]()
    for method in ("observe", "privileged"):
        terms = getattr(task, method)(s)
        check_named(f"{kind}.{method}", terms)
        if both := [name for name in terms if name in observed]:
            raise ValueError(f"{kind}: observe and privileged both have a term {both[0]!r}")
        observed |= terms
        for name, x in terms.items():
            check_term(f"{kind}.{method}: the term {name!r}", x, (n, "k"), COLUMN, task.agents)
    check_named(f"{kind}.views", views := task.views(s))
    rows = (n, *task.action_shape[:-1])
    for name, x in views.items():
        where = f"{kind}.views: {name!r}"
        if not name.isidentifier():
            raise ValueError(f"{where} is no identifier: choose another name")
        if name in TAKEN or name in task.measured:
            raise ValueError(f"{where} is the name of a column or reading: choose another")
        if not isinstance(x, Tensor) or x.ndim == len(rows) or x.shape[: len(rows)] != rows:
            shape = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
            expected = f"({', '.join(map(str, rows))}, …)"
            raise ValueError(f"{where} has shape {shape}, expected {n} rows: {expected}")
    for method in ("reward", "bonus", "measure"):
        values = getattr(task, method)(s)
        what, agents = ("the measure", 1) if method == "measure" else ("the term", task.agents)
        check_named(f"{kind}.{method}", values)
        for name, x in values.items():
            check_term(f"{kind}.{method}: {what} {name!r}", x, (n,), NUMBER, agents)
    ended = task.terminated(s)
    check_tensor(f"{kind}.terminated", ended, (n,), "true or false for each world")
    if ended.dtype != torch.bool:
        word = str(ended.dtype).removeprefix("torch.")
        raise ValueError(f"{kind}.terminated gives {word}, expected bool: compare, as in x < 0.1")
    check_update(task, s, task.update(s, rng))


def check_scores(task: Task, scores: Any) -> None:
    """ValueError unless these are scores, as `Task.score` describes them."""
    where = f"{type(task).__name__}.score"
    check_named(where, scores)
    if "success" not in scores:
        raise ValueError(f"{where} lacks 'success', expected a number from 0 to 1")
    for name, x in scores.items():
        if x is not None and not isinstance(x, int | float):
            kind = type(x).__name__
            raise ValueError(f"{where}: {name!r} is a {kind}, expected a number: .item()")
    if scores["success"] is not None and not 0 <= scores["success"] <= 1:
        raise ValueError(f"{where}: 'success' is {scores['success']:g}, expected from 0 to 1")


def check_update(task: Task, s: State, values: Any) -> None:
    """ValueError unless these values fit the memory, as `Task.update` describes them."""
    where, n = f"{type(task).__name__}.update", len(s.time)
    check_named(where, values)
    memory = task.start(n, Rng(0, torch.arange(n, device=s.time.device)))
    for name, x in values.items():
        if name == "kick":
            check_tensor(f"{where}: 'kick'", x, (n, task.mjm.nv), "added to qvel")
        elif name not in memory:
            names = ", ".join(x for x in memory if x not in ("qpos", "qvel")) or "none"
            raise ValueError(
                f"{where}: {name!r} is no entry of the memory ({names}): `start` gives it its "
                "first value"
            )
        else:
            check_tensor(f"{where}: {name!r}", x, tuple(memory[name].shape), "as in `start`")


@contextmanager
def methods_named() -> Iterator[None]:
    """Turn an error in a task's own code into a ValueError of one line.

    The line has the method, the file, the line of source and what Python or torch said. Errors that
    say all of this themselves pass.
    """
    try:
        yield
    except Exception as error:
        line = place_of(error)
        if line is None:
            raise
        raise ValueError(f"{line}: {reason(error)}") from error


def place_of(error: Exception) -> str | None:
    """Method, file and line of a task's code in which an error arose.

    None if it is not of a task's code, or is a mistake in the configuration, which the task found.
    """
    frames = [*traceback.walk_tb(error.__traceback__)]
    tasks = [(x, x.f_locals.get("self")) for x, _ in frames]
    tasks = [(x, task) for x, task in tasks if isinstance(task, Task)]
    if not tasks:
        return None
    kind = type(tasks[0][1])
    files = {inspect.getfile(x) for x in kind.__mro__ if issubclass(x, Task) and x is not Task}
    inside = [(x, line) for x, line in frames if x.f_code.co_filename in files]
    names = [x.f_code.co_name for x, _ in tasks if x.f_code.co_name in METHODS]
    if not inside:
        return None
    last = frames[-1][0].f_code.co_filename
    if isinstance(error, ValueError | OSError):
        ours = last.startswith(PACKAGE) and last not in (*files, state_module.__file__)
        if ours or not names:
            return None
    frame, line = inside[-1]
    file = frame.f_code.co_filename
    name = names[0] if names else inside[0][0].f_code.co_name
    source = linecache.getline(file, line).strip()
    return f"{kind.__name__}.{name}: {Path(file).name}:{line}: {source}"
