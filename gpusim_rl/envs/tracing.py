"""Inputs that a task's methods read, and which of them a robot can measure."""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gpusim_rl.core.dependencies import NOTHING, Result, dependencies
from gpusim_rl.envs.readings import JOINTS
from gpusim_rl.envs.state import MOCAP, State
from gpusim_rl.envs.task import Task

WORLDS = 2  # that a method is run on
RNG = "random numbers"  # the input that they depend on
HIDDEN = "which no robot measures: only `privileged` may read it"
SECRET = "which is drawn at random, and no robot knows it: only `privileged` may read it"
ACTIONS = ("action", "previous", "time")  # memory that every Env keeps


class MidpointRng:
    """Stands in for `Rng`: each number is at the center of its range, and depends on one tensor.

    half: (B,) 0.5 everywhere; with other values the numbers are elsewhere in their ranges.
    """

    def __init__(self, half: Tensor):
        self.half = half

    def uniform(self, name: str, low: Tensor | float, high: Tensor | float) -> Tensor:
        """(B, *shape) the middle of [low, high)."""
        wide = low if isinstance(low, Tensor) else high
        rank = wide.ndim if isinstance(wide, Tensor) else 0
        return low + (high - low) * self.half.view(-1, *[1] * rank)

    def normal(self, name: str, width: int) -> Tensor:
        """(B, width) zeros."""
        return (self.half[:, None] - 0.5).expand(-1, width)

    def integers(self, name: str, high: int, width: int = 1) -> Tensor:
        """(B, width) int64, the middle of [0, high)."""
        return (high * self.half[:, None]).long().expand(-1, width)


def sample_inputs(task: Task) -> dict[str, Tensor]:
    """Everything that a task's methods can read, by name, for two worlds at the model's pose.

    Sensors are tensors of their own; `random numbers` (B,) is a `MidpointRng`'s. The entries of the
    memory are those of `task.start`, in the middle of what it draws.
    """
    m = task.mjm

    def rows(values: Any) -> Tensor:
        return task.tensor(values).expand(WORLDS, -1).clone()

    inputs = {
        name: task.tensor([[0.0]]).expand(WORLDS, c.stop - c.start).clone()
        for name, c in task.sensor_columns.items()
    }
    inputs |= {"qpos": rows(m.qpos0), "qvel": rows([0.0] * m.nv)}
    inputs |= {name: rows([0.0] * m.nu) for name in (*JOINTS, "ctrl")}
    if m.nmocap:
        bodies = np.flatnonzero(m.body_mocapid >= 0)
        for name, values in zip(MOCAP, (m.body_pos, m.body_quat), strict=True):
            inputs[name] = task.tensor(values[bodies]).expand(WORLDS, -1, -1).clone()
    blank = torch.zeros(WORLDS, *task.action_shape, device=task.device)
    inputs |= {name: blank.clone() for name in ("action", "previous")}
    inputs["time"] = torch.ones(WORLDS, dtype=torch.int64, device=task.device)
    half = torch.full((WORLDS,), 0.5, device=task.device)
    inputs |= first_memory(task, half)
    s = State(inputs, task.sensor_columns)
    inputs |= {name: compute(s).clone() for name, compute in task.derived.items()}
    return inputs | {RNG: half}


def first_memory(task: Task, half: Tensor) -> dict[str, Tensor]:
    """The task's memory (B, …) at the start of an episode, for half (B,) as in `MidpointRng`."""
    start = task.begin(len(half), MidpointRng(half))  # pyright: ignore[reportArgumentType]
    return {name: x.clone() for name, x in start.items() if name not in ("qpos", "qvel", *MOCAP)}


class RobotInputs(NamedTuple):
    """Readings, memory and command that a program on the robot needs."""

    readings: tuple[str, ...]  # of `measured`, in its order
    memory: tuple[str, ...]  # `action`, `previous`, `time` if used, then entries of `start`
    command: bool
    filters: tuple[str, ...] = ()  # of the memory, what `update` makes of readings or the command


def needs(task: Task) -> RobotInputs:
    """Inputs of the actor's observation and of `control` on a robot, from one trace of the task.

    On a robot `update` and `control` see the readings as they were delivered, like `observe`.

    Raises:
        ValueError: a term, `control`, or memory that one of them reads, depends on what no robot
            measures or knows: the base's position, a velocimeter, a random number. The line names
            the term. Or a method branches on a tensor.
    """
    if task.traced is not None:
        return task.traced
    where, inputs = type(task).__name__, sample_inputs(task)
    drawn = dependencies(f"{where}.start", lambda x: first_memory(task, x[RNG]), {RNG: inputs[RNG]})
    updated, measured, used = reads(task, "update", inputs), task.measured, set[str]()
    terms = reads(task, "observe", inputs)
    # a term with a history of 0 is the critic's alone
    readers = [(f"the term {x!r}", terms[x]) for x in terms if task.history.get(x, 1)]
    # `control` makes s.previous of the action before, and s.action of this step's
    acts = reads(task, "control", inputs)[""] - {"action"}
    readers.append(("control", frozenset("action" if x == "previous" else x for x in acts)))
    for reader, names in readers:  # which grows by the memory that is read
        for name in sorted(names - used):
            used.add(name)
            sources, wrong = NOTHING, ""
            if name == "previous":
                sources = frozenset({"action"})
            elif name in drawn and name != "command":
                sources = updated.get(name, NOTHING)
                wrong = SECRET if RNG in sources or (name not in updated and drawn[name]) else ""
            elif name not in (*measured, *ACTIONS, "command"):
                wrong = HIDDEN
            if wrong:
                raise ValueError(f"{where}: {reader} reads {name!r}, {wrong}")
            readers.append((f"the memory {name!r}", sources))
    memory = tuple(x for x in (*ACTIONS, *drawn) if x in used and x != "command")
    task.traced = RobotInputs(
        readings=tuple(name for name in measured if name in used),
        memory=memory,
        command="command" in used,
        filters=tuple(x for x in memory if updated.get(x, NOTHING) & {*measured, "command"}),
    )
    return task.traced


def reads(
    task: Task, method: str, inputs: dict[str, Tensor], refused: str = ""
) -> dict[str, frozenset[str]]:
    """Which inputs each output of a method depends on; see `dependencies`.

    The method is given a `State` of what `sample_inputs` returns, and `update` a `MidpointRng` as
    well. refused: an operator that must not be used.
    """

    def function(x: dict[str, Tensor]) -> Result:
        further = (MidpointRng(x[RNG]),) if method == "update" else ()
        return getattr(task, method)(State(x, task.sensor_columns), *further)

    return dependencies(f"{type(task).__name__}.{method}", function, inputs, refused)
