"""The tensors of an Env that change while it runs: of a state, of a checkpoint, of a curriculum."""

from typing import TYPE_CHECKING

from torch import Tensor

from gpusim_rl.core.states import Layout, copies, layout

if TYPE_CHECKING:
    from gpusim_rl.envs.env import Env


def state_tensors(env: "Env") -> dict[str, Tensor]:
    """The live tensors whose values make up a `State`."""
    sim = env.sim
    live = {"qpos": sim.qpos, "qvel": sim.qvel, "ctrl": sim.ctrl, "sensordata": sim.sensordata}
    own = {"action": env.action, "previous": env.previous, "time": env.time}
    return live | own | env.memory


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
    return env.observer.noise_amplitude(name)


def shared_tensors(env: "Env") -> dict[str, Tensor]:
    """The live tensors that all worlds, on every rank, have in common."""
    own = {"step_count": env.step_count, "success": env.success}
    return {f"env/{name}": x for name, x in (own | env.statistics.sums_by_name()).items()}


def world_tensors(env: "Env") -> dict[str, Tensor]:
    """The live tensors with a row for each world, except those of the Sim."""
    own = {"time": env.time, "action": env.action, "previous": env.previous}
    own |= {f"memory/{name}": x for name, x in env.memory.items()}
    own |= env.statistics.episodes_by_name() | (env.history.state() if env.history else {})
    return {f"env/{name}": x for name, x in own.items()}


def sim_tensors(env: "Env") -> dict[str, Tensor]:
    """The live tensors of the Sim, with a row for each world."""
    return {f"sim/{name}": x for name, x in env.sim.tensors().items()}


def copy_state(env: "Env") -> dict[str, Tensor]:
    """Copies of all that changes, by name, with the worlds of all ranks."""
    state = {}
    for name, x in (sim_tensors(env) | world_tensors(env)).items():
        rows = env.group.all_gather(x)
        state[name] = rows.clone() if rows is x else rows
    return state | copies(shared_tensors(env))


def state_layout(env: "Env") -> Layout:
    """Shapes and types of what `copy_state` returns, without a copy."""
    size, worlds = env.group.size, layout(sim_tensors(env) | world_tensors(env))
    worlds = {name: ((size * shape[0], *shape[1:]), kind) for name, (shape, kind) in worlds.items()}
    return worlds | layout(shared_tensors(env))


def load_state(env: "Env", state: dict[str, Tensor]) -> None:
    """Write what `copy_state` returned, each rank the rows of its own worlds. In place."""
    rows = env.group.rows
    env.sim.load({name[4:]: rows(x) for name, x in state.items() if name.startswith("sim/")})
    for name, target in world_tensors(env).items():
        target.copy_(rows(state[name]))
    for name, target in shared_tensors(env).items():
        target.copy_(state[name])
