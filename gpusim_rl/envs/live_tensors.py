"""The tensors of an Env that change while it runs: of a state, of a checkpoint, of a curriculum."""

from typing import TYPE_CHECKING

from torch import Tensor

from gpusim_rl.core.states import Live, load_state, per_world, shared
from gpusim_rl.envs.readings import JOINTS

if TYPE_CHECKING:
    from gpusim_rl.envs.env import Env
    from gpusim_rl.envs.task import Task


def state_tensors(env: "Env") -> dict[str, Tensor]:
    """The live tensors whose values make up a `State`."""
    sim = env.sim
    live = {"qpos": sim.qpos, "qvel": sim.qvel, "ctrl": sim.ctrl, "sensordata": sim.sensordata}
    own = {"action": env.action, "previous": env.previous, "time": env.time}
    return live | own | env.memory


def task_memory(task: "Task", start: dict[str, Tensor]) -> dict[str, Tensor]:
    """The memory of a task, as its `start` returned it.

    Raises:
        ValueError: an entry has the name of something else that a `State` has.
    """
    memory = {name: x.clone() for name, x in start.items() if name not in ("qpos", "qvel")}
    own = {"ctrl", "sensordata", "action", "previous", "time", "kick", "force", *JOINTS}
    taken = memory.keys() & {*own, *task.sensor_columns, *task.randomization.memory(0)}
    if taken:
        where = f"{type(task).__name__}.start"
        raise ValueError(f"{where}: memory must not be called {taken.pop()!r}: a state has that")
    return memory


def scheduled_number(env: "Env", key: str) -> Tensor:
    """The live tensor that holds the number of a key `task.….`, for a curriculum to write to.

    A number of the task itself must have been asked of `Task.scheduled_number` before the Env was
    made.
    """
    part, _, name = key.removeprefix("task.").partition(".")
    if not name:
        return env.task.scheduled_numbers[part]
    if part == "randomise":
        field, _, which = name.rpartition(".")
        return env.task.randomization.scheduled_number(field, which)
    if part == "weights":
        return env.weights[env.terms.index(name)]
    return env.measurement.noise_amplitude(name)


def registry(env: "Env") -> dict[str, Live]:
    """Every live tensor that a continuation needs, by its name in a checkpoint."""
    statistics = env.statistics
    common = {"step_count": env.step_count, "success": env.success} | statistics.sums_by_name()
    worlds = {"time": env.time, "action": env.action, "previous": env.previous}
    worlds |= statistics.episodes_by_name() | env.observer.state()
    own = per_world("env/", worlds) | per_world("env/memory/", env.memory)
    return per_world("sim/", env.sim.tensors()) | own | shared("env/", common)


def load(env: "Env", state: dict[str, Tensor]) -> None:
    """Write a state, each process the rows of its own worlds. In place."""
    rows, live = env.group.rows, registry(env)
    # The Sim derives other values from its tensors.
    env.sim.load({name[4:]: rows(x) for name, x in state.items() if name.startswith("sim/")})
    own = {name: entry for name, entry in live.items() if not name.startswith("sim/")}
    load_state(own, state, env.group)
